# amaranth: UnusedElaboratable=no
"""Test the units of every registered codec against the golden model under stalls.

A format is tested here as soon as it is registered: docs/compression/adding-a-format.md.
"""

import pytest

from hdl.compression.registry import CODECS, GRADIENT_CODECS
from tests.hdl.compression import units

SEEDS = (3, 5)


@pytest.mark.parametrize("name", CODECS)
def test_encoder(name):
    for seed in SEEDS:
        units.encode(name, 4, "geometric", "geometric", seed=seed)


@pytest.mark.parametrize("name", CODECS)
def test_decoder(name):
    for seed in SEEDS:
        units.decode(name, 4, "geometric", "geometric", seed=seed)


@pytest.mark.parametrize("name", GRADIENT_CODECS)
def test_adder(name):
    for seed in SEEDS:
        units.add(name, 4, "geometric", "geometric", seed=seed)


def test_coded_sums():
    """Every codec with gradients added in encoded form has an adder in :data:`CODED_SUMS`."""
    assert set(units.CODED_SUMS) == {name for name, codec in CODECS.items() if codec.sums_coded}
    assert all((codec.encoder is None) is (name in units.CODED_SUMS) for name, codec in CODECS.items())
