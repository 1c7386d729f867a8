"""Mask engine of a node, which masks matrices in place in the gradient memory and sparsifies gradients."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, Operation, command_layout, event_layout
from hdl.masking.circuit import MaskCircuit
from hdl.masking.dataflow import MaskDataflow, setup_layout
from hdl.masking.job_list import JobReader
from hdl.masking.magnitude import MagnitudeMask
from hdl.memory import read_signature, write_signature
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.stream import SkidBuffer, connect_stream

__all__ = ["MaskEngine", "counts_layout", "mask_cycles", "sparsify_cycles"]

#: Cycles from accepting a command's last beat until the beat is certain to be in memory.
_ENDING = 1 + RowWriter.latency


def mask_cycles(jobs, *, lanes):
    """Return the number of cycles of a MASK command, assuming no host accesses to the memories.

    Parameters
    ----------
    jobs : list of (int, int, int)
        Number of rows, columns and matrices of each job; at least one.
    lanes : int
    """
    beats = [count * rows * -(-columns // lanes) for rows, columns, count in jobs]
    # Latency in cycles from when a job is taken until the next one is offered.
    ahead = [JobReader.latency(rows, columns, lanes=lanes) + 1 for rows, columns, _ in jobs]
    first = RowReader.latency + ahead[0] + MaskCircuit.latency
    return first + sum(map(max, beats, [*ahead[1:], 0])) + _ENDING


def sparsify_cycles(length, *, lanes):
    """Return the number of cycles of a SPARSIFY command, assuming no host accesses to the memories."""
    return 1 + RowReader.latency + SkidBuffer.latency + MagnitudeMask.latency + -(-length // lanes) + _ENDING


def counts_layout():
    """Layout of the counter increments per cycle, keyed by register name."""
    return data.StructLayout({"mask_words_fetched": 1, "elements_masked": 4, "command_cycles": 1, "stall_memory": 1})


class MaskEngine(wiring.Component):
    """Run MASK and SPARSIFY commands on a node's memories, one after another.

    The :class:`MaskDataflow`, which is held in reset between commands, runs each command; one event reports its end.
    The alternative and the threshold are sampled when the command is taken. docs/protocol.md describes the operations
    and the job list. A command of length 0 ends with OK immediately.

    Only the jobs that precede an invalid one are executed, and only their elements are written.

    Parameters
    ----------
    config : NodeConfig
        Configuration with ``masking`` or ``sparsify``, or both.

    Members
    -------
    command : In(stream of command_layout())
        Command for an operation of the configuration; it has already been checked: see
        :class:`~hdl.control.command_checker.CommandChecker`.
    event : Out(stream of event_layout())
        One event per command. The detail is the number of replaced elements, or the number of the invalid job.
    alternative, threshold : In(32)
    link_reset : In(1)
        Aborts the command, which may have been partly executed.
    weight_version : In(32)
        Weight version for the event.
    count : Out(counts_layout())
    gradient_read, gradient_write, weight_write : memory ports
    weight_read : array of 2 memory ports
        Ports for the job list, and for words and errors.
    """

    def __init__(self, *, config):
        if not (config.masking or config.sparsify):
            raise ValueError(f"Node must have masking or error feedback, not {config!r}")
        self._config = config
        lanes = config.lanes
        gradient_rows, weight_rows = config.memories.gradient // lanes, config.memories.weight // lanes
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

        command = self.command.payload
        setup = Signal(setup_layout(config))
        sparsify = Signal()
        m.d.comb += [
            sparsify.eq(command.operation == Operation.SPARSIFY),
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
        if not config.sparsify:
            m.d.comb += sparsify.eq(0)
        elif not config.masking:
            m.d.comb += sparsify.eq(1)
        weight_base = Mux(sparsify, command.weight_base, command.state_base)
        with m.If(self.command.ready):
            m.d.sync += [
                setup.sparsify.eq(sparsify),
                setup.length.eq(command.length),
                setup.gradient_row.eq(command.gradient_base >> lane_bits),
                setup.jobs_row.eq(command.weight_base >> lane_bits),
                setup.jobs_count.eq(config.memories.weight - command.weight_base),
                setup.weight_row.eq(weight_base >> lane_bits),
                setup.weight_count.eq(Mux(sparsify, command.length, config.memories.weight - command.state_base)),
                setup.parameter.eq(Mux(sparsify, self.threshold, self.alternative)),
            ]
        return m
