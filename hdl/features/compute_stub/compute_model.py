"""Stub of a compute engine: gradients staged in memory appear at the rate of a real computation."""

from amaranth.hdl import Const, Module, Mux, ResetInserter, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, command_layout, event_layout
from hdl.memory import read_signature, write_signature
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.stream import connect_stream
from hdl.throttle import RATE_BITS, Throttle

__all__ = ["ComputeModel", "compute_cycles", "counts_layout"]

#: Latency in cycles from a command to its first row; each row then takes one more cycle.
_WAY = 1 + RowReader.latency + 1 + RowWriter.latency

#: Number of cycles, in addition to one per pacing step, from the first of these steps to the earliest possible output
#: of the last row.
_AHEAD = 4


def compute_cycles(length, duration, *, lanes):
    """Number of cycles of a COMPUTE if its memory ports never wait."""
    rows = -(-length // lanes)
    return max(duration, rows + _WAY if rows else _AHEAD + 1)


def counts_layout():
    """Per-cycle increments of the counters, keyed by register."""
    return data.StructLayout({"command_cycles": 1, "stall_memory": 1})


class ComputeModel(wiring.Component):
    """Run COMPUTE: copy staged gradients to their address in the time that the computation would take.

    ``length`` elements at ``state_base`` in the gradient memory are copied to ``gradient_base``. Rows are spread
    evenly: row n of N, counting from 1, is sent no earlier than 2 + ⌈n · (``duration`` - 4) / N⌉ cycles after the
    command was accepted, so that the last row ends the command after ``duration`` cycles, or after
    :func:`compute_cycles` if that is later. If a memory port delays a row, the rows after it catch up. With length 0
    the command waits for ``duration`` cycles.

    Up to nine rows are read ahead of the pace, so the two regions must not overlap.

    Parameters
    ----------
    config : NodeConfig
        Configuration with ``stub``.

    Members
    -------
    command : In(stream of command_layout())
        COMPUTE; checked beforehand, see :class:`~hdl.control.command_checker.CommandChecker`.
    event : Out(stream of event_layout())
        One event per command, with the number of elements written as its detail.
    link_reset : In(1)
        Abort the command, possibly halfway through.
    weight_version : In(32)
        Weight version for the event.
    count : Out(counts_layout())
    gradient_read, gradient_write : memory ports
    throttle : In(16)
        Number of cycles out of 65,536 when the pace advances; present in a node with throttles.
    """

    def __init__(self, *, config):
        if config.stub is None:
            raise ValueError(f"Node must have the stand-in, not {config!r}")
        self._config = config
        rows, lanes = config.memories.gradient // config.lanes, config.lanes
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1),
            "weight_version": In(32),
            "count": Out(counts_layout()),
            "gradient_read": Out(read_signature(rows, lanes)),
            "gradient_write": Out(write_signature(rows, lanes)),
            **({"throttle": In(RATE_BITS)} if config.has("throttles") else {}),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, elements = self._config.lanes, self._config.memories.gradient
        lane_bits, rows = exact_log2(lanes), elements // lanes
        # No command of this engine fails.
        m.submodules.runner = runner = CommandRunner(failure=EventStatus.BAD_LENGTH, most=lanes, always=True)
        reader = RowReader(rows=rows, lanes=lanes, elements=elements, ahead=False)
        writer = RowWriter(rows=rows, lanes=lanes, elements=elements)
        m.submodules.reader = ResetInserter(runner.reset)(reader)
        m.submodules.writer = ResetInserter(runner.reset)(writer)
        connect_stream(m, self.command, runner.command)
        connect_stream(m, runner.event, self.event)
        wiring.connect(m, reader=reader.port, memory=wiring.flipped(self.gradient_read))
        wiring.connect(m, writer=writer.port, memory=wiring.flipped(self.gradient_write))

        command = self.command.payload
        source, target = Signal(range(rows)), Signal(range(rows))
        length = Signal(range(elements + 1))
        empty = Signal()
        count = Signal(range(rows + 1))  # number of rows; one if length is 0
        steps = Signal(signed(34))  # number of pacing steps until the last row is due
        # Each step adds `count` to a sum; while the sum is not negative, a row is due and `steps` is subtracted.
        difference, back, total = Signal(signed(34)), Signal(signed(34)), Signal(signed(34))
        unpaced = Signal()
        now_due, moves = Signal(), Signal()
        due = Signal(range(rows + 1))  # rows that may be sent
        no_length = command.length == 0
        with m.If(self.command.ready):
            m.d.sync += [
                source.eq(command.state_base >> lane_bits),
                target.eq(command.gradient_base >> lane_bits),
                length.eq(command.length),
                empty.eq(no_length),
                count.eq(command.length[lane_bits:len(length)] + (command.length[:lane_bits].any() | no_length)),
                steps.eq(command.duration - _AHEAD),
            ]
        m.d.comb += [
            difference.eq(count - steps),
            now_due.eq(total >= 0),
        ]
        enable = Const(1)
        if self._config.has("throttles"):
            m.submodules.throttle = throttle = Throttle()
            m.d.comb += throttle.rate.eq(self.throttle)
            enable = throttle.enable
        with m.If(runner.reset):
            m.d.sync += [back.eq(difference), total.eq(difference), unpaced.eq(difference >= 0), due.eq(0)]
        with m.Else():
            with m.If(enable):
                m.d.sync += total.eq(total + Mux(now_due, back, count))
            m.d.sync += due.eq(due + (now_due & enable) - moves)

        may = (unpaced & enable) | (due != 0)
        m.d.comb += [
            runner.link_reset.eq(self.link_reset),
            runner.weight_version.eq(self.weight_version),
            runner.done.eq(writer.done),
            reader.job.valid.eq(runner.start & ~empty),
            reader.job.payload.row.eq(source),
            reader.job.payload.count.eq(length),
            writer.job.valid.eq(runner.start),
            writer.job.payload.row.eq(target),
            writer.job.payload.count.eq(length),
            # If length is 0, the command ends with one beat that keeps no element.
            writer.i.valid.eq(may & (reader.o.valid | empty)),
            writer.i.payload.elements.eq(reader.o.payload.elements),
            writer.i.payload.keep.eq(reader.o.payload.keep),
            writer.i.payload.last.eq(reader.o.payload.last | empty),
            reader.o.ready.eq(may & writer.i.ready),
            moves.eq(writer.i.valid & writer.i.ready),
            runner.progress.eq(Mux(moves & ~empty, sum(reader.o.payload.keep), 0)),
            self.count.command_cycles.eq(runner.busy),
            self.count.stall_memory.eq((self.gradient_read.valid & ~self.gradient_read.ready)
                                       | (self.gradient_write.valid & ~self.gradient_write.ready)),
        ]
        return m
