# amaranth: UnusedElaboratable=no
"""Output folders of all commands, which can be used by only one run at a time."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import typer

from host import cli, output
from host.commands import launch
from host.run import steps
from sim.json_files import sealed

#: Arguments of commands that would otherwise run for long, or end before they claim their output folder.
_NEEDED = {"launch": ("script.py",), "lab estimate": ("--targets", "4 MACs", "--lengths", 256)}
#: Commands that write a single file instead of a folder, or a variable number of files.
_OTHER = ("wave", "lab schedules")
_FILE = re.compile(r"[\w-]+\.(?:json|png|html|npz|tar|onnx)")


def commands():
    """Yield the commands that write to an output folder, each with the files that its help names."""
    program = typer.main.get_command(cli.app).commands
    labs = {f"lab {name}": lab for name, lab in program["lab"].commands.items()}
    for name, command in (*program.items(), *labs.items()):
        options = [option for option in command.params if "--output" in option.opts]
        if options and name not in _OTHER:
            yield name, sorted(set(_FILE.findall(options[0].help)))


COMMANDS = dict(commands())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Output folder; its parent is the working directory of programs."""
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: name)  # works without PyTorch
    (tmp_path / "script.py").write_text("")
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "output"
    output.mkdir()
    return output


def test_all_commands_are_known():
    labs = ("sweep", "streaming", "predict", "memory", "migrate", "estimate", "tiling", "late", "centroids",
            "delayed")
    assert {"train", "launch", "quantize", "bench", *(f"lab {name}" for name in labs)} <= set(COMMANDS)
    assert all(COMMANDS.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_running(run, folder, name):
    """A folder that another run is using is rejected before anything in it is moved."""
    (folder / COMMANDS[name][0]).write_text("of the run that is going")
    with (folder / ".run.lock").open("w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("123\n")
        file.flush()
        code, _, err = run(*name.split(), "--output", folder, *_NEEDED.get(name, ()))
    message = (f"error: {folder} must have no run that is going, not that of process 123: wait for its end, or "
               f"choose another folder with --output\n")
    assert (code, err) == (1, message)
    assert sorted(path.name for path in folder.iterdir() if path.name not in ("owner.key", "jobs")) == sorted(
        [".run.lock", COMMANDS[name][0]])


@pytest.mark.parametrize("name", COMMANDS)
def test_previous(run, folder, monkeypatch, name):
    """Before work begins, results of the last run are moved to previous/, and the user's own files stay unchanged."""
    put_away = output._put_away

    def stop(*arguments):
        put_away(*arguments)
        raise ValueError("work begins")

    monkeypatch.setattr(output, "_put_away", stop)
    (folder / "notes.txt").write_text("the user's")
    (folder / "previous").mkdir()
    (folder / "previous" / "notes.txt").write_text("the user's too")
    for file in COMMANDS[name]:
        (folder / file).write_text("of the run before")
        (folder / "previous" / file).write_text("of an older one")
    code, _, err = run(*name.split(), "--output", folder, *_NEEDED.get(name, ()))
    assert (code, err) == (1, "error: work begins\n")
    assert sorted(path.name for path in folder.iterdir() if path.name not in ("owner.key", "jobs")) == [
        "notes.txt", "previous"]
    assert {path.name: path.read_text() for path in (folder / "previous").iterdir()} == {
        "notes.txt": "the user's too", **dict.fromkeys(COMMANDS[name], "of the run before")}


def test_memory_continues(run, folder, monkeypatch):
    """Parts that memory.json already contains are kept and not computed again."""
    from host.labs.memory import lab as memory

    monkeypatch.setattr(memory.Parts, "complete", lambda self: iter(()))
    monkeypatch.setattr(output, "_put_away", lambda folder, files, keep: sys.exit(f"{files} {keep}"))
    for source, kept in ((memory._digest(), "('memory.json',)"), ("another", "()")):
        (folder / "memory.json").write_text(json.dumps(sealed({"source": source, "parts": {"checks": {}}})))
        code, _, _ = run("lab", "memory", "--output", folder)
        assert code == f"('memory.json',) {kept}"


def test_killed_run(run, folder):
    """The lock of a killed run is released as soon as its process is gone; forked children do not hold it."""
    program = ("import os, sys, time; from pathlib import Path; from host import output\n"
               "output.claim(Path('output'), files=('predict.json',))\n"
               "reader, writer = os.pipe()\n"
               "child = os.fork()\n"
               "os.read(reader, 1) and print(child, flush=True) if child else os.write(writer, b'.')\n"
               "time.sleep(600)\n")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": root})
    child = int(process.stdout.readline())  # printed after the child has closed inherited files
    try:
        options = ("--nodes", 2, "--formats", "dense", "--output", folder)
        code, _, err = run("lab", "predict", *options)
        assert (code, f"not that of process {process.pid}: " in err) == (1, True)
        process.kill()
        process.wait()
        assert run("lab", "predict", *options)[0] == 0
        assert sorted(path.name for path in folder.iterdir()) == ["predict.json", "predict.png"]
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
        os.kill(child, signal.SIGKILL)


def test_interrupted_build(run, folder, monkeypatch):
    """If a build fails, the last run's results remain in previous/, and the next run leaves them there."""
    def fail(*arguments, **options):
        raise ValueError("no compiler")

    monkeypatch.setattr(steps, "open_session", fail)
    for file in ("report.json", "weights.npz", "timeline-chunks-2.png", "checkpoint.tar"):
        (folder / file).write_text("of the run before")
    for _ in range(2):
        assert run("train", "--output", folder)[2] == "error: no compiler\n"
        assert [path.name for path in folder.iterdir()] == ["previous"]
        assert len(list((folder / "previous").iterdir())) == 4
