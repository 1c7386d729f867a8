"""Exchange of SIGNALs, which distribute each node's counts of finished commands to all nodes of a ring."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import RUN_BITS, place_layout
from hdl.features.replay.control_word import ControlType, signal_layout
from hdl.streams.stream import Queue

__all__ = ["SOURCES", "SignalRelay"]

#: Maximum number of nodes in a ring if each node keeps the counts of all nodes.
SOURCES = 16


class SignalRelay(wiring.Component):
    """Forward other nodes' SIGNALs and store their counts, and remove the node's own SIGNALs.

    A node's counts travel around the ring once in SIGNALs, and the node itself removes each one before it sends the
    next. A ring thus never has more than :data:`SOURCES` SIGNALs, so the queue in each node, which has this
    capacity, is never full. A SIGNAL waits for no data, so circular waits are impossible. Only the latest counts
    are sent, not every change; if the counts of several queues have changed, they are sent one after another.

    Counts belong to a numbered run. A new run's first count of any queue informs the other nodes that the node has
    started this run; they then drop the counts of all its queues from an earlier run. Nothing is sent in run 0, by a
    single node, or by a node without a position.

    Latency from ``i`` to ``o`` is :attr:`latency` cycles if no other SIGNAL is waiting. ``o`` is registered, and
    ``i.ready`` depends only on registers. Words other than valid SIGNALs of nodes in the ring are accepted and
    dropped; a node without a position assumes a ring of :data:`SOURCES` nodes.

    Parameters
    ----------
    queues : int
        Number of command queues, 1 to 4.

    Members
    -------
    i : In(stream of unsigned(32))
        Control words from the predecessor. None is accepted for :data:`SOURCES` cycles after a reset.
    o : Out(stream of unsigned(32))
        Control words to the successor.
    place : In(place_layout())
        Position of this node. Its rank and ring change only together with ``reset_link``, except for the first
        position.
    run : In(6)
        Number of this node's run.
    done : In(array of queues counts)
        Number of commands completed in each queue of this node in that run, modulo 65,536.
    of_node, of_queue : In
        Node and queue of the count to read.
    count : Out(16)
        Latest received count of that queue, one cycle after both inputs; undefined unless ``current``.
    current : Out(1)
        Valid with ``count``: that node has started this node's run. The count is 0 if none has arrived.
    reset_link : In(1)
        Level: discard all state.
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

        # After a reset, the table is cleared row by row; rows with run 0 count as empty.
        cleared = Signal(range(SOURCES + 1))
        ready = cleared[-1]
        with m.If(~ready):
            m.d.sync += cleared.eq(cleared + 1)

        # Handle arriving words.
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

        # Local changes that have not been sent yet.
        away = Signal()  # a SIGNAL from this node is on the ring
        turn = Signal(range(self._queues))
        sent = Signal(row)
        outgoing = Signal(signal_layout())
        changed, sends = Signal(), Signal()
        m.d.comb += [
            outgoing.type.eq(ControlType.SIGNAL),
            outgoing.source.eq(self.place.rank),
            outgoing.queue.eq(turn),
            outgoing.run.eq(self.run),
            outgoing.done.eq(self.done[turn]),
            changed.eq((self.run != sent.run) | (self.done[turn] != sent.done[turn])),
            sends.eq(~away & changed & (self.run != 0) & (size > 1) & ready),
        ]
        with m.If(taken & own):
            m.d.sync += away.eq(0)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.comb += passing.o.ready.eq(~sends)
            m.d.sync += [
                self.o.valid.eq(passing.o.valid | sends), self.o.payload.eq(Mux(sends, outgoing, passing.o.payload)),
            ]
            with m.If(~away):
                # The counts of the queues are sent in rotation. The node's own SIGNALs have priority over forwarded
                # ones, but only one of them is on the ring at a time.
                m.d.sync += turn.eq(Mux(turn == self._queues - 1, 0, turn + 1))
            with m.If(sends):
                m.d.sync += [away.eq(1), sent.run.eq(self.run)]
                for queue in range(self._queues):
                    with m.If(turn == queue):
                        m.d.sync += sent.done[queue].eq(outgoing.done)
                    with m.Elif(self.run != sent.run):
                        m.d.sync += sent.done[queue].eq(0)

        is_current = Signal()
        m.d.comb += [read.addr.eq(self.of_node), is_current.eq(ready & (read.data.run == self.run) & (self.run != 0))]
        m.d.sync += [self.current.eq(is_current), self.count.eq(read.data.done[self.of_queue])]
        return ResetInserter(self.reset_link)(m)
