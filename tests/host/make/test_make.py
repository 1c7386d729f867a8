"""Run the real make in a copy of the tree, where programs only print their arguments."""

import fcntl
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from host.make.run import read_flags
from host.make.targets import find_target

ROOT = Path(__file__).parents[3]
EXTRAS = {extra for name in ("setup", "test", "torch-scripts") for extra in find_target(name).extras}

#: Program that prints its arguments and environment and exits with CODE. If WAIT is set, it first waits for a signal.
PROGRAM = f"""#!{sys.executable} -SE
import json, os, signal, sys, time
def end(number, frame):
    os.write(1, b"signal %d\\n" % number)
    os._exit(40 + number)
if "WAIT" in os.environ:
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
print("ran", json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)]), flush=True)
time.sleep(60 if "WAIT" in os.environ else 0)
sys.exit(int(os.environ.get("CODE", 0)))
"""


@pytest.fixture
def tree(tmp_path):
    """Copy the tree, and create stamps for all packages in it."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "host/__init__.py", "host/signals.py",
                 "hdl/__init__.py", "hdl/choices.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "host/make", tmp_path / "host/make", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("python", "gradring", "ruff", "mypy"):
        (tmp_path / ".venv/bin" / name).write_text(PROGRAM)
        (tmp_path / ".venv/bin" / name).chmod(0o755)
    for name in ("base", *EXTRAS):  # base comes first, so that all extras are newer
        (tmp_path / f".venv/.{name}").touch()
    (tmp_path / "build").mkdir()
    return tmp_path


def start(tree, *words, environment=(), **options):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.Popen(["make", "--no-print-directory", *words], cwd=tree, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, errors="surrogateescape", env={**clean, **dict(environment)},
                            **options)


def make(tree, *words, **options):
    """Run make; return its exit code, the lines it prints, the programs it runs, and error lines that are not make's
    own."""
    process = start(tree, f"PYTHON={sys.executable} -S", *words, **options)
    out, errors = process.communicate(timeout=200)
    lines = out.splitlines()
    ran = [json.loads(line[4:]) for line in lines if line.startswith("ran ")]
    return (process.returncode, [line for line in lines if not line.startswith("ran ")], ran,
            [line for line in errors.splitlines() if not line.startswith("make: ")])


VALUES = {"HIDDEN": "2;id", "WEIGHTS": "256;1024 # no", "GRADIENTS": "$(id) `id` $x $$ ${HOME}", "FAR": "a  b\tc ",
          "MEMORY": "back\\slash \\\\ \\", "COMPUTE": "\"double\" 'single' it's", "TILING": "a\nb\n\n c",
          "TENSORBOARD": "a=b:=c+=d", "CHAKRA": "-- N=1", "OUTPUT": "~/*?[a] & | < > (x) {y} !z %", "DISABLE": "ü€",
          "DEVICE": os.fsdecode(b"\xff"), "COMPUTE_FORMAT": "--seed"}


def test_values(tree):
    """Values reach the command unchanged, whatever characters they contain, because no shell is involved."""
    code, _, ((_, words, _),), errors = make(tree, "sim", *(f"{name}={value}" for name, value in VALUES.items()))
    assert (code, errors) == (0, [])
    variables = find_target("sim").variables
    assert words == ["train", *(word for name, variable in variables.items() if name in VALUES for word in (
        [f"{variable.option}={VALUES[name]}"] if VALUES[name][0] == "-" else [variable.option, VALUES[name]]))]


@pytest.mark.parametrize(("flags", "letters", "assignments"), [
    ("", "", {}), ("n", "n", {}), ("ks -j2 --jobserver-auth=3,4", "ks", {}), (" -- N=2", "", {"N": "2"}),
    (" -j4 -- M=a\\ b\\\tc\\\\d$$x$$$$y\"q'#z N=2;id", "", {"M": "a b\tc\\d$x$$y\"q'#z", "N": "2;id"}),
    ("w -- N:=2 L=a\nb E= Q=a=b", "w", {"N": "2", "L": "a\nb", "E": "", "Q": "a=b"}),
    (" --no-print-directory -Ia\\ b -- N=1 A=--\\ B=1", "", {"N": "1", "A": "-- B=1"})])
def test_flags(flags, letters, assignments):
    assert read_flags(flags) == (letters, assignments)


def test_nothing_passes_a_shell(tree):
    code, lines, ran, errors = make(tree, "sim", "N=2;touch x")
    assert (code, lines, ran) == (2, [], [])
    assert len(errors) == 1
    for words in (["sim", "NODES=2;touch x"], [";touch x"], ["help-sim;touch x"], [".venv/.torch;touch x"],
                  ["sim", "x;touch x"], ["sim", "PYTHON=true;touch x"]):
        assert make(tree, *words)[0] == 2
    assert not (tree / "x").exists()
    _, lines, ran, _ = make(tree, "estimate", "LENGTHS=256;1024", "TARGETS=16 MACs;link 1/2")
    assert lines == [".venv/bin/gradring lab estimate --targets '16 MACs;link 1/2' --lengths '256;1024'"]
    assert ran[0][1] == ["lab", "estimate", "--targets", "16 MACs;link 1/2", "--lengths", "256;1024"]


@pytest.mark.parametrize("words", [["NODES:=8"], ["NODES+=8"], ["NODES=4", "NODES=8"], ["NODES=8", "-e"],
                                   ["-k", "-j2", "NODES=8"], ["NODES=8", "CHECK="], ["A=8", "NODES=$(A)"]])
def test_assignments(tree, words):
    code, lines, ran, errors = make(tree, "sim", *words)
    if words[0] == "A=8":  # A is also a variable of make itself
        assert (code, ran) == (2, [])
    else:
        assert (code, lines, ran[0][1], errors) == (0, [".venv/bin/gradring train --nodes 8"],
                                                    ["train", "--nodes", "8"], [])


def test_environment(tree):
    """Environment variables do not set options. If a command runs make, it passes no variables to make."""
    _, _, ran, _ = make(tree, "sim", "STEPS=3", environment={"NODES": "8", "RESUME": "1"}.items())
    assert ran[0][1] == ["train", "--steps", "3"]
    assert ran[0][2]["NODES"] == "8"
    assert not {name for name in ran[0][2] if name in ("MFLAGS", "STEPS", "PYTHON") or "MAKE" in name}
    assert make(tree, "sim", environment={"MAKEFLAGS": " -- NODES=8"}.items())[2][0][1] == ["train", "--nodes", "8"]
    assert make(tree, "sim", environment={"MAKEFLAGS": "-j3"}.items())[0] == 0


def test_modes_of_make(tree):
    """The option -n of make prints commands without running them, and -s runs them without printing them."""
    (tree / ".venv/.tiling").unlink()
    code, lines, ran, _ = make(tree, "-n", "tiling", "FULL=1")
    assert (code, ran) == (0, [])
    assert lines[-2:] == [".venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint "
                          "constraints.txt --editable '.[tiling]'", ".venv/bin/gradring lab tiling --full"]
    assert not (tree / ".venv/.tiling").exists()
    for letter in "qt":
        assert ".venv" not in " ".join(make(tree, f"-{letter}", "clean", "ALL=1")[1])
    assert (tree / "build").exists()
    code, lines, ran, _ = make(tree, "-s", "sim")
    assert (code, lines, len(ran)) == (0, [], 1)
    assert make(tree.parent, "-C", str(tree), "sim", "NODES=3")[2][0][1] == ["train", "--nodes", "3"]


def test_two_goals(tree):
    """With two goals, each one gets the variables that it uses, and all variables are checked before the first goal
    runs."""
    _, lines, _, _ = make(tree, "-s", "sim", "wave", "NODES=8", "STEPS=2")
    assert lines == []
    _, lines, _, _ = make(tree, "sim", "wave", "NODES=8", "STEPS=2")
    assert lines == [".venv/bin/gradring train --steps 2 --nodes 8", ".venv/bin/gradring wave --nodes 8"]
    for words in (["sim", "wave", "STPES=2"], ["sim", "wvae"], ["sim", "wave", "LENGTH=x"]):
        code, _, ran, errors = make(tree, *words)
        assert (code, ran, len(errors)) == (2, [], 1)


def test_old_target(tree):
    code, _, ran, errors = make(tree, "relay")
    assert (code, errors) == (0, ["warning: make relay is an old spelling: write make streaming"])
    assert [words for _, words, _ in ran] == [["lab", "streaming"]]


def test_clean(tree):
    for value in ("0", "no", "False", ""):
        code, lines, _, _ = make(tree, "clean", f"ALL={value}")
        assert (code, lines[1]) == (0, "rm -rf build")
        assert (tree / ".venv").exists()
    assert not (tree / "build").exists()
    assert make(tree, "clean", "ALL=1")[0] == 0
    assert not (tree / ".venv").exists()


def test_exit_code(tree):
    process = start(tree, "sim", environment={"CODE": "3"}.items())
    assert "sim] Error 3" in process.communicate(timeout=200)[1]
    code, _, ran, _ = make(tree, "check", environment={"CODE": "3"}.items())
    assert (code, [words[0] for words in ran]) == (2, ["ruff"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("target", ["sim", "check"])
def test_signals(tree, target, number):
    """SIGINT from the terminal or SIGTERM to make reaches the command and ends the whole target."""
    process = start(tree, target, environment={"WAIT": ""}.items(), start_new_session=True,
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while not process.stdout.readline().startswith("ran "):
        assert process.poll() is None
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, _ = process.communicate(timeout=200)
    assert out.splitlines() == [f"signal {number}"]
    assert process.returncode


def test_signals_that_are_ignored(tree):
    """Commands of make get the default behaviour of signals that Python ignores, such as SIGPIPE."""
    (tree / ".venv/bin/gradring").write_text("#!/bin/sh\ngrep SigIgn /proc/self/status\n")
    line = make(tree, "-s", "sim")[1][0]
    assert not int(line.split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_front_end_needs_no_packages(tree):
    """In a fresh clone, the front end needs only the standard library, without site-packages."""
    shutil.rmtree(tree / ".venv")
    code, lines, _, errors = make(tree, "help")
    assert (code, errors) == (0, [])
    assert "  sim " in "\n".join(lines)
    code, lines, _, errors = make(tree, "-n", "sweep", "SCHEDULER=x", "SYNTH=no")
    assert [line for line in lines[1:] if not line.startswith("Installing")] == [
        f"{sys.executable} -m venv .venv", *(
            f".venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "
            f"--editable {name}" for name in (".", "'.[cluster]'")),
        ".venv/bin/gradring lab sweep --scheduler x --no-synth"]


class TestInstall:
    def test_stamps(self, tree):
        """Packages are installed only if their stamp is missing or older than a list of packages."""
        (tree / ".venv/.tiling").unlink()
        _, lines, ran, _ = make(tree, "tiling")
        assert [words[0] for words in ran] == ["python", "gradring"]
        assert lines[0] == "Installing Python packages into .venv, for tiling: up to 3 minutes"
        assert ran[0][1][-1] == ".[tiling]"
        assert len(make(tree, "tiling")[2]) == 1
        os.utime(tree / ".venv/.base")
        assert [words[1][-1] for words in make(tree, ".venv/.wave")[2]] == [".[wave]"]
        os.utime(tree / "constraints.txt")
        assert next(line for line in make(tree, "-n", "sim")[1] if "install" in line).endswith("--editable .")

    def test_failure(self, tree):
        """A failed installation is reported in one line with advice, and the next command tries again."""
        (tree / ".venv/.tiling").unlink()
        code, _, ran, errors = make(tree, "tiling", environment={"CODE": "3"}.items())
        assert (code, len(ran)) == (2, 1)
        assert errors == ["error: Python packages must be installed, not end with exit code 3: the same command "
                          "tries again, after 'make clean ALL=1' from the start"]
        assert len(make(tree, "tiling")[2]) == 2

    def test_interrupted(self, tree):
        (tree / ".venv/.tiling").unlink()
        process = start(tree, "tiling", environment={"WAIT": ""}.items())
        while not process.stdout.readline().startswith("ran "):
            assert process.poll() is None
        process.terminate()
        out, errors = process.communicate(timeout=200)
        assert out == "signal 15\n"
        assert "not end with exit code 143: the same command tries again" in errors
        assert not (tree / ".venv/.tiling").exists()

    def test_two_at_once(self, tree):
        (tree / ".venv/.tiling").unlink()
        with (tree / "pyproject.toml").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            process = start(tree, "tiling")
            assert process.stdout.readline() == ("Another make installs packages into .venv: waiting for its end\n")
            (tree / ".venv/.tiling").touch()
        out, _ = process.communicate(timeout=200)
        assert out.startswith(".venv/bin/gradring lab tiling\nran ")

    def test_no_venv_module(self, tree):
        """An error is reported if ensurepip is missing, as in Debian without python3-venv."""
        (tree / ".venv/.base").unlink()
        (tree / "sitecustomize.py").write_text("import sys\nsys.modules['ensurepip'] = None\n")
        process = start(tree, f"PYTHON={sys.executable}", "sim", environment={"PYTHONPATH": str(tree)}.items())
        out, errors = process.communicate(timeout=200)
        assert out == ""
        assert errors.startswith("error: Python must have its module venv, not lack it: install it (Debian: apt-get "
                                 "install python3.")

    def test_missing_python(self, tree):
        """The environment is built again if its Python no longer exists."""
        (tree / ".venv/bin/python").unlink()
        (tree / ".venv/bin/python").symlink_to("nowhere")
        assert f"{sys.executable} -m venv --clear .venv" in make(tree, "-n", "sim")[1]
        assert not any("Installing" in line for line in make(tree, "-nt", "sim")[1])

    def test_moved_tree(self, tree):
        (tree / ".venv/bin/gradring").unlink()
        (error,) = make(tree, "sim")[3]
        assert error == ("error: [Errno 2] No such file or directory: '.venv/bin/gradring': 'make clean ALL=1' "
                         "removes .venv, which is then made again")


def test_old_python(monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("host.make", run_name="__main__")
    assert caught.value.code == 2
    assert capsys.readouterr().err == ("error: Python must be 3.11 or later, not 3.9: name another one, as in "
                                       "PYTHON=python3.12\n")
