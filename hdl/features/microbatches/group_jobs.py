"""Jobs to read the groups of several vectors in turn, so that the vectors can be summed."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.microbatches.layout import ADDENDS
from hdl.group import GROUP
from hdl.memory import job_layout
from hdl.streams.stream import check_lanes

__all__ = ["GroupJobs"]


class GroupJobs(wiring.Component):
    """Divide a packet's job into a job for each group of each vector.

    The jobs of a group follow each other, one for each vector. The first vector is at the rows of the packet's job,
    and each further vector starts ``distance`` rows after the previous one.

    Latency is :attr:`latency` cycle from a packet's job to its first job; throughput is one job per cycle, with one
    cycle between packets. All outputs depend only on registers.

    Parameters
    ----------
    rows : int
        Number of rows of the memory.
    lanes : int
        Number of lanes of the memory: 1, 2, 4 or 8.
    elements : int
        Maximum number of elements in a packet.

    Members
    -------
    i : In(stream of job_layout(rows, elements))
        Job of a packet, which starts at a group boundary and has at least one element.
    addends : In(ADDENDS)
        Number of vectors, at least 1. It must be stable while jobs are in the unit, like the following inputs.
    distance : In(range(rows))
        Number of rows from a vector to the next one.
    pitch : In(range(groups of the memory))
        Number of groups from a group of a packet to the next one.
    o : Out(stream of job_layout(rows, 32))
    """

    latency = 1

    def __init__(self, *, rows, lanes, elements):
        check_lanes(lanes)
        self._lanes = lanes
        jobs, packets = (stream.Signature(job_layout(rows, count)) for count in (GROUP, elements))
        super().__init__({"i": In(packets), "addends": In(ADDENDS), "distance": In(range(rows)),
                          "pitch": In(range(rows * lanes // GROUP)), "o": Out(jobs)})

    def elaborate(self, platform):
        m = Module()
        row = Signal.like(self.i.payload.row)  # first row of the group in the first vector
        current = Signal.like(row)  # first row of the group in the vector of the offered job
        left = Signal.like(self.i.payload.count)  # remaining elements, including this group's
        addend = Signal(ADDENDS)
        following = Signal.like(row)
        inside = (GROUP // self._lanes).bit_length() - 1
        final = Signal()  # the offered job is the last one of its group
        m.d.comb += [
            self.i.ready.eq(~self.o.valid),
            self.o.payload.row.eq(current),
            self.o.payload.count.eq(Mux(left > GROUP, GROUP, left)),
            final.eq(addend == self.addends - 1),
            following.eq(Cat(row[:inside], row[inside:] + self.pitch)),
        ]
        with m.If(self.o.valid & self.o.ready):
            with m.If(~final):
                m.d.sync += [current.eq(current + self.distance), addend.eq(addend + 1)]
            with m.Else():
                m.d.sync += [current.eq(following), row.eq(following), addend.eq(0), left.eq(left - GROUP),
                             self.o.valid.eq(left > GROUP)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [current.eq(self.i.payload.row), row.eq(self.i.payload.row), left.eq(self.i.payload.count),
                         addend.eq(0), self.o.valid.eq(1)]
        return m
