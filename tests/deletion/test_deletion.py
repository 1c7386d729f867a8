"""Deleting features from copies of the tree, and the declared dependencies of features."""

import random
import subprocess

import pytest

from hdl.registry import FEATURES, feature
from tests.deletion.__main__ import delete
from tests.deletion.copies import ROOT, TREES, dependants, files, imports, pages, registry_without, removed
from tests.host.rings import CONFIGS, MIXED


def drawn():
    """Pick three features at random, with the commit as the seed."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return random.Random(commit.stdout).sample(list(FEATURES), 3)


@pytest.mark.parametrize("name", drawn())
def test_copy_without(name):
    (ROOT / "build").mkdir(exist_ok=True)
    deleted = delete(name)
    print(deleted.line)
    assert name in deleted.names
    assert deleted.result["collected"] > 5_000
    assert len(deleted.result["losses"]) == 2


def test_dependants():
    assert dependants("throttles") == ("throttles",)
    assert dependants("mx") == ("streaming", "block_operands", "mx", "nvfp4")
    assert {"quorum", "slots", "compute", "far", "streaming"} < set(dependants("programs"))


@pytest.mark.parametrize("name", FEATURES)
def test_declared(name):
    """A feature imports only from features that its registry entry or its description names."""
    declared = {name, *FEATURES[name].uses, *feature(name).requires}
    folders = tuple(f"{tree}/{name}/" for tree in TREES if not tree.startswith("tests"))
    imported = {module.split(".features.")[1].split(".")[0] for path, modules in imports().items()
                if path.startswith(folders) for module in modules if ".features." in module}
    assert imported <= declared


def test_folders():
    """Feature folders have the same names as in the registry."""
    names = {path.removeprefix(f"{tree}/").split("/")[0] for tree in TREES for path in files()
             if path.startswith(f"{tree}/")}
    assert names == {*FEATURES, "__init__.py"}


def test_registry_without():
    source = (ROOT / "hdl/registry.py").read_text()
    namespace = {"__name__": "registry"}
    exec(compile(registry_without(source, ("mx", "grid")), "registry", "exec"), namespace)
    assert list(namespace["FEATURES"]) == [name for name in FEATURES if name not in ("mx", "grid")]


def test_removed():
    gone = removed(("throttles",))
    assert "hdl/features/throttles/feature.py" in gone
    assert "host/labs/estimate/machine.py" in gone
    assert "tests/host/rings.py" not in gone
    assert "tests/host/conftest.py" not in gone


def test_pages():
    """A page is removed along with the feature that it describes."""
    assert {path for path, name in pages().items() if name == "quorum"} == {"docs/late.md", "docs/ring/quorum.md"}
    assert "docs/ring/quorum.md" in removed(("quorum",))
    assert "docs/control/commands.md" not in pages()


def test_all_rings():
    """The complete tree, with all features, supports every kind of ring."""
    assert list(CONFIGS) == ["default", "engines", "mx9", "table", "centroid", "wide", "narrow", "sums",
                             "microbatches", "server", "int16"]
    assert list(MIXED) == ["relay"]
