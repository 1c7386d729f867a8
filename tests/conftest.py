"""Fixtures and options that all tests share."""

import gc
from pathlib import Path

import pytest

from sim import regression
from tests import limit, processor_time


def pytest_addoption(parser, pluginmanager):
    pluginmanager.register(limit)
    pluginmanager.register(processor_time)


#: Folders and files whose tests build rings and whole nodes, each of which takes as long as dozens of small units.
_LARGE = ("host", "pairs", "programs", "hdl/ring/test_collective.py", "hdl/test_node.py",
          "sim/verilated/test_ring.py", "sim/verilated/test_wave.py")


def pytest_collection_modifyitems(config, items):
    """Among several workers, large tests come first and small ones fill the end; one process keeps its order."""
    if hasattr(config, "workerinput"):
        here = Path(__file__).parent
        items.sort(key=lambda item: not item.path.relative_to(here).as_posix().startswith(_LARGE))


def pytest_collection_finish():
    """Modules and tests stay to the end: the search for garbage, of which simulations make much, leaves them out."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def key_of_checkpoints(tmp_path_factory):
    """The user's key is one of the tests' own, also in the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADRING_KEY", str(tmp_path_factory.mktemp("key") / "checkpoint.key"))
        yield


@pytest.fixture(autouse=True, scope="session")
def quick_builds():
    """Runs under cocotb are too short to make up for the time that an optimized design takes to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "OPTIMIZATION", "-O0")
        yield
