"""Make and the program accept all commands of the README; its quick commands and its Python lines run as shown."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from gradring import Adam, node_for
from host.cli import app
from tests.host.rings import JOBS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
#: Code blocks of the README, as pairs of language (empty for commands with their output) and text.
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
COMMANDS = [line.split("#")[0].strip() for language, block in BLOCKS if not language
            for line in block.splitlines() if line.startswith(("make ", "gradring "))]
#: Commands that take only a few seconds, with the output or file that each of them produces.
QUICK = {"make help": "  sim ", "make verilog UNIT=node": "build/verilog/node.v"}


def run(*command, timeout=60):
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_readme_is_short():
    assert len(README.splitlines()) <= 90
    assert {"make sim", "make test"} | QUICK.keys() <= set(COMMANDS)
    assert len(COMMANDS) == len(set(COMMANDS)) > 10


def check_make(command):
    """Check that make has the target, and that the program accepts each option that make passes to it."""
    program, *arguments = shlex.split(command)
    assert program == "make"
    printed = run("make", "--dry-run", *arguments)
    for setting in (word for word in arguments if "=" in word):
        if setting.endswith("=1"):  # a switch, so its value is not passed on
            changed = printed != run("make", "--dry-run", *(word for word in arguments if word != setting))
        else:
            changed = setting.partition("=")[2] in printed
        assert changed, f"{setting} has no effect"
    called = re.search(r"^\.venv/bin/(gradring .*)", printed, re.MULTILINE)
    if called:
        check_program(called[1])


def check_program(command):
    """Check that the program accepts a command, or an experiment of ``gradring lab``, with these options."""
    program, name, *arguments = shlex.split(command)
    assert program == "gradring"
    called = typer.main.get_command(app).commands[name]
    context = called.make_context(name, arguments)
    if name == "lab":
        name, called, arguments = called.resolve_command(context, arguments)
        called.make_context(name, arguments)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_known(command):
    check_make(command)


@pytest.mark.parametrize("command", QUICK)
def test_quick_commands_run(command):
    """Quick commands give the expected output. All of them except help are run directly instead of by make."""
    words = shlex.split(command)
    if words != ["make", "help"]:
        words = shlex.split(run("make", "--dry-run", *words[1:]).splitlines()[-1])
        assert words.pop(0) == ".venv/bin/python"
        words.insert(0, sys.executable)
    assert QUICK[command] in run(*words, timeout=300)


def test_program_in_python():
    """The eight lines of Python train a model and print the README's output, on nodes that other tests use too."""
    (program,) = (block for language, block in BLOCKS if language == "python")
    assert len(list(filter(None, program.splitlines()))) == 8
    assert node_for(1000, nodes=4, optimizer=Adam(0.05)) == JOBS
    printed = run(sys.executable, "-c", program, timeout=300).splitlines()
    assert len(printed) == 50
    assert f"from `{printed[0]}` to `{printed[-1]}`" in " ".join(README.split())
