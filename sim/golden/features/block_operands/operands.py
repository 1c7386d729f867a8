"""Golden model of block operands, which share an exponent per block, and of their matrix products."""

import functools

import numpy as np
import numpy.typing as npt

from sim.golden import summation
from sim.golden.features.mx import microscaling, shared_exponent
from sim.golden.features.mx.block_format import BlockFormat
from sim.golden.operands import Operands

__all__ = ["MX4", "MX6", "MX9", "MXFP4_E2M1", "MXFP4_E2M1_UP", "block_numbers", "block_operands",
           "block_product", "block_terms"]

Bits = npt.NDArray[np.uint32]
Array = npt.NDArray[np.floating]


def _guard(model: BlockFormat) -> int:
    """Maximum shift in bits between the elements of different subsets of a block."""
    return (1 << model.difference_bits) - 1


def block_terms(model: BlockFormat, bits: Bits) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Split the last axis into blocks; return integers (…, blocks, elements) and exponents (…, blocks)."""
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
    """Binary32 dot products of blocks, from their integer totals and both blocks' exponents.

    Totals, multiplied by both scales where these are not powers of two, fit in a binary32 significand. Results below
    2^-126 become zeros with the same sign, and results of 2^128 and above become infinities; NaN blocks yield NaN.
    """
    (rows, left_place), (columns, right_place) = (model.scales(np.asarray(x)) for x in (left, right))
    integers = (totals + 0.0) * rows * columns  # integers have no -0.0
    exact = np.ldexp(integers, left_place + right_place - 2 * _guard(model))
    flushed = np.where(np.abs(exact) < 2.0**-126, np.copysign(0.0, exact), exact)
    with np.errstate(over="ignore"):
        numbers = flushed.astype(np.float32)
    nan = (np.asarray(left) == model.nan) | (np.asarray(right) == model.nan)
    return np.where(nan, np.float32(np.nan), numbers)


def block_product(model: BlockFormat, a: Array, b: Array, initial: Array | None) -> Array:
    """Product of matrices rounded to blocks along k; the dot products of the blocks are added in order."""
    left, right = (np.ascontiguousarray(x, np.float32).view(np.uint32) for x in (a, np.swapaxes(b, -1, -2)))
    (rows, row_exponents), (columns, column_exponents) = (block_terms(model, x) for x in (left, right))
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if initial is None else np.array(initial, np.float32)
    for block in range(rows.shape[-2]):
        # Integer sums stay below 2^53 and are therefore exact in any order.
        totals = rows[..., block, :] @ np.swapaxes(columns[..., block, :], -1, -2)
        total = total + block_numbers(model, totals, row_exponents[..., :, None, block],
                                      column_exponents[..., None, :, block])
    return summation.canonical(total)


def block_operands(code: int, model: BlockFormat, delay: int = 0) -> Operands:
    """Operands that are multiplied in blocks of the given format."""
    return Operands(code, block=model, product=functools.partial(block_product, model), delay=delay)


MX9, MX6, MX4 = (block_operands(code, model) for code, model in (
    (2, shared_exponent.MX9), (3, shared_exponent.MX6), (4, shared_exponent.MX4)))
MXFP4_E2M1, MXFP4_E2M1_UP = block_operands(5, microscaling.MXFP4_E2M1), block_operands(6, microscaling.MXFP4_E2M1_UP)
