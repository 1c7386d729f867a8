# amaranth: UnusedElaboratable=no
"""Identities of components: what they depend on, and where there is none."""

import functools
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from boards.units import UNITS
from hdl.config import NodeConfig
from hdl.floating.add import FloatAdder
from hdl.masking.generator import MaskGenerator
from hdl.node import Node
from hdl.streams import stream
from hdl.streams.stream import Queue, SkidBuffer
from sim.verilated import identity, toolchain, verilog
from sim.verilated.identity import identity_of
from sim.verilated.native import Arithmetic
from tests import mx5

ROOT = Path(__file__).parents[3]
PRINT = """
from hdl.floating.add import FloatAdder
from hdl.streams.stream import Queue
from sim.verilated.identity import identity_of
print(identity_of(Queue(shape=3, depth=4)), identity_of(FloatAdder()))
"""


class Applied(wiring.Component):
    """A function of its input."""

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
    """Whoever has just changed these sources runs these tests too."""
    monkeypatch.setattr(identity, "_LOADED", time.time() + 10)


def _plus(number):
    return lambda value: value + number


def test_the_same_in_each_process():
    found = {subprocess.run([sys.executable, "-c", PRINT], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT,
                            capture_output=True, text=True, check=True, timeout=60).stdout for seed in "12"}
    assert found == {f"{identity_of(Queue(shape=3, depth=4))} {identity_of(FloatAdder())}\n"}


def test_units_differ():
    """All units have an identity, and it is not that of another one."""
    found = [identity_of(unit.component({})) for unit in UNITS.values()]
    assert None not in found
    assert len(set(found)) == len(UNITS)


MAKE = [
    lambda: Queue(shape=3, depth=4), lambda: Queue(shape=3, depth=5), lambda: Queue(shape=4, depth=4),
    lambda: SkidBuffer(shape=3), lambda: Applied(_plus(1)), lambda: Applied(_plus(2)),
    lambda: Applied(lambda value: value - 1), lambda: Applied(_plus(1), other=Queue(shape=3, depth=4)),
    lambda: Applied(_plus(1), other=[1, 2]), lambda: Applied(_plus(1), other=(1, 2)),
    lambda: Applied(_plus(1), other={"a": 1}), lambda: Applied(functools.partial(max, 1)),
]


def test_parameters():
    """The same parameters give the same identity, and other ones another."""
    found = [identity_of(make()) for make in MAKE]
    assert None not in found
    assert found == [identity_of(make()) for make in MAKE]
    assert len(set(found)) == len(MAKE)


def test_state_is_told_apart():
    """Two attributes that are one object, and two that are equal."""
    one, other = [1], [1]
    assert identity_of(Applied(_plus(1), a=one, b=one)) != identity_of(Applied(_plus(1), a=one, b=other))


@pytest.mark.parametrize("attribute", [threading.Lock(), iter([1]), type("Local", (), {})()])
def test_unknown(attribute):
    assert identity_of(Applied(_plus(1), other=attribute)) is None


def test_globals_are_seen(monkeypatch):
    """A test may have changed a constant or a function of a module, or added a format."""
    before, node = identity_of(Queue(shape=3, depth=4)), identity_of(Node(NodeConfig()))
    with monkeypatch.context() as patch:
        patch.setattr(stream, "connect_stream", lambda m, source, sink: None)
        assert identity_of(Queue(shape=3, depth=4)) != before
    with monkeypatch.context() as patch:
        patch.setattr(stream, "ANOTHER", 3, raising=False)
        assert identity_of(Queue(shape=3, depth=4)) != before
    assert identity_of(Queue(shape=3, depth=4)) == before
    with mx5.registered():
        assert identity_of(Node(NodeConfig())) != node
    assert identity_of(Node(NodeConfig())) == node


def test_sources_are_seen(monkeypatch, tmp_path):
    """Modules that one imports count, directly or not, and no other. None is known that has changed since."""
    def clear():
        for cached in (identity._path, identity._text, identity._imports, identity._imported):
            cached.cache_clear()

    before, mask = identity_of(FloatAdder()), identity_of(MaskGenerator(lanes=2))
    for name in ("hdl", "sim"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(toolchain, "ROOT", tmp_path)
    clear()
    try:
        assert identity_of(FloatAdder()) == before
        with (tmp_path / "hdl/floating/stages.py").open("a") as source:  # FloatAdder imports it relatively
            source.write("# changed\n")
        clear()
        assert identity_of(FloatAdder()) not in (before, None)
        assert identity_of(MaskGenerator(lanes=2)) == mask
        monkeypatch.setattr(identity, "_LOADED", time.time() - 10)
        assert identity_of(FloatAdder()) is None
        assert identity_of(MaskGenerator(lanes=2)) == mask
    finally:
        clear()


def test_convert(monkeypatch, tmp_path):
    """A component is elaborated once for each name and platform, and again where its design was removed."""
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
