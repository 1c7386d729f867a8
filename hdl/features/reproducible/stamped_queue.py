"""Queue of packets that notices if a wrong address or count makes it read words of a different packet."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import Queue, word_layout

__all__ = ["STAMP", "StampedQueue"]

#: Width of a stamp in bits. Block memory is 36 bits wide, which leaves enough for a stamp next to a word.
STAMP = 3


class StampedQueue(wiring.Component):
    """Queue of packets in block memory. Each row is stamped with the number of its packet, modulo 8.

    If a flipped bit in an address or a count causes old rows to be read, their stamps are wrong. The first of these
    rows may pass, but no row after it is offered, and ``wrong`` is high until reset. A checksum does not detect
    this, since an old packet has a correct checksum.

    Latency and throughput are as in :class:`~hdl.streams.stream.Queue` with ``block``. ``wrong`` is a register,
    high from the cycle after the row was taken; ``o.valid`` and ``i.ready`` depend only on registers.

    Parameters
    ----------
    depth : int
        Capacity in words; at least 4.

    Members
    -------
    i : In(stream of word_layout())
    o : Out(stream of word_layout())
    wrong : Out(1)
    """

    i: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(word_layout()))
    wrong: Out(1)

    def __init__(self, *, depth):
        self._depth = depth
        super().__init__()

    def _queue(self, shape):
        """Return the queue of rows. Tests override this to inject faults."""
        return Queue(shape=shape, depth=self._depth, block=True)

    def elaborate(self, platform):
        m = Module()
        shape = data.StructLayout({"word": word_layout(), "stamp": STAMP})
        m.submodules.queue = queue = self._queue(shape)
        entering, leaving = Signal(STAMP), Signal(STAMP)
        m.d.comb += [
            queue.i.valid.eq(self.i.valid),
            queue.i.payload.word.eq(self.i.payload),
            queue.i.payload.stamp.eq(entering),
            self.i.ready.eq(queue.i.ready),
            self.o.valid.eq(queue.o.valid & ~self.wrong),
            self.o.payload.eq(queue.o.payload.word),
            queue.o.ready.eq(self.o.ready & ~self.wrong),
        ]
        with m.If(self.i.valid & self.i.ready & self.i.payload.last):
            m.d.sync += entering.eq(entering + 1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += self.wrong.eq(queue.o.payload.stamp != leaving)
            with m.If(self.o.payload.last):
                m.d.sync += leaving.eq(leaving + 1)
        return m
