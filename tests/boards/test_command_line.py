"""Tests of how the programs in boards/ exit."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from boards.command_line import finish
from boards.tools import SynthesisError
from sim.verilated.processes import EndedError, ToolError
from tests.wrong_commands.signals import hear_interrupts

ROOT = Path(__file__).parents[2]

PROGRAMS = [path.stem for path in sorted((ROOT / "boards").glob("*.py"))
            if "argparse.ArgumentParser" in path.read_text()]


@pytest.mark.parametrize("kind", [SynthesisError, ToolError, ValueError, OSError, TypeError])
def test_errors(capsys, kind):
    def work():
        raise kind("no")

    assert finish(work) == 1
    assert capsys.readouterr().err == "error: no\n"


def test_signal(capsys):
    with pytest.raises(EndedError) as caught:
        finish(lambda: signal.raise_signal(signal.SIGTERM))
    assert caught.value.code == 143
    assert capsys.readouterr().err == "ended by SIGTERM\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_signal_during_imports(name, tmp_path):
    (tmp_path / "amaranth.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(300)\n")
    process = subprocess.Popen([sys.executable, "-m", f"boards.{name}"], text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, cwd=tmp_path, preexec_fn=hear_interrupts,
                               env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    try:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (-signal.SIGINT, "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_programs(monkeypatch, name):
    """All programs exit through the same function, and programs that print lists accept a closed output pipe."""
    module = importlib.import_module(f"boards.{name}")
    assert module.finish is finish
    if name == "optimizer_table":
        return
    there, here = os.pipe()
    os.close(there)
    with os.fdopen(here, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert module.main(["--list"]) == 0
