"""Stages of a run are printed when they begin, even without a terminal. The lines include the stages' durations in
earlier runs."""

import io
import itertools
import json
import os
import re
import selectors
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from rich.console import Console

from host import stage_times
from host.console import Progress
from sim.verilated import cache_folder

ROOT = Path(__file__).parents[2]

#: Script that runs commands one by one, each up to its first long stage, which ends when a line is read.
COMMANDS = """
import contextlib
import sys
from boards import bitstream, synth, verilog
from host import cli
from host.commands import wave
from host.features.quantization import command as quantize
from host.labs.bench import bench
from host.run import steps
from host.labs.sweep import execution
from sim.verilated.toolchain import ToolError

def last(*arguments, **options):
    sys.stdin.readline()
    raise ToolError("end")

@contextlib.contextmanager
def session(*arguments, announce, **options):
    announce("compile")
    last()
    yield

def collect(*, announce):
    announce("ring of 2: compile")
    last()

def execute(jobs, folder, *, engine, ended, tick):
    tick(execution.State(done=0, total=1, spent=1.0, left=100.0, running=[("build-digits-raw", "")]))
    last()

for module in (steps, quantize, wave):
    module.open_session = session
bench.collect, execution.execute = collect, execute
synth.execute = bitstream.plan = verilog.wrap = last

for folder, line in enumerate(sys.argv[1:]):
    name, *arguments = line.split()
    sys.argv = [name, *arguments]
    with contextlib.suppress(SystemExit):
        if name == "gradring":
            cli.main()
        else:
            {"synth": synth, "bitstream": bitstream, "verilog": verilog}[name].main(arguments)
"""

FIRST = {
    "gradring train --steps 1 --output {folder}/train": "compile …",
    "gradring quantize --train --no-synth --output {folder}/quantize": "compile …",
    "gradring wave --output {folder}/wave/ring.fst": "compile …",
    "gradring bench --output {folder}/bench": "ring of 2: compile …",
    "gradring lab sweep --no-synth --formats raw --output {folder}/sweep":
        "begins: build-digits-raw, 2 min to go in all",
    "synth --unit stream.skid_buffer": "stream.skid_buffer: synthesis",
    "bitstream --board ulx3s-25f": "ulx3s-25f: design",
    "verilog --unit stream.skid_buffer": "stream.skid_buffer: Verilog",
}


def test_stages_are_seen_in_a_pipe(tmp_path):
    """For every command, the line of a long stage is printed before the stage ends."""
    environment = {**os.environ, "GRADRING_CACHE": str(tmp_path / "cache")}
    environment.pop("PYTHONUNBUFFERED", None)
    commands = [command.format(folder=tmp_path) for command in FIRST]
    process = subprocess.Popen([sys.executable, "-c", COMMANDS, *commands], cwd=ROOT, env=environment, bufsize=0,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        for command, line in zip(commands, FIRST.values(), strict=True):
            deadline = time.monotonic() + 60
            while f"{line}\n" not in text:
                assert selector.select(deadline - time.monotonic()), (command, text)
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                assert chunk, (command, text)
                text += chunk.decode()
            text = text.partition(f"{line}\n")[2]
            process.stdin.write(b"\n")
        rest, _ = process.communicate(timeout=60)
    assert (text + rest.decode()).count("error: end\n") == 1, text
    assert process.returncode == 0


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path))
    cache_folder.make(cache_folder.folder("verilog"))
    return tmp_path


class Clock:
    """Stand-in for the clock, which tests advance themselves."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def piped():
    return Console(file=io.StringIO(), highlight=False, width=80)


def lines(console):
    return console.file.getvalue().splitlines()


def test_how_long_a_stage_took_is_said(cache, monkeypatch):
    clock = Clock(monkeypatch)
    for _ in range(2):
        console = piped()
        with Progress(console) as progress:
            for name, seconds in (("data", 1.0), ("compile", 41.0), ("run", 0.5)):
                progress.stage(name)
                clock.now += seconds
    assert lines(console) == ["data …", "compile … up to 41 s", "run …"]
    assert json.loads((cache / "stages.json").read_text()) == {"compile": 41.0}


def test_a_stage_that_fails_tells_nothing(cache, monkeypatch):
    clock = Clock(monkeypatch)

    def fail():
        with Progress(piped()) as progress:
            progress.stage("compile")
            clock.now += 30
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert stage_times.known("compile") is None


def test_training_has_a_line_now_and_then(cache, monkeypatch):
    """A line is printed every ten seconds, unless an accuracy was measured during this time."""
    clock, console = Clock(monkeypatch), piped()
    training = types.SimpleNamespace(steps=[], losses=[], measures=[], changes=[])
    with Progress(console) as progress:
        progress.stage("train", 12)
        for step in itertools.count(1):
            clock.now += 4
            training.steps.append(types.SimpleNamespace(loss=1 / step))
            if step == 6:
                training.losses.append(0.5)
                training.measures.append(0.75)
            progress.step(training)
            if step == 12:
                break
    assert lines(console) == [
        "train (12 steps) …", "train: 3 of 12, loss 0.3333, 36 s to go",
        "epoch   1   loss 0.5000   test accuracy 75.00%", "train: 9 of 12, loss 0.1111, 12 s to go",
        "train: 12 of 12, loss 0.0833, 0 s to go"]


def test_a_terminal_has_bars_alone(cache):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)
    with Progress(console) as progress:
        progress.stage("compile")
    assert "compile …" not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


@pytest.mark.parametrize("text", ["", "[]", '{"compile": "long"}', '{"compile": NaN}', "{"])
def test_times_that_are_no_good(cache, text):
    (cache / "stages.json").write_text(text)
    assert stage_times.known("compile") is None
    stage_times.note("compile", 3.0)
    assert stage_times.known("compile") == 3.0


def test_times_that_cannot_be_written(tmp_path, monkeypatch):
    """Durations are optional, so it is no error if they cannot be recorded."""
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "absent"))
    stage_times.note("compile", 3.0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "file"))
    stage_times.note("compile", 3.0)
    assert stage_times.known("compile") is None
