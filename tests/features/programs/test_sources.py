"""Registers that show the state of programs: hdl/features/programs/sources.py."""

import dataclasses

from hdl.config import NodeConfig
from hdl.control.engine import check_engines
from hdl.features.programs.feature import Programs
from hdl.features.programs.sources import ProgramState
from tests.hdl import fill
from tests.refusals import refuses


def described(config, name):
    return [dataclasses.replace(fill.describe(config), inputs={"number": ProgramState(name)})]


def test_state():
    config = NodeConfig(programs=Programs())
    check_engines(described(config, "running"), config)
    refuses("Input number of engine filler must be one of the states of programs running, stopped, loaded, model, "
            "passes, not 'paused'", check_engines, described(config, "paused"), config)


def test_node_without_programs():
    config = NodeConfig()
    refuses("Input number of engine filler needs a node with programs", check_engines, described(config, "running"),
            config)
