"""Arithmetic of reproducible sums on tensors: exponents, integers, words and checksums of a block.

Tensors are flat, and consist of whole groups of :data:`GROUP` elements. Each function gives the bits of its
counterpart in :mod:`sim.golden.reproducible`, on every device that computes binary32 without flushing
subnormal numbers to zero. Powers of two are multiplied in two steps, since one factor could be out of range.
"""

import operator
from collections.abc import Callable, Sequence

import torch

__all__ = ["GROUP", "PACKED_WIDTH", "SPECIAL", "Scales", "Sums", "addend_bits", "check_subnormals",
           "checked_integer", "checksums", "exponent_fields", "finite", "pack", "partial_sums", "quantize",
           "quantizing_scales", "round_sum", "rounding_scales", "special_values", "unpack"]

#: Two columns of factors for groups, and row sums and column sums of a block.
Scales = tuple[torch.Tensor, torch.Tensor]
Sums = tuple[torch.Tensor, torch.Tensor]

#: Number of elements that share an exponent.
GROUP = 32
#: Exponent field of groups that contain an infinity or a NaN.
SPECIAL = 255
#: Largest width of sums that are packed two to a word.
PACKED_WIDTH = 16

_ROW = 512
_MASK = 0xFFFF_FFFF


def addend_bits(width: int, addends: int) -> int:
    """Number of bits of each addend, so that the sum of ``addends`` of them has ``width`` bits.

    Raises ValueError if the width is not between 4 and 32, or leaves less than two bits for each addend.
    """
    width = checked_integer("Width of a sum", width, 4, 32)
    addends = checked_integer(f"Number of addends in sums of {width} bits", addends, 1, 2 ** (width - 2))
    return width - (addends - 1).bit_length()


def checked_integer(name: str, value: object, low: int, high: int) -> int:
    """Convert a value to an integer; raises ValueError unless it is one within bounds."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = low - 1
    if not low <= number <= high or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer between {low} and {high}, not {value!r}")
    return number


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


def _scales(exponents: torch.Tensor) -> Scales:
    """Powers of two, as two factors with the product 2**exponents, for exponents from -252 to 254."""
    half = exponents >> 1
    first, second = ((part + 127) << 23 for part in (half, exponents - half))
    return first.view(torch.float32), second.view(torch.float32)


def _of_fields(exponents: Callable[[torch.Tensor], torch.Tensor], fields: torch.Tensor) -> Scales:
    """Factors of groups, from the exponents of all fields."""
    first, second = _scales(exponents(torch.arange(SPECIAL, dtype=torch.int32, device=fields.device)))
    index = fields.to(torch.int32)
    return first.index_select(0, index)[:, None], second.index_select(0, index)[:, None]


def quantizing_scales(fields: torch.Tensor, bits: int) -> Scales:
    """Factors by which elements of groups with these fields become integers of ``bits`` bits, before rounding."""
    return _of_fields(lambda field: bits + 125 - field, fields)


def rounding_scales(fields: torch.Tensor, bits: int) -> Scales:
    """Factors by which integers of ``bits`` bits are multiplied to give elements."""
    return _of_fields(lambda field: field - (125 + bits), fields)


def quantize(elements: torch.Tensor, factors: Scales, bits: int) -> torch.Tensor:
    """Integers of ``bits`` bits nearest to finite elements times their group's factors, as binary32."""
    scaled = (elements.view(-1, GROUP) * factors[0]).mul_(factors[1]).round_()
    if bits <= 24:  # Elements of 24 bits cannot round up to the limit of wider integers.
        limit = 2 ** (bits - 1) - 1
        scaled.clamp_(-limit, limit)
    return scaled.view(-1)


def round_sum(integers: torch.Tensor, factors: Scales, result: torch.Tensor) -> None:
    """Write sums as binary32.

    The conversion to binary32 rounds once: multiples of the smallest subnormal number below the smallest normal
    number have at most 23 bits, so scaling does not round.
    """
    result.copy_(integers)
    result.view(-1, GROUP).mul_(factors[0]).mul_(factors[1])


def pack(integers: torch.Tensor, words: torch.Tensor) -> None:
    """Write words of two integers each, one from each half of the block; their sums have at most 16 bits."""
    low, high = integers.view(2, -1)
    torch.add(high << 16, low, out=words)


def unpack(words: torch.Tensor) -> torch.Tensor:
    """Integers of words that hold two each."""
    low = words << 16 >> 16
    return torch.cat([low, (words - low) >> 16])


def special_values(positive: torch.Tensor, negative: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Sums with infinities at elements that have one of two flags, and NaNs at elements that have both."""
    infinity = torch.where(negative, -torch.inf, torch.inf)
    infinity = torch.where(positive & negative, torch.nan, infinity)
    return torch.where(positive | negative, infinity, sums)


def partial_sums(words: torch.Tensor) -> Sums:
    """Row sums and column sums, modulo 2**32, of a block's words in a rectangle, for :func:`checksums`."""
    rectangle = words.view(-1, _ROW if len(words) % _ROW == 0 else GROUP // 2)
    # Integers that overflow are sums modulo 2**32.
    return rectangle.sum(1, dtype=torch.int32), rectangle.sum(0, dtype=torch.int32)


def checksums(sums: Sequence[Sums]) -> torch.Tensor:
    """Checksums of blocks, shape (blocks, 2): the sum of words and the sum of their prefix sums, modulo 2**32.

    With row sums R and column sums C, the prefix sums add up to the sum of (length - row * columns) * R, minus the
    sum of column * C. All blocks except the last must have the same length.
    """
    if len(sums) > 1 and len(sums[0][0]) != len(sums[-1][0]):
        return torch.cat([checksums(sums[:-1]), checksums(sums[-1:])])
    rows, columns = (torch.stack(parts).to(torch.int64) & _MASK for parts in zip(*sums, strict=True))
    count = columns.shape[1]
    weights = torch.arange(rows.shape[1] * count, 0, -count, device=rows.device)
    prefix = (weights * rows).sum(1) - (torch.arange(count, device=rows.device) * columns).sum(1)
    return torch.stack([rows.sum(1), prefix], 1) & _MASK
