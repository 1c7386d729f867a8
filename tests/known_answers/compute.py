"""Compute the answers of runs and circuits again, and compare them with the stored answers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.known_answers import circuits, runs

__all__ = ["PATH", "board", "configuration", "differences", "kept", "run", "trained_by_gloo"]

#: File with the stored answers.
PATH = Path(__file__).with_name("answers.json")
_ROOT = Path(__file__).resolve().parents[2]
#: Time limit of a run in seconds, which includes builds on a busy machine.
_TIMEOUT = 3600


def kept() -> dict[str, Any]:
    """Return the stored answers. Runs and boards are keyed by name, configurations by their options as JSON."""
    answers: dict[str, Any] = json.loads(PATH.read_text())
    return answers


def run(name: str, folder: Path) -> Any:
    """Run a command with its files in ``folder`` and return its answer; ``RuntimeError`` has the output of a
    failure."""
    weights = folder / "weights.txt"
    process = subprocess.run([sys.executable, "-m", "gradring", *runs.command(name, folder)], cwd=_ROOT, text=True,
                             capture_output=True, timeout=_TIMEOUT, check=False,
                             env={**os.environ, "WEIGHTS": str(weights)})
    if process.returncode:
        raise RuntimeError(f"{name} ended with exit code {process.returncode}:\n{process.stdout}{process.stderr}")
    answer = runs.answer(name, folder)
    if name == "launch":
        answer["as_gloo"] = weights.read_text() == trained_by_gloo(folder)
    return answer


def trained_by_gloo(folder: Path) -> str:
    """Train two gloo ranks on this machine with the script of ``launch``; return the digest of the weights."""
    weights = folder / "gloo.txt"
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", runs.DDP], cwd=_ROOT,
                   capture_output=True, timeout=_TIMEOUT, check=True,
                   env={**os.environ, "WEIGHTS": str(weights), "OMP_NUM_THREADS": "1"})
    return weights.read_text()


def board(name: str) -> dict[str, Any]:
    return circuits.digest(circuits.board_nodes()[name])


def configuration(options: dict[str, Any]) -> dict[str, Any]:
    """Answer for the circuit of a node with the given options."""
    return circuits.digest(circuits.node_config(options))


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each value that differs from the stored value."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in [*expected, *(name for name in actual if name not in expected)]:
            yield from differences(expected.get(name), actual.get(name), f"{path}.{name}" if path else name)
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, values in enumerate(zip(expected, actual, strict=True)):
            yield from differences(*values, f"{path}[{index}]")
    elif expected != actual:
        yield f"{path}: {actual!r}, kept {expected!r}"
