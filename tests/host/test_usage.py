"""Exits of the program: one-line errors, memory limits, and output that cannot be written."""

import errno
import io
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from gradring import __main__ as entry
from host import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ended(monkeypatch, capsys):
    """Run a command line and return its exit code and error output."""
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["gradring", *words])
        with pytest.raises(SystemExit) as caught:
            entry.main()
        return caught.value.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize("words", [
    ("train", "--optimizer", "{}"), ("train", "--weights", "{}"), ("train", "--nodes", "{}"), ("train", "--{}"),
    ("{}",), ("quantize", "--weights", "{}"), ("train", "--schedule", "streaming", "--worker-far", "{}"),
    ("lab", "migrate", "--board", "{}"),
])
@pytest.mark.parametrize("value", ["\x1b[31mred", "a\rb", "y" * 5000, "\udcff\udcfe"])
def test_values(ended, words, value):
    """Values in error messages are shortened, and control characters in them are not printed."""
    code, err = ended(*(word.format(value) for word in words))
    assert code in (1, 2)
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    assert len(err) < 1200


@pytest.mark.parametrize("limit", [100_000, 200_000, 300_000, 400_000, 600_000])
def test_limit_of_memory(limit):
    """A memory limit that is too low for the imports is reported immediately."""
    result = subprocess.run([sys.executable, "-m", "gradring", "train"], cwd=ROOT, capture_output=True, text=True,
                            timeout=100, check=False, preexec_fn=lambda: resource.setrlimit(
                                resource.RLIMIT_AS, (limit << 10, limit << 10)))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: Limit of memory must be at least ")
    assert result.stderr.endswith(f" KiB on this machine, not {limit:,}: raise it (ulimit -v)\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("error", "reason"), [
    (ImportError("x.so: failed to map\nsegment"), "x.so: failed to map segment"),
    (MemoryError(), "memory ran out"),
])
def test_modules_that_fail(ended, monkeypatch, error, reason):
    def fail():
        raise error

    monkeypatch.setattr(cli, "main", fail)
    assert ended("info") == (1, f"error: Modules must be importable, not fail: {reason}; raise the limit of memory "
                                f"(ulimit -v), or install gradring again\n")


def test_output_that_cannot_be_written(ended, monkeypatch):
    """The program flushes its output before it exits, so that a failed write is reported as an error."""
    class Full(io.StringIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert ended("cache") == (1, "error: [Errno 28] No space left on device\n")


def test_reader_that_has_ended():
    result = subprocess.run([sys.executable, "-c", "import os, sys; there, here = os.pipe(); os.close(there); "
                             "os.dup2(here, 1); sys.argv[1:] = ['info']; from gradring.__main__ import main; main()"],
                            cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (result.returncode, result.stderr) == (1, "")
