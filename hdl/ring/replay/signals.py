"""SIGNALs: each node's counts of commands done, made known to all nodes of a ring."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.ring.replay.control_word import ControlType, signal_layout
from hdl.streams.stream import Queue

__all__ = ["SOURCES", "SignalRelay"]

#: Nodes of a ring that can have counts.
SOURCES = 16


class SignalRelay(wiring.Component):
    """Hand on the SIGNALs of other nodes, take off the own ones, and keep what they say.

    A node's counts go once round the ring in SIGNALs, which it takes off itself, and it sends the next one only then:
    so there are never more than :data:`SOURCES` on a ring, and the queue of as many in each node is never full. A
    SIGNAL waits for no data, and nothing can wait for it in a circle. The latest counts are sent, not each one: a
    queue whose count has changed since it was sent has its turn after the others.

    A SIGNAL leaves at ``o`` :attr:`latency` cycles after it has come at ``i``, if none is before it. ``o`` is
    registers; ``i.ready`` depends on registers alone. Words that are not SIGNALs, or not such as a node of the ring
    sends, are taken and dropped.

    Parameters
    ----------
    queues : int
        Queues of commands; 1 to 4.

    Members
    -------
    i : In(stream of unsigned(32))
        Control words of the predecessor.
    o : Out(stream of unsigned(32))
        Control words to the successor.
    rank : In(4)
        This node; changes only while ``reset_link`` is held.
    done : In(array of queues counts)
        Commands done in each queue of this node, modulo 65,536.
    of_node, of_queue : In
        Count to read.
    count : Out(16)
        Last count of that queue of that node that has come, a cycle after both; 0 before there was one.
    known : Out(1)
        With ``count``: there was one.
    reset_link : In(1)
        Level: forget everything.
    """

    latency = 2

    def __init__(self, *, queues):
        if not isinstance(queues, int) or not 1 <= queues <= 4:
            raise ValueError(f"Queue count must be an integer from 1 to 4, not {queues!r}")
        self._queues = queues
        super().__init__({
            "i": In(stream.Signature(unsigned(32))),
            "o": Out(stream.Signature(unsigned(32))),
            "rank": In(range(SOURCES)),
            "done": In(data.ArrayLayout(16, queues)),
            "of_node": In(range(SOURCES)),
            "of_queue": In(2),
            "count": Out(16),
            "known": Out(1),
            "reset_link": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        rows = SOURCES * self._queues
        m.submodules.table = table = Memory(shape=16, depth=rows, init=[])
        write, read = table.write_port(), table.read_port(domain="comb")
        m.submodules.passing = passing = Queue(shape=unsigned(32), depth=SOURCES + 1)
        known = Signal(rows)
        came = data.View(signal_layout(), self.i.payload)
        place = came.source[:4] * self._queues + came.queue
        fits, own = Signal(), Signal()

        # Words that come.
        m.d.comb += [
            fits.eq((came.type == ControlType.SIGNAL) & (came.source < SOURCES) & (came.queue < self._queues)
                    & (came.reserved == 0)),
            own.eq(came.source == self.rank),
            passing.i.valid.eq(self.i.valid & fits & ~own),
            passing.i.payload.eq(self.i.payload),
            self.i.ready.eq(passing.i.ready),
            write.addr.eq(place),
            write.data.eq(came.done),
            write.en.eq(passing.i.valid & passing.i.ready),
        ]
        with m.If(write.en):
            m.d.sync += known.bit_select(place, 1).eq(1)

        # What has changed here, and is not yet on its way.
        away = Signal()  # an own SIGNAL goes round
        turn = Signal(range(self._queues))
        sent = Signal(data.ArrayLayout(16, self._queues))
        mine = Signal(signal_layout())
        m.d.comb += [
            mine.type.eq(ControlType.SIGNAL),
            mine.source.eq(self.rank),
            mine.queue.eq(turn),
            mine.done.eq(self.done[turn]),
        ]
        with m.If(self.i.valid & self.i.ready & fits & own):
            m.d.sync += away.eq(0)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.comb += passing.o.ready.eq(1)
            m.d.sync += [self.o.valid.eq(passing.o.valid), self.o.payload.eq(passing.o.payload)]
            with m.If(~away):
                # One queue after the other; the own word goes first, at most once in a lap.
                m.d.sync += turn.eq(Mux(turn == self._queues - 1, 0, turn + 1))
                with m.If(self.done[turn] != sent[turn]):
                    m.d.comb += passing.o.ready.eq(0)
                    m.d.sync += [
                        self.o.valid.eq(1), self.o.payload.eq(mine), away.eq(1), sent[turn].eq(self.done[turn]),
                    ]

        asked = Signal(range(rows))
        m.d.comb += [asked.eq(self.of_node * self._queues + self.of_queue), read.addr.eq(asked)]
        m.d.sync += [self.count.eq(read.data), self.known.eq(known.bit_select(asked, 1))]
        with m.If(~known.bit_select(asked, 1)):
            m.d.sync += self.count.eq(0)
        return ResetInserter(self.reset_link)(m)
