"""Invalid values for any option are rejected with a one-line message before any build, run or output.

Commands and options are found through the command line itself, so new ones are tested automatically. Values that are
legal are listed in :data:`LEGAL`.
"""

import enum
import sys
import types
from pathlib import Path

import pytest
import typer
from typer import core

from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
from host import cli, console, output
from host.labs.learning import lab as learning
from host.labs.sweep import execution
from host.transports import verilated
from sim.golden.operands import OPERANDS
from sim.verilated import cache_content

LARGE = str(10**22 + 7)

#: Command lines in which options are inserted. Each option is inserted in the first command line that accepts it.
CONTEXTS = {
    "train": ("{}", "--straggler 3:2 {}", "--schedule streaming {}", "--links slots --jobs 2 {}",
              "--overlap layers {}", "--compute node {}",
              "--faults 1e-4 {}", "--workload text --compute node --activations 6144 {}", "--topology 2x2 {}",
              "--device /dev/null {}"),
    "launch": ("{} script.py",),
    "quantize": ("--train --no-synth {}", "--train --no-synth --calibration percentile {}", "--no-synth {}"),
    "lab migrate": ("{}", "--source board {}"),
    "lab sweep": ("--no-synth {}",),
    "lab learning": ("formats {}",),
}

#: Test values that are legal, for each command and option.
LEGAL = {
    "train --threads": {LARGE}, "train --learning-rate": {"0", LARGE}, "train --momentum": {LARGE},
    "train --dampening": {"0", "-1", LARGE}, "train --weight-decay": {"0", LARGE}, "train --clip": {"0", LARGE},
    "train --device": {"no-such-name"}, "train --reconnect": {"0"}, "train --faults": {"0"},
    "train --fault-seed": {"0"}, "train --staleness-factor": {"0"}, "train --deadline": {"0"}, "train --skew": {"0"},
    "train --checkpoint": {"0"}, "train --seed": {"0"}, "lab predict --macs": {"0"},
    "lab sweep --scheduler": {"no-such-name"}, "lab migrate --after": {"0"}, "lab migrate --threads": {LARGE},
    "lab migrate --seed": {"0"}, "lab late --first-seed": {"0"}, "lab late --deadline": {"0"},
    "lab late --factor": {"0"}, "lab learning --least": {"0"}, "lab large-rings --seed": {"0"},
    "lab late --learning-rate": {"0"}, "lab centroids --learning-rate": {"0"}, "quantize --seed": {"0"},
    "quantize --threads": {LARGE}, "launch --threads": {LARGE},
}


class Reached(BaseException):
    """Raised when a command is about to build, run or write anything."""


def walk(command, path=()):
    """Yield all commands that can be called, with their full names."""
    children = getattr(command, "commands", {})
    if not children:
        yield " ".join(path), command
    for name, child in children.items():
        yield from walk(child, (*path, name))


PARAMETERS = [(name, parameter) for name, command in walk(typer.main.get_command(cli.app))
              for parameter in command.params]
OPTIONS = [(name, option) for name, option in PARAMETERS
           if isinstance(option, core.TyperOption) and not option.is_flag
           and option.type_descriptor.annotation is not Path]
PATHS = [(name, parameter) for name, parameter in PARAMETERS if parameter.type_descriptor.annotation is Path]


def name_of(value):
    return getattr(value, "name", value)


def stop(*arguments, **options):
    raise Reached


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the program up to its first build or run; return its exit code (None if it gets there) and error output."""
    monkeypatch.setattr(cache_content, "prune", stop)
    monkeypatch.setattr(execution, "execute", stop)
    monkeypatch.setattr(learning, "learn", stop)
    monkeypatch.setattr(verilated, "build_ring", stop)
    stage = console.Progress.stage
    monkeypatch.setattr(console.Progress, "stage", lambda self, name, *rest: (
        stage(self, name, *rest) if name == "data" else stop()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gradring", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as caught:
            code = caught.code
        except Reached:
            code = None
        return code, capsys.readouterr().err

    return run


def outcome(call, command, option):
    """Return the exit code and error output of a command with an option. The first command line that accepts the
    option is used."""
    for context in CONTEXTS.get(command, ("{}",)):
        code, err = call(*command.split(), *context.format(option).split())
        if "leave it out" not in err:
            break
    return code, err


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=name_of)
def test_wrong_values(call, monkeypatch, command, option):
    prepare = output.prepare
    for module in [module for module in sys.modules.values() if isinstance(module, types.ModuleType)]:
        if module.__name__.partition(".")[0] == "host":
            for name in [name for name, value in vars(module).items() if value is prepare]:
                monkeypatch.setattr(module, name, stop)
    numeric = option.type_descriptor.annotation in (int, float)
    wrong = {}
    for value in ("0", "-1", LARGE, "nan", "x") if numeric else ("no-such-name",):
        code, err = outcome(call, command, f"{option.opts[0]}={value}")
        legal = value in LEGAL.get(f"{command} {option.opts[0]}", ())
        refused = code in (1, 2) and "leave it out" not in err and len(err.splitlines()) == 1
        if refused if legal else not refused:
            wrong[value] = code, err
    assert not wrong


@pytest.mark.parametrize(("command", "parameter"), PATHS, ids=name_of)
def test_wrong_paths(call, tmp_path, command, parameter):
    """Paths that would be inside a regular file can be neither read nor written."""
    path = tmp_path / "script.py" / "new" / "name.py"
    code, err = outcome(call, command, f"{parameter.opts[0]}={path}" if isinstance(parameter, core.TyperOption)
                        else str(path))
    assert (code, len(err.splitlines())) == (1, 1), err
    assert "script.py" in err


def similar(option):
    """Return the values that an option can have, from its type or from ``CHOICES``."""
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(member.value) for member in kind]
    return CHOICES.get(option.opts[0], ())


#: Valid values of options that are declared as text.
CHOICES = {
    "--weights": WEIGHT_CODECS, "--gradients": GRADIENT_CODECS, "--compute": ("host", "node"),
    "--board": ("ulx3s-85f", "colorlight-5a-75b"),
    "--compute-format": OPERANDS, "--overlap": ("strict", "layers", "search"), "--links": ("credits", "slots"),
    "--formats": WEIGHT_CODECS.keys() & GRADIENT_CODECS.keys(), "--compute-formats": OPERANDS,
    "--source": ("verilated", "serial"),
    "--transport": ("verilated", "serial"), "--optimizer": ("momentum", "adam"), "--memory": ("recompute", "mixed"),
    "--tiling": ("default", "searched"), "--scheme": ("symmetric", "float-offset"), "--methods": ("G-BFS", "N-A2C"),
    "--rounding": ("nearest",), "--extrema": ("weights", "aligned"),
}


@pytest.mark.parametrize(("command", "option"), [
    (name, option) for name, option in OPTIONS if similar(option)], ids=name_of)
def test_similar_names(call, command, option):
    """If a value has one additional letter, the error message suggests the correct value."""
    wrong = {}
    for name in similar(option):
        if len(name) < 4:
            continue
        code, err = outcome(call, command, f"{option.opts[0]}={name[:2]}q{name[2:]}")
        if code not in (1, 2) or "did you mean" not in err or name not in err.partition("did you mean")[2]:
            wrong[name] = code, err
    assert not wrong


@pytest.mark.parametrize(("arguments", "message"), [
    ("train --schedule streaming --hidden 64x70", "Units must be at most 64, the entries of the server's table of "
                                                  "counts, not 71"),
    ("lab migrate --interval 3", "Optimizer.interval must be 1, 2, 4 or 8, not 3"),
    ("launch --link-latency 0 script.py", "Link latency must be between 1 and 1,000,000, not 0"),
])
def test_messages(call, arguments, message):
    assert call(*arguments.split()) == (1, f"error: {message}\n")


@pytest.mark.parametrize("command", ["train --hidden none", "train --straggler 3:2", "train --schedule streaming",
                                     "lab migrate"])
@pytest.mark.parametrize("content", [b"", b"x" * 5000])
def test_wrong_key(call, monkeypatch, tmp_path, command, content):
    """A key that is invalid is rejected before anything is built."""
    (tmp_path / "key").write_bytes(content)
    monkeypatch.setenv("GRADRING_KEY", str(tmp_path / "key"))
    assert call(*command.split(), "--output", "new") == (
        1, f"error: {tmp_path / 'key'} must have a key of 32 to 4,096 bytes\n")
