"""Wires of a link that retransmits words."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ReplayLinkSignature"]


class ReplayLinkSignature(wiring.Signature):
    """Wires of a directed link with replay, as seen by the transmitter: 43 forward and 1 back.

    While ``valid`` is low, the other wires hold the last word.

    Members
    -------
    valid : Out(1)
        High in a cycle with a word.
    data : Out(32)
    last : Out(1)
        Set for the last word of a packet.
    kind : Out(1)
        0 for a packet word, 1 for a control word, which may come between any two words of a packet.
    check : Out(8)
        CRC-8 of data, last and kind, XORed with the word's number modulo 256.
    line : In(1)
        Continuous 30-bit messages with the received words, credits, and requests to retransmit.
    """

    def __init__(self):
        super().__init__({
            "valid": Out(1), "data": Out(32), "last": Out(1), "kind": Out(1), "check": Out(8), "line": In(1),
        })

    def __repr__(self):
        return "ReplayLinkSignature()"
