"""Inference command of a node: runs the layers in order, each on all samples, from memory to memory."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, command_layout, event_layout
from hdl.features.quantization.arithmetic import ADJUSTED_BITS, MULTIPLIER_BITS, OFFSET_BITS, SHIFT_BITS, Form
from hdl.features.quantization.layer_reader import LayerReader, checked_layer_layout
from hdl.features.quantization.matrix_vector import MatrixVector, latency
from hdl.features.quantization.operand_feed import InputBuffer, ParameterUnpacker, SampleJobs
from hdl.features.quantization.requantizer import Requantizer, result_layout
from hdl.features.quantization.result_writer import ResultWriter, target_layout
from hdl.memory import read_signature, write_signature
from hdl.row_transfer import RowReader
from hdl.streams.route import Fork
from hdl.streams.stream import Queue, SkidBuffer, connect_stream

__all__ = ["InferenceDataflow", "InferenceEngine", "counts_layout", "infer_cycles", "peak_cycles", "setup_layout"]

#: Maximum number of outputs in flight in the multipliers; the scale of each one waits in a queue.
_SCALES = 17

#: Maximum number of layers waiting to be written while later layers are read.
_TARGETS = 2


def setup_layout(config):
    """Layout of the command fields that the datapath uses; they are held while it runs."""
    return data.StructLayout({
        "samples": 32,
        "list_row": range(config.memories.weight // config.lanes),
        "list_count": range(config.memories.weight + 1),
    })


def _scale_layout():
    """Scale of the sum of an output."""
    return data.StructLayout({"multiplier": MULTIPLIER_BITS, "shift": SHIFT_BITS, "relu": 1, "raw": 1, "last": 1})


class InferenceDataflow(wiring.Component):
    """Datapath for one command; it must be reset before each command.

    Each layer from the list is passed to the readers of codes, inputs and parameters, the input buffer and the result
    writer. Each unit starts the layer once it has finished the previous one, and can queue one more layer. The inputs
    of a sample are read once its outputs of the previous layer are in memory; up to ``samples`` samples may be in
    progress.

    Parameters
    ----------
    config : NodeConfig
    form : Form
        Implementation of the multipliers.

    Members
    -------
    start : In(1)
        Begin the command, one cycle after reset at the earliest.
    setup : In(setup_layout(config))
    done : Out(1)
        High for one cycle when the last result is written to memory.
    bad : Out(1)
        High once an invalid layer has been found and all results of the preceding layers are in memory.
    number : Out(16)
        Number of the invalid layer.
    multiplied : Out(1)
        High in every cycle with multiplications in all lanes.
    gradient_read, gradient_write, weight_read : memory ports
        Ports of :class:`InferenceEngine`.
    """

    def __init__(self, *, config, form=Form.ADJUSTED):
        self._config = config
        self._form = form
        lanes = config.lanes
        gradient_rows, weight_rows = config.memories.gradient // lanes, config.memories.weight // lanes
        super().__init__({
            "start": In(1),
            "setup": In(setup_layout(config)),
            "done": Out(1),
            "bad": Out(1),
            "number": Out(16),
            "multiplied": Out(1),
            "gradient_read": Out(read_signature(gradient_rows, lanes)).array(2),
            "gradient_write": Out(write_signature(gradient_rows, lanes)),
            "weight_read": Out(read_signature(weight_rows, lanes)).array(2),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup = self._config, self.setup
        lanes = config.lanes
        samples = setup.samples[:16]
        gradients = {"rows": config.memories.gradient // lanes, "elements": config.memories.gradient}
        weights = {"rows": config.memories.weight // lanes, "elements": config.memories.weight}

        m.submodules.list_reader = list_reader = RowReader(lanes=lanes, ahead=False, **weights)
        m.submodules.layers = layers = LayerReader(config=config)
        m.submodules.fork = fork = Fork(shape=checked_layer_layout(config), outputs=5)
        wiring.connect(m, list_reader=list_reader.port, memory=wiring.flipped(self.weight_read[0]))
        connect_stream(m, list_reader.o, layers.i)
        connect_stream(m, layers.o, fork.i)
        m.d.comb += [
            list_reader.job.valid.eq(self.start & (setup.list_count != 0)),
            list_reader.job.payload.row.eq(setup.list_row),
            list_reader.job.payload.count.eq(setup.list_count),
            layers.start.eq(self.start),
            layers.samples.eq(setup.samples),
            layers.empty.eq(setup.list_count == 0),
            fork.enable.eq(~0),
        ]

        # Three readers; each of them reads one sequence of consecutive rows per sample.
        readers, jobs = {}, {}
        for output, (name, part, memory, port) in enumerate((
            ("codes", "code", weights, self.weight_read[1]),
            ("inputs", "source", gradients, self.gradient_read[0]),
            ("parameters", "parameter", gradients, self.gradient_read[1]),
        )):
            m.submodules[f"{name}_jobs"] = jobs[name] = SampleJobs(**memory)
            m.submodules[f"{name}_reader"] = readers[name] = RowReader(lanes=lanes, ahead=False, **memory)
            wiring.connect(m, reader=readers[name].port, memory=wiring.flipped(port))
            m.submodules[f"{name}_runs"] = runs = SkidBuffer(shape=jobs[name].layer.payload.shape())
            connect_stream(m, jobs[name].job, readers[name].job)
            connect_stream(m, runs.o, jobs[name].layer)
            layer, run = fork.o[output], runs.i
            fields = layer.payload
            m.d.comb += [
                jobs[name].samples.eq(samples),
                run.valid.eq(layer.valid),
                layer.ready.eq(run.ready),
                run.payload.job.row.eq(fields[f"{part}_row"]),
            ]
            if name == "inputs":
                m.d.comb += [run.payload.job.count.eq(fields.input_rows << exact_log2(lanes)),
                             run.payload.step.eq(fields.input_rows)]
            else:
                m.d.comb += run.payload.job.count.eq(fields[f"{part}_elements"])

        m.submodules.buffer = buffer = InputBuffer(config=config)
        m.submodules.parameters = parameters = ParameterUnpacker(lanes=lanes)
        connect_stream(m, readers["inputs"].o, buffer.i)
        m.submodules.shapes = shapes = SkidBuffer(shape=buffer.layer.payload.shape())
        connect_stream(m, readers["parameters"].o, parameters.i)
        connect_stream(m, shapes.o, buffer.layer)
        layer, shape = fork.o[3], shapes.i.payload
        m.d.comb += [
            buffer.samples.eq(samples),
            shapes.i.valid.eq(layer.valid),
            layer.ready.eq(shapes.i.ready),
            shape.flags.eq(layer.payload.flags),
            shape.tail.eq(layer.payload.tail),
            shape.last_output.eq(layer.payload.outputs - 1),
            shape.last_row.eq(layer.payload.input_rows - 1),
        ]

        m.submodules.product = product = MatrixVector(
            lanes=4 * lanes, bits=ADJUSTED_BITS - 1, offset_bits=OFFSET_BITS, form=self._form)
        m.submodules.scales = scales = Queue(shape=_scale_layout(), depth=_SCALES)
        self._operands(m, readers["codes"].o, buffer.o, parameters.o, product.i, scales.i)

        m.submodules.requantizer = requantizer = Requantizer()
        m.submodules.sums = sums = SkidBuffer(shape=product.o.payload.shape())
        m.submodules.results = results = SkidBuffer(shape=result_layout())
        connect_stream(m, product.o, sums.i)
        connect_stream(m, requantizer.o, results.i)
        m.d.comb += [
            requantizer.i.valid.eq(sums.o.valid & scales.o.valid),
            sums.o.ready.eq(requantizer.i.ready & scales.o.valid),
            scales.o.ready.eq(requantizer.i.ready & sums.o.valid),
            requantizer.i.payload.sum.eq(sums.o.payload.sum),
            *(requantizer.i.payload[name].eq(scales.o.payload[name]) for name in _scale_layout().members),
        ]

        m.submodules.writer = writer = ResultWriter(rows=gradients["rows"], lanes=lanes)
        m.submodules.targets = targets = Queue(shape=target_layout(gradients["rows"]), depth=_TARGETS)
        wiring.connect(m, writer=writer.port, memory=wiring.flipped(self.gradient_write))
        connect_stream(m, targets.o, writer.layer)
        connect_stream(m, results.o, writer.i)
        ahead = Signal(16)  # samples with requested inputs but unwritten results
        under_way = Signal(16)  # layers started but not yet in memory
        layer = fork.o[4]
        issued = jobs["inputs"].job.valid & jobs["inputs"].job.ready
        # Parameters are read after the first inputs, which have the memory to themselves, so they arrive in time.
        asked, opened = Signal(), Signal()
        begins = Signal()
        m.d.comb += [
            writer.samples.eq(samples),
            targets.i.valid.eq(layer.valid),
            layer.ready.eq(targets.i.ready),
            targets.i.payload.row.eq(layer.payload.target_row),
            targets.i.payload.final.eq(layer.payload.final),
            jobs["codes"].allow.eq(1),
            jobs["inputs"].allow.eq(ahead != samples),
            jobs["parameters"].allow.eq(opened),
            self.multiplied.eq(product.i.valid & product.i.ready),
            self.done.eq(writer.done),
            self.bad.eq(layers.bad & (under_way == 0)),
        ]
        m.d.sync += [
            begins.eq(layers.o.valid & layers.o.ready),
            asked.eq(asked | issued),
            opened.eq(opened | (asked & jobs["inputs"].job.ready)),
            ahead.eq(ahead + issued - writer.written),
            under_way.eq(under_way + begins - writer.ended),
            self.number.eq(self.number + begins),
        ]
        return m

    def _operands(self, m, codes, inputs, parameters, operands, scales):
        """Join each beat of codes with a beat of inputs and the parameters of its output."""
        width = 4 * self._config.lanes
        x, output, flags = inputs.payload, parameters.payload, inputs.payload.flags
        row = codes.payload.elements.as_value()
        all_there, leaves = Signal(), Signal()
        m.d.comb += [
            all_there.eq(codes.valid & inputs.valid & parameters.valid & (scales.ready | ~x.last)),
            leaves.eq(all_there & operands.ready),
            operands.valid.eq(all_there),
            inputs.ready.eq(leaves),
            codes.ready.eq(leaves & (flags.wide | x.odd | x.last)),
            parameters.ready.eq(leaves & x.last),
            scales.valid.eq(leaves & x.last),
            operands.payload.inputs.eq(x.inputs),
            operands.payload.offset.eq(output.offset),
            operands.payload.bias.eq(output.bias),
            operands.payload.signed.eq(flags.signed),
            operands.payload.subtract.eq(flags.subtract),
            operands.payload.last.eq(x.last),
            scales.payload.multiplier.eq(output.multiplier),
            scales.payload.shift.eq(output.shift),
            scales.payload.relu.eq(flags.relu),
            scales.payload.raw.eq(flags.raw),
            scales.payload.last.eq(x.end),
        ]
        # Short codes occupy either the lower or the upper half of a row.
        short = Mux(x.odd, row[4 * width:], row[:4 * width])
        halves = Signal(4 * width)
        m.d.comb += halves.eq(short)
        for n in range(width):
            m.d.comb += operands.payload.codes[n].eq(
                Mux(flags.wide, row[8 * n:8 * n + 8], halves[4 * n:4 * n + 4]))


def peak_cycles(layers, samples, *, lanes):
    """Lower bound on the cycles of an INFER command: samples · Σ outputs · ceil(inputs / (4 · lanes)).

    Parameters
    ----------
    layers : list of (int, int)
        Number of outputs and inputs of each layer.
    samples : int
    lanes : int
    """
    return samples * sum(outputs * -(-inputs // (4 * lanes)) for outputs, inputs in layers)


def infer_cycles(layers, samples, *, lanes, form=Form.ADJUSTED):
    """Number of cycles that an INFER command takes if it never waits for a memory or for an earlier layer.

    The host does not access the memories, and reading inputs and parameters is no slower than multiplying.

    Parameters
    ----------
    layers : list of (int, int)
        Number of outputs and inputs of each layer; at least one layer.
    samples : int
    lanes : int
    form : Form
    """
    first_rows = -(-layers[0][1] // (4 * lanes))
    # Cycles to read the list and the first layer, issue the first input job, read the inputs and pass the buffer.
    ahead = RowReader.latency + LayerReader.latency(lanes=lanes) + SkidBuffer.latency + SampleJobs.latency
    ahead += RowReader.latency + first_rows
    after = latency(lanes=4 * lanes, form=form) + SkidBuffer.latency + Requantizer.latency + SkidBuffer.latency
    # With one lane, the parameters of the first output take two rows. If there are several samples, inputs of another
    # sample are read between these two rows.
    between = 1 + (samples > 1) if lanes == 1 else 0
    multiplying = peak_cycles(layers, samples, lanes=lanes)
    return ahead + InputBuffer.latency + between + multiplying + after + ResultWriter.latency


def counts_layout():
    """Layout of the per-cycle counter increments, keyed by register name."""
    return data.StructLayout({"command_cycles": 1, "stall_memory": 1})


class InferenceEngine(wiring.Component):
    """Run INFER commands on the memories of a node, one at a time.

    An :class:`InferenceDataflow`, which is held in reset between commands, executes each command; one event reports
    the outcome. docs/protocol.md describes the list of layers. A command with no samples succeeds immediately.

    Execution stops at the first invalid layer; the results of all layers before it are written.

    Parameters
    ----------
    config : NodeConfig
        Configuration with ``quantization``.
    form : Form
        Implementation of the multipliers; it affects only the latency.

    Members
    -------
    command : In(stream of command_layout())
        INFER commands that have already been checked; see :class:`~hdl.control.command_checker.CommandChecker`.
    event : Out(stream of event_layout())
        One event per command. Its detail is the number of cycles with all lanes multiplying, or the number of the
        invalid layer.
    link_reset : In(1)
        Abort the running command.
    weight_version : In(32)
        Weight version for the event.
    count : Out(counts_layout())
    gradient_read : array of 2 memory ports
        Ports for the inputs and for the parameters.
    gradient_write : memory port
    weight_read : array of 2 memory ports
        Ports for the layer list and for the codes.
    """

    def __init__(self, *, config, form=Form.ADJUSTED):
        if not config.has("quantization"):
            raise ValueError(f"Node must have quantization, not {config!r}")
        self._config = config
        self._form = Form(form)
        lanes = config.lanes
        gradient_rows, weight_rows = config.memories.gradient // lanes, config.memories.weight // lanes
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1),
            "weight_version": In(32),
            "count": Out(counts_layout()),
            "gradient_read": Out(read_signature(gradient_rows, lanes)).array(2),
            "gradient_write": Out(write_signature(gradient_rows, lanes)),
            "weight_read": Out(read_signature(weight_rows, lanes)).array(2),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        m.submodules.runner = runner = CommandRunner(failure=EventStatus.BAD_LAYER)
        flow = InferenceDataflow(config=config, form=self._form)
        m.submodules.flow = ResetInserter(runner.reset)(flow)
        connect_stream(m, self.command, runner.command)
        connect_stream(m, runner.event, self.event)
        ports = [(flow.gradient_write, self.gradient_write),
                 *zip(flow.gradient_read, self.gradient_read, strict=True),
                 *zip(flow.weight_read, self.weight_read, strict=True)]
        for inner, outer in ports:
            wiring.connect(m, flow=inner, memory=wiring.flipped(outer))

        fields = self.command.payload
        setup = Signal(setup_layout(config))
        m.d.comb += [
            flow.setup.eq(setup),
            flow.start.eq(runner.start),
            runner.link_reset.eq(self.link_reset),
            runner.weight_version.eq(self.weight_version),
            runner.progress.eq(flow.multiplied),
            runner.done.eq(flow.done),
            runner.bad.eq(flow.bad),
            runner.number.eq(flow.number),
            self.count.command_cycles.eq(runner.busy),
            self.count.stall_memory.eq(Cat(outer.valid & ~outer.ready for _, outer in ports).any()),
        ]
        with m.If(self.command.ready):
            m.d.sync += [
                setup.samples.eq(fields.length),
                setup.list_row.eq(fields.weight_base >> exact_log2(config.lanes)),
                setup.list_count.eq(config.memories.weight - fields.weight_base),
            ]
        return m
