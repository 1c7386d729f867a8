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
    """Return the states of the state machines of a class, in the order of its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(unit)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Attribute) and node.func.attr == "State"]
    return [call.args[0].value for call in sorted(calls, key=lambda call: call.lineno)]


@pytest.mark.parametrize(("unit", "options"), [(CollectiveControl, {}), (CommandControl, {})])
def test_machines_have_the_states_of_their_source(unit, options):
    component = unit(**options)
    design = convert(component, name="unit")
    machines = [encoding for encoding in encodings(component, design) if encoding.machine and not encoding.path]
    expected = states(unit)
    assert [set(encoding.values.values()) for encoding in machines] == [set(expected)]
    assert sorted(machines[0].values) == list(range(len(expected)))
    initial = re.search(rf"reg \[{machines[0].width - 1}:0\] {machines[0].signal} = \d+'h(\w+);", design.text)
    assert machines[0].values[int(initial[1], 16)] == expected[0]


def test_enumerations():
    optimizer = StreamedOptimizer(workers=1, lanes=1, depth=32)
    (rule,) = (item for item in encodings(optimizer, convert(optimizer, name="unit"))
               if item.signal == "settings.rule" and not item.path)
    assert not rule.machine
    assert (rule.width, rule.values) == (4, {0: "SGD", 1: "MOMENTUM", 2: "ADAM", 3: "ADAMW"})
    queue = CommandQueue(config=NodeConfig(), operations=OPERATIONS)
    matches = [item for item in encodings(queue, convert(queue, name="unit")) if item.signal.endswith("operation")]
    assert matches
    for item in matches:
        assert not item.machine
        assert (item.width, item.values) == (8, {member.value: member.name for member in Operation})


def test_save_file_names_signals_of_the_wave(tmp_path):
    """The waveform has every trace that the save file names, and the translation files have the right state names."""
    component = Probe()
    with VerilatedRing(build_ring(component, traced=True), nodes=2) as ring:
        ring.start_wave(tmp_path / "ring.fst")
        ring.run(50)
        ring.stop_wave()
    known = encodings(component, convert(component, name="node"))
    assert [(row.signal, row.values) for row in known if row.machine] == [("sender_state", {0: "Rest", 1: "Send"})]
    paths = write_gtkw(tmp_path / "ring.gtkw", tmp_path / "ring.fst", known, nodes=2)
    present = {variable.full_name for variable in Waveform(str(tmp_path / "ring.fst")).all_vars()}
    text = paths[0].read_text()
    traces = re.findall(r"^\+\{.*\} (\S+)$", text, flags=re.MULTILINE)
    assert [f"node{node}.ring_node.node.sender_state" in traces for node in (0, 1)] == [True, True]
    assert set(traces) <= present
    assert re.findall(r"^\^1 (.*)$", text, flags=re.MULTILINE)[0] == str(paths[1])
    assert paths[1].read_text() == "0 Rest\n1 Send\n"
