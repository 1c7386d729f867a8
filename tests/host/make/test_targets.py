"""All make targets, their variables and their help match the tables of make's front end."""

import re
import tomllib
from pathlib import Path

import pytest
import typer.main

from host import cli
from host.make import run
from host.make.run import install
from host.make.targets import OFF, check_known, find_target, manual, overview, targets

ROOT = Path(__file__).parents[3]
#: Beginning of the error message about an unknown variable.
UNKNOWN = f"Variable of make sim must be one of the {len(targets()['sim'].variables)} of 'make help-sim', not"
#: Part of the error message about an unknown target. The message contains the number of targets.
ONE_OF = f"must be one of the {len(targets())} of 'make help', not"
#: All targets, and all modes of targets that have several.
CHOSEN = [chosen for target in targets().values() for chosen in (target, *target.modes.values())]


def call(monkeypatch, capsys, target, *, letters="n", **variables):
    """Return the exit code, output lines and error lines of a dry run of a target."""
    words = [f"{name}={value}".replace(" ", "\\ ") for name, value in variables.items()]
    monkeypatch.setenv("GRADRING_MAKEFLAGS", " ".join([letters, "--", *words]))
    code = run.main([target, target])
    out, errors = capsys.readouterr()
    return code, out.splitlines(), errors.splitlines()


@pytest.mark.parametrize("target", [chosen for chosen in CHOSEN if len(chosen.run) == 1], ids=lambda x: x.run[0])
def test_values_of_all_variables(target):
    """A variable adds words to the command of its target. With the value 0, no or false, in upper or lower case, it
    adds none."""
    before = target.commands(dict.fromkeys(target.needs, "x"))
    for name, variable in target.variables.items():
        on = next(iter(variable.values), "2")
        words = variable.words(name, on)
        assert words == variable.values["1" if on == "1" else on] if isinstance(variable.values, dict) else (
            words == ([variable.option, on] if variable.option else [on])), name
        switches = isinstance(variable.values, dict)
        for value in (*OFF, *map(str.upper, OFF)):
            if switches or variable.off or variable.kind in ("integer", "number"):
                expected = variable.values["0"] if switches else [] if variable.off else [variable.option, "0"]
                assert variable.words(name, value) == expected, name
        if name not in target.needs:
            assert target.commands({**dict.fromkeys(target.needs, "x"), name: ""}) == before


def test_switches(monkeypatch, capsys):
    """Variables that are switches reject wrong values, and values such as 0 do not turn them on."""
    for target, name, words in (("clean", "ALL", ".venv"), ("quantize", "TRAIN", "--train"),
                                ("quantize", "ONNX", " --onnx"), ("quantize", "PER_OUTPUT", "--per-output"),
                                ("random-programs", "REMOTE", "--remote"), ("synth", "NATIVE", "--native"),
                                ("synth", "DSP_REGISTERS", "--dsp-registers"), ("sim", "COMPARE", " --compare"),
                                ("sim", "RESUME", "--resume"), ("sim", "RELAY", "--schedule streaming"),
                                ("wrong-commands", "SIGNALS", "--signals"), ("sweep", "SWEEP", "--full")):
        on = "full" if name == "SWEEP" else "1"
        assert words in call(monkeypatch, capsys, target, **{name: on})[1][-1]
        for value in ("0", "no", "false", "NO"):
            assert words not in call(monkeypatch, capsys, target, **{name: value})[1][-1]
        code, lines, (error,) = call(monkeypatch, capsys, target, **{name: "maybe"})
        assert (code, lines) == (2, [])
        assert error.startswith(f"error: Variable {name} must be one of ")


def test_all_options_are_variables():
    """Each option of `gradring train`, and of other commands that a make target runs directly, is a make variable."""
    program = typer.main.get_command(cli.app)
    for target in CHOSEN:
        if len(target.run) == 1 and target.run[0].startswith("gradring "):
            command = program
            for word in target.run[0].split()[1:]:
                command = command.commands[word]
            names = {max(option.opts, key=len) for option in command.params}
            assert {name for name in names if name.startswith("--")} <= {
                variable.option for variable in target.variables.values()}, target.name
    assert len(targets()["sim"].variables) > 60
    assert all(variable.section for variable in targets()["sim"].variables.values())
    reserved = {"PATH", "HOME", "SHELL", "PYTHON", "MAKE", "CC", "CXX", "TMPDIR"}  # names used by make or the shell
    assert not {name for target in CHOSEN for name in target.variables} & reserved


@pytest.mark.parametrize(("target", "variables", "error"), [
    ("sim", {"STPES": "3"}, f"{UNKNOWN} 'STPES': did you mean STEPS or SETS?"),
    ("sim", {"OPTIMISER": "adam"}, f"{UNKNOWN} 'OPTIMISER': did you mean OPTIMIZER?"),
    ("sim", {"steps": "3"}, f"{UNKNOWN} 'steps': did you mean STEPS?"),
    ("sim", {"LINK_LATENCY": "3"}, f"{UNKNOWN} 'LINK_LATENCY': did you mean LATENCY?"),
    ("sim", {"N": "2;id"}, f"{UNKNOWN} 'N'"),
    ("synth", {"BOARD": "icebreaker", "LANES": "3"}, "Variable LANES must be left out with BOARD"),
    ("synth", {"CABLE": "x"}, "Variable CABLE must be left out without BOARD: did you mean TABLE?"),
    ("program", {}, "Variable BOARD must be set for make program, not left out: 'make help-program' shows it"),
    ("two-jobs", {"SEED": "1"},
     "Variable of make two-jobs must be left out, since there is none to choose, not 'SEED'"),
    ("sim", {"STEPS": "3x"}, "Variable STEPS must be an integer, not '3x'"),
    ("synth-optimizer", {"LANES": "1 x"}, "Variable LANES must be an integer, not 'x'"),
    ("sim", {"FAULTS": "x"}, "Variable FAULTS must be a number, not 'x'"),
    ("sim", {"OPTIMIZER": "adma"},
     "Variable OPTIMIZER must be one of sgd, momentum, nesterov, adam, adamw, not 'adma': did you mean adam or "
     "adamw?"),
    ("sim", {"OPTIMIZER": "no"}, "Variable OPTIMIZER must be one of sgd, momentum, nesterov, adam, adamw, not 'no'"),
    ("test", {"TESTS": "-k 'a"}, "Variable TESTS must be words as in a shell, not \"-k 'a\": no closing quotation"),
    ("smi", {}, f"Target {ONE_OF} 'smi': did you mean sim?"),
    ("help-smi", {}, f"Target {ONE_OF} 'smi': did you mean sim?"),
    ("help", {"STEPS": "3"}, "Variable of make help must be left out, since there is none to choose, not 'STEPS'"),
    (".venv/.onxn", {}, "Extra must be one of base, test, check, synth, registers, wave, docs, tensorboard, cluster, "
                        "mpi, chakra, tiling, onnx, torch, not 'onxn': did you mean onnx?")])
def test_errors(monkeypatch, capsys, target, variables, error):
    """An error is reported in one line that suggests the most similar name; nothing is installed or run."""
    monkeypatch.setattr(run, "install", None)
    assert call(monkeypatch, capsys, target, **variables) == (2, [], [f"error: {error}"])


@pytest.mark.parametrize(("target", "variables", "command"), [
    ("sim", {"MOMENTUM": "0.5", "LATENCY": "32", "INTERVAL": "3"},
     "gradring train --interval 3 --momentum 0.5 --link-latency 32"),
    ("sim", {"CHECKPOINT": "no", "COMPARE": "0", "PLANES": "2", "STALENESS_FACTOR": "0.9", "TENSORBOARD": "0",
             "OVERLAP": "No"},
     "gradring train --no-compare --state-planes 2 --staleness-factor 0.9 --checkpoint 0"),
    ("sim", {"RELAY": "resident", "FORMAT": "mx4", "LEARNING_RATE": "1"},
     "gradring train --learning-rate 1 --format mx4 --schedule streaming --resident"),
    ("sim", {"RELAY": "yes", "PLATEAU": "no"}, "gradring train --schedule streaming"),
    ("streaming", {"NODES": "1"}, "gradring lab streaming --nodes"),
    ("partition", {"LATENCY": "16,64"}, "python -m tests.partition --latencies 16,64"),
    ("synth", {"UNIT": "floating.add ring.packetizer", "OPTIONS": "a=1 b=2", "CRITICAL_PATH": "1"},
     "python -m boards.synth --unit floating.add --unit ring.packetizer --set a=1 --set b=2 --path"),
    ("synth", {"BOARD": "icebreaker", "SEEDS": "3"}, "python -m boards.bitstream --board icebreaker --seeds 3"),
    ("program", {"BOARD": "icebreaker", "CABLE": "ft2232"},
     "python -m boards.bitstream --program --board icebreaker --cable ft2232"),
    ("verilog", {"UNIT": "node", "OPTIONS": "weights.codec=mx9 masking=False"},
     "python -m boards.verilog --unit node --set weights.codec=mx9 --set masking=False"),
    ("test", {}, "PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest --dist worksteal -n auto"),
    ("test", {"MINUTES": "30", "WORKERS": "2"},
     "PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest --dist worksteal -n 2 --minutes 30"),
    ("test", {"TESTS": "tests/a.py -k 'a or b'", "WORKERS": "2"},
     "PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest --dist worksteal -n 2 tests/a.py -k 'a or b'"),
    ("synth-optimizer", {"LANES": "1 2", "RULES": "SGD 'all four'"},
     "python -m boards.optimizer_table --rules SGD --rules 'all four' --lanes 1 --lanes 2"),
    ("packets", {"FIRST": "2", "WAVE": "x.fst"}, "gradring packets x.fst --first 2"),
    ("docs", {}, "NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict")])
def test_commands(monkeypatch, capsys, target, variables, command):
    code, lines, errors = call(monkeypatch, capsys, target, **variables)
    assert (code, errors) == (0, [])
    assert lines[-1] == command if "=" in command.split()[0] else f".venv/bin/{command}"


def test_extras():
    """Variables need only extras that pyproject.toml defines, and only some targets need the extras for PyTorch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = set(project["optional-dependencies"])
    for target in CHOSEN:
        for name in (None, *target.variables):
            assert set(target.needed({name: "1"} if name else {})) <= known
    assert set(targets()["setup"].extras) == known - {"torch"}
    assert set(targets()["test"].extras) == known - {"torch", "wave"}
    sim, sweep = targets()["sim"], targets()["sweep"]
    assert sim.needed({}) == sim.needed({"CHAKRA": "0", "TENSORBOARD": "no"}) == []
    assert sim.needed({"CHAKRA": "x", "TENSORBOARD": "y"}) == ["tensorboard", "chakra"]
    assert sweep.needed({}) == sweep.needed({"SYNTH": "1"}) == ["synth"]
    assert sweep.needed({"SYNTH": "False", "SCHEDULER": "tcp://x"}) == ["cluster"]
    assert targets()["quantize"].needed({"ONNX": "1"}) == ["synth", "onnx"]
    assert find_target(".venv/.torch").needed({}) == ["torch"]


#: Pattern for a make command (a target with variables and their values) in a line of a page or docstring.
LINE = re.compile(r"""(?<=[`' ])make[ ]((?:\.venv/\.)?[a-z][a-z-]+)          # target
                      ((?:\s+[A-Z][A-Z_]*=(?:"[^"]*"|[^\s`'#)…,;]*))*)      # variables
                      (?=[\s`'),.;:]|$)""", re.MULTILINE | re.VERBOSE)


def shown():
    """Yield the `make TARGET NAME=value` commands in the README, docs and sources."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    pages += [path for folder in ("host", "boards", "tests", "examples") for path in (ROOT / folder).rglob("*.py")]
    for page in pages:
        for goal, settings in LINE.findall(page.read_text(encoding="utf-8")):
            if settings or goal in targets():
                yield page, goal, dict(re.findall(r"([A-Z_]+)=(\"[^\"]*\"|\S*)", settings))


def test_lines_of_the_pages():
    """All make targets and variables that pages and docstrings mention exist."""
    lines = list(shown())
    assert len(lines) > 150
    for page, goal, variables in lines:
        variables = {name: value.strip('"') for name, value in variables.items() if value.strip('"')}
        try:
            check_known([goal], variables)
            target = find_target(goal).mode(variables)
            target.commands(dict.fromkeys(target.needs, "x") | variables)
        except ValueError as error:
            pytest.fail(f"{page}: make {goal} {variables}: {error}")


class TestHelp:
    def test_overview(self):
        """The overview of `make help` lists all targets and fits on one screen."""
        lines = overview().splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 100
        for name in targets():
            assert any(re.search(rf"(?:^|\s{{2}}){name} ", line) for line in lines), name

    @pytest.mark.parametrize("name", targets())
    def test_manual(self, name):
        """The manual of a target lists each variable with its values, in lines that fit on the screen."""
        text = manual(name)
        assert max(map(len, text.splitlines())) <= 100
        target = targets()[name]
        for chosen in (target, *target.modes.values()):
            for variable, entry in chosen.variables.items():
                assert re.search(rf"^  {variable} +\S", text, re.MULTILINE)
                assert entry.text
        assert "--" not in re.sub(r"--(?:set|scheduler)", "", text)

    def test_sections(self):
        lines = manual("sim").splitlines()
        assert [line for line in lines if re.match(r"[A-Z]", line)] == [
            "Description", "Workload", "Optimizer", "Formats", "Compute", "Ring", "Schedule: program",
            "Schedule: quorum", "Schedule: streaming", "Schedule: side by side", "Backend", "Output", "Schedule",
            "Old spellings"]
        assert any(line.startswith("  TRANSPORT ") and "Transport to the nodes. [default: verilated] Names" in line
                   for line in lines)
        assert manual("two-jobs").splitlines()[-1] == "It has no variables."


def test_install_of_nothing(monkeypatch, tmp_path, capsys):
    """A dry run prints the packages that it would install, and creates nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    install(["onnx", "onnx"], dry=True, show=True)
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert not (tmp_path / ".venv").exists()
