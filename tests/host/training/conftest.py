"""The digits, all of them and a few."""

import pytest

from host.models.digits import Dataset, digits


@pytest.fixture(scope="session")
def data():
    return digits()


@pytest.fixture
def few(data):
    """A fraction of the examples."""
    return Dataset(data.train_x[:50], data.train_y[:50], data.test_x[:50], data.test_y[:50], data.classes)
