"""Check that the counter and the feature in docs/first-change.md work in a copy of the tree."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/first-change.md").read_text()

#: Prints whether a node's collective engine counts idle cycles, and elaborates the node.
PROGRAM = """
import json, sys
from amaranth.hdl import Fragment
from hdl.config.forms import from_dict
from hdl.node import Node
from hdl.ring.collective import counts_layout
config = from_dict(json.loads(sys.argv[1]))
Fragment.get(Node(config), None)
print(json.dumps(["ring_idle" in counts_layout(config).members, list(config.feature_names)]))
"""


def blocks():
    """Python blocks of docs/first-change.md, in order: counter, statement, registry entry, description, extension."""
    sources = re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in sources]


def insert(path, before, text):
    """Insert indented text before a line that occurs exactly once in a file."""
    source = path.read_text()
    assert source.count(before) == 1, before
    indent = before[:len(before) - len(before.lstrip())]
    path.write_text(source.replace(before, textwrap.indent(text, indent) + before))


def elaborated(folder, options):
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(options)], cwd=folder,
                             capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.fixture
def copy(tmp_path):
    """Copy of the gateware, with the register from docs/first-change.md added."""
    shutil.copytree(ROOT / "hdl", tmp_path / "hdl", ignore=shutil.ignore_patterns("__pycache__"))
    insert(tmp_path / "hdl/control/registers.py", '    _status(\n        "PROGRAM_BANK"', blocks()[0])
    return tmp_path


def test_counter(copy):
    """The counter from docs/first-change.md exists in all nodes."""
    engine = copy / "hdl/ring/collective.py"
    insert(engine, '        "packets_refused": 1,\n', '"ring_idle": 1,\n')
    insert(engine, "            self.count.packets_refused.eq(", blocks()[1])
    assert elaborated(copy, {}) == [True, []]


def test_feature(copy):
    """The counter from docs/first-change.md exists only in nodes with the feature."""
    _, _, entry, description, extension = blocks()
    insert(copy / "hdl/registry.py", '    "int16": Entry(', entry)
    folder = copy / "hdl/features/idle_count"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "feature.py").write_text(description)
    (folder / "collective.py").write_text(extension)
    options = {"features": [{"kind": "idle_count"}]}
    assert elaborated(copy, options) == [True, ["idle_count"]]
    assert elaborated(copy, {}) == [False, []]
    # The counter has two sources: the engine and the extension.
    insert(copy / "hdl/ring/collective.py", '        "packets_refused": 1,\n', '"ring_idle": 1,\n')
    with pytest.raises(AssertionError, match="ValueError: Counter must have one source in the collective engine, not "
                                             "two: ring_idle"):
        elaborated(copy, options)
