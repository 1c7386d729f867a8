"""Fixture with a report on all candidates, measured only once."""

import pytest

from host.features.quantization import experiment as quantize
from host.features.quantization.experiment import candidates
from tests.host.features.quantization.networks import GoldenRing, trained


@pytest.fixture(scope="session")
def report():
    data, layers = trained()
    return quantize.collect(layers, data, GoldenRing(), candidates(2))
