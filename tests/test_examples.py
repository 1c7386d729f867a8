"""The examples, as their first lines say they are run."""

import re
import subprocess
import sys

import pytest

from host.documents import ROOT

EXAMPLES = ROOT / "examples"


def run(tmp_path, *command):
    ended = subprocess.run([sys.executable, *map(str, command)], cwd=tmp_path, capture_output=True, text=True,
                           timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_all_are_tested():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == ["numpy_model.py", "pytorch_ddp.py"]


def test_numpy_model(tmp_path):
    """It learns, and gives the figures of the quick start."""
    printed = run(tmp_path, EXAMPLES / "numpy_model.py", "zero_value")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", printed)]
    assert losses[0] > 2
    assert losses[-1] < 0.25
    cycles, words = re.findall(r" (\S+) cycles .*, (\S+)% of raw ones", printed)[-1]
    assert f"| `zero_value` | {losses[-1]:.4f} | {cycles} | {words} % |" in (ROOT / "docs/quick-start.md").read_text()


def test_pytorch(tmp_path):
    pytest.importorskip("torch")
    printed = run(tmp_path, "-m", "gradring", "launch", "-n", 2, "--output", tmp_path, EXAMPLES / "pytorch_ddp.py")
    losses = [float(loss) for loss in re.findall(r"loss of rank 0 (\S+)", printed)]
    assert len(losses) == 2
    assert max(losses) < 1  # 2.3 at first
