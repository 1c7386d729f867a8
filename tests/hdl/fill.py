"""Example engine that is not part of gradring: FILL writes a number to a range of the gradient memory.

It shows the two parts of a local command: an engine and its description. No other module refers to it.
"""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.engine import EngineDescription, Extent, OperationDescription
from hdl.control.local_runner import CommandRunner
from hdl.control.protocol import EventStatus, Operation, command_layout, event_layout
from hdl.control.source import WEIGHT_VERSION, Setting
from hdl.memory import write_signature
from hdl.row_transfer import RowWriter
from hdl.streams.stream import connect_stream

#: Operation code: the first code that no node operation uses.
FILL = max(Operation) + 1


class FillEngine(wiring.Component):
    """Write MASK_ALTERNATIVE to ``length`` elements at ``gradient_base``; the event's detail is ``length``.

    Members
    -------
    command, event, link_reset, weight_version, count
        Ports of :class:`~hdl.control.engine.EngineDescription`.
    number : In(32)
    gradient_write : memory port
    """

    def __init__(self, *, config):
        self._config = config
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1),
            "weight_version": In(32),
            "number": In(32),
            "count": Out(data.StructLayout({"command_cycles": 1, "stall_memory": 1})),
            "gradient_write": Out(write_signature(config.memories.gradient // config.lanes, config.lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        config, lanes = self._config, self._config.lanes
        m.submodules.runner = runner = CommandRunner(failure=EventStatus.BAD_MASK, most=lanes)
        writer = RowWriter(rows=config.memories.gradient // lanes, lanes=lanes, elements=config.memories.gradient)
        m.submodules.writer = ResetInserter(runner.reset)(writer)
        connect_stream(m, self.command, runner.command)
        connect_stream(m, runner.event, self.event)
        wiring.connect(m, writer=writer.port, memory=wiring.flipped(self.gradient_write))
        fields = self.command.payload
        row, number = Signal.like(writer.job.payload.row), Signal(32)
        left = Signal.like(writer.job.payload.count)  # number of elements that the writer has yet to accept
        taken = Mux(left < lanes, left[:lanes.bit_length()], lanes)
        moves = Signal()
        with m.If(self.command.ready):
            m.d.sync += [row.eq(fields.gradient_base >> exact_log2(lanes)), left.eq(fields.length),
                         number.eq(self.number)]
        m.d.comb += [
            runner.link_reset.eq(self.link_reset),
            runner.weight_version.eq(self.weight_version),
            runner.progress.eq(Mux(moves, taken, 0)),
            runner.done.eq(writer.done),
            writer.job.valid.eq(runner.start),
            writer.job.payload.row.eq(row),
            writer.job.payload.count.eq(left),
            writer.i.valid.eq(left != 0),
            writer.i.payload.keep.eq(~0),
            writer.i.payload.last.eq(left <= lanes),
            *(element.eq(number) for element in writer.i.payload.elements),
            moves.eq(writer.i.valid & writer.i.ready & ~runner.reset),
            self.count.command_cycles.eq(runner.busy),
            self.count.stall_memory.eq(Cat(self.gradient_write.valid, ~self.gradient_write.ready).all()),
        ]
        with m.If(moves):
            m.d.sync += left.eq(left - taken)
        return m


def describe(config):
    """The engine's :class:`~hdl.control.engine.EngineDescription`."""
    return EngineDescription(
        name="filler",
        make=lambda: FillEngine(config=config),
        operations=(OperationDescription(code=FILL, extents=(Extent(base="gradient_base", memory="gradients"),)),),
        writes={"gradients": ("gradient_write",)},
        inputs={"number": Setting("mask_alternative"), "link_reset": Setting("link_reset"),
                "weight_version": WEIGHT_VERSION},
    )
