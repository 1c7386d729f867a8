"""Datapath of MASK and SPARSIFY between the gradient memory and the weight memory."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.masking.circuit import MaskCircuit
from hdl.masking.job_list import JobReader, checked_job_layout
from hdl.masking.magnitude import MagnitudeMask
from hdl.masking.mask import INDEX_BITS
from hdl.memory import read_signature, write_signature
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.route import Fork
from hdl.streams.rows import RowSerializer
from hdl.streams.stream import SkidBuffer, beat_layout, connect_stream

__all__ = ["MaskDataflow", "setup_layout"]


def setup_layout(config):
    """Layout of the command parameters used by the datapath; they are stable while the command runs.

    ``jobs_row`` and ``jobs_count`` give the range of MASK's job list, which extends to the end of the memory;
    ``weight_row`` and ``weight_count`` give the range of external mask words, which also extends to the end, or of
    SPARSIFY's errors. ``parameter`` is MASK's alternative or SPARSIFY's threshold.
    """
    return data.StructLayout({
        "sparsify": 1,
        "length": range(config.memories.gradient + 1),
        "gradient_row": range(config.memories.gradient // config.lanes),
        "jobs_row": range(config.memories.weight // config.lanes),
        "jobs_count": range(config.memories.weight + 1),
        "weight_row": range(config.memories.weight // config.lanes),
        "weight_count": range(config.memories.weight + 1),
        "parameter": 32,
    })


class MaskDataflow(wiring.Component):
    """Datapath of MASK and SPARSIFY; executes one command after each reset.

    MASK: a reader fetches jobs from the list. Each job is sent to the circuit and, as a range of rows, to the data
    reader, so the next job is read while the data of the current one passes. A single writer job covers all results;
    it ends with the mask job that completes the length.

    SPARSIFY: gradients and errors are read, added, separated by magnitude, and written back to their addresses.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    start : In(1)
        Starts the command; at the earliest one cycle after reset.
    setup : In(setup_layout(config))
    done : Out(1)
        High for one cycle when the last element is in memory.
    bad : Out(1)
        A job is invalid, and the results of all previous jobs are in memory; stays high.
    number : Out(range(config.memories.gradient // config.lanes + 1))
        Number of the invalid job.
    fetched : Out(1)
        A word of an external mask was taken.
    replaced : Out(range(config.lanes + 1))
        Number of elements that were replaced or dropped.
    gradient_read, gradient_write, weight_read, weight_write : memory ports
        See :class:`~hdl.masking.engine.MaskEngine`.
    """

    def __init__(self, *, config):
        self._config = config
        lanes = config.lanes
        gradient_rows, weight_rows = config.memories.gradient // lanes, config.memories.weight // lanes
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
        gradients = {"rows": config.memories.gradient // config.lanes, "lanes": config.lanes,
                     "elements": config.memories.gradient}
        weights = {"rows": config.memories.weight // config.lanes, "lanes": config.lanes,
                   "elements": config.memories.weight}

        m.submodules.reader = reader = RowReader(**gradients)
        m.submodules.weight_reader = weight_reader = RowReader(**weights)
        m.submodules.writer = writer = RowWriter(**gradients)
        # The skid buffer decouples the reader's queue from the handshakes of the units after it.
        m.submodules.data = rows = SkidBuffer(shape=beat_layout(config.lanes))
        connect_stream(m, reader.o, rows.i)
        wiring.connect(m, reader=reader.port, memory=wiring.flipped(self.gradient_read))
        wiring.connect(m, weight_reader=weight_reader.port, memory=wiring.flipped(self.weight_read[1]))
        wiring.connect(m, writer=writer.port, memory=wiring.flipped(self.gradient_write))
        # Readers and writers can accept a job immediately after reset.
        m.d.comb += [
            writer.job.valid.eq(self.start),
            writer.job.payload.row.eq(setup.gradient_row),
            writer.job.payload.count.eq(setup.length),
            weight_reader.job.payload.row.eq(setup.weight_row),
            weight_reader.job.payload.count.eq(setup.weight_count),
        ]
        parts = reader, rows.o, weight_reader, writer, weights
        mask_done, mask_takes = self._mask(m, *parts) if config.masking else (Const(0), Const(0))
        sparsify_done, sparsify_takes = self._sparsify(m, *parts) if config.sparsify else (Const(0), Const(0))
        m.d.comb += [
            self.done.eq(Mux(setup.sparsify, sparsify_done, mask_done)),
            # Both units are offered data. The circuit needs a job to accept it, and the magnitude mask needs errors.
            rows.o.ready.eq(mask_takes | sparsify_takes),
        ]
        return m

    def _mask(self, m, reader, rows, weight_reader, writer, weights):
        config, setup = self._config, self.setup
        lanes = config.lanes
        m.submodules.list_reader = list_reader = RowReader(**weights)
        m.submodules.jobs = jobs = JobReader(
            lanes=lanes, elements=config.memories.gradient, words=config.memories.weight)
        m.submodules.fork = fork = Fork(shape=checked_job_layout(config.memories.gradient), outputs=2)
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        m.submodules.words = words = SkidBuffer(shape=serializer.o.payload.shape())
        m.submodules.circuit = circuit = MaskCircuit(lanes=lanes, index_bits=INDEX_BITS)
        wiring.connect(m, list_reader=list_reader.port, memory=wiring.flipped(self.weight_read[0]))
        connect_stream(m, list_reader.o, jobs.i)
        connect_stream(m, jobs.o, fork.i)
        connect_stream(m, serializer.o, words.i)
        to_circuit, to_reader = fork.o

        row = Signal(range(config.memories.gradient // lanes))
        under_way = Signal(range(16))  # number of jobs whose last beat has not been taken
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
                # Mask words are read once the first external job arrives; they reach the source with its first beat.
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
