"""The core: modules that are imported to elaborate a node with or without a feature."""

import json
import subprocess
import sys
from pathlib import Path

from hdl.registry import FEATURES
from tests.featured import FEATURED

ROOT = Path(__file__).parents[1]

#: Maximum number of lines: in the modules of hdl and sim that a default node imports, and in the core's golden
#: models.
MAX_LINES, MAX_GOLDEN = 20_000, 6_000

#: Script that elaborates a default node and, in separate processes, a node with each feature, and prints the modules
#: that each of them imports.
PROGRAM = """
import json, os, sys
from amaranth.hdl import Fragment
from hdl.config import NodeConfig
from hdl.node import Node

def elaborated(config):
    Fragment.get(Node(config), None)
    names = [name for name in sys.modules if name.startswith(("hdl.", "sim."))]
    return {"features": config.feature_names, "modules": names}

result = {"core": elaborated(NodeConfig())}
from hdl.config.forms import from_dict
from tests.featured import FEATURED
small = {"memories": {"gradient": 64, "weight": 64, "state": 32}}
for name, (options, _) in FEATURED.items():
    reading, writing = os.pipe()
    if not os.fork():
        with os.fdopen(writing, "w") as pipe:
            json.dump(elaborated(from_dict(options | small)), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        result[name] = json.load(pipe)
    os.wait()
print(json.dumps(result))
"""


def lines_of(modules):
    paths = [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in modules]
    return sum(len(path.read_text().splitlines()) for path in paths if path.is_file())


def test_lines_that_a_node_imports():
    """A default node imports no feature, and a node with a feature imports only features that it needs."""
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], cwd=ROOT, capture_output=True,
                             text=True, timeout=600, check=True)
    nodes = json.loads(process.stdout)
    core = set(nodes.pop("core")["modules"])
    print(f"{'core':18} {lines_of(core):6,} lines")
    assert not [name for name in core if name.startswith("hdl.features")]
    assert lines_of(core) <= MAX_LINES, "the core is to be read in a day: move lines to a feature, or remove some"
    assert nodes.keys() == FEATURED.keys() == FEATURES.keys() - {"int16"}
    unexpected = {}
    for name, node in nodes.items():
        added = set(node["modules"]) - core - {"hdl.config.forms"}
        of_features = {module.split(".")[2] for module in added if module.startswith("hdl.features.")}
        print(f"{name:18} {lines_of(added):6,} more, of {', '.join(sorted(of_features))}")
        unexpected[name] = of_features - set(node["features"])
        assert name in of_features
    assert {name: sorted(features) for name, features in unexpected.items() if features} == {}


def test_lines_of_golden_models():
    """The golden models of the core are within their limit of lines."""
    golden = list((ROOT / "sim/golden").glob("*.py"))
    assert sum(len(path.read_text().splitlines()) for path in golden) <= MAX_GOLDEN
