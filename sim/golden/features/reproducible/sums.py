"""Golden model of reproducible sums: addends are converted to integers with a common exponent before they are added.

Groups of :data:`GROUP` elements share an exponent. Its *field* F is the largest exponent field of any finite element
of any addend, and at least 1, so |x| < 2**(F - 126) for each element. An addend x becomes the integer q = x *
2**(b - 1 - (F - 126)), rounded to nearest even and limited to ±(2**(b - 1) - 1). The integers may be added in any
order, and their sum is rounded once to binary32. Sums of ``width`` bits of ``addends`` addends leave b = width -
ceil(log2(addends)) bits for each addend.

The method is that of Demmel and Nguyen, "Fast reproducible floating-point summation" (ARITH 2013), with one bin.

An infinity or a NaN does not affect its group's exponent, and its integer is 0: two flags for each element state
whether any addend was +infinity or -infinity, or both for a NaN. A sum that is zero is +0.

Arrays of elements are binary32 bit patterns along the last axis. ``starts`` holds the index of the first element of
each group; :func:`group_starts` computes it for tensors of parameters that each begin with a new group.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden.parameters import check_integer

__all__ = ["GROUP", "Addend", "PartialSums", "addend_bits", "checksum", "exponent_fields", "group_starts",
           "partial_sums", "quantize", "residual", "round_sum", "special_flags", "sum_of"]

Bits = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Number of elements that share an exponent.
GROUP = 32

_ONES = 255
#: Bias of exponent fields: a field F stands for the bound 2**(F - 126).
_BIAS = 126


def addend_bits(width: int, addends: int) -> int:
    """Number of bits b per addend for which the sum of ``addends`` addends fits in ``width`` bits."""
    check_integer("Width of a sum", width, 4, 32)
    check_integer("Number of addends", addends, 1, 2 ** (width - 2))
    return width - (addends - 1).bit_length()


def group_starts(lengths: Sequence[int]) -> Integers:
    """Index of the first element of each group, if parameters with these lengths each begin with a new group."""
    ends = np.cumsum([0, *lengths])
    return np.concatenate([np.zeros(0, np.int64), *(
        np.arange(first, end, GROUP) for first, end in itertools.pairwise(ends))]).astype(np.int64)


def _fields(elements: Bits) -> Integers:
    return (np.asarray(elements, np.uint32) >> 23 & _ONES).astype(np.int64)


def _spread(values: Integers, starts: Integers, length: int) -> Integers:
    """Repeat the value of each group for all of the group's elements."""
    return np.repeat(values, np.diff(np.append(starts, length)), axis=-1)


def exponent_fields(elements: Bits, starts: Integers) -> Integers:
    """Largest exponent field of the finite elements in each group, but at least 1."""
    fields = _fields(elements)
    finite = np.maximum(np.where(fields == _ONES, 0, fields), 1)
    return np.asarray(np.maximum.reduceat(finite, starts, axis=-1) if len(starts) else finite[..., :0])


def special_flags(elements: Bits) -> tuple[Flags, Flags]:
    """Flags of the elements that are +infinity or NaN, and of the elements that are -infinity or NaN."""
    values = np.asarray(elements, np.uint32).view(np.float32)
    nan = np.isnan(values)
    return np.asarray(nan | (values == np.inf)), np.asarray(nan | (values == -np.inf))


def quantize(elements: Bits, fields: Integers, starts: Integers, bits: int) -> Integers:
    """Quantize elements to integers of ``bits`` bits: the nearest multiples of 2**(F - 125 - bits).

    Raises ValueError if an element is not below the bound of its group.
    """
    values = np.asarray(elements, np.uint32).view(np.float32).astype(np.float64)
    finite = np.isfinite(values)
    shared = _spread(fields, starts, values.shape[-1])
    if (finite & (_fields(elements) > shared)).any():
        raise ValueError("Exponent of a group must be at least that of each of its elements")
    # A binary64 represents each scaled element exactly.
    scaled = np.ldexp(np.where(finite, values, 0), bits - 1 - (shared - _BIAS))
    limit = 2 ** (bits - 1) - 1
    return np.clip(np.rint(scaled), -limit, limit).astype(np.int64)


def residual(elements: Bits, integers: Integers, fields: Integers, starts: Integers, bits: int) -> Bits:
    """Exact rounding error of each element: the element minus its integer's value; zero for an infinity or a NaN."""
    values = np.asarray(elements, np.uint32).view(np.float32).astype(np.float64)
    shared = _spread(fields, starts, values.shape[-1])
    represented = np.ldexp(integers.astype(np.float64), shared - _BIAS - bits + 1)
    lost = np.where(np.isfinite(values), values, represented) - represented
    return (lost + 0.0).astype(np.float32).view(np.uint32)  # -0 + 0 is +0


def round_sum(integers: Integers, fields: Integers, starts: Integers, bits: int, positive: Flags | None = None,
              negative: Flags | None = None) -> Bits:
    """Round sums once to binary32; an element with one flag is an infinity, and with both flags the canonical NaN."""
    shared = _spread(fields, starts, integers.shape[-1])
    # Sums have at most 32 bits, so a binary64 represents them exactly. Conversion to binary32 rounds them.
    exact = np.ldexp(integers.astype(np.float64), shared - _BIAS - bits + 1)
    with np.errstate(over="ignore"):
        result = exact.astype(np.float32).view(np.uint32)
    if positive is not None and negative is not None:
        result = np.where(positive, np.where(negative, 0x7FC0_0000, 0x7F80_0000),
                          np.where(negative, 0xFF80_0000, result))
    return np.asarray(result, dtype=np.uint32)


def checksum(integers: Integers) -> tuple[int, int]:
    """Checksum of a segment: the sum of its integers and the sum of their prefix sums, modulo 2**32.

    The checksum of a sum of segments is the sum of their checksums.
    """
    return int(integers.sum()) & 0xFFFF_FFFF, int(np.cumsum(integers).sum()) & 0xFFFF_FFFF


@dataclasses.dataclass(frozen=True)
class Addend:
    """Part of a sum: the integers of one or more addends, and the flags of their infinities and NaNs."""

    integers: Integers
    positive: Flags
    negative: Flags

    def __add__(self, other: "Addend") -> "Addend":
        return Addend(self.integers + other.integers, self.positive | other.positive, self.negative | other.negative)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartialSums:
    """Partial sums of the first addend, the first two addends, and so on, up to the sum of all addends.

    Parameters
    ----------
    fields : array of shape (M, groups)
        Largest exponent fields of the first 1, 2, … M addends; the integers are based on the last row.
    sums : list of Addend
    starts : array of shape (groups,)
    bits : int
        Number of bits of each addend.
    """

    fields: Integers
    sums: list[Addend]
    starts: Integers
    bits: int

    @property
    def total(self) -> Bits:
        """Sum of all addends as binary32, rounded once."""
        last = self.sums[-1]
        return round_sum(last.integers, self.fields[-1], self.starts, self.bits, last.positive, last.negative)


def partial_sums(addends: Bits, *, width: int, starts: Integers | None = None) -> PartialSums:
    """Partial sums of the rows of ``addends``, with shape (M, K), in ``width`` bits; by default, there is one
    parameter tensor."""
    starts = group_starts([addends.shape[1]]) if starts is None else starts
    bits = addend_bits(width, len(addends))
    fields = np.maximum.accumulate(exponent_fields(addends, starts), axis=0)
    parts = [Addend(quantize(addend, fields[-1], starts, bits), *special_flags(addend)) for addend in addends]
    return PartialSums(fields=fields, sums=list(itertools.accumulate(parts)), starts=starts, bits=bits)


def sum_of(addends: Bits, *, width: int, lengths: Sequence[int] | None = None) -> Bits:
    """Reproducible sum of the rows of ``addends``, with shape (M, K), in ``width`` bits.

    Parameter tensors of ``lengths`` elements each begin with a new group; by default, there is one parameter tensor.
    """
    return partial_sums(addends, width=width, starts=None if lengths is None else group_starts(lengths)).total
