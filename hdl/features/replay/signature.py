"""Wires of a link that repeats words."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ReplayLinkSignature"]


class ReplayLinkSignature(wiring.Signature):
    """Wires of one directed link with replay, as seen by the transmitter: 43 forward and 1 back.

    While ``valid`` is low, the other wires keep the last word.

    Members
    -------
    valid : Out(1)
        There is a word in this cycle.
    data : Out(32)
    last : Out(1)
        The word ends its packet.
    kind : Out(1)
        0: a word of a packet; 1: a control word, which may come between any two words of a packet.
    check : Out(8)
        CRC-8 of data, last and kind, exclusive-or the number of the word modulo 256.
    line : In(1)
        Endless messages of 30 bits: words received, credits, and requests to repeat.
    """

    def __init__(self):
        super().__init__({
            "valid": Out(1), "data": Out(32), "last": Out(1), "kind": Out(1), "check": Out(8), "line": In(1),
        })

    def __repr__(self):
        return "ReplayLinkSignature()"
