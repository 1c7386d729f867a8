"""Fixtures and options that all tests share."""

import gc
from pathlib import Path

import pytest

from sim import regression
from tests import limit, processor_time


def pytest_addoption(parser, pluginmanager):
    pluginmanager.register(limit)
    pluginmanager.register(processor_time)


#: Folders and files with tests that build rings or whole nodes. Each such test takes as long as dozens of small
#: tests.
_LARGE = ("host", "pairs", "programs", "hdl/ring/test_collective.py", "hdl/test_node.py",
          "sim/verilated/test_ring.py", "sim/verilated/test_wave.py")


def pytest_collection_modifyitems(config, items):
    """If there are several workers, run large tests first, so that small ones fill the gaps at the end."""
    if hasattr(config, "workerinput"):
        here = Path(__file__).parent
        items.sort(key=lambda item: not item.path.relative_to(here).as_posix().startswith(_LARGE))


def pytest_collection_finish():
    """Exclude modules and tests from garbage collection, which runs often but could never free them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def key_of_checkpoints(tmp_path_factory):
    """Give the tests and their child processes their own user key, separate from the user's key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADRING_KEY", str(tmp_path_factory.mktemp("key") / "checkpoint.key"))
        yield


@pytest.fixture(autouse=True, scope="session")
def quick_builds():
    """Build without optimization, since cocotb runs are too short to make up for the compile time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "OPTIMIZATION", "-O0")
        yield
