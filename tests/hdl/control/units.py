"""Units of the command queue, built as one design for one simulator, and compared with models."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out
from cocotb.triggers import FallingEdge

from hdl.control.command_control import CommandControl
from hdl.control.pushed_commands import PushedCommands
from hdl.control.rejections import Rejections
from hdl.control.remote_after import RemoteAfter
from hdl.control.scoreboard import Scoreboard
from hdl.control.sequencer import Sequencer
from hdl.control.trace import Trace
from hdl.features.programs.program_memory import ProgramMemory
from hdl.features.programs.region_versions import RegionVersions
from sim import regression
from sim.streams import cycles
from tests.hdl.control.programs import OPERATIONS

QUEUES = 2
PROGRAM_DEPTH = 5
PUSHED_DEPTH = 3


class Units(wiring.Component):
    """Independent units in one design; port names are prefixed with the unit's name."""

    def __init__(self):
        self._units = {
            "control": CommandControl(),
            "programs": ProgramMemory(queues=QUEUES, depth=PROGRAM_DEPTH),
            "pushed": PushedCommands(operations=OPERATIONS, queues=QUEUES, depth=PUSHED_DEPTH),
            "pushed_3": PushedCommands(operations=OPERATIONS, queues=3, depth=PUSHED_DEPTH),
            "sequencer": Sequencer(depth=PROGRAM_DEPTH),
            "scoreboard": Scoreboard(queues=QUEUES),
            "scoreboard_3": Scoreboard(queues=3),
            "versions": RegionVersions(regions=5),
            "rejections": Rejections(queues=QUEUES),
            "remote": RemoteAfter(queues=QUEUES),
            "remote_3": RemoteAfter(queues=3),
            **{f"trace_{lanes}": Trace(queues=QUEUES, lanes=lanes) for lanes in (1, 2, 8)},
            "trace_4": Trace(queues=3, lanes=4),
        }
        super().__init__({name: Out(unit.signature) for name, unit in self._units.items()})

    def elaborate(self, platform):
        m = Module()
        for name, unit in self._units.items():
            m.submodules[name] = unit
            wiring.connect(m, wiring.flipped(getattr(self, name)), unit)
        return m


def simulate(module, *tests, **parameters):
    """Run the cocotb tests of a module on the units."""
    regression.run(Units(), module=module, testcase=list(tests), parameters=parameters)


async def lockstep(dut, prefix, model, drive, count):
    """Compare a unit with its model for ``count`` cycles.

    Parameters
    ----------
    prefix : str
        Prefix of the unit's port names.
    model : object
        ``outputs(inputs)`` returns the outputs of a cycle, keyed by port; None means that a port is not compared.
        ``step(inputs)`` advances to the next cycle.
    drive : callable
        Returns the inputs of the next cycle, keyed by port.
    """
    for cycle in range(count):
        inputs = drive()
        for name, value in inputs.items():
            getattr(dut, f"{prefix}__{name}").value = value
        await FallingEdge(dut.clk)
        for name, value in model.outputs(inputs).items():
            actual = int(getattr(dut, f"{prefix}__{name}").value)
            assert value is None or actual == value, f"cycle {cycle}: {name} is {actual}, not {value}, with {inputs}"
        model.step(inputs)
        await cycles(dut, 1)

