"""A report on all candidates for quantization, as a fixture that measures them only once."""

import pytest

from host.features.quantization import experiment as quantize
from host.features.quantization.experiment import candidates
from tests.host.features.quantization.networks import GoldenRing, trained


@pytest.fixture(scope="session")
def report():
    data, layers = trained()
    return quantize.collect(layers, data, GoldenRing(), candidates(2))
