"""Arithmetic of reproducible sums on tensors: exponents, integers, words and checksums of a block.

Tensors are flat, and consist of whole groups of :data:`GROUP` elements. Each function gives the bits of its
counterpart in :mod:`sim.golden.features.reproducible.sums`, on every device that computes binary32 without flushing
subnormal numbers to zero. Powers of two are multiplied in two steps where one factor would be out of range.
"""

import operator
from collections.abc import Sequence

import torch

__all__ = ["BLOCK", "GROUP", "PACKED_WIDTH", "SPECIAL", "Halves", "Scales", "Sums", "addend_bits", "check_subnormals",
           "checked_integer", "checksums", "digest", "exponent_fields", "fields_of", "finite", "magnitudes",
           "offsets", "pack", "partial_sums", "quantize", "quantize_halves", "quantizing_scales", "round_sum",
           "rounding_scales", "special_values", "unpack"]

#: One or two columns of factors for groups.
Scales = tuple[torch.Tensor, ...]
#: Row sums and column sums of a block.
Sums = tuple[torch.Tensor, torch.Tensor]
#: Integers, or patterns of sums, of each half of a block.
Halves = tuple[torch.Tensor, torch.Tensor]

#: Number of elements that share an exponent.
GROUP = 32
#: Elements of a block, which has a checksum, and is small enough for a cache.
BLOCK = 2 ** 17
#: Exponent field of groups that contain an infinity or a NaN.
SPECIAL = 255
#: Largest width of sums that are packed two to a word.
PACKED_WIDTH = 16

_ROW = 256
#: Modulus of the digest of fields; no flipped bit is a multiple of it.
_PRIME = 65_521
#: Fields that are summed at once.
_PIECE = 2 ** 15
#: Pattern of 1.5 * 2**23, and numbers whose patterns p and q have p + q * 2**16 = 0 modulo 2**32.
_PATTERN = 0x4B40_0000
_OFFSETS = 3 << 22, (3 << 22) - (_PATTERN >> 16)
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
    return fields_of(magnitudes(elements, torch.empty_like(elements)))


def magnitudes(elements: torch.Tensor, scratch: torch.Tensor, largest: torch.Tensor | None = None) -> torch.Tensor:
    """Largest bit pattern in each group, without signs; ``scratch`` has the length of the elements."""
    patterns = torch.abs(elements, out=scratch).view(torch.int32).view(-1, GROUP)
    return patterns.amax(1) if largest is None else torch.amax(patterns, 1, out=largest)


def fields_of(largest: torch.Tensor) -> torch.Tensor:
    """Exponent fields of groups, from the results of :func:`magnitudes`, which are overwritten."""
    return largest.bitwise_right_shift_(23).clamp_(min=1).to(torch.uint8)


def finite(elements: torch.Tensor) -> torch.Tensor:
    """Elements, with zeros in place of infinities and NaNs."""
    return torch.where(elements.isfinite(), elements, 0.0)


def _scales(fields: torch.Tensor, sign: int, offset: int, groups: int, memory: torch.Tensor) -> list[Scales]:
    """Powers of two with exponents sign * field + offset, for each block of groups; ``memory`` is that of the first.

    Exponents are between -252 and 254. One factor is enough for most blocks, and others have two.
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
    """Smallest and largest field of each block of groups."""
    whole = len(fields) // groups * groups
    parts = [part.view(-1, min(groups, len(part))) for part in fields.tensor_split([whole]) if len(part)]
    return torch.cat([torch.stack([part.amin(1), part.amax(1)], 1) for part in parts])


def _power(exponents: torch.Tensor) -> torch.Tensor:
    """Column of powers of two; overwrites the exponents."""
    return exponents.add_(127).bitwise_left_shift_(23).view(torch.float32)[:, None]


def quantizing_scales(fields: torch.Tensor, bits: int, groups: int, memory: torch.Tensor) -> list[Scales]:
    """Factors by which elements become integers of ``bits`` bits, before rounding, for each block of groups.

    ``memory`` is an int32 for each group, which the factors use.
    """
    return _scales(fields, -1, bits + 125, groups, memory)


def rounding_scales(fields: torch.Tensor, bits: int, groups: int, memory: torch.Tensor) -> list[Scales]:
    """Factors by which integers of ``bits`` bits are multiplied to give elements, as of :func:`quantizing_scales`."""
    return _scales(fields, 1, -125 - bits, groups, memory)


def _multiply(values: torch.Tensor, factors: Scales, result: torch.Tensor) -> None:
    """Write values times their groups' factors."""
    result = result.view(-1, GROUP)
    torch.mul(values.view(-1, GROUP), factors[0], out=result)
    for factor in factors[1:]:
        result.mul_(factor)


def quantize(elements: torch.Tensor, factors: Scales, bits: int, integers: torch.Tensor) -> torch.Tensor:
    """Write integers of ``bits`` bits nearest to finite elements times their group's factors, as binary32."""
    _multiply(elements, factors, integers)
    integers.round_()
    if bits <= 24:  # Elements of 24 bits cannot round up to the limit of wider integers.
        limit = 2 ** (bits - 1) - 1
        integers.clamp_(-limit, limit)
    return integers


def offsets(device: torch.device) -> torch.Tensor:
    """Numbers that :func:`quantize_halves` adds to the elements of each half of a block."""
    return torch.tensor(_OFFSETS, dtype=torch.float32, device=device)[:, None, None].repeat(1, 1, GROUP)


def quantize_halves(elements: torch.Tensor, factors: Scales, bits: int, added: torch.Tensor,
                    scratch: torch.Tensor) -> Halves:
    """Integers of at most 16 bits, as terms of :func:`pack`; ``added`` is the result of :func:`offsets`.

    Each is the pattern of a sum with a number between 2**23 and 2**24, which rounds to an integer. The patterns
    exceed the integers by constants, and the words that consist of two patterns have no excess.
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
    """Write sums as binary32.

    The conversion to binary32 rounds once: multiples of the smallest subnormal number below the smallest normal
    number have at most 23 bits, so scaling does not round.
    """
    scratch.copy_(integers)
    _multiply(scratch, factors, result)


def pack(halves: Halves, words: torch.Tensor, *, add: bool = False) -> None:
    """Write or add words of two integers each, one from each half of the block; their sums have at most 16 bits."""
    low, high = halves
    torch.add(words.add_(low) if add else low, high, alpha=2 ** 16, out=words)


def unpack(words: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
    """Write 2**16 times the integers of words that hold two each."""
    low, high = integers.view(2, -1)
    torch.mul(words, 2 ** 16, out=low)
    torch.add(words, 2 ** 15, out=high).bitwise_and_(-2 ** 16)
    return integers


def digest(fields: torch.Tensor) -> torch.Tensor:
    """The sum of fields times their places, which begin at 1, modulo a prime number."""
    weights = torch.arange(1, min(len(fields), _PIECE) + 1, dtype=torch.int32, device=fields.device)
    parts = fields.split(_PIECE)
    # Pieces, since large temporary tensors cost more time in the operating system than in arithmetic.
    total = sum((part * weights[:len(part)]).sum() + first * _PIECE * part.sum() for first, part in enumerate(parts))
    return (torch.as_tensor(total) % _PRIME).to(torch.int32)


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
    rows, columns = (torch.stack(parts) for parts in zip(*sums, strict=True))
    count = columns.shape[1]
    weights = torch.arange(rows.shape[1] * count, 0, -count, dtype=torch.int32, device=rows.device)
    places = torch.arange(count, dtype=torch.int32, device=rows.device)
    prefix = (weights * rows).sum(1, dtype=torch.int32) - (places * columns).sum(1, dtype=torch.int32)
    return torch.stack([columns.sum(1, dtype=torch.int32), prefix], 1).to(torch.int64) & _MASK
