# amaranth: UnusedElaboratable=no
# The parts are created in the constructor because their latencies are needed even without elaboration.
"""Row functions: softmax and cross-entropy of a matrix of scores."""

from types import SimpleNamespace

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Out

from hdl.features.compute.access import unit_members
from hdl.features.compute.jobs import vector_job_layout
from hdl.features.compute.layer_list import PADDING, VectorProgram
from hdl.features.compute.program_lane import ProgramLane, control_layout, step_layout
from hdl.features.compute.program_sequencer import ProgramSequencer
from hdl.features.compute.row_loader import RowLoader
from hdl.features.compute.row_reciprocals import RowReciprocals
from hdl.features.compute.vector_program import ONE, QUOTIENT, STEPS, THREADS, Addend, Take
from hdl.features.compute.vector_sequence import VectorSequence
from hdl.floating.divide import FloatDivider
from hdl.floating.format import FP32
from hdl.floating.stages import register, wait
from hdl.streams.delay import DelayLine
from hdl.streams.rows import RowAssembler
from hdl.streams.stream import Queue, connect_stream, word_layout

__all__ = ["VectorUnit"]

#: Latency in cycles from the address of an element to its first operation, and to the divider.
_FETCH = 2
_DIVIDE = _FETCH + 1
_QUEUE = 33


class VectorUnit(wiring.Component):
    """Compute a function of each row of a matrix in memory: softmax, or cross-entropy and its gradient.

    Rows are processed in blocks of up to ``16 · units``, in three phases. First the elements are read. Then a
    :mod:`program <hdl.features.compute.vector_program>` computes their exponentials, and the total and the loss of
    each row. Finally the gradient is computed one quotient at a time, minus one at the label, while the losses are
    summed in row order. A block is processed once the last write of the previous block has been sent; reading begins
    earlier.

    A SOFTMAX has no labels and no loss. The row totals pass through the divider; then each element is multiplied by
    the reciprocal of its row's total, one element per cycle.

    If a label is out of range, nothing is subtracted from its row of the gradient and nothing is added to the loss;
    ``bad`` is high in the cycle of ``done``. With ``sequences``, a row labelled
    :data:`~hdl.features.compute.layer_list.PADDING` has a gradient of +0.0, and is not an error. A job with no rows,
    no columns, too many columns, or an unknown function is rejected: ``bad`` and ``done`` are high :attr:`checked`
    cycles after it was accepted, and nothing is read or written. Requests, writes and ``done`` come from registers;
    ``job.ready`` and ``response.ready`` are functions of registers.

    Parameters
    ----------
    lanes : int
        Number of elements in a memory row: 2, 4 or 8.
    memory_rows : int
        Number of rows in the largest memory.
    units : int
        Number of multiply-add pipelines: 2 or 4.
    columns : int
        Maximum number of columns: a power of two of at least 2.
    dsps : int
        Number of DSP blocks that each pipeline may use: 4, 2 or 1.
    interval : int
        Number of cycles per quotient: 2, 4 or 8.
    sequences : bool
        Whether SOFTMAX and padding labels are supported.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.

    Members
    -------
    job : In(stream of vector_job_layout(memory_rows, lanes, owner_bits))
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
    write : Out(stream of write_layout(memory_rows, lanes, owner_bits))
    settled : In(1)
        All accepted writes are in their memories.
    done : Out(1)
        The job has ended.
    bad : Out(1)
        The job was rejected, or a label was invalid.
    """

    checked = 2
    #: Latency in cycles from the address of an element to its product with the reciprocal.
    product_latency = _DIVIDE + 1 + THREADS

    def __init__(self, *, lanes, memory_rows, units=4, columns=64, dsps=4, interval=2, sequences=False, owner_bits=0):
        if not isinstance(units, int) or units not in (2, 4):
            raise ValueError(f"Unit count must be 2 or 4, not {units!r}")
        if not isinstance(columns, int) or columns < 2 or columns & (columns - 1):
            raise ValueError(f"Column count must be a power of two of at least 2, not {columns!r}")
        if interval not in (2, 4, 8):
            raise ValueError(f"Interval must be 2, 4 or 8, not {interval!r}")
        self._loader = RowLoader(lanes=lanes, memory_rows=memory_rows, sequences=sequences, owner_bits=owner_bits)
        self._units = [ProgramLane(dsps=dsps) for _ in range(units)]
        self._divider = FloatDivider(interval=interval)
        self._lanes, self._columns, self._sequences = lanes, columns, sequences
        super().__init__({
            **unit_members(vector_job_layout(memory_rows, lanes, owner_bits), lanes=lanes, memory_rows=memory_rows,
                           owner_bits=owner_bits),
            "bad": Out(1),
        })

    @property
    def quotient_latency(self):
        """Latency in cycles from the address of an element to its gradient."""
        return _DIVIDE + self._divider.latency + 1 + THREADS

    def elaborate(self, platform):
        m = Module()
        m.submodules.loader = self._loader
        m.submodules.divider = self._divider
        m.submodules.walk = self._walk = VectorSequence(units=len(self._units), columns=self._columns)
        m.submodules.sequencer = self._sequencer = ProgramSequencer(columns=self._columns, sequences=self._sequences)
        m.submodules.queue = self._queue = Queue(shape=word_layout(), depth=_QUEUE)
        m.submodules.assembler = self._assembler = RowAssembler(lanes=self._lanes)
        for number, unit in enumerate(self._units):
            m.submodules[f"unit_{number}"] = unit
        connect_stream(m, self._loader.request, self.request)
        connect_stream(m, self.response, self._loader.response)
        connect_stream(m, self._queue.o, self._assembler.i)

        job = Signal(self.job.payload.shape(), reset_less=True)
        phase = SimpleNamespace(**{name: Signal(name=name) for name in (
            "plans", "loads", "loaded", "inverts", "inverted", "divides", "sums", "written", "pushes", "pushed",
            "saves", "softmax")})
        wrong = Signal()
        if self._sequences:
            m.submodules.reciprocals = self._reciprocals = RowReciprocals(
                depth=THREADS * len(self._units), latency=_DIVIDE + self._divider.latency)
            m.d.sync += phase.softmax.eq(job.function == VectorProgram.SOFTMAX)
            m.d.comb += self._sequencer.brief.eq(phase.softmax)
        memory = self._elaborate_memory(m, job, phase, wrong)
        self._elaborate_phases(m, job, phase, wrong)
        control = self._elaborate_control(m, phase, memory)
        losses = self._elaborate_losses(m, phase, memory, control)
        arrives, last = self._elaborate_quotients(m, phase, memory, control, losses)
        self._elaborate_output(m, job, phase, losses.total, arrives, last)
        return m

    def _elaborate_phases(self, m, job, phase, wrong):
        """Reject an invalid job; otherwise load, compute and divide each block, then write the loss."""
        walk, sequencer, loader = self._walk, self._sequencer, self._loader
        most = THREADS * len(self._units)
        left = Signal(job.rows.shape(), reset_less=True)
        refused, sizes = Signal(), (job.rows == 0) | (job.columns == 0) | (job.columns > self._columns)
        m.d.comb += [
            refused.eq(job.function[int(self._sequences):].any() | sizes),  # CROSS_ENTROPY is 0, SOFTMAX 1
            loader.job.payload.eq(job),
            walk.rows.eq(Mux(left > most, most, left)),
            walk.columns.eq(job.columns), sequencer.columns.eq(job.columns),
        ]
        m.d.sync += [self.done.eq(0), self.bad.eq(0)]
        with m.FSM():
            with m.State("Idle"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += [job.eq(self.job.payload), left.eq(self.job.p.rows)]
                with m.If(self.job.valid):
                    m.next = "Check"
            with m.State("Check"):
                m.d.comb += loader.job.valid.eq(~refused)  # the loader has read all rows of the previous job
                m.next = "Plan"
                with m.If(refused):
                    m.d.sync += [self.done.eq(1), self.bad.eq(1)]
                    m.next = "Idle"
            with m.State("Plan"):
                m.d.comb += [phase.plans.eq(1), walk.start.eq(1)]
                m.next = "Load"
            with m.State("Load"):
                m.d.comb += phase.loads.eq(1)
                with m.If(phase.loaded):
                    m.d.comb += sequencer.start.eq(1)
                    m.d.sync += sequencer.size.eq(walk.address + 1)
                    m.next = "Run"
            with m.State("Run"):
                with m.If(sequencer.done):
                    m.d.comb += walk.start.eq(1)
                    m.next = "Divide"
                    with m.If(phase.softmax):
                        m.next = "Invert" if self._sequences else "Divide"
            if self._sequences:
                with m.State("Invert"):
                    m.d.comb += [phase.inverts.eq(1), walk.start.eq(1)]
                    with m.If(phase.inverted):
                        m.next = "Divide"
            with m.State("Divide"):
                m.d.comb += phase.divides.eq(1)
                with m.If(phase.written & ~phase.sums):
                    m.d.sync += left.eq(left - walk.rows)
                    m.next = "Plan"
                    with m.If(left == walk.rows):
                        m.next = "Push"
                        with m.If(phase.softmax):
                            m.next = "Settle"
            with m.State("Push"):
                m.d.comb += [phase.saves.eq(1), phase.pushes.eq(1)]
                with m.If(phase.pushed):
                    m.next = "Save"
            with m.State("Save"):
                m.d.comb += phase.saves.eq(1)
                with m.If(self.write.valid & self.write.ready):
                    m.next = "Settle"
            with m.State("Settle"):
                with m.If(self.settled):
                    m.d.sync += [self.done.eq(1), self.bad.eq(wrong)]
                    m.next = "Idle"

    def _elaborate_memory(self, m, job, phase, wrong):
        """Create the memories for elements and labels, and return the signals that the other parts need."""
        walk, sequencer, loader = self._walk, self._sequencer, self._loader
        loaded = loader.o.payload
        beyond, padding, back = Signal(), Signal(), Signal(range(THREADS * self._columns))
        m.d.comb += [
            loader.o.ready.eq(phase.loads),
            beyond.eq(loaded.label >= job.columns),
            padding.eq((loaded.label == PADDING) if self._sequences else 0),
            phase.loaded.eq(loader.o.valid & walk.ends),
        ]
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += wrong.eq(0)
        with m.If(phase.loads & loader.o.valid & loaded.last & beyond & ~padding & ~phase.softmax):
            m.d.sync += wrong.eq(1)
        # Exponentials return in element order.
        takes = Signal()
        with m.If(sequencer.start):
            m.d.sync += back.eq(0)
        with m.Elif(takes):
            m.d.sync += back.eq(back + 1)

        group, column, address = Signal.like(walk.group), Signal.like(walk.column), Signal.like(walk.address)
        m.d.comb += [
            group.eq(Mux(phase.divides, walk.group, sequencer.group)),
            column.eq(Mux(phase.divides, walk.column, sequencer.column)),
            address.eq(Mux(phase.divides, walk.address, sequencer.address)),
        ]
        with m.If(phase.inverts):
            m.d.comb += group.eq(self._reciprocals.row[len(walk.unit):] if self._sequences else 0)
        elements, matches, paddings = [], [], []
        for number, unit in enumerate(self._units):
            chosen = phase.loads & loader.o.valid & (walk.unit == number)
            memory = Memory(shape=FP32.width, depth=THREADS * self._columns, init=[],
                            attrs={"no_rw_check": 1, "ram_style": "block"})
            labels = Memory(shape=len(column) + 1 + self._sequences, depth=THREADS, init=[],
                            attrs={"no_rw_check": 1, "ram_style": "distributed"})
            m.submodules[f"memory_{number}"], m.submodules[f"labels_{number}"] = memory, labels
            write, read = memory.write_port(), memory.read_port()
            name, match = labels.write_port(), labels.read_port(domain="comb")
            m.d.comb += [
                write.en.eq(chosen | takes),
                write.addr.eq(Mux(phase.loads, walk.address, back)),
                write.data.eq(Mux(phase.loads, loaded.element, unit.result)),
                read.addr.eq(address),
                name.en.eq(chosen & loaded.last), name.addr.eq(walk.group),
                name.data.eq(Cat(loaded.label[:len(column)], beyond, padding)),
                match.addr.eq(group),
                unit.row.enable.eq(chosen & loaded.last), unit.row.group.eq(walk.group),
                unit.row.largest.eq(Cat(loaded.largest[:-1], ~loaded.largest[-1])),
            ]
            element = register(m, f"element_{number}", value=read.data).value
            m.d.comb += unit.element.eq(element)
            elements.append(element)
            matches.append(register(m, f"match_{number}", value=match.data[:len(column) + 1] == column).value)
            paddings.append(register(m, f"padding_{number}", value=match.data[-1]).value if self._sequences else 0)
        return SimpleNamespace(
            elements=elements, matches=matches, paddings=paddings, group=group, takes=takes, beyond=beyond)

    def _elaborate_control(self, m, phase, memory):
        """Control the units, two stages after the sequencer, while the memory read is in progress.

        In the quotient phase, slot 0 carries a loss, and any of the remaining slots can carry a quotient.
        """
        sequencer = self._sequencer
        staged = Signal(step_layout(), reset_less=True)
        with m.Switch(sequencer.step):
            for number, step in enumerate(STEPS):
                with m.Case(number) if step is not STEPS[-1] else m.Default():
                    m.d.sync += staged.eq(step_layout().const({
                        "a": step.a, "b": step.b or 0, "kept": step.b is None, "c": step.c, "constant": step.constant,
                        "keep": step.keep, "count": step.count, "take": step.take}))
        with m.If(sequencer.opens):
            m.d.sync += staged.c.eq(Addend.CONSTANT)
        with m.If((sequencer.step == 0) & ~sequencer.again):
            m.d.sync += staged.take.eq(Take.NOTHING)
        aligned = register(m, "beside", slot=sequencer.slot, group=memory.group, divides=phase.divides)

        # The next step consumes the result, so its row and its label match are delayed to arrive with it.
        later = data.StructLayout({"group": range(THREADS), "matches": len(self._units)})
        m.submodules.before = before = DelayLine(shape=later, cycles=THREADS)
        m.d.comb += [before.i.group.eq(aligned.group), before.i.matches.eq(Cat(memory.matches))]

        control = Signal(control_layout(), reset_less=True)
        m.d.sync += [
            *(control[name].eq(staged[name]) for name in step_layout().members),
            control.slot.eq(aligned.slot), control.group.eq(aligned.group),
            control.chosen.eq(Mux(staged.take == Take.CHOSEN, before.o.group, aligned.slot)),
        ]
        matches = register(m, "matches", value=before.o.matches).value
        m.d.comb += memory.takes.eq(control.take == Take.ELEMENT)
        for number, unit in enumerate(self._units):
            m.d.comb += [unit.control.eq(control), unit.labelled.eq(matches[number])]
        return SimpleNamespace(
            now=control, divides=register(m, "now", divides=aligned.divides).divides, staged=aligned)

    def _elaborate_losses(self, m, phase, memory, control):
        """Sum the losses in row order in the unit of row 0, one addition per frame."""
        units, walk = self._units, self._walk
        total = Signal(FP32.width, reset_less=True)
        left = Signal.like(walk.rows)
        group, unit = Signal(range(THREADS)), Signal(range(len(units)))
        linked, first, pending = Signal(), Signal(), Signal()
        row = Signal(range(THREADS * len(units)))

        # Rows with an invalid label do not contribute to the loss.
        m.submodules.wrong = wrong = Memory(shape=1, depth=THREADS * len(units), init=[],
                                            attrs={"no_rw_check": 1, "ram_style": "distributed"})
        write, read = wrong.write_port(), wrong.read_port(domain="comb")
        loss = Signal(FP32.width, reset_less=True)
        m.d.comb += [
            write.addr.eq(Cat(walk.unit, walk.group)), write.data.eq(memory.beyond), write.en.eq(phase.loads),
            row.eq(Cat(unit, group)), read.addr.eq(row), phase.sums.eq((left != 0) | pending),
        ]
        m.d.sync += loss.eq(Mux(read.data, 0, Array(lane.chosen for lane in units)[unit]))
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += total.eq(0)
        with m.If(phase.plans):
            m.d.sync += [left.eq(Mux(phase.softmax, 0, walk.rows)), group.eq(0), unit.eq(0), linked.eq(0),
                         first.eq(1), pending.eq(0)]
        with m.If(control.divides):
            m.d.sync += control.now.chosen.eq(group)
            with m.If(control.now.slot == THREADS - 1):
                m.d.sync += linked.eq(1)
            with m.If((control.now.slot == 0) & linked):
                m.d.sync += pending.eq(left != 0)
                with m.If(pending):
                    m.d.sync += total.eq(units[0].result)
                with m.If(left != 0):
                    m.d.sync += [left.eq(left - 1), first.eq(0), Cat(unit, group).eq(row + 1)]
        return SimpleNamespace(value=loss, total=total, first=first)

    def _elaborate_quotients(self, m, phase, memory, control, losses):
        """Send quotients and losses, or softmax elements, to the first unit; return the results as they arrive."""
        walk, divider, sequencer = self._walk, self._divider, self._sequencer
        interval = divider.interval
        turn, room, issue, ready, softmax = Signal(), Signal(), Signal(), Signal(init=1), phase.softmax
        in_flight = max(-(-self.quotient_latency // interval), self.product_latency * self._sequences) + 1
        m.d.comb += [
            turn.eq(sequencer.slot[:interval.bit_length() - 1] == 0),
            room.eq(self._queue.level <= _QUEUE - in_flight),
            issue.eq(phase.divides & walk.left & (turn | softmax) & room & ready),
            walk.step.eq(issue | (phase.loads & self._loader.o.valid)),
            divider.load.eq(wait(m, "load", turn, _DIVIDE)),
        ]
        unit = walk.unit
        if self._sequences:
            unit = Mux(phase.inverts, self._reciprocals.row[:len(unit)], unit)
        unit = wait(m, "unit", unit, _FETCH - 1)
        label, padding = Array(memory.matches)[unit], Array(memory.paddings)[unit]
        unit = wait(m, "divided", unit, 1)
        operands = register(
            m, "operands", a=Array(memory.elements)[unit], b=Array(lane.total for lane in self._units)[unit])
        m.d.comb += [divider.a.eq(operands.a), divider.b.eq(operands.b)]

        # The delay is odd, so a quotient never arrives in slot 0. The quotient is multiplied by 1.0.
        m.submodules.label = marked = DelayLine(shape=1 + self._sequences, cycles=_DIVIDE + divider.latency - 1)
        m.d.comb += marked.i.eq(Cat(label, padding))
        begins = (control.staged.slot == 0) & ~softmax
        dividend_in = Signal(FP32.width, reset_less=True)
        m.d.sync += dividend_in.eq(Mux(begins, losses.value, divider.o))
        if self._sequences:
            with m.If(softmax):
                m.d.sync += dividend_in.eq(operands.a)
            with m.Elif(~begins & marked.o[1]):
                m.d.sync += dividend_in.eq(0)
            # Softmax divides 1.0 by each row total, then multiplies each element by the reciprocal of its row.
            rows = self._reciprocals
            m.d.comb += [
                rows.clear.eq(phase.plans), rows.divide.eq(phase.inverts & turn), rows.rows.eq(walk.rows),
                phase.inverted.eq(rows.divide & rows.ends), rows.quotient.eq(divider.o),
                rows.chosen.eq(Cat(unit, control.now.group)), rows.wanted.eq(Cat(walk.unit, walk.group)),
                ready.eq(~softmax | rows.ready),
            ]
            with m.If(wait(m, "inverts", phase.inverts, _DIVIDE)):
                m.d.comb += divider.a.eq(ONE)
            with m.If(softmax & control.staged.divides):
                m.d.sync += control.now.b.eq(rows.factor)
        with m.If(control.staged.divides & ~softmax):
            now = control.now
            with m.If(begins):
                m.d.sync += [
                    now.constant.eq(losses.total), now.c.eq(Mux(losses.first, Addend.CONSTANT, Addend.RESULT))]
            with m.Elif(marked.o[0]):
                m.d.sync += now.constant.eq(QUOTIENT[0].constant | ONE)
        with m.If(control.divides):
            m.d.comb += self._units[0].element.eq(dividend_in)

        under_way = Signal(self.quotient_latency)
        m.d.sync += under_way.eq(Cat(issue, under_way))
        m.submodules.ends = ends = DelayLine(shape=1, cycles=self.quotient_latency)
        m.d.comb += ends.i.eq(walk.last)
        if not self._sequences:
            return under_way[-1], ends.o
        with m.If(softmax):
            m.d.sync += under_way[self.product_latency:].eq(0)
        m.submodules.early = early = DelayLine(shape=1, cycles=self.product_latency)
        m.d.comb += early.i.eq(walk.last)
        return Mux(softmax, under_way[self.product_latency - 1], under_way[-1]), Mux(softmax, early.o, ends.o)

    def _elaborate_output(self, m, job, phase, total, arrives, last):
        """Write the rows of the gradient, and then the loss in its lane of a row; lanes below the loss are not
        written."""
        queue, beat = self._queue, self._assembler.o
        lane = Signal(range(self._lanes + 1), reset_less=True)
        rows = Signal(job.rows.shape(), reset_less=True)  # rows of the block still to be written
        row = Signal.like(job.target.row, reset_less=True)
        start = Signal.like(row, reset_less=True)
        following = Signal.like(row)
        m.d.comb += [
            following.eq(start + job.stride_target),
            queue.i.valid.eq(arrives | phase.pushes),
            queue.i.p.data.eq(Mux(phase.pushes, total, self._units[0].result)),
            queue.i.p.last.eq(Mux(phase.pushes, phase.pushed, last)),
            phase.pushed.eq(lane == job.loss_lane),
            phase.written.eq(rows == 0),
            self.write.valid.eq(beat.valid), beat.ready.eq(self.write.ready),
            self.write.p.place.eq(Mux(phase.saves, job.loss.place, job.target.place)),
            self.write.p.row.eq(Mux(phase.saves, job.loss.row, row)),
            self.write.p.elements.eq(beat.p.elements),
            self.write.p.keep.eq(Mux(phase.saves, 1 << job.loss_lane, beat.p.keep)),
        ]
        with m.If(phase.pushes):
            m.d.sync += lane.eq(lane + 1)
        with m.Else():
            m.d.sync += lane.eq(0)
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += [row.eq(self.job.p.target.row), start.eq(self.job.p.target.row)]
        with m.If(phase.plans):
            m.d.sync += rows.eq(self._walk.rows)
        with m.Elif(beat.valid & beat.ready):
            m.d.sync += row.eq(row + 1)
            with m.If(beat.p.last):
                m.d.sync += [rows.eq(rows - 1), row.eq(following), start.eq(following)]
