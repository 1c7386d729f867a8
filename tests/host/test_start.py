"""Imports before the command is known, and signals that arrive during imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from host import cli
from host.commands.registry import COMMANDS
from host.labs.registry import LABS
from host.signals import ended_at_once

ROOT = Path(__file__).parents[2]

#: Script that prints the number of lines in all modules of this repository that a program imports.
COUNTED = """
import atexit, runpy, sys
from pathlib import Path

def count():
    root = Path.cwd()
    files = {Path(module.__file__) for module in [*sys.modules.values()] if getattr(module, "__file__", None)}
    folders = [root / name for name in ("hdl", "sim", "boards", "host", "gradring")]
    own = [path for path in files if any(path.is_relative_to(folder) for folder in folders)]
    print("\\nlines", sum(len(path.read_text().splitlines()) for path in own))

atexit.register(count)
"""


def lines(program, *arguments):
    printed = subprocess.run([sys.executable, "-c", COUNTED + program, *arguments], cwd=ROOT, capture_output=True,
                             text=True, check=True, timeout=60).stdout
    return int(printed.rsplit("lines ", 1)[1])


def test_lines():
    """The command's help and the library each import only a small fraction of the repository."""
    command = "sys.argv[0] = 'gradring'; runpy.run_module('gradring', run_name='__main__')"
    assert 1_000 < lines(command, "--help") <= 12_000
    assert 100 < lines("import gradring") <= 15_000


def test_registry():
    """The list of commands shows the first sentence of each command's help."""
    group = typer.main.get_command(cli.app)
    for commands, entries in ((group.commands, COMMANDS), (group.commands["lab"].commands, LABS)):
        assert list(commands) == list(entries)
        for name, command in commands.items():
            assert command.name == name
            assert " ".join(command.help.split("\n\n")[0].split()) == entries[name].help


def test_commands(run):
    """Commands are found by name, and for an unknown name, the most similar one is suggested."""
    code, out, _ = run("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in COMMANDS)
    assert run("tran") == (2, "", "error: No such command 'tran'. Did you mean 'train'? ('gradring --help' shows "
                                  "what there is)\n")
    code, out, error = run("lab")
    assert (code, out) == (2, "")
    assert all(f"  {name} " in error for name in LABS)
    assert run("lab", "swep") == (2, "", "error: No such command 'swep'. Did you mean 'sweep'? ('gradring lab "
                                         "--help' shows what there is)\n")


def test_labs():
    """No module of a lab is imported until the lab runs."""
    program = "from host.labs.registry import LABS; import host.commands.lab, sys; print(sorted(" \
              "name for name in sys.modules if name.startswith('host.labs.')))"
    printed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed.stdout == "['host.labs.registry']\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(number):
    """A signal during imports ends the process immediately; handlers are restored after the imports."""
    before = signal.getsignal(number)
    with ended_at_once():
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before
    child = os.fork()
    if not child:
        signal.signal(number, signal.SIG_DFL)
        with ended_at_once():
            os.kill(os.getpid(), number)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + number


def test_ignored():
    """A signal that the process ignored before is still ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_at_once():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
