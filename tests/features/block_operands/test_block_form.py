# amaranth: UnusedElaboratable=no
import functools
from fractions import Fraction

import numpy as np
import pytest
from amaranth.lib import data

from hdl.features.block_operands.block_form import SubsetRounder, form_of
from hdl.features.compute.operands import operands_of
from hdl.features.mx.format import ONES, Rounding
from hdl.features.mx.microscaling import MXFP4_E2M1, MXFP6_E2M3, Element, Microscaling
from hdl.features.mx.shared_exponent import MX4, MX6, MX9
from hdl.features.nvfp4.format import NVFP4
from hdl.features.nvfp4.operand_form import ScaledForm
from hdl.floating.format import FP32
from sim.golden import operands as golden
from sim.golden.features.block_operands.operands import block_terms
from sim.golden.features.nvfp4 import nvfp4
from sim.verilated.vectors import Unit
from tests.features.compute.terms import scales_of
from tests.nvfp4 import every_place
from tests.refusals import refuses

FORMATS = ("mx4", "mxfp4_e2m1", "mxfp4_e2m1_up", "nvfp4")


@functools.cache
def _rounder(name):
    form = form_of(operands_of(name).codec)
    return form, Unit(form.rounder()), golden.operands_of(name).block


@functools.cache
def _scaled_rounder(power):
    """Block form and rounder of NVFP4 with tensor scale 2 ** power, and the golden codec."""
    form = form_of(NVFP4(tensor_scale=2.0**power))
    return form, Unit(form.rounder()), nvfp4.NVFP4(tensor_scale=2.0**power)


def _opened(bits):
    """Split binary32 numbers into sign, exponent and fraction."""
    return bits >> 31, bits >> 23 & 0xFF, bits & 0x7F_FFFF


def _run(rounder, bits):
    """Round consecutive blocks; return each block's factors and scale."""
    form, unit, model = rounder
    sign, exponent, fraction = _opened(bits.astype(np.int64))
    lost = FP32.fraction_bits - form.kept
    element = (fraction & (1 << lost) - 1 > 0) | fraction >> lost << 1
    element |= (sign | exponent << 1) << form.kept + 1
    assert form.element.size == form.kept + 10
    keys = exponent
    if isinstance(form, ScaledForm):
        keys = exponent << 7 | fraction >> 17 << 1 | (fraction & 0x1_FFFF > 0)
    elif model.above is not None:
        keys = exponent << 1 | (fraction > model.above)
    keys = keys.reshape(-1, form.block).max(axis=1)
    count, lead = len(bits), form.lead
    opens, key = np.zeros(count + lead, bool), np.zeros(count + lead, np.int64)
    opens[:count:form.block], key[:count:form.block] = True, keys
    latency = SubsetRounder.latency
    before = np.zeros(lead, np.int64)
    trace = unit.run({"opens": opens, "key": key, "element": np.append(before, element), "present": 1,
                      "odd": np.append(before, np.arange(count) % 2)}, drain=latency)
    factors = trace["factor"][lead + latency:].astype(np.int64)
    factors -= factors >> form.factor_bits - 1 << form.factor_bits
    return factors.reshape(-1, form.block), trace["scale"][lead:count + lead:form.block].astype(np.int64)


def _edges(model, generator, *, peak):
    """Draw blocks whose first element has the given exponent, with most elements near rounding thresholds."""
    places = np.arange(1, 256) / 16
    thresholds = np.concatenate([places, np.nextafter(places, 0, dtype=np.float64)]) * 2.0 ** (peak - 127 - 3)
    near = thresholds.astype(np.float32).view(np.uint32)
    near = np.concatenate([near, near + 1, near - 1]) | generator.integers(0, 2, 3 * len(near)) << 31
    near = generator.permutation(near)[:len(near) // (model.block - 2) * (model.block - 2)]
    blocks = np.zeros((len(near) // (model.block - 2), model.block), np.uint32)
    blocks[:, 1:-1] = near.reshape(len(blocks), -1)
    fractions = np.array([0, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFF])
    blocks[:, 0] = peak << 23 | generator.choice(fractions, len(blocks))
    return blocks.ravel()


def _check(rounder, bits, message):
    factors, scales = _run(rounder, bits)
    terms, shared = block_terms(rounder[2], bits)
    np.testing.assert_array_equal(scales, scales_of(rounder[2], shared), message)
    np.testing.assert_array_equal(factors, terms, message)


@pytest.mark.parametrize("name", FORMATS)
def test_rounding(name):
    """Factors and exponents match the golden codec for random bits and near rounding thresholds."""
    rounder = _, _, model = _rounder(name)
    generator = np.random.default_rng(1)
    for peak in (1, 2, 3, 4, 5, 117, 121, 127, 253, 254):
        edges = _edges(model, generator, peak=peak)
        spread = generator.integers(1 << 32, size=64 * model.block, dtype=np.uint32).reshape(-1, model.block)
        fields = np.maximum(peak - generator.integers(0, 8, spread.shape), 0)
        close = (spread & 0x807F_FFFF | fields << 23).astype(np.uint32).ravel()
        for bits in (edges, close):
            _check(rounder, bits, f"{peak=}")


@pytest.mark.parametrize("power", [0, -115, 116])
def test_every_place_of_nvfp4(power):
    """Blocks just below and just above each change of a scale or element are rounded as in the golden codec."""
    rounder = _scaled_rounder(power)
    _check(rounder, every_place(rounder[2]).ravel(), f"{power=}")


@pytest.mark.parametrize("name", FORMATS)
def test_special(name):
    """Zeros and subnormals become zeros; a block with an infinity or NaN gets an exponent of all ones."""
    rounder = _, _, model = _rounder(name)
    zeros = np.resize(np.array([0, 1 << 31, 1, 0x807F_FFFF], np.uint32), model.block)
    special = zeros.copy()
    special[3] = 0xFF80_0000
    factors, scales = _run(rounder, np.concatenate([zeros, special, zeros]))
    least = scales_of(model, np.array(1 if name == "nvfp4" else 0))
    assert (scales & 0xFF).tolist() == [least & 0xFF, ONES, least & 0xFF]
    assert not factors[[0, 2]].any()


def test_magnitudes():
    """E2M1 factors are the specified element values in units of half the block scale."""
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    for name in ("mxfp4_e2m1", "mxfp4_e2m1_up", "nvfp4"):
        rounder = form, _, model = _rounder(name)
        factors, scales = _run(rounder, np.resize(numbers, model.block).view(np.uint32))
        assert factors[0, :8].tolist() == [0, 1, 2, 3, 4, 6, 8, 12]
        unit = Fraction(2) ** (int(scales[0] & 0xFF) - 127 - form.places)
        if name == "nvfp4":
            unit *= 8 + int(scales[0] >> 8)
        assert [unit * int(factor) for factor in factors[0, :8]] == numbers.tolist()


@pytest.mark.parametrize(("codec", "widths"), [
    (MX9, (9, 21, 21)), (MX6, (6, 15, 15)), (MX4, (4, 11, 11)), (MXFP4_E2M1, (5, 14, 14)), (NVFP4(), (5, 13, 20))])
def test_widths(codec, widths):
    form = form_of(codec)
    assert (form.factor_bits, form.total_bits, form.scaled_bits) == widths
    assert isinstance(form.element, data.StructLayout)


def test_codecs():
    message = ("Blocks must be of 16 elements with exponents of 8 bits and differences of one bit for every two "
               f"elements, or of elements of E2M1, not {MXFP6_E2M3!r}")
    refuses(message, form_of, MXFP6_E2M3)
    message = f"Rounding of operands must be to nearest even, not {Rounding.STOCHASTIC!r}"
    refuses(message, form_of, Microscaling(element=Element.FP4_E2M1, rounding=Rounding.STOCHASTIC))
