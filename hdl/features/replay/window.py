"""Sequence numbers of a transmitter's words that are accepted, sent, to be retransmitted, and acknowledged."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["NUMBER_BITS", "Window"]

#: Width of a word's sequence number, in bits.
NUMBER_BITS = 10


class Window(wiring.Component):
    """Count words that are numbered modulo 1,024, and check the numbers that the receiver reports.

    The number in a message is plausible if it is between ``acknowledged`` and the highest number ever sent. It is not
    compared with ``send``, which decreases with each restart; otherwise, correct numbers above ``send`` would never
    be accepted. Words are released after two consecutive messages have reported their arrival.

    Parameters
    ----------
    rows : int
        Number of stored words; a power of two.
    window : int
        Maximum number of unacknowledged words: a power of two minus 1, from 3 to 255, and less than ``rows``.

    Members
    -------
    enters : In(1)
        A word is accepted; only with ``room``.
    room : Out(1)
    fetches : In(1)
        Word ``send`` is fetched; only with ``pending``.
    pending : Out(1)
        There is a word to send.
    send, write, highest, acknowledged : Out(10)
        Number of the next word to send, to accept, to send for the first time, and to be acknowledged, respectively.
    repeats : Out(1)
        Word ``send`` has been sent before.
    complete : In(1)
        A message with number ``expect`` has arrived. It takes effect in the next cycle if ``count`` is set then.
    expect : In(10)
    count : In(1)
    judged : Out(1)
        A message takes effect in this cycle.
    differs : Out(1)
        With ``judged``: the message's number differs from the previous one.
    demanded, goes_back : In(1)
        The next word to send is the one that the message expects, or the first unacknowledged word, respectively.
    flying : Out(1)
        High while sent words are unacknowledged.
    settled : Out(1)
        High while all accepted words have been acknowledged.
    """

    def __init__(self, *, rows, window):
        self._rows = rows
        self._window = window
        super().__init__({
            "enters": In(1), "room": Out(1), "fetches": In(1), "pending": Out(1),
            "send": Out(NUMBER_BITS), "write": Out(NUMBER_BITS), "repeats": Out(1),
            "complete": In(1), "expect": In(NUMBER_BITS), "count": In(1), "judged": Out(1), "differs": Out(1),
            "demanded": In(1), "goes_back": In(1), "flying": Out(1), "settled": Out(1),
            "acknowledged": Out(NUMBER_BITS), "highest": Out(NUMBER_BITS),
        })

    def elaborate(self, platform):
        m = Module()
        level, sent = Signal(NUMBER_BITS), Signal(NUMBER_BITS)
        open = Signal(init=1)  # the window had room for two words in the previous cycle
        possible, forward = Signal(), Signal()
        said, announced = Signal(NUMBER_BITS), Signal(NUMBER_BITS)  # numbers of this message and of the previous one

        def reaches(first, last):
            """Return whether ``last`` equals ``first`` or is less than 256 words ahead of it."""
            return (last - first)[8:NUMBER_BITS] == 0

        m.d.comb += [
            level.eq(self.write - self.acknowledged),
            sent.eq(self.highest - self.acknowledged),
            self.room.eq(~level[self._rows.bit_length() - 1]),
            self.repeats.eq(self.send != self.highest),
            self.pending.eq((self.send != self.write) & (self.repeats | open)),
            self.judged.eq(possible & self.count),
            self.differs.eq(said != announced),
            self.flying.eq(self.highest != self.acknowledged),
            self.settled.eq(self.write == self.acknowledged),
        ]
        m.d.sync += [
            open.eq(~sent[1:self._window.bit_length()].all()),
            self.write.eq(self.write + self.enters),
            self.send.eq(self.send + self.fetches),
            self.highest.eq(self.highest + (self.fetches & ~self.repeats)),
            possible.eq(self.complete & reaches(self.acknowledged, self.expect) & reaches(self.expect, self.highest)),
            said.eq(self.expect),
            forward.eq(reaches(announced, self.expect)),
        ]
        with m.If(self.judged):
            m.d.sync += announced.eq(said)
            with m.If(forward):
                m.d.sync += self.acknowledged.eq(announced)
        with m.If(self.demanded | self.goes_back):
            m.d.sync += self.send.eq(Mux(self.demanded, said, self.acknowledged))
        return m
