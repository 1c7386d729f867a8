"""Arithmetic of reproducible sums on tensors: bit-identical to the golden model."""

import numpy as np
import pytest

from sim.golden.features.reproducible import sums as golden
from sim.golden.features.reproducible.sums import GROUP, group_starts

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the reason is given in tests/host/training/test_torch.py

from host.pytorch.reproducible import arithmetic  # noqa: E402

_ADDENDS = "Number of addends in sums of 8 bits must be an integer between 1 and 64, not "


def patterns(seed, shape):
    """Random bit patterns of finite numbers: half have any exponent, and half have similar exponents."""
    generator = np.random.default_rng(seed)
    similar = generator.standard_normal(shape).astype(np.float32).view(np.uint32)
    values = np.where(generator.random(shape) < 0.5, generator.integers(0, 2 ** 32, shape, np.uint32), similar)
    values[generator.random(shape) < 0.1] &= 0x807F_FFFF
    return np.where(np.isfinite(values.view(np.float32)), values, 0x8000_0000).astype(np.uint32)


def tensor(values):
    return torch.from_numpy(values.view(np.float32).copy())


def scales(function, fields, bits):
    """Scale factors of all groups, computed by ``function``."""
    return function(torch.from_numpy(fields), bits, len(fields), torch.empty(len(fields), dtype=torch.int32))[0]


def quantized(values, factors, bits):
    return arithmetic.quantize(values, factors, bits, torch.empty_like(values)).to(torch.int32)


def rounded(integers, fields, bits):
    """Sums of integers, rounded to binary32, as bit patterns."""
    sums, scratch = torch.empty(len(integers)), torch.empty(len(integers))
    arithmetic.round_sum(integers, scales(arithmetic.rounding_scales, fields, bits), sums, scratch)
    return sums.numpy().view(np.uint32)


def packed(rows, factors, bits):
    """Sum of the packed words of several addends; adding them at once and one after another must give the same."""
    halves = [arithmetic.quantize_halves(row, factors, bits, arithmetic.offsets(row.device), torch.empty_like(row))
              for row in rows]
    words = torch.zeros(len(halves), rows[0].numel() // 2, dtype=torch.int32)
    total = torch.zeros_like(words[0])
    for half, word in zip(halves, words, strict=True):
        arithmetic.pack(half, word)
        arithmetic.pack(half, total, add=True)
    assert torch.equal(words.sum(0, dtype=torch.int32), total)
    return total


@pytest.mark.parametrize("width", range(4, 33))
def test_same_as_golden(width):
    """Exponents, integers and sums match the golden model for random numbers with any exponents."""
    addends, starts = patterns(width, (3, 40 * GROUP)), group_starts([40 * GROUP])
    bits = golden.addend_bits(width, 3)
    assert arithmetic.addend_bits(width, 3) == bits
    fields = golden.exponent_fields(addends, starts).max(axis=0)
    own = np.max([arithmetic.exponent_fields(tensor(row)).numpy() for row in addends], axis=0)
    assert (own == fields).all()
    integers = [golden.quantize(row, fields, starts, bits) for row in addends]
    factors = scales(arithmetic.quantizing_scales, own, bits)
    actual = [quantized(tensor(row), factors, bits) for row in addends]
    assert (np.array([row.numpy() for row in actual]) == integers).all()
    total = sum(actual)
    if width <= arithmetic.PACKED_WIDTH:
        words = packed([tensor(row) for row in addends], factors, bits)
        again = torch.zeros_like(words)
        for row in actual:
            arithmetic.pack(row.view(2, -1), again, add=True)
        assert torch.equal(again, words)
        shifted = arithmetic.unpack(words, torch.empty_like(total))
        assert (rounded(shifted, own, bits + 16) == rounded(total, own, bits)).all()
        total = shifted >> 16
    assert (total.numpy() == sum(integers)).all()
    assert (rounded(total, own, bits) == golden.round_sum(sum(integers), fields, starts, bits)).all()


def test_limits():
    """Sums of all widths are correct for the largest and smallest numbers, alone and together with smaller
    numbers."""
    values = np.zeros((6, GROUP), np.uint32)
    values[:, 0] = 0x7F7F_FFFF, 0xFF7F_FFFF, 0x0000_0001, 0x807F_FFFF, 0x0080_0000, 0x3FFF_FFFF
    values[:, 1] = 0x0000_0001, 0x3F80_0000, 0x8000_0000, 0x0000_0001, 0x8000_0001, 0x3F80_0001
    flat, starts = values.reshape(-1), group_starts([values.size])
    fields = golden.exponent_fields(flat, starts)
    own = fields.astype(np.uint8)
    for bits in range(2, 33):
        integers = golden.quantize(flat, fields, starts, bits)
        factors = scales(arithmetic.quantizing_scales, own, bits)
        actual = quantized(tensor(flat), factors, bits)
        assert (actual.numpy() == integers).all(), bits
        if bits <= arithmetic.PACKED_WIDTH:
            words = arithmetic.unpack(packed([tensor(flat)], factors, bits), torch.empty_like(actual))
            assert (words.numpy() >> 16 == integers).all(), bits
        assert (rounded(actual, own, bits) == golden.round_sum(integers, fields, starts, bits)).all(), bits


def test_special():
    """The exponent field is 255 for a group with an infinity or a NaN, whatever its sign."""
    values = np.zeros((5, GROUP), np.uint32)
    values[:4, 7] = 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFFC1_2345
    assert arithmetic.exponent_fields(tensor(values.reshape(-1))).tolist() == [255] * 4 + [1]
    positive, negative = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0]], dtype=torch.bool)
    sums = arithmetic.special_values(positive, negative, torch.ones(4))
    assert sums.view(torch.int32).tolist() == [0x7F80_0000, -0x80_0000, 0x7FC0_0000, 0x3F80_0000]


@pytest.mark.parametrize("length", [16, 32, 512, 544, 2 ** 14])
def test_checksum(length):
    """Checksums equal the golden model's, even for extreme values of words."""
    blocks = [torch.full((length,), -2 ** 31, dtype=torch.int32), torch.full((length,), -1, dtype=torch.int32),
              torch.randint(-2 ** 31, 2 ** 31 - 1, (length,), dtype=torch.int32), torch.ones(48, dtype=torch.int32)]
    actual = arithmetic.checksums([arithmetic.partial_sums(words) for words in blocks])
    assert [tuple(pair) for pair in actual.tolist()] == [
        golden.checksum(words.numpy().astype(np.int64)) for words in blocks]


def test_errors():
    for width, addends, text in ((3, 1, "Width of a sum must be an integer between 4 and 32, not 3"),
                                 (16.0, 1, "Width of a sum must be an integer between 4 and 32, not 16.0"),
                                 (8, 0, _ADDENDS + "0"), (8, 65, _ADDENDS + "65")):
        with pytest.raises(ValueError, match=f"^{text}$"):
            arithmetic.addend_bits(width, addends)


def test_subnormals():
    """A processor that flushes subnormal numbers to zero is detected."""
    arithmetic.check_subnormals(torch.device("cpu"))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        with pytest.raises(ValueError, match=r"call torch.set_flush_denormal\(False\)$"):
            arithmetic.check_subnormals(torch.device("cpu"))
    finally:
        torch.set_flush_denormal(False)
