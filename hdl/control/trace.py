"""Trace of a node: when each command started and ended."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.program_layouts import check_queues
from hdl.memory import read_signature
from hdl.memory_map import TRACE_WORDS
from hdl.streams.stream import check_lanes

__all__ = ["Trace", "trace_record_layout"]


def trace_record_layout():
    """Start or ``end`` of a command, recorded in two words; the second is the time in cycles. ``version`` is the
    weight version that the command computes with, modulo 2^13."""
    return data.StructLayout({"tag": 16, "version": 13, "end": 1, "queue": 2, "time": 32})


class Trace(wiring.Component):
    """Record the time at which each command starts and ends.

    Records are written one after another to a circular memory of 256 records, and ``pointer`` counts them. Starts and
    ends of all queues may occur in the same cycle: they are written one per cycle, each with the time at which it
    occurred. Two starts (or two ends) in one queue must be more cycles apart than twice the number of queues, which
    is the number of kinds of records, and :attr:`tags` must be stable until then. This always holds, since queueing
    an event and loading a command take longer.

    Parameters
    ----------
    queues : int
        Number of queues, 1 to 3.
    lanes : int
        Number of words per row of the memory space: 1, 2, 4 or 8.

    Members
    -------
    started, ended : In(queues)
        A command of a queue starts, or ends, in this cycle.
    tags : In(array of 16 bits)
        Tag of the command, from the cycle after ``started`` on.
    versions : In(array of 13 bits)
        Version of the command's region of weights, with the same timing.
    node_time : Out(32)
        Cycles since reset.
    pointer : Out(32)
        Number of records since reset.
    read : In(read_signature(512 // lanes, lanes))
        Port for the host. A record that is written while its row is being read may be missing from the data.
    """

    def __init__(self, *, queues, lanes):
        check_queues(queues)
        check_lanes(lanes)
        self._queues = queues
        self._lanes = lanes
        super().__init__({
            "started": In(queues),
            "ended": In(queues),
            "tags": In(data.ArrayLayout(16, queues)),
            "versions": In(data.ArrayLayout(13, queues)),
            "node_time": Out(32),
            "pointer": Out(32),
            "read": In(read_signature(TRACE_WORDS // lanes, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        lanes = max(self._lanes, 2)
        m.submodules.memory = memory = Memory(
            shape=32 * lanes, depth=TRACE_WORDS // lanes, init=[], attrs={"no_rw_check": 1})
        write = memory.write_port(granularity=64)
        read = memory.read_port(transparent_for=())
        tag, version, end_of, queue_of = Signal(16), Signal(13), Signal(), Signal(2)
        age = Signal(range(2 * self._queues))  # number of cycles for which the record has waited
        recorded = Signal()

        m.d.sync += [self.node_time.eq(self.node_time + 1), self.pointer.eq(self.pointer + recorded)]
        # Waiting records may be written in any order, since all are written before the next one of their kind.
        free = Const(1)
        for queue in range(self._queues):
            for end, came in enumerate((self.started[queue], self.ended[queue])):
                due = Signal(name=f"due_{queue}_{end}")
                waited = Signal.like(age, name=f"waited_{queue}_{end}")
                served = Signal(name=f"served_{queue}_{end}")
                m.d.comb += served.eq(due & free)
                m.d.sync += [due.eq(came | (due & ~served)), waited.eq(Mux(came, 0, waited + 1))]
                with m.If(served):
                    m.d.comb += [
                        recorded.eq(1), age.eq(waited),
                        tag.eq(self.tags[queue]), version.eq(self.versions[queue]),
                        end_of.eq(end), queue_of.eq(queue),
                    ]
                free = free & ~due
        record = Cat(tag, version, end_of, queue_of, (self.node_time - age - 1)[:32])
        part = self.pointer[:(TRACE_WORDS // 2 - 1).bit_length()]
        shift = (lanes // 2 - 1).bit_length()
        m.d.sync += [
            write.addr.eq(part >> shift),
            write.data.eq(record.replicate(lanes // 2)),
            write.en.eq(Mux(recorded, 1 << part[:shift] if shift else 1, 0)),
        ]
        self._read(m, read)
        return m

    def _read(self, m, read):
        """Serve read accesses by the host like a :class:`~hdl.memory.LanedMemory`."""
        row, latched = self.read.row, Signal()
        fetched = Signal()
        words = read.data if self._lanes > 1 else read.data.word_select(latched, 32)
        m.d.comb += [
            self.read.ready.eq(1), read.en.eq(self.read.valid),
            read.addr.eq(row if self._lanes > 1 else row >> 1),
        ]
        m.d.sync += [
            latched.eq(row[0]), fetched.eq(self.read.valid), self.read.response.eq(fetched),
            self.read.elements.eq(words),
        ]
