"""Test the tutorial docs/quick-start.md: its Python blocks run in order and print the shown output."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradring
from tests.host.rings import CONFIGS
from tests.present import needs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/quick-start.md").read_text()
STEPS = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shared_nodes(monkeypatch):
    """Replace the mx9 nodes with nodes that other tests also build; only the cycles differ."""
    simulate = gradring.simulate

    def simulated(*, node, announce, **rest):
        return simulate(node=CONFIGS["mx9"] if node == gradring.NodeConfig(gradients="mx9") else node, **rest)

    monkeypatch.setattr(gradring, "simulate", simulated)


def test_blocks(tmp_path, monkeypatch, shared_nodes):
    needs("mx")
    assert len(STEPS) == PAGE.count("```python") == 7
    monkeypatch.chdir(tmp_path)
    names = {}
    try:
        for number, (source, expected) in enumerate(STEPS, start=1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, f"block {number} of the tutorial", "exec"), names)
            assert printed.getvalue() == expected, f"block {number}"
    finally:
        for name in ("ring", "coarse"):
            if name in names:
                names[name].close()
    assert list(tmp_path.iterdir()) == []


def test_packets(tmp_path):
    """The tutorial shows all packets of block 1 in the recorded waveform, in order."""
    pytest.importorskip("pywellen")
    (options,) = re.findall(r"^    environment/bin/gradring wave (.*?) +#", PAGE, re.MULTILINE)
    (shown,) = re.findall(r"^```\n( +cycle .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    wave = tmp_path / "ring.fst"
    for command in (["wave", *options.split(), "--output", wave], ["packets", wave]):
        ended = subprocess.run([sys.executable, "-m", "gradring", *map(str, command)], cwd=tmp_path, text=True,
                               capture_output=True, timeout=600, check=False)
        assert ended.returncode == 0, ended.stderr
    heading, *lines = shown.splitlines()
    printed = ended.stdout.splitlines()
    assert printed[0] == heading
    assert [line for line in printed[1:] if re.match(r" +\d+ +\d > \d +DATA +\w+ +\d+ +1 ", line)] == lines
