"""Number formats added as in docs/compression/adding-a-format.md work everywhere: tests/mx5.py, and the example of
that page, tests/formats/signs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hdl.compression.registry import CODECS, GRADIENT_CODECS, WEIGHT_CODECS
from host import cli
from tests import mx5

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compression" / "adding-a-format.md").read_text()

#: Script that prints the added format's entries in all registries.
_SAYS = """
import json
from boards.synth import UNITS
from hdl.compression.registry import CODECS, GRADIENT_CODECS, WEIGHT_CODECS
from hdl.config import NodeConfig, Weights
from sim.golden import codecs as model
NodeConfig(weights=Weights(codec="mx5"), gradients="mx5")
print(json.dumps({
    "gateware": repr(CODECS["mx5"]), "model": repr(model.CODECS["mx5"]),
    "directions": ["mx5" in WEIGHT_CODECS, "mx5" in GRADIENT_CODECS],
    "units": [name for name in UNITS if name.endswith("mx5")],
}))
"""


@pytest.fixture
def patched(tmp_path):
    """Copy of the tree to which the format is added, and the list of changed files."""
    for folder in ("hdl", "sim", "boards", "host"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, behind, line in mx5.PATCH:
        text = (tmp_path / name).read_text()
        assert text.count(behind) == 1, name
        (tmp_path / name).write_text(text.replace(behind, behind + line))
    changed = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.py")
               if path.read_text() != (ROOT / path.relative_to(tmp_path)).read_text()]
    return tmp_path, changed


def run_in(folder, *arguments):
    """Run Python in a copy of the tree, and return its output."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)},
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_three_files_change(patched):
    """With changes to only three files, including both registries, the whole program supports the format."""
    folder, changed = patched
    assert sorted(map(str, changed)) == [
        "hdl/features/mx/formats.py", "hdl/registry.py", "sim/golden/codecs.py"]
    said = json.loads(run_in(folder, "-c", _SAYS))
    assert said == {"gateware": repr(mx5.GATEWARE), "model": repr(mx5.MODEL), "directions": [True, True],
                    "units": ["compression.weight_codec.mx5", "compression.gradient_codec.mx5"]}


def test_is_synthesised(patched):
    """The format can be synthesised with ``make synth UNIT=compression.weight_codec.mx5``."""
    folder, _ = patched
    cells = json.loads(run_in(folder, "-m", "boards.synth", "--unit", "compression.weight_codec.mx5", "--count"))
    assert cells["name"] == "compression.weight_codec.mx5"
    assert 500 < cells["lut4"] < 10_000
    assert cells["ff"] > 100


def test_trains(nodes_of, monkeypatch, capsys, tmp_path):
    """All twelve steps on four nodes match the golden model, and the report names the format."""
    with mx5.registered():
        nodes_of("narrow")
        monkeypatch.setattr(sys, "argv", [
            "gradring", "train", "--nodes", "4", "--steps", "12", "--hidden", "none", "--batch", "50", "--gradients",
            "mx5", "--weights", "bf16", "--threads", "1", "--output", str(tmp_path)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        said = capsys.readouterr()
        assert (caught.value.code, said.err) == (0, "")
        assert "gradients on the ring" in said.out
        result = json.loads((tmp_path / "report.json").read_text())
        assert (result["steps"], result["bit_exact"]) == (12, True)
        assert result["configuration"]["gradients"] == "mx5"
        # Blocks have 192, 160, 160 and 138 elements. A segment of 32 elements takes five words, one of 10 takes
        # three.
        words = sum(3 * (5 * whole + 3 * rest) for whole, rest in ((6, 0), (5, 0), (5, 0), (4, 1)))
        packets = 4 * 3 * 6
        assert result["words_scatter_reduce"] == 12 * (words + 4 * packets)


@pytest.fixture
def followed(tmp_path):
    """Copy of the tree with the page's example: its files, and the lines that the page adds."""
    for name in ("hdl", "sim", "host", "tests", "gradring", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for folder, files in (("hdl", ("coding.py", "feature.py")), ("sim/golden", ("model.py",))):
        feature = tmp_path / folder / "features" / "signs"
        feature.mkdir()
        (feature / "__init__.py").touch()
        for file in files:
            shutil.copy(ROOT / "tests" / "formats" / "signs" / file, feature)
    for name, block in re.findall(r"^In `(\S+)`:\n\n```python\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL):
        imports, _, entry = block.rpartition("\n\n")
        head, body = (tmp_path / name).read_text().split("\nfrom ", 1)
        before, after = re.split(r"(?<=\n)(?=CODECS: |FEATURES: )", body)
        entries, end, rest = re.split(r"\n(}\)?)\n", after, maxsplit=1)
        (tmp_path / name).write_text(f"{head}\n{imports}\nfrom {before}{entries}\n{entry}{end}\n{rest}")
    return tmp_path


def test_page(followed):
    """The tests that the page names pass in a tree with its example, and the page shows the example's code."""
    commands = re.findall(r"^ {4}python -m pytest (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        said = run_in(followed, "-m", "pytest", "-q", "-p", "no:cacheprovider", *command.split())
        assert re.search(r"\d+ passed", said), said
        assert "failed" not in said
    for beginning, file in (("@dataclasses", "coding.py"), ("    def codecs", "feature.py")):
        example = (ROOT / "tests" / "formats" / "signs" / file).read_text()
        assert re.search(rf"```python\n({beginning}.*?)```", PAGE, re.DOTALL)[1] in example


def test_is_taken_out_again():
    with mx5.registered():
        with mx5.registered():
            assert mx5.NAME in WEIGHT_CODECS
        assert mx5.NAME in GRADIENT_CODECS
    assert mx5.NAME not in CODECS
