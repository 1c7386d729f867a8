"""Kernels of block formats whose parameters differ from the formats on the ring."""

import pytest

from sim.arithmetic.features.mx.kernel import source
from sim.arithmetic.formats import Kernels
from sim.golden.codecs import FixedCodec
from sim.golden.features.mx.block_format import Rounding
from sim.golden.features.mx.microscaling import Element, Microscaling, Scale
from sim.golden.features.mx.shared_exponent import SharedExponent
from tests.sim.arithmetic.samples import SAMPLES, decoded, same
from tests.words import random_words


@pytest.mark.parametrize("form", [
    SharedExponent(block=64, subset=4, difference_bits=3, mantissa_bits=3),
    SharedExponent(block=8, subset=1, difference_bits=4, mantissa_bits=1),
    SharedExponent(block=256, subset=32, difference_bits=2, mantissa_bits=6),
    Microscaling(element=Element.FP6_E3M2, scale=Scale.UP),
    Microscaling(element=Element.INT8, scale=Scale.UP),
    Microscaling(element=Element.FP8_E5M2, scale=Scale.UP),
])
def test_other_parameters(form):
    codec = FixedCodec(code=0, format=form)
    kernels = Kernels(codec, source(codec))
    assert [sample for sample, x in SAMPLES.items() if not same(kernels, x)] == []
    packet = random_words(codec.max_words(4096))
    assert decoded(kernels, packet, 4096).tobytes() == codec.decode(packet).tobytes()


@pytest.mark.parametrize("form", [
    SharedExponent(exponent_bits=7), SharedExponent(block=4, subset=2), SharedExponent(subset=4),
    SharedExponent(mantissa_bits=8), SharedExponent(rounding=Rounding.STOCHASTIC)])
def test_refusals(form):
    with pytest.raises(ValueError, match=r"^Format must have exponents of 8 bits, .* to have kernels, not Shared"):
        source(FixedCodec(code=0, format=form))
