"""What all tests have in common."""

import pytest

from sim import regression


@pytest.fixture(autouse=True, scope="session")
def quick_builds():
    """Runs under cocotb are too short to make up for the time that an optimized design takes to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "OPTIMIZATION", "-O0")
        yield
