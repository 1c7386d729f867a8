# amaranth: UnusedElaboratable=no
# The constructor creates the parts, since their latencies are needed even without elaboration.
"""Row functions of a sequence: layer norm, softmax gradient, and embedding."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Out

from hdl.features.compute.access import unit_members
from hdl.features.compute.jobs import row_job_layout
from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_lane import RowLane
from hdl.features.compute.row_pass import A, B, C
from hdl.features.compute.row_reader import RowReader
from hdl.features.compute.row_sequencer import RowSequencer
from hdl.features.compute.row_writer import RowWriter
from hdl.floating.divide import FloatDivider
from hdl.floating.format import FP32
from hdl.floating.square_root import FloatSquareRoot
from hdl.floating.stages import register
from hdl.streams.delay import DelayLine
from hdl.streams.rows import RowAssembler
from hdl.streams.stream import Queue, connect_stream, word_layout

__all__ = ["ROOT_INTERVAL", "RowUnit"]

ROOT_INTERVAL = 2
"""Cycles from one square root to the next."""

#: Maximum number of results that wait to be written.
_RESULTS = 128


class RowUnit(wiring.Component):
    """Compute functions of matrix rows in memory (:class:`~hdl.features.compute.layer_list.RowFunction`).

    Rows are processed in blocks of up to ``8 · lanes``, one block after another: operands are read, the function's
    :mod:`passes <hdl.features.compute.row_pass>` process the elements at one memory row per cycle, and results are
    written. The last adders of the lanes form a chain, so that the sums of many rows can be in progress at the same
    time. A pass starts while its operands are still being read. Rows are read before they are written, so the target
    may have the same address as x or start.

    If a row number is invalid, GATHER writes a row of +0.0 and SCATTER skips the row; ``bad`` is high in the cycle of
    ``done``. A job with no rows, no columns, too many columns or an unknown function is rejected: ``bad`` and
    ``done`` are high :attr:`checked` cycles after it was accepted, and nothing is read or written.

    Requests and ``job.ready`` depend only on registers; writes and ``done`` are registered. ``response`` is always
    ready.

    Parameters
    ----------
    lanes : int
        Elements of a memory row: 2, 4 or 8.
    memory_rows : int
        Rows of the largest memory.
    columns : int
        Maximum number of columns: a power of two, and at least two memory rows.
    dsps : int
        DSP blocks the multiplier of a lane may use: 4, 2 or 1.
    owner_bits : int
        Bits of a buffer number; 0 without buffer tags.

    Members
    -------
    job : In(stream of row_job_layout(memory_rows, lanes, owner_bits))
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
    write : Out(stream of write_layout(memory_rows, lanes, owner_bits))
    settled : In(1)
        All accepted writes are in their memories.
    done : Out(1)
        The job has ended.
    bad : Out(1)
        The job was rejected, or a row number was invalid.
    """

    checked = 2

    def __init__(self, *, lanes, memory_rows, columns=64, dsps=4, owner_bits=0):
        if not isinstance(lanes, int) or lanes not in (2, 4, 8):
            raise ValueError(f"Lane count must be 2, 4 or 8, not {lanes!r}")
        if not isinstance(memory_rows, int) or memory_rows < 2:
            raise ValueError(f"Row count must be an integer of at least 2, not {memory_rows!r}")
        if not isinstance(columns, int) or columns < 2 * lanes or columns & (columns - 1):
            raise ValueError(f"Column count must be a power of two of at least {2 * lanes}, not {columns!r}")
        self._lane_count, self._columns = lanes, columns
        self._rows, self._groups = 8 * lanes, columns // lanes
        sizes = {"rows": self._rows, "groups": self._groups}
        self._lanes = [RowLane(**sizes, dsps=dsps) for _ in range(lanes)]
        self._sequencer = RowSequencer(
            **sizes, latency=self._lanes[0].latency, sums=RowLane.step * (lanes - 1), frame=RowLane.step * lanes + 2)
        memory = {"lanes": lanes, "memory_rows": memory_rows, "owner_bits": owner_bits}
        self._reader, self._writer = RowReader(**memory, **sizes), RowWriter(**memory, **sizes)
        self._root, self._divider = FloatSquareRoot(interval=ROOT_INTERVAL), FloatDivider(interval=ROOT_INTERVAL)
        super().__init__({**unit_members(row_job_layout(memory_rows, lanes, owner_bits), **memory), "bad": Out(1)})

    @property
    def latency(self):
        """Latency of a lane in cycles, from an element's control inputs to its result."""
        return self._lanes[0].latency

    @property
    def root_latency(self):
        """Latency in cycles from the square of a deviation to the reciprocal of the deviation."""
        return self._root.latency + self._divider.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.reader = reader = self._reader
        m.submodules.writer = writer = self._writer
        m.submodules.sequencer = sequencer = self._sequencer
        for number, lane in enumerate(self._lanes):
            m.submodules[f"lane_{number}"] = lane
        connect_stream(m, reader.request, self.request)
        connect_stream(m, self.response, reader.response)
        connect_stream(m, writer.write, self.write)

        job = Signal(self.job.payload.shape(), reset_less=True)
        started, opens, begin = Signal(reset_less=True), Signal(), Signal()
        left = Signal.like(job.rows, reset_less=True)
        last_column = Signal.like(job.columns, reset_less=True)
        keep = Signal(self._lane_count, reset_less=True)
        lane_bits = self._lane_count.bit_length() - 1
        m.d.sync += [
            last_column.eq(job.columns - 1),
            *(keep[lane].eq(last_column[:lane_bits] >= lane) for lane in range(self._lane_count)),
        ]
        for part in (reader, writer):
            m.d.comb += [part.job.eq(job), part.opens.eq(opens), part.started.eq(started), part.starts.eq(begin),
                         part.last_group.eq(last_column[lane_bits:])]
        m.d.comb += [
            reader.left.eq(left), reader.name.eq(writer.name), writer.named.eq(reader.named),
            writer.right.eq(reader.right), writer.rows.eq(reader.rows), writer.keep.eq(keep),
            sequencer.starts.eq(begin), sequencer.kind.eq(job.function), sequencer.started.eq(started),
            sequencer.rows.eq(reader.rows), sequencer.last_group.eq(last_column[lane_bits:]),
            sequencer.step.eq(reader.step), sequencer.words.eq(reader.words),
        ]
        self._elaborate_phases(m, job, started, left, opens, begin)
        live = self._elaborate_lanes(m, job, started, keep)
        self._elaborate_sums(m, begin, live)
        self._elaborate_results(m, live)
        return m

    def _elaborate_phases(self, m, job, started, left, opens, begin):
        """Reject invalid jobs, and process one block after another."""
        reader, writer = self._reader, self._writer
        refused = Signal()
        m.d.comb += refused.eq((job.function > max(RowFunction)) | (job.rows == 0) | (job.columns == 0)
                               | (job.columns > self._columns))
        m.d.sync += [self.done.eq(0), self.bad.eq(0)]
        with m.FSM():
            with m.State("Idle"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += [
                    job.eq(self.job.payload), left.eq(self.job.p.rows),
                    started.eq(self.job.p.started | (self.job.p.function == RowFunction.ADD)
                               | (self.job.p.function == RowFunction.SCATTER))]
                with m.If(self.job.valid):
                    m.next = "Check"
            with m.State("Check"):
                m.d.comb += opens.eq(1)
                m.next = "Begin"
                with m.If(refused):
                    m.d.sync += [self.done.eq(1), self.bad.eq(1)]
                    m.next = "Idle"
            with m.State("Begin"):
                m.d.comb += begin.eq(1)
                m.next = "Run"
            with m.State("Run"):
                with m.If(writer.finished & ~self.write.valid & self.settled):
                    m.d.sync += left.eq(left - reader.rows)
                    m.next = "Begin"
                    with m.If(left == reader.rows):
                        m.d.sync += [self.done.eq(1), self.bad.eq(reader.wrong)]
                        m.next = "Idle"

    def _elaborate_lanes(self, m, job, started, keep):
        """Chain the lanes by delaying each one's control for the next, and return the results' valid flags."""
        reader, lanes = self._reader, self._lanes
        control, latency = self._sequencer.control, lanes[0].latency
        live = Signal(latency + RowLane.step * (len(lanes) - 1))
        m.d.sync += live.eq(Cat(self._sequencer.valid, live))
        for number, lane in enumerate(lanes):
            m.d.comb += [
                lane.loaded.valid.eq(reader.valid), lane.loaded.load.eq(reader.load),
                lane.loaded.row.eq(reader.row), lane.loaded.group.eq(reader.group),
                lane.loaded.element.eq(reader.elements[number]), lane.factor.eq(job.factor),
                lane.epsilon.eq(job.epsilon), lane.started.eq(started), lane.outside.eq(~keep[number]),
                lane.live.eq(live[latency - 1 + RowLane.step * number]),
            ]
            if number == 0:
                m.d.comb += lane.control.eq(control)
                continue
            before = lanes[number - 1]
            for name in ("control", "scalar", "deviation"):
                port = getattr(lane, name)
                delay = DelayLine(shape=port.shape(), cycles=RowLane.step)
                m.submodules[f"{name}_{number}"] = delay
                m.d.comb += [delay.i.eq(getattr(before, name)), port.eq(delay.o)]
            m.d.comb += lane.partial.eq(before.o)
        return live

    def _elaborate_sums(self, m, begin, live):
        """Store the rows' sums and scalars, and the reciprocals of deviations."""
        lanes, reader, sequencer = self._lanes, self._reader, self._sequencer
        control, first, last = sequencer.control, lanes[0], lanes[-1]
        row_halves = self._rows * 2

        def memory(name, depth):
            made = Memory(shape=FP32.width, depth=depth, init=[],
                          attrs={"no_rw_check": 1, "ram_style": "distributed"})
            m.submodules[name] = made
            return made.write_port(), made.read_port(domain="comb"), made

        sums, sum_of, sums_memory = memory("sums", row_halves)
        scalars, scalar_of, _ = memory("scalars", row_halves)
        deviations, deviation_of, _ = memory("deviations", self._rows)
        partial = sums_memory.read_port(domain="comb")
        summed = (control.a == A.SUM) | (control.b == B.SUM)
        m.d.comb += [
            sums.en.eq(live[-1] & last.late.summed), sums.addr.eq(Cat(last.late.row, last.late.half)),
            sums.data.eq(last.o),
            scalars.en.eq(live[first.latency - 1] & first.late.scalar),
            scalars.addr.eq(Cat(first.late.row, first.late.half)), scalars.data.eq(first.o),
            sum_of.addr.eq(Cat(control.row, control.half)),
            scalar_of.addr.eq(Cat(control.row, control.c == C.SECOND_SCALAR)),
            deviation_of.addr.eq(control.row),
            partial.addr.eq(Cat(first.middle.row, first.middle.half)),
        ]
        fetched = register(
            m, "found", scalar=Mux(summed, sum_of.data, scalar_of.data), deviation=deviation_of.data,
            partial=Mux(first.middle.group == 0, 0, partial.data))
        m.d.comb += [first.scalar.eq(fetched.scalar), first.deviation.eq(fetched.deviation),
                     first.partial.eq(fetched.partial)]

        # One squared deviation enters the square root, and then the division, every ROOT_INTERVAL cycles.
        m.submodules.root = root = self._root
        m.submodules.divider = divider = self._divider
        turn = Signal(range(ROOT_INTERVAL))
        arrives = Signal(root.latency + divider.latency)
        roots, all_roots = Signal.like(sequencer.roots), Signal()
        square_delay = first.latency + 1  # cycles from the issue of an element to its squared deviation
        m.d.sync += [turn.eq(turn + 1), arrives.eq(Cat(live[first.latency - 1] & first.late.root, arrives))]
        m.d.comb += [
            sequencer.turn.eq(turn == 0), sequencer.roots.eq(roots),
            root.load.eq(turn == square_delay % ROOT_INTERVAL), root.a.eq(first.o),
            divider.load.eq(turn == (square_delay + root.latency) % ROOT_INTERVAL),
            divider.a.eq(FP32.bias << FP32.fraction_bits), divider.b.eq(root.o),
            deviations.en.eq(arrives[-1] | reader.deviation),
            deviations.addr.eq(Mux(reader.deviation, reader.element_row, roots)),
            deviations.data.eq(Mux(reader.deviation, reader.element, divider.o)),
            all_roots.eq(roots + 1 == reader.rows),
        ]
        with m.If(begin):
            m.d.sync += [roots.eq(0), turn.eq(0)]
        with m.Elif(arrives[-1]):
            m.d.sync += roots.eq(roots + 1)
        m.submodules.reciprocals = queue = Queue(shape=word_layout(), depth=self._rows + 1, block=False)
        m.submodules.assembler = assembler = RowAssembler(lanes=self._lane_count)
        m.d.comb += [queue.i.valid.eq(arrives[-1]), queue.i.p.data.eq(divider.o), queue.i.p.last.eq(all_roots)]
        connect_stream(m, queue.o, assembler.i)
        connect_stream(m, assembler.o, self._writer.deviations)

    def _elaborate_results(self, m, live):
        """Collect result rows in a queue that has room for all results in flight."""
        lanes, reader = self._lanes, self._reader
        vector = reader.elements.shape()
        m.submodules.results = queue = Queue(shape=vector, depth=_RESULTS, block=True)
        arrives = Signal()
        m.d.comb += arrives.eq(live[-1] & lanes[-1].late.stored)
        for number, lane in enumerate(lanes):
            delay = DelayLine(shape=FP32.width, cycles=RowLane.step * (len(lanes) - 1 - number))
            m.submodules[f"result_{number}"] = delay
            m.d.comb += [delay.i.eq(lane.result),
                         queue.i.payload[number].eq(Mux(arrives, delay.o, reader.copied.payload[number]))]
        m.d.comb += [queue.i.valid.eq(arrives | reader.copied.valid),
                     reader.copied.ready.eq(queue.i.ready & ~arrives)]
        connect_stream(m, queue.o, self._writer.results)

        promised = Signal(range(_RESULTS + 1))
        asks = Signal()
        m.d.comb += [asks.eq(self._sequencer.asks), self._sequencer.room.eq(promised != _RESULTS)]
        with m.If(asks & ~(queue.o.valid & queue.o.ready)):
            m.d.sync += promised.eq(promised + 1)
        with m.If(~asks & queue.o.valid & queue.o.ready & (promised != 0)):
            m.d.sync += promised.eq(promised - 1)
