# amaranth: UnusedElaboratable=no
"""Identities of components: what they depend on, and components that have none."""

import functools
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from boards.units import UNITS
from hdl.config import NodeConfig
from hdl.config.forms import from_dict
from hdl.control.protocol import EventFlag
from hdl.floating.add import FloatAdder
from hdl.node import Node
from hdl.registry import FEATURES
from hdl.streams import stream
from hdl.streams.stream import Queue, SkidBuffer
from sim.verilated import identity, toolchain, verilog
from sim.verilated.identity import identity_of
from sim.verilated.native import Arithmetic
from tests import mx5
from tests.featured import FEATURED

ROOT = Path(__file__).parents[3]
PRINT = """
from hdl.floating.add import FloatAdder
from hdl.streams.stream import Queue
from sim.verilated.identity import identity_of
print(identity_of(Queue(shape=3, depth=4)), identity_of(FloatAdder()))
"""


class Applied(wiring.Component):
    """Component that applies a Python function to its input."""

    i: In(4)
    o: Out(4)

    def __init__(self, function, **attributes):
        super().__init__()
        self._function = function
        self.__dict__.update(attributes)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(self._function(self.i))
        return m


@pytest.fixture(autouse=True)
def sources_are_loaded(monkeypatch):
    """Make source files count as already loaded, so that these tests can run right after a file has been edited."""
    monkeypatch.setattr(toolchain, "_LOADED", time.time() + 10)


class Named(NamedTuple):
    """A subclass of tuple. A component with a parameter of this type has no identity."""

    number: int


class Numbered(int):
    """A subclass of int. A component with a parameter of this type has no identity."""


def _plus(number):
    return lambda value: value + number


def test_the_same_in_each_process():
    printed = {subprocess.run([sys.executable, "-c", PRINT], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT,
                              capture_output=True, text=True, check=True, timeout=60).stdout for seed in "12"}
    assert printed == {f"{identity_of(Queue(shape=3, depth=4))} {identity_of(FloatAdder())}\n"}


def test_units_differ():
    """Every unit has an identity, and no two units have the same."""
    identities = [identity_of(unit.component({})) for unit in UNITS.values()]
    assert None not in identities
    assert len(set(identities)) == len(UNITS)


MAKE = [
    lambda: Queue(shape=3, depth=4), lambda: Queue(shape=3, depth=5), lambda: Queue(shape=4, depth=4),
    lambda: SkidBuffer(shape=3), lambda: Applied(_plus(1)), lambda: Applied(_plus(2)),
    lambda: Applied(lambda value: value - 1), lambda: Applied(_plus(1), other=Queue(shape=3, depth=4)),
    lambda: Applied(_plus(1), other=[1, 2]), lambda: Applied(_plus(1), other=(1, 2)),
    lambda: Applied(_plus(1), other={"a": 1}), lambda: Applied(functools.partial(max, 1)),
]


def test_parameters():
    """Equal parameters give equal identities, and different parameters give different identities."""
    identities = [identity_of(make()) for make in MAKE]
    assert None not in identities
    assert identities == [identity_of(make()) for make in MAKE]
    assert len(set(identities)) == len(MAKE)


def test_flags():
    """Values of flags are part of an identity even if they have no name, because no bit or several bits are set."""
    assert len({identity_of(Applied(_plus(1), flags=EventFlag(number))) for number in range(4)} - {None}) == 4


def test_state_is_told_apart():
    """If two attributes are the same object, the identity differs from the identity with two equal objects."""
    first, other = [1], [1]
    assert identity_of(Applied(_plus(1), a=first, b=first)) != identity_of(Applied(_plus(1), a=first, b=other))


@pytest.mark.parametrize("attribute", [threading.Lock(), iter([1]), type("Local", (), {})(), Named(1), Numbered(1)])
def test_unknown(attribute):
    assert identity_of(Applied(_plus(1), other=attribute)) is None


def test_globals_are_seen(monkeypatch):
    """An identity depends on globals: on the constants and functions of modules, and on formats that are added."""
    before, node = identity_of(Queue(shape=3, depth=4)), identity_of(Node(NodeConfig()))
    with monkeypatch.context() as patch:
        patch.setattr(stream, "connect_stream", lambda m, source, sink: None)
        assert identity_of(Queue(shape=3, depth=4)) != before
    identities = set()
    for number in (1, 2):  # functions that have the same code
        with monkeypatch.context() as patch:
            patch.setattr(stream, "connect_stream", _plus(number))
            identities.add(identity_of(Queue(shape=3, depth=4)))
    assert len(identities - {before, None}) == 2
    with monkeypatch.context() as patch:
        patch.setattr(stream, "ANOTHER", 3, raising=False)
        assert identity_of(Queue(shape=3, depth=4)) != before
    assert identity_of(Queue(shape=3, depth=4)) == before
    with mx5.registered():
        assert identity_of(Node(NodeConfig())) != node
    assert identity_of(Node(NodeConfig())) == node


SOURCES = """
import sys
import time
from pathlib import Path
from hdl.floating.add import FloatAdder
from hdl.masking.generator import MaskGenerator
from sim.verilated import toolchain
from sim.verilated.identity import identity_of
toolchain._LOADED = time.time()  # the copy is new
time.sleep(0.1)
for _ in range(2):
    print(identity_of(FloatAdder()), identity_of(MaskGenerator(lanes=2)))
    with Path("hdl/floating/stages.py").open("a") as source:  # FloatAdder imports it relatively
        source.write("_CHANGED = True  # of no effect but on the key\\n")
"""


def test_sources_are_seen(tmp_path):
    """Identities depend on all modules that are imported, even indirectly, and are None once a source has changed."""
    for name in ("hdl", "sim"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    changed = tmp_path / "hdl/floating/stages.py"
    seen = []
    for _ in range(2):
        for path in tmp_path.rglob("*.py"):
            os.utime(path, (0, 0))
        lines = subprocess.run([sys.executable, "-c", SOURCES], cwd=tmp_path, capture_output=True, text=True,
                               check=True, timeout=60).stdout.splitlines()
        seen.append([line.split() for line in lines])
    assert changed.read_text().count("_CHANGED = True") == 4
    ((before, mask), (since, same)), ((after, later), _) = seen
    assert since == "None"
    assert after not in (before, "None")
    assert mask == same == later != "None"


def test_convert(monkeypatch, tmp_path):
    """A component is elaborated only once for each name and platform, unless the stored design is removed."""
    monkeypatch.setenv("GRADRING_CACHE", str(tmp_path))
    seen = []
    convert = verilog.rtlil.convert
    monkeypatch.setattr(verilog.rtlil, "convert", lambda component, *arguments, **options: (
        seen.append(type(component).__name__), convert(component, *arguments, **options))[1])
    first = verilog.convert(FloatAdder(), name="adder")
    assert verilog.convert(FloatAdder(), name="adder") == first
    assert seen == ["FloatAdder"]
    assert verilog.convert(FloatAdder(), name="other").name == "other"
    native = verilog.convert(FloatAdder(), name="adder", arithmetic=Arithmetic.NATIVE)
    assert native.text != first.text
    assert len(seen) == 3
    assert verilog.convert(FloatAdder(), name="adder", arithmetic=Arithmetic.NATIVE) == native
    assert len(seen) == 3
    for folder in (tmp_path / "verilog").glob("adder-*"):
        if "-of-" not in folder.name:
            shutil.rmtree(folder)
    assert verilog.convert(FloatAdder(), name="adder") == first
    assert len(seen) == 4
    verilog.convert(Applied(_plus(1), other=threading.Lock()), name="applied")
    verilog.convert(Applied(_plus(1), other=threading.Lock()), name="applied")
    assert seen[4:] == ["Applied"] * 2


#: Features of nodes that also describe operand formats to the compute engine.
_OPERANDS = {"bf16", "mx", "nvfp4", "streaming", "compute", "far", "block_operands", "codebook_layers"}
#: For each feature, the other features with nodes that import its sources. These sources are therefore in these
#: nodes' keys.
IMPORTED = {**{name: _OPERANDS for name in ("compute", "block_operands", "codebook_layers")}, "replay": {"grid"}}


def test_keys_cover_the_features_of_a_node(monkeypatch):
    """A source file of a feature affects only the keys of nodes with this feature."""
    nodes = {name: from_dict(options) for name, (options, _) in FEATURED.items()}

    def keys():
        for function in (identity._source, identity._imported):
            function.cache_clear()
        return {name: identity_of(Node(node)) for name, node in nodes.items()}

    before, wrong = keys(), {}
    assert None not in before.values()
    assert FEATURED.keys() == FEATURES.keys() - {"int16"}
    text = toolchain.text
    for name, (_, file) in FEATURED.items():
        path = ROOT / f"hdl/features/{name}/{file}.py"
        assert path.is_file()
        with monkeypatch.context() as patch:
            patch.setattr(toolchain, "text", lambda other, path=path: text(other) + "\nX = 0\n" * (other == path))
            after = keys()
        changed = {node for node in nodes if after[node] != before[node]}
        having = {node for node, config in nodes.items() if config.has(name)}
        assert having <= changed, name
        if changed - having - IMPORTED.get(name, set()):
            wrong[name] = changed - having
    keys()
    assert wrong == {}
