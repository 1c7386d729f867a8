# amaranth: UnusedElaboratable=no
import shutil
import subprocess
import time

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from sim.verilated import toolchain, verilog
from sim.verilated.vectors import Unit
from sim.verilated.verilog import Port, convert, with_loops
from tests.refusals import refuses


class Invert(wiring.Component):
    a: In(3)
    o: Out(3)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(~self.a)
        return m


CODE = "def add(a, *, b=1):\n    return a + b\n"


@pytest.mark.parametrize(("text", "is_same"), [
    ('"""Sums."""\n\n\ndef add(a, *, b=1):\n    """Sum of two."""\n    return (  # in lines\n        a + b)\n', True),
    (CODE.replace("b=1", "b=2"), False), (CODE.replace("a, *", "a"), False), (CODE.replace("+", "-"), False),
    (CODE.replace("b", "c"), False), (CODE.replace("add", "sum"), False), (CODE + "def f(): return add\n", False),
    (CODE.replace("a + b", "a + b if a in {1, 2} else 0"), False),
], ids=["comments", "default", "keyword", "operation", "variable", "name", "function", "set"])
def test_code(text, is_same):
    """The digest of a source ignores docstrings, comments and line breaks, but covers all code."""
    assert (toolchain.code(text) == toolchain.code(CODE)) is is_same


def test_without_comments(tmp_path):
    """Comments are removed from C++ and Verilog, but line breaks, and strings that look like comments, are kept."""
    source = tmp_path / "source.cpp"
    source.write_text("int a = 1'000'000;  // a \"number\"\n/* two\nlines */ char b = '\"', "
                      "c[] = \"/* http://x \\\"\";\n// '\nint d = 'a' / 0x1'f / 2;  /* \" */\n")
    assert toolchain.without_comments(source) == (
        "int a = 1'000'000;\n\n char b = '\"', c[] = \"/* http://x \\\"\";\n\nint d = 'a' / 0x1'f / 2;\n")


@pytest.fixture
def fresh(monkeypatch):
    """Make a test search for tools again, instead of using earlier results."""
    functions = (toolchain.compiler, toolchain.verilator)
    for function in functions:
        function.cache_clear()
    yield monkeypatch
    for function in functions:
        function.cache_clear()


@pytest.mark.parametrize(("missing", "message"), [
    (["perl"], "perl is needed .* 'apt-get install perl'"), (["make"], "make is needed .* 'apt-get install make'"),
    (["c++", "g++", "clang++"], r"A C\+\+ compiler .* is needed .* 'apt-get install g\+\+'"),
], ids=["perl", "make", "compiler"])
def test_missing_program(fresh, missing, message):
    which = shutil.which
    fresh.delenv("CXX", raising=False)
    fresh.setattr(shutil, "which", lambda name, *rest: None if name in missing else which(name, *rest))
    with pytest.raises(toolchain.ToolError, match=f"^{message}$"):
        toolchain.verilator()


def test_chosen_compiler(fresh):
    fresh.setenv("CXX", "no-such-compiler")
    with pytest.raises(toolchain.ToolError, match=r"^no-such-compiler is needed \(environment variable CXX\)"):
        toolchain.compiler()


def test_environment(monkeypatch):
    monkeypatch.setenv("VERILATOR_ROOT", "/nowhere")
    environment = toolchain.environment()
    assert "VERILATOR_ROOT" not in environment
    text = subprocess.run(["verilator", "--help"], env=environment, capture_output=True, text=True, check=True).stdout
    assert "--top-module" in text


def test_digest_separates_parts():
    assert toolchain.digest("ab", "c") != toolchain.digest("a", "bc")
    assert toolchain.digest("a", b"b") == toolchain.digest(b"a", "b")


def test_convert():
    design = convert(Invert(), name="inverter")
    assert design.ports == (Port("a", 3, True), Port("o", 3, False))
    assert not design.clocked
    assert "module inverter(" in design.text


def test_convert_name():
    refuses("Module name must be a Verilog identifier, not 'a b'", convert, Invert(), name="a b")
    refuses("Module name must be no keyword of Verilog, not 'table'", convert, Invert(), name="table")


def test_convert_once(monkeypatch):
    convert(Invert(), name="inverter")
    monkeypatch.setattr(toolchain, "run", lambda *arguments, **options: pytest.fail("Yosys ran again"))
    convert(Invert(), name="inverter")


def test_convert_identity(monkeypatch, tmp_path):
    from hdl.streams.stream import Queue

    monkeypatch.setenv("GRADRING_CACHE", str(tmp_path))
    monkeypatch.setattr(toolchain, "_LOADED", time.time() + 600)
    first = convert(Queue(shape=3, depth=4), name="queue", identity="Queue of 4")
    assert first == convert(Queue(shape=3, depth=4), name="queue")
    other = convert(Queue(shape=3, depth=5), name="queue", identity="Queue of 5")
    assert other.text != first.text
    with monkeypatch.context() as patch:
        patch.setattr(verilog.rtlil, "convert", lambda *arguments, **options: pytest.fail("elaborated again"))
        assert convert(Queue(shape=3, depth=4), name="queue", identity="Queue of 4") == first
    # A design is converted again if its sources differ. If they change while the process runs, it is converted every
    # time.
    seen = []
    convert_ = verilog.rtlil.convert
    monkeypatch.setattr(verilog.rtlil, "convert", lambda *arguments, **options: (
        seen.append(arguments), convert_(*arguments, **options))[1])
    copy = tmp_path / "hdl"
    copy.mkdir()
    (copy / "unit.py").write_text("number = 1\n")
    monkeypatch.setattr(verilog, "_HDL", copy)
    convert(Queue(shape=3, depth=4), name="queue", identity="Queue of 4")
    convert(Queue(shape=3, depth=4), name="queue", identity="Queue of 4")
    assert len(seen) == 1
    (copy / "unit.py").write_text("number = 2\n")
    convert(Queue(shape=3, depth=4), name="queue", identity="Queue of 4")
    assert len(seen) == 2
    monkeypatch.setattr(toolchain, "_LOADED", time.time() - 600)
    convert(Queue(shape=3, depth=4), name="queue", identity="Queue of 4")
    convert(Queue(shape=3, depth=4), name="queue", identity="Queue of 4")
    assert len(seen) == 4


def test_verilator_error_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADRING_CACHE", str(tmp_path))
    with pytest.raises(toolchain.ToolError, match=r"(?s)verilator .* failed with exit code .*%Error.*broken\.v"):
        toolchain.shared_library("broken", "module broken(; endmodule", harness=[], headers={})
    assert not list((tmp_path / "verilated").glob("*broken*"))


class Table(wiring.Component):
    """Unit with two memories: all words of the first are equal, and all words of the second are different."""

    address: In(4)
    o: Out(8)

    def elaborate(self, platform):
        m = Module()
        m.submodules.equal = equal = Memory(shape=8, depth=16, init=[5] * 16)
        m.submodules.mixed = mixed = Memory(shape=8, depth=16, init=[7, 7, 7, 1, 2, 7, 7, 0, 0, 0, 9, 9, 9, 9, 9, 3])
        reads = [memory.read_port(domain="comb") for memory in (equal, mixed)]
        m.d.comb += [read.addr.eq(self.address) for read in reads]
        m.d.comb += self.o.eq(reads[0].data ^ reads[1].data)
        return m


def test_loops_begin_memories_alike():
    text = convert(Table(), name="pair").text
    shorter = with_loops(text)
    assert shorter.count("for (int i = ") > 3
    assert len(shorter) < len(text)
    expected = [5 ^ word for word in (7, 7, 7, 1, 2, 7, 7, 0, 0, 0, 9, 9, 9, 9, 9, 3)]
    assert Unit(Table()).run({"address": range(16)})["o"].tolist() == expected
