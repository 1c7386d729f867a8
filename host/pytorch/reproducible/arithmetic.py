"""Arithmetic of reproducible sums on tensors: exponents, integers, words and checksums of a block.

Tensors are flat, and consist of whole groups of :data:`GROUP` elements. Each function gives the bits of its
counterpart in :mod:`sim.golden.reproducible`, on every device that computes binary32 without flushing
subnormal numbers to zero. Powers of two are multiplied in two steps, since one factor could be out of range.
"""

import torch

__all__ = ["GROUP", "PACKED_WIDTH", "SPECIAL", "addend_bits", "check_subnormals", "checksum", "exponent_fields",
           "finite", "pack", "quantize", "round_sum", "special_values", "unpack"]

#: Number of elements that share an exponent.
GROUP = 32
#: Exponent field of groups that contain an infinity or a NaN.
SPECIAL = 255
#: Largest width of sums of which a word holds two.
PACKED_WIDTH = 16

_ROW = 512
_MASK = 0xFFFF_FFFF


def addend_bits(width: int, addends: int) -> int:
    """Number of bits of each addend, so that the sum of ``addends`` of them has ``width`` bits.

    Raises ValueError if the width is not between 4 and 32, or leaves less than two bits for each addend.
    """
    if not isinstance(width, int) or not 4 <= width <= 32:
        raise ValueError(f"Width of a sum must be an integer between 4 and 32, not {width!r}")
    if not isinstance(addends, int) or not 1 <= addends <= 2 ** (width - 2):
        raise ValueError(f"Number of addends must be an integer between 1 and {2 ** (width - 2)} for sums of {width} "
                         f"bits, not {addends!r}")
    return width - (addends - 1).bit_length()


def check_subnormals(device: torch.device) -> None:
    """Raise ValueError if the device flushes subnormal numbers to zero, which changes results."""
    smallest = torch.ones(1, dtype=torch.int32, device=device).view(torch.float32)
    if not (smallest * 2).view(torch.int32).item():
        raise ValueError("Subnormal numbers must not be flushed to zero: call torch.set_flush_denormal(False)")


def exponent_fields(elements: torch.Tensor) -> torch.Tensor:
    """Largest exponent field in each group, and at least 1, as bytes; :data:`SPECIAL` with an infinity or a NaN."""
    largest = elements.view(-1, GROUP).abs().amax(1)
    return (largest.view(torch.int32) >> 23).bitwise_and_(0xFF).clamp_(min=1).to(torch.uint8)


def finite(elements: torch.Tensor) -> torch.Tensor:
    """Elements, with zeros in place of infinities and NaNs."""
    return torch.where(elements.isfinite(), elements, 0.0)


def _scales(exponents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two columns of binary32 with the product 2**exponents, for exponents from -252 to 254."""
    half = exponents >> 1
    first, second = ((part + 127) << 23 for part in (half, exponents - half))
    return first.view(torch.float32)[:, None], second.view(torch.float32)[:, None]


def quantize(elements: torch.Tensor, fields: torch.Tensor, bits: int) -> torch.Tensor:
    """Integers of ``bits`` bits, each the multiple of 2**(field - 125 - bits) nearest to its finite element."""
    first, second = _scales(bits + 125 - fields.to(torch.int32))
    scaled = (elements.view(-1, GROUP) * first).mul_(second).round_()
    if bits <= 24:  # Elements of 24 bits cannot round up to the limit of wider integers.
        limit = 2 ** (bits - 1) - 1
        scaled.clamp_(-limit, limit)
    return scaled.to(torch.int32).view(-1)


def round_sum(integers: torch.Tensor, fields: torch.Tensor, bits: int) -> torch.Tensor:
    """Sums as binary32.

    The conversion to binary32 rounds once: multiples of the smallest subnormal number below the smallest normal
    number have at most 23 bits, so scaling does not round.
    """
    first, second = _scales(fields.to(torch.int32) - (125 + bits))
    return (integers.view(-1, GROUP) * first).mul_(second).view(-1)


def pack(integers: torch.Tensor, width: int) -> torch.Tensor:
    """Words of integers: two integers a word, one from each half of the block, if their sums have at most
    :data:`PACKED_WIDTH` bits."""
    if width > PACKED_WIDTH:
        return integers
    low, high = integers.view(2, -1)
    return (high << 16) + low


def unpack(words: torch.Tensor, width: int) -> torch.Tensor:
    """Integers of words."""
    if width > PACKED_WIDTH:
        return words
    low = words << 16 >> 16
    return torch.cat([low, (words - low) >> 16])


def special_values(positive: torch.Tensor, negative: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Sums with infinities at elements that have one of two flags, and NaNs at elements that have both."""
    infinity = torch.where(negative, -torch.inf, torch.inf)
    infinity = torch.where(positive & negative, torch.nan, infinity)
    return torch.where(positive | negative, infinity, sums)


def checksum(words: torch.Tensor) -> torch.Tensor:
    """Sum of a block's words and sum of their prefix sums, modulo 2**32: shape (2,), int64.

    With a rectangle of words, row sums R and column sums C, the prefix sums add up to the sum of
    (length - row * columns) * R, minus the sum of column * C.
    """
    length = len(words)
    columns = _ROW if length % _ROW == 0 else 16
    rectangle = words.view(-1, columns)
    rows = rectangle.sum(1, dtype=torch.int64) & _MASK
    sums = rectangle.sum(0, dtype=torch.int64) & _MASK
    weights = torch.arange(length, 0, -columns, device=words.device)
    prefix = (weights * rows).sum() - (torch.arange(columns, device=words.device) * sums).sum()
    return torch.stack([rows.sum(), prefix]) & _MASK
