"""SIGNALs: each node's counts of commands done, made known to all nodes of a ring."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import RUN_BITS, place_layout
from hdl.features.replay.control_word import ControlType, signal_layout
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

    Counts belong to a run, by its number. A node tells the others that a run has begun, by the count of some queue,
    and with that the counts of all its queues in an earlier run are forgotten. Nothing is sent in a run of number 0,
    and by a node that is alone or has no place.

    A SIGNAL leaves at ``o`` :attr:`latency` cycles after it has come at ``i``, if none is before it. ``o`` is
    registers; ``i.ready`` depends on registers alone. Words that are not SIGNALs, or not such as a node of the ring
    sends, are taken and dropped; a node without a place takes the ring for one of :data:`SOURCES` nodes.

    Parameters
    ----------
    queues : int
        Queues of commands; 1 to 4.

    Members
    -------
    i : In(stream of unsigned(32))
        Control words of the predecessor. None is taken for :data:`SOURCES` cycles after a reset.
    o : Out(stream of unsigned(32))
        Control words to the successor.
    place : In(place_layout())
        This node. Its rank and the ring change only together with ``reset_link``, but for the first place.
    run : In(6)
        Number of the run that this node is at.
    done : In(array of queues counts)
        Commands done in each queue of this node in that run, modulo 65,536.
    of_node, of_queue : In
        Count to read.
    count : Out(16)
        Last count of that queue of that node that has come, a cycle after both; any value unless it is ``current``.
    current : Out(1)
        With ``count``: that node has begun the run that this node is at. The count is 0 if none has come.
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
            "place": In(place_layout()),
            "run": In(RUN_BITS),
            "done": In(data.ArrayLayout(16, queues)),
            "of_node": In(range(SOURCES)),
            "of_queue": In(2),
            "count": Out(16),
            "current": Out(1),
            "reset_link": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        counts = data.ArrayLayout(16, self._queues)
        row = data.StructLayout({"run": RUN_BITS, "done": counts})
        m.submodules.table = table = Memory(shape=row, depth=SOURCES, init=[])
        write = table.write_port()
        before, read = (table.read_port(domain="comb") for _ in range(2))
        m.submodules.passing = passing = Queue(shape=unsigned(32), depth=SOURCES + 1)
        came = data.View(signal_layout(), self.i.payload)
        size = self.place.size
        fits, own, taken = Signal(), Signal(), Signal()

        # After a reset the table is cleared, row by row; a row of run 0 says nothing.
        cleared = Signal(range(SOURCES + 1))
        ready = cleared[-1]
        with m.If(~ready):
            m.d.sync += cleared.eq(cleared + 1)

        # Words that come.
        m.d.comb += [
            fits.eq((came.type == ControlType.SIGNAL) & (came.queue < self._queues) & (came.run != 0)
                    & ((size == 0) | (came.source < size))),
            own.eq((came.source == self.place.rank) & (size != 0)),
            passing.i.valid.eq(self.i.valid & ready & fits & ~own),
            passing.i.payload.eq(self.i.payload),
            self.i.ready.eq(passing.i.ready & ready),
            taken.eq(self.i.valid & self.i.ready & fits),
            before.addr.eq(came.source),
            write.addr.eq(Mux(ready, came.source, cleared)),
            write.en.eq(~ready | (taken & ~own)),
            write.data.run.eq(Mux(ready, came.run, 0)),
        ]
        for queue in range(self._queues):
            kept = Mux(before.data.run == came.run, before.data.done[queue], 0)
            m.d.comb += write.data.done[queue].eq(Mux(came.queue == queue, came.done, kept))

        # What has changed here, and is not yet on its way.
        away = Signal()  # an own SIGNAL goes round
        turn = Signal(range(self._queues))
        sent = Signal(row)
        mine = Signal(signal_layout())
        changed, sends = Signal(), Signal()
        m.d.comb += [
            mine.type.eq(ControlType.SIGNAL),
            mine.source.eq(self.place.rank),
            mine.queue.eq(turn),
            mine.run.eq(self.run),
            mine.done.eq(self.done[turn]),
            changed.eq((self.run != sent.run) | (self.done[turn] != sent.done[turn])),
            sends.eq(~away & changed & (self.run != 0) & (size > 1) & ready),
        ]
        with m.If(taken & own):
            m.d.sync += away.eq(0)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.comb += passing.o.ready.eq(~sends)
            m.d.sync += [
                self.o.valid.eq(passing.o.valid | sends), self.o.payload.eq(Mux(sends, mine, passing.o.payload)),
            ]
            with m.If(~away):
                # One queue after the other; the own word goes first, at most once in a lap.
                m.d.sync += turn.eq(Mux(turn == self._queues - 1, 0, turn + 1))
            with m.If(sends):
                m.d.sync += [away.eq(1), sent.run.eq(self.run)]
                for queue in range(self._queues):
                    with m.If(turn == queue):
                        m.d.sync += sent.done[queue].eq(mine.done)
                    with m.Elif(self.run != sent.run):
                        m.d.sync += sent.done[queue].eq(0)

        found = Signal()
        m.d.comb += [read.addr.eq(self.of_node), found.eq(ready & (read.data.run == self.run) & (self.run != 0))]
        m.d.sync += [self.current.eq(found), self.count.eq(read.data.done[self.of_queue])]
        return ResetInserter(self.reset_link)(m)
