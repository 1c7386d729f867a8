"""What all tests have in common."""

import pytest

from sim import regression
from tests import processor_time


def pytest_configure(config):
    config.pluginmanager.register(processor_time)


@pytest.fixture(autouse=True, scope="session")
def quick_builds():
    """Runs under cocotb are too short to make up for the time that an optimized design takes to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "OPTIMIZATION", "-O0")
        yield
