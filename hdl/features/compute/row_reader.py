"""Reader of the row unit: fetches the operands of a block of rows, and the indices of table rows."""

from types import SimpleNamespace

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import place_shape, request_layout, response_layout
from hdl.features.compute.jobs import row_job_layout
from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.loop_nest import SIZE_BITS
from hdl.features.compute.row_fetch import RowFetch
from hdl.features.compute.row_pass import LOADS, PAIRED, Load
from hdl.floating.format import FP32
from hdl.floating.stages import register

__all__ = ["SCATTERED", "RowReader", "block_members"]

SCATTERED = 16
"""Maximum number of rows of a block of SCATTER."""

_STEPS = range(max(map(len, LOADS.values())) + 1)


def block_members(job, groups):
    """Members shared by units that process blocks of rows: ``job``, ``opens``, ``started``, ``last_group`` and
    ``starts`` of :class:`RowReader`.

    Parameters
    ----------
    job : StructLayout
    groups : int
        Number of column blocks per row.
    """
    return {"job": In(job), "opens": In(1), "started": In(1), "last_group": In(range(groups)), "starts": In(1)}


class RowReader(wiring.Component):
    """Read the operands of a block one after the other, column block by column block.

    A block of SCATTER ends before a row number that it already contains, so no table row occurs twice in a block.
    Requests depend only on registers. One request is issued per cycle, except for one or two cycles before each
    operand and a wait for all row numbers before the table rows are read. ``response`` is always ready.

    Parameters
    ----------
    lanes : int
    memory_rows : int
        Number of rows of the largest memory.
    rows, groups : int
        Number of rows per block, and of column blocks per row.
    owner_bits : int
        Number of bits of a buffer number; 0 without buffer tags.

    Members
    -------
    job : In(row_job_layout(memory_rows, lanes, owner_bits))
        Held throughout a job.
    opens : In(1)
        Begin the job.
    started : In(1)
        The job has a start. Held throughout a job.
    last_group : In(range(groups))
    starts : In(1)
        A block begins.
    left : In(12)
        Remaining rows of the job.
    request, response
        As in :class:`~hdl.features.compute.row_unit.RowUnit`.
    valid : Out(1)
        The next four outputs hold a row of x, y, start, scale or shift.
    load, row, group, elements : Out
        Operand, position and elements of this row.
    deviation : Out
        ``element`` is the deviation of ``element_row``.
    element_row, element : Out
    copied : Out(stream of elements)
        Rows of the table, if they are the results.
    rows : Out(range(rows + 1))
        Rows of the block; for SCATTER, valid from the first row of x on.
    step, words : Out
        Number of the operand being received, and of its memory rows received so far.
    name : In(range(rows))
        Row of the block.
    named, right : Out
        First memory row of the table row named by ``name``, and whether it exists.
    wrong : Out(1)
        A row number of the job is out of range.
    """

    def __init__(self, *, lanes, memory_rows, rows, groups, owner_bits=0):
        self._lanes, self._memory_rows, self._rows, self._groups = lanes, memory_rows, rows, groups
        self._owner_bits = owner_bits
        vector = data.ArrayLayout(FP32.width, lanes)
        super().__init__({
            **block_members(row_job_layout(memory_rows, lanes, owner_bits), groups), "left": In(SIZE_BITS),
            "request": Out(stream.Signature(request_layout(memory_rows, owner_bits))),
            "response": In(stream.Signature(response_layout(lanes))),
            "valid": Out(1), "load": Out(Load), "row": Out(range(rows)), "group": Out(range(groups)),
            "elements": Out(vector),
            "deviation": Out(1), "element_row": Out(range(rows)), "element": Out(FP32.width),
            "copied": Out(stream.Signature(vector)),
            "rows": Out(range(rows + 1)), "step": Out(_STEPS), "words": Out(range(rows * groups + 1)),
            "name": In(range(rows)), "named": Out(range(memory_rows)), "right": Out(1), "wrong": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        tag = data.StructLayout({"load": Load, "row": range(self._rows), "group": range(self._groups),
                                 "lane": range(lanes), "step": _STEPS, "last": 1, "counts": 1})
        m.submodules.fetch = fetch = RowFetch(
            rows=self._memory_rows, answer=self.elements.shape(), tag=tag, owner_bits=self._owner_bits)
        m.d.comb += [
            self.request.valid.eq(fetch.request.valid), self.request.payload.eq(fetch.request.payload),
            fetch.request.ready.eq(self.request.ready), self.response.ready.eq(1),
            fetch.response.valid.eq(self.response.valid), fetch.response.payload.eq(self.response.p.elements),
        ]
        numbers = SimpleNamespace(pending=Signal(name="pending"), row=Signal(range(self._rows), name="table_row"),
                                  named=Signal(range(self._memory_rows)), right=Signal(name="table_right"))
        self._elaborate_walk(m, fetch.i, numbers)
        self._elaborate_answers(m, fetch.o)
        self._elaborate_numbers(m, fetch.o, numbers)
        return m

    def _elaborate_walk(self, m, asked, numbers):
        """Step through the operands; addresses are in elements."""
        job, lane_bits = self.job, self._lanes.bit_length() - 1
        address = len(job.x.row) + lane_bits
        base = {load: Signal(address, name=f"base_{load.name.lower()}", reset_less=True)
                for load in (Load.X, Load.Y, Load.START, Load.DEVIATION, Load.NUMBERS)}
        line = Signal(address, reset_less=True)
        following, further = Signal(address), Signal(address)
        # The operand being read, and the other one if two operands are read alternately.
        walk = data.StructLayout({"first": address, "stride": address, "place": place_shape(self._owner_bits),
                                  "load": Load, "step": _STEPS})
        now, other = Signal(walk, reset_less=True), Signal(walk, reset_less=True)
        paired, second = Signal(), Signal()
        load = now.load
        step = Signal(_STEPS, reset_less=True)
        kind = Signal(Load)
        row, group = Signal(range(self._rows)), Signal(range(self._groups))
        single, line_only = Signal(), Signal()  # there is only one row, or only one column block
        named, last_row, last_group, moves = Signal(), Signal(), Signal(), Signal()
        most = Mux(job.function == RowFunction.SCATTER, min(SCATTERED, self._rows), self._rows)
        m.d.comb += [
            following.eq(line + now.stride), further.eq(now.first + self._lanes),
            last_row.eq(single | (row + 1 == self.rows)),
            last_group.eq(line_only | (group == self.last_group)),
            named.eq((load == Load.TABLE) | (load == Load.TARGET)),
            numbers.row.eq(row),
            asked.p.place.eq(now.place), asked.p.row.eq(Mux(named, numbers.named + group, line[lane_bits:])),
            asked.p.read.eq(~named | numbers.right),
            asked.p.tag.load.eq(load), asked.p.tag.row.eq(row), asked.p.tag.group.eq(group),
            asked.p.tag.lane.eq(line[:lane_bits]), asked.p.tag.step.eq(now.step),
            asked.p.tag.last.eq(last_row & last_group), asked.p.tag.counts.eq(~paired | second),
            moves.eq(asked.valid & asked.ready),
        ]
        with m.Switch(job.function):
            for function, loads in LOADS.items():
                with m.Case(function):
                    m.d.comb += kind.eq(Load.END)
                    with m.Switch(step):
                        for number, code in enumerate(loads):
                            with m.Case(number):
                                m.d.comb += kind.eq(code)
        with m.If(self.opens):
            m.d.sync += [
                *(base[code].eq(operand.row << lane_bits) for code, operand in (
                    (Load.X, job.x), (Load.Y, job.y), (Load.START, job.start), (Load.DEVIATION, job.deviation))),
                base[Load.NUMBERS].eq(Cat(job.y_lane, job.y.row))]

        with m.FSM():
            with m.State("Idle"):
                with m.If(self.starts):
                    m.d.sync += [step.eq(0), self.rows.eq(Mux(self.left > most, most, self.left))]
                    m.next = "Next"

            with m.State("Next"):
                m.d.sync += [now.load.eq(kind), now.step.eq(step), row.eq(0), group.eq(0), single.eq(0),
                             line_only.eq(0), paired.eq(0), second.eq(0), step.eq(step + 1)]
                m.next = "Walk"
                with m.Switch(kind):
                    for code, operand, pace in (
                            (Load.X, job.x, job.stride_x), (Load.Y, job.y, job.stride_y),
                            (Load.START, job.start, job.stride_start)):
                        with m.Case(code):
                            m.d.sync += [now.place.eq(operand.place), line.eq(base[code]), now.first.eq(base[code]),
                                         now.stride.eq(pace << lane_bits)]
                    for code, operand in ((Load.SCALE, job.scale), (Load.SHIFT, job.shift)):
                        with m.Case(code):
                            m.d.sync += [now.place.eq(operand.place), line.eq(operand.row << lane_bits),
                                         now.first.eq(operand.row << lane_bits), single.eq(1)]
                    for code, operand, pace in ((Load.DEVIATION, job.deviation, 1),
                                               (Load.NUMBERS, job.y, job.stride_numbers)):
                        with m.Case(code):
                            m.d.sync += [now.place.eq(operand.place), line.eq(base[code]), now.stride.eq(pace),
                                         line_only.eq(1)]
                    for code, operand in ((Load.TABLE, job.x), (Load.TARGET, job.target)):
                        with m.Case(code):
                            m.d.sync += now.place.eq(operand.place)
                with m.If(kind == Load.END):
                    m.next = "Idle"
                with m.Elif((kind == Load.START) & ~self.started):
                    m.next = "Next"
                with m.Elif(numbers.pending & (kind != Load.START) & (kind != Load.NUMBERS)):
                    m.d.sync += step.eq(step)
                    m.next = "Next"
                for function in PAIRED:
                    code, partner = LOADS[function][:2]
                    operand, pace = {Load.X: (job.x, job.stride_x), Load.Y: (job.y, job.stride_y)}[partner]
                    with m.If((job.function == function) & (step == 0)
                              & (self.started if code == Load.START else Const(1))):
                        m.d.sync += [
                            paired.eq(1), step.eq(2), other.load.eq(partner), other.step.eq(1),
                            other.place.eq(operand.place), other.first.eq(base[partner]),
                            other.stride.eq(pace << lane_bits)]

            with m.State("Walk"):
                m.d.comb += asked.valid.eq(1)
                with m.If(moves):
                    m.d.sync += [row.eq(row + 1), line.eq(following)]
                    with m.If(((load == Load.X) | (load == Load.TABLE)) & (group == 0)):
                        m.d.sync += base[Load.NUMBERS].eq(base[Load.NUMBERS] + job.stride_numbers)
                    with m.If(last_row):
                        m.d.sync += [row.eq(0), second.eq(~second), now.first.eq(further), line.eq(further)]
                        for code in (Load.X, Load.Y, Load.START, Load.DEVIATION):
                            with m.If((load == code) & (group == 0)):
                                m.d.sync += base[code].eq(following)
                        with m.If(paired):
                            m.d.sync += [now.eq(other), line.eq(other.first), other.eq(now), other.first.eq(further)]
                        with m.If(~paired | second):
                            m.d.sync += group.eq(group + 1)
                            with m.If(last_group):
                                m.next = "Next"

    def _elaborate_answers(self, m, fetched):
        """Pass received rows to the lanes or, if they are table rows, to the output ``copied``."""
        tag, elements = fetched.p.tag, fetched.p.answer
        copies, moves = Signal(), Signal()
        m.d.comb += [
            copies.eq((tag.load == Load.TABLE) & ~self.started),
            self.copied.valid.eq(fetched.valid & copies), self.copied.payload.eq(elements),
            fetched.ready.eq(~copies | self.copied.ready), moves.eq(fetched.valid & fetched.ready),
        ]
        m.d.sync += [
            self.valid.eq(fetched.valid & ~copies), self.load.eq(tag.load), self.row.eq(tag.row),
            self.group.eq(tag.group), self.elements.eq(elements),
            self.deviation.eq(fetched.valid & (tag.load == Load.DEVIATION)), self.element_row.eq(tag.row),
            self.element.eq(Array(elements)[tag.lane]),
        ]
        with m.If(tag.load == Load.TABLE):
            m.d.sync += self.load.eq(Load.X)
        with m.If(tag.load == Load.TARGET):
            m.d.sync += self.load.eq(Load.START)
        with m.If(moves & tag.counts):
            m.d.sync += [self.step.eq(tag.step), self.words.eq(self.words + 1)]
            with m.If(tag.last):
                m.d.sync += [self.step.eq(tag.step + 1), self.words.eq(0)]
        with m.If(self.starts):
            m.d.sync += [self.step.eq(0), self.words.eq(0)]

    def _elaborate_numbers(self, m, fetched, numbers):
        """Compute the memory rows of table rows, and where a block of SCATTER ends."""
        job = self.job
        scatters = job.function == RowFunction.SCATTER
        tag = fetched.p.tag
        number = Array(fetched.p.answer)[tag.lane]
        taken, taken_valid = register(
            m, "taken", number=number[:SIZE_BITS], right=number < job.count, row=tag.row, last=tag.last), Signal()
        known, known_valid = register(
            m, "known", offset=taken.number * Mux(scatters, job.stride_target, job.stride_x), right=taken.right,
            row=taken.row, last=taken.last), Signal()
        m.d.sync += [taken_valid.eq(fetched.valid & (tag.load == Load.NUMBERS)), known_valid.eq(taken_valid)]

        # Row numbers of the block, all different: the block ends before a repeated one.
        entry = Cat(taken.number, taken.right)
        entries = [Signal(len(entry), name=f"entry_{index}") for index in range(min(SCATTERED, self._rows))]
        cut, limit = Signal(), Signal.like(self.rows)
        with m.If(taken_valid):
            m.d.sync += Cat(entries).eq(Cat(entry, *entries[:-1]))
            with m.If(taken.right & scatters & ~cut & Cat(entry == past for past in entries).any()):
                m.d.sync += [cut.eq(1), limit.eq(taken.row)]
        with m.If(self.starts):
            m.d.sync += [cut.eq(0), *(past.eq(0) for past in entries)]

        m.submodules.table = memory = Memory(
            shape=len(numbers.named) + 1, depth=self._rows, init=[],
            attrs={"no_rw_check": 1, "ram_style": "distributed"})
        write = memory.write_port()
        start = Mux(scatters, job.target.row, job.x.row)
        m.d.comb += [write.en.eq(known_valid), write.addr.eq(known.row),
                     write.data.eq(Cat((start + known.offset)[:len(numbers.named)], known.right))]
        for row, named, right in ((numbers.row, numbers.named, numbers.right), (self.name, self.named, self.right)):
            read = memory.read_port(domain="comb")
            m.d.comb += [read.addr.eq(row), Cat(named, right).eq(read.data)]
        with m.If(self.opens):
            m.d.sync += self.wrong.eq(0)
        with m.If(known_valid):
            with m.If(~known.right):
                m.d.sync += self.wrong.eq(1)
            with m.If(known.last):
                m.d.sync += numbers.pending.eq(0)
                with m.If(cut):
                    m.d.sync += self.rows.eq(limit)
        with m.If(self.starts):
            m.d.sync += numbers.pending.eq((job.function == RowFunction.GATHER) | scatters)
