"""Arithmetic of reproducible sums with tensor operations: exponents, integers, words and checksums of blocks.

Tensors are flat, and consist of whole groups of :data:`GROUP` elements. Each function has the same results, bit for
bit, as its counterpart in :mod:`sim.golden.features.reproducible.sums`, on every device that computes binary32
without flushing subnormal numbers to zero. Scaling by a power of two beyond the range of binary32 takes two
multiplications.
"""

import operator
from collections.abc import Sequence

import torch

__all__ = ["BLOCK", "GROUP", "PACKED_WIDTH", "SPECIAL", "Halves", "Scales", "Sums", "addend_bits", "check_subnormals",
           "checked_integer", "checksums", "digest", "exponent_fields", "fields_of", "finite", "magnitudes",
           "offsets", "pack", "partial_sums", "quantize", "quantize_halves", "quantizing_scales", "round_sum",
           "rounding_scales", "special_values", "unpack"]

#: Scale factors of a block: one or two columns, with a row for each group.
Scales = tuple[torch.Tensor, ...]
#: Row sums and column sums of a block's words.
Sums = tuple[torch.Tensor, torch.Tensor]
#: Integers, or bit patterns that represent them, of each half of a block.
Halves = tuple[torch.Tensor, torch.Tensor]

#: Number of elements that share an exponent.
GROUP = 32
#: Number of elements of a block. Each block has a checksum, and is small enough for a processor's cache.
BLOCK = 2 ** 17
#: Exponent field of groups that contain an infinity or a NaN.
SPECIAL = 255
#: Maximum width in bits of sums that are packed two to a word.
PACKED_WIDTH = 16

_ROW = 256
#: Modulus of :func:`digest`. A single bit flip never changes the sum by a multiple of it, and is always detected.
_PRIME = 65_521
#: Number of exponent fields that :func:`digest` sums at a time.
_PIECE = 2 ** 15
#: Bit pattern of 1.5 * 2**23, and two numbers with bit patterns p and q such that p + q * 2**16 = 0 modulo 2**32.
_PATTERN = 0x4B40_0000
_OFFSETS = 3 << 22, (3 << 22) - (_PATTERN >> 16)
_MASK = 0xFFFF_FFFF


def addend_bits(width: int, addends: int) -> int:
    """Return the number of bits of each of ``addends`` integers with a sum of ``width`` bits.

    Raises ValueError if the width is not between 4 and 32, or leaves less than two bits for each addend.
    """
    width = checked_integer("Width of a sum", width, 4, 32)
    addends = checked_integer(f"Number of addends in sums of {width} bits", addends, 1, 2 ** (width - 2))
    return width - (addends - 1).bit_length()


def checked_integer(name: str, value: object, low: int, high: int) -> int:
    """Convert a value to an integer; raise ValueError if it is not an integer from ``low`` to ``high``."""
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
    """Return the largest exponent field of each group, at least 1, or :data:`SPECIAL` with an infinity or NaN."""
    return fields_of(magnitudes(elements, torch.empty_like(elements)))


def magnitudes(elements: torch.Tensor, scratch: torch.Tensor, largest: torch.Tensor | None = None) -> torch.Tensor:
    """Return the largest bit pattern in each group without signs; ``scratch`` has the same length as the elements."""
    patterns = torch.abs(elements, out=scratch).view(torch.int32).view(-1, GROUP)
    return patterns.amax(1) if largest is None else torch.amax(patterns, 1, out=largest)


def fields_of(largest: torch.Tensor) -> torch.Tensor:
    """Compute exponent fields of groups from results of :func:`magnitudes`, which are overwritten."""
    return largest.bitwise_right_shift_(23).clamp_(min=1).to(torch.uint8)


def finite(elements: torch.Tensor) -> torch.Tensor:
    """Return elements, with infinities and NaNs replaced by zeros."""
    return torch.where(elements.isfinite(), elements, 0.0)


def _scales(fields: torch.Tensor, sign: int, offset: int, groups: int, memory: torch.Tensor) -> list[Scales]:
    """Return powers of two with exponents sign * field + offset for each block; ``memory`` stores the first factors.

    Exponents are between -252 and 254. Most blocks need one factor, and other blocks need two.
    """
    def exponents(some: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        return result.copy_(some).mul_(sign).add_(offset)

    first = _power(exponents(fields, memory).clamp_(-126, 127)).split(groups)
    scales: list[Scales] = []
    singles = (_bounds(fields, groups).to(torch.int32) * sign + offset).abs() <= 126
    for part, factor, single in zip(fields.split(groups), first, singles.all(1).tolist(), strict=True):
        if single:
            scales.append((factor,))
        else:
            both = exponents(part, torch.empty_like(part, dtype=torch.int32))
            scales.append((factor, _power(both - both.clamp(-126, 127))))
    return scales


def _bounds(fields: torch.Tensor, groups: int) -> torch.Tensor:
    """Return the smallest and the largest exponent field of each block, which consists of ``groups`` groups."""
    whole = len(fields) // groups * groups
    parts = [part.view(-1, min(groups, len(part))) for part in fields.tensor_split([whole]) if len(part)]
    return torch.cat([torch.stack([part.amin(1), part.amax(1)], 1) for part in parts])


def _power(exponents: torch.Tensor) -> torch.Tensor:
    """Return a column of powers of two, in the memory of the exponents."""
    return exponents.add_(127).bitwise_left_shift_(23).view(torch.float32)[:, None]


def quantizing_scales(fields: torch.Tensor, bits: int, groups: int, memory: torch.Tensor) -> list[Scales]:
    """Return, for each block, the factors that scale elements to integers of ``bits`` bits before rounding.

    ``memory`` has an int32 for each group, which the factors overwrite.
    """
    return _scales(fields, -1, bits + 125, groups, memory)


def rounding_scales(fields: torch.Tensor, bits: int, groups: int, memory: torch.Tensor) -> list[Scales]:
    """Return the factors that scale integers of ``bits`` bits back to elements; see :func:`quantizing_scales`."""
    return _scales(fields, 1, -125 - bits, groups, memory)


def _multiply(values: torch.Tensor, factors: Scales, result: torch.Tensor) -> None:
    """Write to ``result`` the values multiplied by the factors of their groups."""
    result = result.view(-1, GROUP)
    torch.mul(values.view(-1, GROUP), factors[0], out=result)
    for factor in factors[1:]:
        result.mul_(factor)


def quantize(elements: torch.Tensor, factors: Scales, bits: int, integers: torch.Tensor) -> torch.Tensor:
    """Scale finite elements by the factors of their groups, and round them to integers of ``bits`` bits."""
    _multiply(elements, factors, integers)
    integers.round_()
    if bits <= 24:  # wider integers need no limit: elements have only 24 bits
        limit = 2 ** (bits - 1) - 1
        integers.clamp_(-limit, limit)
    return integers


def offsets(device: torch.device) -> torch.Tensor:
    """Return the numbers that :func:`quantize_halves` adds to the elements of each half of a block."""
    return torch.tensor(_OFFSETS, dtype=torch.float32, device=device)[:, None, None].repeat(1, 1, GROUP)


def quantize_halves(elements: torch.Tensor, factors: Scales, bits: int, added: torch.Tensor,
                    scratch: torch.Tensor) -> Halves:
    """Convert elements to integers of at most 16 bits for :func:`pack`; ``added`` is the result of :func:`offsets`.

    Adding a number between 2**23 and 2**24 rounds an element to an integer. The bit pattern of the sum exceeds the
    integer by a constant. The constants are chosen so that they cancel in a word that :func:`pack` forms from two
    patterns.
    """
    if len(elements) % (2 * GROUP):
        _multiply(elements, factors, scratch)
        scratch.view(2, -1).add_(added[:, 0, :1])
    else:
        if len(factors) > 1:
            elements = torch.mul(elements.view(-1, GROUP), factors[0], out=scratch.view(-1, GROUP))
        shape = 2, -1, GROUP
        torch.addcmul(added, elements.view(shape), factors[-1].view(2, -1, 1), out=scratch.view(shape))
    limit = 2 ** (bits - 1) - 1
    low, high = scratch.view(2, -1)
    for half, offset in zip((low, high), _OFFSETS, strict=True):
        half.clamp_(offset - limit, offset + limit)
    return low.view(torch.int32), high.view(torch.int32)


def round_sum(integers: torch.Tensor, factors: Scales, result: torch.Tensor, scratch: torch.Tensor) -> None:
    """Convert sums from integers to binary32 and write them to ``result``.

    Only the conversion rounds. Scaling is exact, since results below the smallest normal number are multiples of the
    smallest subnormal number with at most 23 bits.
    """
    scratch.copy_(integers)
    _multiply(scratch, factors, result)


def pack(halves: Halves, words: torch.Tensor, *, add: bool = False) -> None:
    """Write words of two integers each, one from each half of a block, or add to them; sums have at most 16 bits."""
    low, high = halves
    torch.add(words.add_(low) if add else low, high, alpha=2 ** 16, out=words)


def unpack(words: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
    """Extract the two integers in each word, and write 2**16 times their values."""
    low, high = integers.view(2, -1)
    torch.mul(words, 2 ** 16, out=low)
    torch.add(words, 2 ** 15, out=high).bitwise_and_(-2 ** 16)
    return integers


def digest(fields: torch.Tensor) -> torch.Tensor:
    """Return a digest of exponent fields: the sum of each field times its position, from 1, modulo a prime number."""
    weights = torch.arange(1, min(len(fields), _PIECE) + 1, dtype=torch.int32, device=fields.device)
    parts = fields.split(_PIECE)
    # In pieces, since allocating large temporary tensors would take longer than the arithmetic.
    total = sum((part * weights[:len(part)]).sum() + first * _PIECE * part.sum() for first, part in enumerate(parts))
    return (torch.as_tensor(total) % _PRIME).to(torch.int32)


def special_values(positive: torch.Tensor, negative: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Replace sums by an infinity where one of two flags is set, and by a NaN where both are set."""
    infinity = torch.where(negative, -torch.inf, torch.inf)
    infinity = torch.where(positive & negative, torch.nan, infinity)
    return torch.where(positive | negative, infinity, sums)


def partial_sums(words: torch.Tensor) -> Sums:
    """Arrange a block's words as a rectangle; return its row and column sums, modulo 2**32, for :func:`checksums`."""
    rectangle = words.view(-1, _ROW if len(words) % _ROW == 0 else GROUP // 2)
    # Integers overflow, which gives sums modulo 2**32.
    return rectangle.sum(1, dtype=torch.int32), rectangle.sum(0, dtype=torch.int32)


def checksums(sums: Sequence[Sums]) -> torch.Tensor:
    """Return the checksums of blocks, shape (blocks, 2): the sum of words and of their prefix sums, modulo 2**32.

    With row sums R and column sums C, the prefix sums add up to the sum of (length - row * columns) * R, minus the
    sum of column * C. All blocks except the last must have the same length.
    """
    if len(sums) > 1 and len(sums[0][0]) != len(sums[-1][0]):
        return torch.cat([checksums(sums[:-1]), checksums(sums[-1:])])
    rows, columns = (torch.stack(parts) for parts in zip(*sums, strict=True))
    count = columns.shape[1]
    weights = torch.arange(rows.shape[1] * count, 0, -count, dtype=torch.int32, device=rows.device)
    places = torch.arange(count, dtype=torch.int32, device=rows.device)
    prefix = (weights * rows).sum(1, dtype=torch.int32) - (places * columns).sum(1, dtype=torch.int32)
    return torch.stack([columns.sum(1, dtype=torch.int32), prefix], 1).to(torch.int64) & _MASK
