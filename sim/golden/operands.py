"""Golden model of the formats that operands of a matrix product are rounded to.

Mirrors :mod:`hdl.compute.operands`. Sums are in binary32 in every format, in the order of
:mod:`sim.golden.summation`, and numbers that a sum begins with are never rounded.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hdl.choices import choice_error
from sim.golden import conversion, floating, summation
from sim.golden.block_format import BlockFormat
from sim.golden.microscaling import MXFP4_E2M1, MXFP4_E2M1_UP
from sim.golden.nvfp4 import NVFP4
from sim.golden.shared_exponent import MX4, MX6, MX9

__all__ = ["BF16", "FP32", "OPERANDS", "Operands", "bfloat16", "block_numbers", "block_terms", "exact", "operands_of",
           "product", "rounded"]

Bits = npt.NDArray[np.uint32]
Array = npt.NDArray[np.floating]

#: Names of formats.
FP32, BF16 = "fp32", "bf16"

_SIGN = np.uint32(1 << 31)
#: Encoding of the least normal number, 2^-126.
_LEAST = np.uint32(1 << 23)


def _flushed(bits: Bits) -> Bits:
    """Subnormal numbers as zeros of their signs."""
    return np.where(bits & ~_SIGN < _LEAST, bits & _SIGN, bits)


def bfloat16(bits: npt.ArrayLike) -> Bits:
    """Binary32 encodings rounded to bfloat16, as binary32; what is subnormal then is a zero of its sign."""
    return _flushed(conversion.from_bfloat16(conversion.to_bfloat16(bits)))


def _multiply_bfloat16(a: npt.ArrayLike, b: npt.ArrayLike) -> Bits:
    """Products of operands rounded to bfloat16: exact, but zeros of their signs below 2^-126.

    Binary32 has room for all 16 bits of a product, and for those of a subnormal one that is just below 2^-126 too, so
    that none is rounded up to it.
    """
    return _flushed(floating.multiply(bfloat16(a), bfloat16(b)))


def _guard(model: BlockFormat) -> int:
    """Places by which elements of the highest subsets stand above those of the lowest ones."""
    return (1 << model.difference_bits) - 1


def block_terms(model: BlockFormat, bits: Bits) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Integers and exponents of vectors along the last axis, cut into blocks: (…, blocks, elements), (…, blocks)."""
    count = -(-bits.shape[-1] // model.block)
    padded = np.zeros((*bits.shape[:-1], count * model.block), np.uint32)
    padded[..., :bits.shape[-1]] = bits
    blocks = model.quantise(padded.ravel())
    numbers = model.integers(blocks.codes) << _guard(model)
    if model.difference_bits:
        numbers >>= np.repeat(blocks.differences, model.subset, axis=1)
    shape = (*bits.shape[:-1], count)
    return numbers.astype(np.float64).reshape(*shape, model.block), blocks.exponents.reshape(shape)


def block_numbers(model: BlockFormat, totals: npt.NDArray[np.float64], left: npt.ArrayLike,
                  right: npt.ArrayLike) -> Array:
    """Dot products of blocks in binary32: totals of integers, and the exponents of both blocks.

    Totals, times the scales of both where these are no powers of two, have no more bits than binary32. What is below
    2^-126 is a zero of its sign, and what is 2^128 or more an infinity; a block that is NaN makes a NaN.
    """
    (rows, left_place), (columns, right_place) = (model.scales(np.asarray(x)) for x in (left, right))
    integers = (totals + 0.0) * rows * columns  # an integer has no -0.0
    exact = np.ldexp(integers, left_place + right_place - 2 * _guard(model))
    found = np.where(np.abs(exact) < 2.0**-126, np.copysign(0.0, exact), exact)
    with np.errstate(over="ignore"):
        numbers = found.astype(np.float32)
    nan = (np.asarray(left) == model.nan) | (np.asarray(right) == model.nan)
    return np.where(nan, np.float32(np.nan), numbers)


def _block_product(model: BlockFormat, a: Array, b: Array, initial: Array | None) -> Array:
    """Matrix products whose factors are rounded to blocks along k; dot products of blocks are added one by one."""
    left, right = (np.ascontiguousarray(x, np.float32).view(np.uint32) for x in (a, np.swapaxes(b, -1, -2)))
    (rows, row_exponents), (columns, column_exponents) = (block_terms(model, x) for x in (left, right))
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if initial is None else np.array(initial, np.float32)
    for block in range(rows.shape[-2]):
        # Sums of integers below 2^53, which are exact in any order.
        totals = rows[..., block, :] @ np.swapaxes(columns[..., block, :], -1, -2)
        total = total + block_numbers(model, totals, row_exponents[..., :, None, block],
                                      column_exponents[..., None, :, block])
    return summation.canonical(total)


@dataclasses.dataclass(frozen=True)
class Operands:
    """Format of operands.

    Members
    -------
    code : int
        Number of the format in an instruction.
    round : callable
        Encodings rounded to the format, one by one.
    multiply : callable
        Products of encodings that are rounded to the format first, as encodings.
    block : BlockFormat or None
        Format of blocks along k that are multiplied as a whole; elements of such a format are not rounded alone.
    delay : int
        Cycles by which a block is longer on its way through the array than one without fractions of scales.
    """

    code: int
    round: Callable[[npt.ArrayLike], Bits] = np.asarray
    multiply: Callable[[npt.ArrayLike, npt.ArrayLike], Bits] = floating.multiply
    block: BlockFormat | None = None
    delay: int = 0

    @property
    def terms(self) -> int:
        """Terms of a sum that are added as one."""
        return 1 if self.block is None else self.block.block


#: Formats by their names.
OPERANDS = {FP32: Operands(0), BF16: Operands(1, bfloat16, _multiply_bfloat16), "mx9": Operands(2, block=MX9),
            "mx6": Operands(3, block=MX6), "mx4": Operands(4, block=MX4),
            "mxfp4_e2m1": Operands(5, block=MXFP4_E2M1), "mxfp4_e2m1_up": Operands(6, block=MXFP4_E2M1_UP),
            "nvfp4": Operands(7, block=NVFP4(), delay=3)}


def operands_of(name: str) -> Operands:
    """Format of a name; ValueError if there is none."""
    if name not in OPERANDS:
        raise ValueError(choice_error("Operands", OPERANDS, name))
    return OPERANDS[name]


def rounded(x: Array, operands: str) -> Array:
    """Numbers of binary32 rounded to a format."""
    found: Array = operands_of(operands).round(np.ascontiguousarray(x, np.float32).view(np.uint32)).view(np.float32)
    return found


def exact(a: Array, b: Array) -> bool:
    """Whether no product of two rounded numbers lies below 2^-126, so that binary32 multiplies them likewise."""
    least = [np.abs(x[x != 0]).min(initial=np.float32(np.inf)) for x in (a, b)]
    return bool(float(least[0]) * float(least[1]) >= 2.0**-126)


def product(a: Array, b: Array, initial: Array | None = None, *, operands: str = FP32) -> Array:
    """Matrix products (…, m, k) by (…, k, n) of binary32, of operands in a format; else as
    :func:`sim.golden.summation.product`."""
    form = operands_of(operands)
    if operands == FP32:
        return summation.product(a, b, initial)
    if form.block is not None:
        return _block_product(form.block, a, b, initial)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if initial is None else np.array(initial, np.float32)
    left, right = (np.ascontiguousarray(x, np.float32).view(np.uint32) for x in (a, b))
    for k in range(a.shape[-1]):
        total = total + form.multiply(left[..., :, k, None], right[..., None, k, :]).view(np.float32)
    return summation.canonical(total)
