import ast
import inspect
import re
import textwrap

import pytest
from pywellen import Waveform

from hdl.config import NodeConfig
from hdl.control.command_control import CommandControl
from hdl.control.command_queue import CommandQueue
from hdl.control.protocol import Operation
from hdl.engines import operations
from hdl.optimizer.burst import StreamedOptimizer
from hdl.ring.control import CollectiveControl
from sim.verilated.build import build_ring
from sim.verilated.names import encodings, write_gtkw
from sim.verilated.ring import VerilatedRing
from sim.verilated.verilog import convert
from tests.sim.verilated.probe import Probe

OPERATIONS = operations(NodeConfig())


def states(unit):
    """States of the machines in a class, in the order in which they stand there."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(unit)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Attribute) and node.func.attr == "State"]
    return [call.args[0].value for call in sorted(calls, key=lambda call: call.lineno)]


@pytest.mark.parametrize(("unit", "options"), [(CollectiveControl, {}), (CommandControl, {})])
def test_machines_have_the_states_of_their_source(unit, options):
    component = unit(**options)
    design = convert(component, name="unit")
    found = [one for one in encodings(component, design) if one.machine and not one.path]
    expected = states(unit)
    assert [set(one.values.values()) for one in found] == [set(expected)]
    assert sorted(found[0].values) == list(range(len(expected)))
    initial = re.search(rf"reg \[{found[0].width - 1}:0\] {found[0].signal} = \d+'h(\w+);", design.text)
    assert found[0].values[int(initial[1], 16)] == expected[0]


def test_enumerations():
    optimizer = StreamedOptimizer(workers=1, lanes=1, depth=32)
    (rule,) = (one for one in encodings(optimizer, convert(optimizer, name="unit"))
               if one.signal == "settings.rule" and not one.path)
    assert not rule.machine
    assert (rule.width, rule.values) == (4, {0: "SGD", 1: "MOMENTUM", 2: "ADAM", 3: "ADAMW"})
    queue = CommandQueue(config=NodeConfig(), operations=OPERATIONS)
    found = [one for one in encodings(queue, convert(queue, name="unit")) if one.signal.endswith("operation")]
    assert found
    for one in found:
        assert not one.machine
        assert (one.width, one.values) == (8, {member.value: member.name for member in Operation})


def test_save_file_names_signals_of_the_wave(tmp_path):
    """Every trace is in the waveform, and refers to a file with the right names."""
    component = Probe()
    with VerilatedRing(build_ring(component, traced=True), nodes=2) as ring:
        ring.start_wave(tmp_path / "ring.fst")
        ring.run(50)
        ring.stop_wave()
    found = encodings(component, convert(component, name="node"))
    assert [(one.signal, one.values) for one in found if one.machine] == [("sender_state", {0: "Rest", 1: "Send"})]
    paths = write_gtkw(tmp_path / "ring.gtkw", tmp_path / "ring.fst", found, nodes=2)
    present = {variable.full_name for variable in Waveform(str(tmp_path / "ring.fst")).all_vars()}
    text = paths[0].read_text()
    traces = re.findall(r"^\+\{.*\} (\S+)$", text, flags=re.MULTILINE)
    assert [f"node{node}.ring_node.node.sender_state" in traces for node in (0, 1)] == [True, True]
    assert set(traces) <= present
    assert re.findall(r"^\^1 (.*)$", text, flags=re.MULTILINE)[0] == str(paths[1])
    assert paths[1].read_text() == "0 Rest\n1 Send\n"
