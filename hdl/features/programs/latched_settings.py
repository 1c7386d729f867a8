"""Update settings that LATCH copies during a run, so that all updates of a pass use the same settings."""

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.engine import EngineDescription, OperationDescription
from hdl.control.immediate import ImmediateRunner, counts_layout
from hdl.control.protocol import Operation, command_layout, event_layout
from hdl.control.registers import LATCHED, register
from hdl.control.source import LATCHED_SETTINGS, WEIGHT_VERSION, Setting
from hdl.features.programs.sources import ProgramState
from hdl.streams.stream import connect_stream

__all__ = ["LatchedSettings", "describe", "settings_layout"]


def settings_layout():
    """Number of bits of each latched register, keyed by its name in lower case."""
    return data.StructLayout({register(name).port: register(name).width for name in LATCHED})


class LatchedSettings(wiring.Component):
    """Hold the settings used by updates, and run LATCH.

    While no program is running, ``latched`` follows ``settings`` with a latency of one cycle. While a program is
    running, ``latched`` changes only when a LATCH, which takes a single cycle, copies ``settings``.

    Members
    -------
    command : In(stream of command_layout())
        LATCH.
    event : Out(stream of event_layout())
    weight_version : In(32)
        Weight version to report in the event.
    count : Out(counts_layout())
    settings : In(settings_layout())
    running : In(1)
        A program is running.
    latched : Out(settings_layout())
    """

    def __init__(self):
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "weight_version": In(32),
            "count": Out(counts_layout()),
            "settings": In(settings_layout()),
            "running": In(1),
            "latched": Out(settings_layout(), init={
                register(name).port: register(name).reset for name in LATCHED}),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.runner = runner = ImmediateRunner()
        connect_stream(m, self.command, runner.command)
        connect_stream(m, runner.event, self.event)
        m.d.comb += [runner.weight_version.eq(self.weight_version), self.count.eq(runner.count)]
        with m.If(~self.running | (self.command.valid & self.command.ready)):
            m.d.sync += self.latched.eq(self.settings)
        return m


def describe():
    """Return the unit's :class:`~hdl.control.engine.EngineDescription`."""
    return EngineDescription(
        name="latched_settings",
        priority=7,
        make=LatchedSettings,
        operations=(OperationDescription(code=Operation.LATCH, queue=1),),
        inputs={"weight_version": WEIGHT_VERSION, "running": ProgramState("running"),
                **{f"settings.{name}": Setting(name) for name in settings_layout().members}},
        outputs={LATCHED_SETTINGS: "latched"},
    )
