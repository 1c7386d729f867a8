"""Writer of the row unit's results, one block of rows at a time."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import place_shape, write_layout
from hdl.features.compute.jobs import row_job_layout
from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_pass import STORES, Store
from hdl.features.compute.row_reader import block_members
from hdl.floating.format import FP32
from hdl.streams.stream import beat_layout

__all__ = ["RowWriter"]

_STEPS = range(max(map(len, STORES.values())) + 1)


class RowWriter(wiring.Component):
    """Write the results of a block of rows in order, one column block of a result at a time.

    Writes come from registers, at one per cycle except for an idle cycle before each result. Results and deviations
    are accepted one cycle before they are offered as writes; ``results.ready`` and ``deviations.ready`` depend
    combinationally on ``write.ready``. Results for invalid row numbers are accepted but not written.

    Parameters
    ----------
    lanes : int
    memory_rows : int
        Rows of the largest memory.
    rows, groups : int
        Number of rows per block, and of column blocks per row.
    owner_bits : int
        Bits of a buffer number; 0 without buffer tags.

    Members
    -------
    job, opens, started, last_group, starts
        As in :class:`~hdl.features.compute.row_reader.RowReader`.
    rows : In(range(rows + 1))
        Number of rows in the block; must be valid when its first result is offered.
    keep : In(lanes)
        Elements to keep in the last column block.
    results : In(stream of elements)
    deviations : In(stream of beat_layout(lanes))
    name : Out(range(rows))
        Row number within the block.
    named, right : In
        First memory row of the table row selected by ``name``, and whether that row exists.
    write : Out(stream of write_layout(memory_rows, lanes, owner_bits))
    finished : Out(1)
        The last result of the block is in the write register, or has left it.
    """

    def __init__(self, *, lanes, memory_rows, rows, groups, owner_bits=0):
        self._lanes, self._memory_rows, self._rows, self._groups = lanes, memory_rows, rows, groups
        self._owner_bits = owner_bits
        super().__init__({
            **block_members(row_job_layout(memory_rows, lanes, owner_bits), groups), "rows": In(range(rows + 1)),
            "keep": In(lanes),
            "results": In(stream.Signature(data.ArrayLayout(FP32.width, lanes))),
            "deviations": In(stream.Signature(beat_layout(lanes))),
            "name": Out(range(rows)), "named": In(range(memory_rows)), "right": In(1),
            "write": Out(stream.Signature(write_layout(memory_rows, lanes, owner_bits))),
            "finished": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        job = self.job
        operands = {
            Store.TARGET: (job.target, job.stride_target), Store.SECOND: (job.second, job.stride_second),
            Store.THIRD: (job.third, job.stride_third), Store.DEVIATION: (job.deviation, 1)}
        base = {store: Signal(range(self._memory_rows), name=f"base_{store.name.lower()}", reset_less=True)
                for store in operands}
        line, first, stride = (Signal(range(self._memory_rows), name=name, reset_less=True)
                               for name in ("line", "first", "stride"))
        following = Signal.like(line)
        step = Signal(_STEPS, reset_less=True)
        kind, store = Signal(Store), Signal(Store, reset_less=True)
        memory = Signal(place_shape(self._owner_bits), reset_less=True)
        row, group = Signal(range(self._rows)), Signal(range(self._groups))
        walks, free, available, take = Signal(), Signal(), Signal(), Signal()
        scattered, reciprocals, clears = Signal(), Signal(), Signal()
        last_row, last = Signal(), Signal()
        written = Signal(self.write.payload.shape(), reset_less=True)
        m.d.comb += [
            following.eq(line + stride), scattered.eq(store == Store.SCATTERED),
            reciprocals.eq(store == Store.DEVIATION), clears.eq(job.function == RowFunction.CLEAR),
            available.eq(Mux(reciprocals, self.deviations.valid, clears | self.results.valid)),
            free.eq(~self.write.valid | self.write.ready), take.eq(walks & free & available),
            self.results.ready.eq(walks & free & ~reciprocals & ~clears),
            self.deviations.ready.eq(walks & free & reciprocals),
            last_row.eq(Mux(reciprocals, self.deviations.p.last, row + 1 == self.rows)),
            last.eq(last_row & (reciprocals | (group == self.last_group))),
            self.name.eq(row), self.write.payload.eq(written),
        ]
        with m.If(free):
            m.d.sync += [
                self.write.valid.eq(take & (~scattered | self.right)), written.place.eq(memory),
                written.row.eq(Mux(scattered, self.named + group, line)),
                written.elements.eq(Mux(clears, 0, self.results.payload)),
                written.keep.eq(Mux(group == self.last_group, self.keep, ~0))]
            with m.If(reciprocals):
                m.d.sync += [written.elements.eq(self.deviations.p.elements), written.keep.eq(self.deviations.p.keep)]
        with m.Switch(job.function):
            for function, stores in STORES.items():
                with m.Case(function):
                    m.d.comb += kind.eq(Store.END)
                    with m.Switch(step):
                        for number, result in enumerate(stores):
                            with m.Case(number):
                                m.d.comb += kind.eq(result)
        with m.If(self.opens):
            m.d.sync += [base[result].eq(operand.row) for result, (operand, _) in operands.items()]

        with m.FSM():
            with m.State("Idle"):
                with m.If(self.starts):
                    m.d.sync += [step.eq(0), self.finished.eq(0)]
                    m.next = "Next"

            with m.State("Next"):
                m.d.sync += [store.eq(kind), row.eq(0), group.eq(0), step.eq(step + 1)]
                m.next = "Walk"
                with m.Switch(kind):
                    for result, (operand, pace) in operands.items():
                        with m.Case(result):
                            m.d.sync += [memory.eq(operand.place), line.eq(base[result]), first.eq(base[result]),
                                         stride.eq(pace)]
                    with m.Case(Store.SCATTERED):
                        m.d.sync += memory.eq(job.target.place)
                with m.If(kind == Store.END):
                    m.d.sync += self.finished.eq(1)
                    m.next = "Idle"
                with m.Elif((kind == Store.THIRD) & ~self.started):
                    m.next = "Next"

            with m.State("Walk"):
                m.d.comb += walks.eq(1)
                with m.If(take):
                    m.d.sync += [row.eq(row + 1), line.eq(following)]
                    with m.If(last_row):
                        m.d.sync += [row.eq(0), group.eq(group + 1), first.eq(first + 1), line.eq(first + 1)]
                        for result in operands:
                            with m.If((store == result) & (group == 0)):
                                m.d.sync += base[result].eq(following)
                        with m.If(last):
                            m.next = "Next"
        return m
