"""Masking as commands of a node: matrices in the gradient memory are masked in place, gradients are made sparse."""

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, exact_log2

from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, Operation, command_layout, event_layout, mask_job_layout
from hdl.masking.circuit import MaskCircuit
from hdl.masking.magnitude import MagnitudeMask
from hdl.masking.mask import COUNT_BITS, INDEX_BITS, KINDS, job_layout
from hdl.memory import RowReader, RowWriter, read_signature, write_signature
from hdl.streams.route import Fork
from hdl.streams.rows import RowSerializer
from hdl.streams.stream import SkidBuffer, beat_layout, connect_stream

__all__ = ["JobReader", "MaskDataflow", "MaskEngine", "checked_job_layout", "counts_layout", "mask_cycles",
           "setup_layout", "sparsify_cycles"]

#: Cycles of a command after that in which its last beat is taken: in the memory, and known to be there.
_ENDING = 1 + RowWriter.latency

_FIELDS = ("length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")


def checked_job_layout(elements):
    """A job for the mask circuit, and how many elements of memory it takes, at most ``elements``."""
    return data.StructLayout({"job": job_layout(INDEX_BITS), "elements": range(elements + 1)})


class JobReader(wiring.Component):
    """Take jobs off a list in memory, one after the other, and let through those that are right.

    A job is wrong

    - if it has no rows, columns or matrices, or a field that has more bits than the circuit's indices;
    - if its ``elements`` are not count * rows * ceil(columns / lanes) * lanes, or more than are left of ``length``;
    - if it is external, and takes more words than are left of ``words``;
    - if the list has ended before it.

    Reserved bits, and fields of kinds that are not enabled, are not looked at but for their width. Products are made
    by adding and shifting, for as long as a factor has bits.

    From the first beat of a job on it takes :meth:`latency` cycles until the job is offered, and one more until the
    next one is looked for. ``i.ready`` depends on registers alone, and ``o`` holds registers.

    Parameters
    ----------
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.
    elements, words : int
        Most elements of data, and most words of external masks.

    Members
    -------
    start : In(1)
        Begin a list. Only the first one after reset counts.
    length : In(range(elements + 1))
        Elements of data that the jobs take altogether; taken with ``start``.
    words : In(range(words + 1))
        Words of external masks that there are; taken with ``start``.
    empty : In(1)
        There is no list, and no beat will come; taken with ``start``.
    i : In(stream of beat_layout(lanes))
        The list; its end has ``last``, and is that of a job.
    o : Out(stream of checked_job_layout(elements))
    external : Out(1)
        In the cycle before an external job is offered, or found wrong at last.
    complete : Out(1)
        The jobs that were taken from ``o`` make up the length, and no other will come.
    bad : Out(1)
        The next job is wrong; no other will come.
    """

    def __init__(self, *, lanes, elements, words):
        self._lanes = lanes
        self._elements = elements
        self._words = words
        super().__init__({
            "start": In(1),
            "length": In(range(elements + 1)),
            "words": In(range(words + 1)),
            "empty": In(1),
            "i": In(stream.Signature(beat_layout(lanes))),
            "o": Out(stream.Signature(checked_job_layout(elements))),
            "external": Out(1),
            "complete": Out(1),
            "bad": Out(1),
        })

    @staticmethod
    def latency(rows, columns, *, lanes):
        """Cycles for a job of so many rows and columns."""
        return 8 // lanes + rows.bit_length() + columns.bit_length() + 2

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        lane_bits = exact_log2(lanes)
        # Every number below that is right fits into this.
        width = max(COUNT_BITS, bits_for(self._elements))

        job = Signal(mask_job_layout())
        beats_in = 8 // lanes
        beat = Signal(range(max(beats_in, 2)))
        ended = Signal()
        left = Signal.like(self.length)
        words_left = Signal.like(self.words)

        # One addend for two products; a bit that is lost on the way, and counts, makes the job wrong.
        addend = Signal(width)
        lost = Signal()
        factor, beat_factor = Signal(INDEX_BITS), Signal(INDEX_BITS)
        product, beat_product = Signal(width), Signal(width)
        sums = Signal(width + 1), Signal(width + 1)
        excessive = Signal()
        final = Signal()

        zero = ~(job.rows.any() & job.columns.any() & job.count.any())
        halves = (job.rows, job.columns, *(job[name] for name in _FIELDS))
        wide = Cat(half[INDEX_BITS:].any() for half in halves).any() | (
            job.diagonal.as_unsigned()[INDEX_BITS:] != job.diagonal[-1].replicate(32 - INDEX_BITS))
        needed = Signal(width - 4)
        external = job.kinds[KINDS.index("external")]
        taken = job.elements[:len(left)]
        unequal = job.elements != beat_product.shift_left(lane_bits)
        given = self.o.payload.job
        m.d.comb += [
            sums[0].eq(product + Mux(factor[0], addend, 0)),
            sums[1].eq(beat_product + Mux(beat_factor[0], addend, 0)),
            final.eq(factor[1:] == 0),
            needed.eq(Mux(external, product[5:] + product[:5].any(), 0)),
            self.o.payload.elements.eq(taken),
            given.rows.eq(job.rows),
            given.columns.eq(job.columns),
            given.count.eq(job.count),
            given.mask.diagonal.eq(job.diagonal),
            *(given.mask[name].eq(job[name]) for name in _FIELDS),
            *(given.mask[name].eq(kind) for name, kind in zip(KINDS, job.kinds, strict=True)),
        ]

        def multiply():
            """Add the next multiple to the products."""
            m.d.sync += [
                product.eq(sums[0]),
                beat_product.eq(sums[1]),
                addend.eq(addend.shift_left(1)),
                lost.eq(lost | addend[-1]),
                factor.eq(factor >> 1),
                beat_factor.eq(beat_factor >> 1),
                excessive.eq(excessive | sums[0][-1] | sums[1][-1] | (lost & (factor[0] | beat_factor[0]))),
            ]

        with m.FSM():
            with m.State("Idle"):
                with m.If(self.start):
                    m.d.sync += [left.eq(self.length), words_left.eq(self.words), ended.eq(self.empty)]
                    m.next = "Fetch"

            with m.State("Fetch"):
                m.d.comb += [self.complete.eq(left == 0), self.i.ready.eq(~ended & (left != 0))]
                with m.If(ended & (left != 0)):
                    m.next = "Bad"
                with m.Elif(self.i.valid & self.i.ready):
                    m.d.sync += [
                        job.eq(Cat(job.as_value()[32 * lanes:], self.i.payload.elements)),
                        beat.eq(Mux(beat == beats_in - 1, 0, beat + 1)),
                    ]
                    with m.If(beat == beats_in - 1):
                        m.d.sync += ended.eq(self.i.payload.last)
                        m.next = "Check"

            with m.State("Check"):
                m.d.sync += [
                    addend.eq(job.count), lost.eq(0), excessive.eq(0), product.eq(0), beat_product.eq(0),
                    factor.eq(job.rows), beat_factor.eq(0),
                ]
                m.next = "Rows"
                with m.If(zero | wide):
                    m.next = "Bad"

            with m.State("Rows"):
                multiply()
                with m.If(final):
                    m.d.sync += [
                        addend.eq(sums[0]), lost.eq(0), product.eq(0), factor.eq(job.columns),
                        beat_factor.eq((job.columns + (lanes - 1)) >> lane_bits),
                    ]
                    m.next = "Columns"

            with m.State("Columns"):
                multiply()
                with m.If(final):
                    m.next = "Compare"

            with m.State("Compare"):
                m.d.comb += self.external.eq(external)
                m.next = "Offer"
                with m.If(excessive | unequal | (job.elements > left) | (needed > words_left)):
                    m.next = "Bad"

            with m.State("Offer"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += [left.eq(left - taken), words_left.eq(words_left - needed)]
                    m.next = "Fetch"

            with m.State("Bad"):
                m.d.comb += self.bad.eq(1)

        return m


def setup_layout(config):
    """What a command looks like to the datapath; holds as long as it runs.

    ``jobs_row`` and ``jobs_count`` are the list of MASK, up to the end of the memory; ``weight_row`` and
    ``weight_count`` are the words of external masks, up to there too, or the errors of SPARSIFY. ``parameter`` is the
    alternative of MASK, or the threshold of SPARSIFY.
    """
    return data.StructLayout({
        "sparsify": 1,
        "length": range(config.gradient_words + 1),
        "gradient_row": range(config.gradient_words // config.lanes),
        "jobs_row": range(config.weight_words // config.lanes),
        "jobs_count": range(config.weight_words + 1),
        "weight_row": range(config.weight_words // config.lanes),
        "weight_count": range(config.weight_words + 1),
        "parameter": 32,
    })


class MaskDataflow(wiring.Component):
    """The datapath of both operations, for one command after each reset.

    MASK: a reader takes jobs off the list; each goes to the circuit and, as a run of rows, to the reader of data, so
    that the next one is looked for while this one's data go through. One writer job takes all that comes out, and
    ends with the job that completes the length.

    SPARSIFY: gradients and errors are read, parted, and written back to where they were.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    start : In(1)
        Begins the command, one cycle after reset at the earliest.
    setup : In(setup_layout(config))
    done : Out(1)
        High for a cycle when the last element is in memory.
    bad : Out(1)
        A job is wrong, and all before it are in memory; held.
    number : Out(range(config.gradient_words // config.lanes + 1))
        Of that job.
    fetched : Out(1)
        A word of an external mask was taken.
    replaced : Out(range(config.lanes + 1))
        Elements that were replaced, or dropped.
    gradient_read, gradient_write, weight_read, weight_write : memory ports
        As those of :class:`MaskEngine`.
    """

    def __init__(self, *, config):
        self._config = config
        lanes = config.lanes
        gradient_rows, weight_rows = config.gradient_words // lanes, config.weight_words // lanes
        super().__init__({
            "start": In(1),
            "setup": In(setup_layout(config)),
            "done": Out(1),
            "bad": Out(1),
            "number": Out(range(gradient_rows + 1)),
            "fetched": Out(1),
            "replaced": Out(range(lanes + 1)),
            "gradient_read": Out(read_signature(gradient_rows, lanes)),
            "gradient_write": Out(write_signature(gradient_rows, lanes)),
            "weight_read": Out(read_signature(weight_rows, lanes)).array(2),
            "weight_write": Out(write_signature(weight_rows, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup = self._config, self.setup
        gradients = {"rows": config.gradient_words // config.lanes, "lanes": config.lanes,
                     "elements": config.gradient_words}
        weights = {"rows": config.weight_words // config.lanes, "lanes": config.lanes,
                   "elements": config.weight_words}

        m.submodules.reader = reader = RowReader(**gradients)
        m.submodules.weight_reader = weight_reader = RowReader(**weights)
        m.submodules.writer = writer = RowWriter(**gradients)
        # Between the reader's queue and the handshakes of what is behind it.
        m.submodules.data = rows = SkidBuffer(shape=beat_layout(config.lanes))
        connect_stream(m, reader.o, rows.i)
        wiring.connect(m, reader=reader.port, memory=wiring.flipped(self.gradient_read))
        wiring.connect(m, weight_reader=weight_reader.port, memory=wiring.flipped(self.weight_read[1]))
        wiring.connect(m, writer=writer.port, memory=wiring.flipped(self.gradient_write))
        # Out of reset, readers and writers take a job at once.
        m.d.comb += [
            writer.job.valid.eq(self.start),
            writer.job.payload.row.eq(setup.gradient_row),
            writer.job.payload.count.eq(setup.length),
            weight_reader.job.payload.row.eq(setup.weight_row),
            weight_reader.job.payload.count.eq(setup.weight_count),
        ]
        parts = reader, rows.o, weight_reader, writer, weights
        mask_done, mask_takes = self._mask(m, *parts) if config.masking else (Const(0), Const(0))
        sparsify_done, sparsify_takes = self._sparsify(m, *parts) if config.error_feedback else (Const(0), Const(0))
        m.d.comb += [
            self.done.eq(Mux(setup.sparsify, sparsify_done, mask_done)),
            # Data is offered to both: without a job the circuit takes none, and without errors the magnitude mask.
            rows.o.ready.eq(mask_takes | sparsify_takes),
        ]
        return m

    def _mask(self, m, reader, rows, weight_reader, writer, weights):
        config, setup = self._config, self.setup
        lanes = config.lanes
        m.submodules.list_reader = list_reader = RowReader(**weights)
        m.submodules.jobs = jobs = JobReader(lanes=lanes, elements=config.gradient_words, words=config.weight_words)
        m.submodules.fork = fork = Fork(shape=checked_job_layout(config.gradient_words), outputs=2)
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        m.submodules.words = words = SkidBuffer(shape=serializer.o.payload.shape())
        m.submodules.circuit = circuit = MaskCircuit(lanes=lanes, index_bits=INDEX_BITS)
        wiring.connect(m, list_reader=list_reader.port, memory=wiring.flipped(self.weight_read[0]))
        connect_stream(m, list_reader.o, jobs.i)
        connect_stream(m, jobs.o, fork.i)
        connect_stream(m, serializer.o, words.i)
        to_circuit, to_reader = fork.o

        row = Signal(range(config.gradient_words // lanes))
        under_way = Signal(range(16))  # jobs of which the last beat is not yet taken: their beats are few
        begins, ends = Signal(), Signal()
        mask = Signal()
        words_asked = Signal()
        m.d.comb += [
            mask.eq(~setup.sparsify),
            begins.eq(jobs.o.valid & jobs.o.ready),
            ends.eq(circuit.o.valid & circuit.o.ready & circuit.o.payload.last),
            list_reader.job.valid.eq(self.start & mask & (setup.jobs_count != 0)),
            list_reader.job.payload.row.eq(setup.jobs_row),
            list_reader.job.payload.count.eq(setup.jobs_count),
            jobs.start.eq(self.start & mask),
            jobs.length.eq(setup.length),
            jobs.words.eq(setup.weight_count),
            jobs.empty.eq(setup.jobs_count == 0),
            fork.enable.eq(0b11),
            circuit.jobs.valid.eq(to_circuit.valid),
            circuit.jobs.payload.eq(to_circuit.payload.job),
            to_circuit.ready.eq(circuit.jobs.ready),
            circuit.alternative.eq(setup.parameter),
            circuit.i.valid.eq(rows.valid),
            circuit.i.payload.eq(rows.payload),
            circuit.words.valid.eq(words.o.valid),
            circuit.words.payload.eq(words.o.payload.data),
            words.o.ready.eq(circuit.words.ready),
            self.bad.eq(jobs.bad & (under_way == 0) & ~writer.port.valid),
        ]
        m.d.sync += [
            self.number.eq(self.number + begins),
            under_way.eq(under_way + begins - ends),
            words_asked.eq(words_asked | jobs.external),
        ]
        with m.If(self.start):
            m.d.sync += row.eq(setup.gradient_row)
        with m.If(mask):
            connect_stream(m, weight_reader.o, serializer.i)
            m.d.comb += [
                # Words are read from the first external job on, and come to the source with its first beat.
                weight_reader.job.valid.eq(jobs.external & ~words_asked & (setup.weight_count != 0)),
                reader.job.valid.eq(to_reader.valid),
                reader.job.payload.row.eq(row),
                reader.job.payload.count.eq(to_reader.payload.elements),
                to_reader.ready.eq(reader.job.ready),
                writer.i.valid.eq(circuit.o.valid),
                writer.i.payload.eq(circuit.o.payload),
                writer.i.payload.last.eq(circuit.o.payload.last & jobs.complete & (under_way == 1)),
                circuit.o.ready.eq(writer.i.ready),
                self.fetched.eq(circuit.fetched),
                self.replaced.eq(circuit.masked),
            ]
            with m.If(to_reader.valid & to_reader.ready):
                m.d.sync += row.eq(row + (to_reader.payload.elements >> exact_log2(lanes)))
        return writer.done, circuit.i.ready

    def _sparsify(self, m, reader, rows, weight_reader, writer, weights):
        setup = self.setup
        m.submodules.errors = errors = SkidBuffer(shape=beat_layout(self._config.lanes))
        m.submodules.magnitude = magnitude = MagnitudeMask(lanes=self._config.lanes)
        m.submodules.weight_writer = weight_writer = RowWriter(**weights)
        wiring.connect(m, weight_writer=weight_writer.port, memory=wiring.flipped(self.weight_write))
        connect_stream(m, errors.o, magnitude.errors)
        connect_stream(m, magnitude.dropped, weight_writer.i)
        written = Signal(2)
        m.d.sync += written.eq(written | Cat(writer.done, weight_writer.done))
        m.d.comb += [
            magnitude.threshold.eq(setup.parameter),
            magnitude.gradients.valid.eq(rows.valid),
            magnitude.gradients.payload.eq(rows.payload),
            weight_writer.job.valid.eq(self.start & setup.sparsify),
            weight_writer.job.payload.row.eq(setup.weight_row),
            weight_writer.job.payload.count.eq(setup.weight_count),
        ]
        with m.If(setup.sparsify):
            connect_stream(m, weight_reader.o, errors.i)
            connect_stream(m, magnitude.kept, writer.i)
            m.d.comb += [
                weight_reader.job.valid.eq(self.start),
                reader.job.valid.eq(self.start),
                reader.job.payload.row.eq(setup.gradient_row),
                reader.job.payload.count.eq(setup.length),
                self.replaced.eq(magnitude.replaced),
            ]
        return (written | Cat(writer.done, weight_writer.done)).all(), magnitude.gradients.ready


def mask_cycles(jobs, *, lanes):
    """Cycles of a MASK, if the host leaves the memories alone.

    Parameters
    ----------
    jobs : list of (int, int, int)
        Rows, columns and number of matrices of each job; at least one.
    lanes : int
    """
    beats = [count * rows * -(-columns // lanes) for rows, columns, count in jobs]
    # A job is offered so long after the one before it was taken.
    ahead = [JobReader.latency(rows, columns, lanes=lanes) + 1 for rows, columns, _ in jobs]
    first = RowReader.latency + ahead[0] + MaskCircuit.latency
    return first + sum(map(max, beats, [*ahead[1:], 0])) + _ENDING


def sparsify_cycles(length, *, lanes):
    """Cycles of a SPARSIFY, if the host leaves the memories alone."""
    return 1 + RowReader.latency + SkidBuffer.latency + MagnitudeMask.latency + -(-length // lanes) + _ENDING


def counts_layout():
    """What the engine adds to the counters in a cycle, by the names of the registers."""
    return data.StructLayout({"mask_words_fetched": 1, "elements_masked": 4, "command_cycles": 1, "stall_memory": 1})


class MaskEngine(wiring.Component):
    """Run MASK and SPARSIFY on the memories of a node, one command after the other.

    A command is run by the :class:`MaskDataflow`, which is held in reset between commands, and reported by one event.
    Alternative and threshold are sampled when it is taken. docs/protocol.md has the operations, and the list of jobs.
    Without length, a command ends well at once.

    Of a list with a wrong job, all jobs before it are carried out and none from it on; nothing but elements of those
    jobs is written.

    Parameters
    ----------
    config : NodeConfig
        Has ``masking`` or ``error_feedback``, or both.

    Members
    -------
    command : In(stream of command_layout())
        Of an operation that the configuration has; checked beforehand, see
        :class:`~hdl.control.command_queue.CommandChecker`.
    event : Out(stream of event_layout())
        One for each command. The detail is the number of elements replaced, or that of the wrong job.
    alternative, threshold : In(32)
    link_reset : In(1)
        Ends a command, of which a part may be done.
    weight_version : In(32)
        For the event.
    count : Out(counts_layout())
    gradient_read, gradient_write, weight_write : memory ports
    weight_read : array of 2 memory ports
        For the list of jobs, and for words and errors.
    """

    def __init__(self, *, config):
        if not (config.masking or config.error_feedback):
            raise ValueError(f"Node must have masking or error feedback, not {config!r}")
        self._config = config
        lanes = config.lanes
        gradient_rows, weight_rows = config.gradient_words // lanes, config.weight_words // lanes
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1),
            "alternative": In(32),
            "threshold": In(32),
            "weight_version": In(32),
            "count": Out(counts_layout()),
            "gradient_read": Out(read_signature(gradient_rows, lanes)),
            "gradient_write": Out(write_signature(gradient_rows, lanes)),
            "weight_read": Out(read_signature(weight_rows, lanes)).array(2),
            "weight_write": Out(write_signature(weight_rows, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        lane_bits = exact_log2(config.lanes)
        m.submodules.runner = runner = CommandRunner(failure=EventStatus.BAD_MASK, most=config.lanes)
        flow = MaskDataflow(config=config)
        m.submodules.flow = ResetInserter(runner.reset)(flow)
        connect_stream(m, self.command, runner.command)
        connect_stream(m, runner.event, self.event)
        ports = [(flow.gradient_read, self.gradient_read), (flow.gradient_write, self.gradient_write),
                 (flow.weight_write, self.weight_write), *zip(flow.weight_read, self.weight_read, strict=True)]
        for inner, outer in ports:
            wiring.connect(m, flow=inner, memory=wiring.flipped(outer))

        given = self.command.payload
        setup = Signal(setup_layout(config))
        sparsify = Signal()
        m.d.comb += [
            sparsify.eq(given.operation == Operation.SPARSIFY),
            flow.setup.eq(setup),
            flow.start.eq(runner.start),
            runner.link_reset.eq(self.link_reset),
            runner.weight_version.eq(self.weight_version),
            runner.progress.eq(flow.replaced),
            runner.done.eq(flow.done),
            runner.bad.eq(flow.bad),
            runner.number.eq(flow.number),
            self.count.mask_words_fetched.eq(flow.fetched),
            self.count.elements_masked.eq(flow.replaced),
            self.count.command_cycles.eq(runner.busy),
            self.count.stall_memory.eq(Cat(outer.valid & ~outer.ready for _, outer in ports).any()),
        ]
        if not config.error_feedback:
            m.d.comb += sparsify.eq(0)
        elif not config.masking:
            m.d.comb += sparsify.eq(1)
        weight_base = Mux(sparsify, given.weight_base, given.state_base)
        with m.If(self.command.ready):
            m.d.sync += [
                setup.sparsify.eq(sparsify),
                setup.length.eq(given.length),
                setup.gradient_row.eq(given.gradient_base >> lane_bits),
                setup.jobs_row.eq(given.weight_base >> lane_bits),
                setup.jobs_count.eq(config.weight_words - given.weight_base),
                setup.weight_row.eq(weight_base >> lane_bits),
                setup.weight_count.eq(Mux(sparsify, given.length, config.weight_words - given.state_base)),
                setup.parameter.eq(Mux(sparsify, self.threshold, self.alternative)),
            ]
        return m
