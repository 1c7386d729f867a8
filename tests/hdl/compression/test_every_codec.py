# amaranth: UnusedElaboratable=no
"""Test the units of every registered codec against the golden model under stalls.

A format is tested here as soon as it is registered: docs/compression/adding-a-format.md.
"""

import pytest

from hdl.compression.registry import CODECS, GRADIENT_CODECS
from tests.hdl.compression import units

SEEDS = (3, 5)
#: Codecs that have an encoder and a decoder; codecs for sums of integers have neither.
CODED = [name for name, codec in CODECS.items() if not codec.agreed]


@pytest.mark.parametrize("name", CODED)
def test_encoder(name):
    for seed in SEEDS:
        units.encode(name, 4, "geometric", "geometric", seed=seed)


@pytest.mark.parametrize("name", CODED)
def test_decoder(name):
    for seed in SEEDS:
        units.decode(name, 4, "geometric", "geometric", seed=seed)


@pytest.mark.parametrize("name", [name for name in GRADIENT_CODECS if name in CODED])
def test_adder(name):
    for seed in SEEDS:
        units.add(name, 4, "geometric", "geometric", seed=seed)


def test_coded_sums():
    """Every codec that adds gradients in encoded form has an adder in :data:`CODED_SUMS`."""
    assert set(units.CODED_SUMS) == {name for name, codec in CODECS.items() if codec.sums_coded}
    assert all((codec.encoder is None) is (name in units.CODED_SUMS or codec.agreed)
               for name, codec in CODECS.items())


def test_sums_of_integers():
    """Codecs that sum integers are for gradients only, and have no encoder, decoder or adder of their own."""
    agreed = {name: codec for name, codec in CODECS.items() if codec.agreed}
    assert list(agreed) == ["sum32", "sum16"]
    for name, codec in agreed.items():
        assert (codec.encoder, codec.decoder, codec.parameters) == (None, None, {})
        assert (codec.gradients, codec.weights, codec.sums_coded, codec.codebook_words) == (True, False, False, 0)
        assert name not in units.CODED_SUMS
