"""Golden model of the operand formats of a matrix product.

Mirrors :mod:`hdl.features.compute.operands`. In every format, sums are in binary32, in the order of
:mod:`sim.golden.summation`, and their initial values are never rounded. Feature formats are imported when they are
looked up in :data:`OPERANDS`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.choices import choice_error
from sim.golden import floating, summation
from sim.golden.lazy_table import LazyTable, OnDemand

__all__ = ["FP32", "OPERANDS", "Operands", "exact", "operands_of", "product", "rounded"]

Bits = npt.NDArray[np.uint32]
Array = npt.NDArray[np.floating]

#: Name of the format with unrounded operands.
FP32 = "fp32"


@dataclasses.dataclass(frozen=True)
class Operands:
    """Operand format.

    Members
    -------
    code : int
        Number of the format in an instruction.
    round : callable
        Rounds encodings to the format, element by element.
    multiply : callable
        Multiplies encodings after rounding them to the format.
    block : BlockFormat or None
        Format of blocks along k that are multiplied as a whole, so that elements are not rounded individually.
    product : callable or None
        Computes matrix products in the block format, starting from the initial values of the sums.
    delay : int
        Additional cycles per block in the array, compared with a format without scale fractions.
    """

    code: int
    round: Callable[[npt.ArrayLike], Bits] = np.asarray
    multiply: Callable[[npt.ArrayLike, npt.ArrayLike], Bits] = floating.multiply
    block: Any = None
    product: Callable[[Array, Array, Array | None], Array] | None = None
    delay: int = 0

    @property
    def terms(self) -> int:
        """Number of products that are combined into one term of a sum."""
        return 1 if self.block is None else int(self.block.block)


def _of(target: str) -> OnDemand[Operands]:
    """Operand format of a feature, imported on demand."""
    return OnDemand(target, lambda form: form)


#: Operand formats, keyed by name.
OPERANDS: LazyTable[Operands] = LazyTable({
    FP32: Operands(0),
    "bf16": _of("sim.golden.features.bf16.operands:BF16"),
    "mx9": _of("sim.golden.features.block_operands.operands:MX9"),
    "mx6": _of("sim.golden.features.block_operands.operands:MX6"),
    "mx4": _of("sim.golden.features.block_operands.operands:MX4"),
    "mxfp4_e2m1": _of("sim.golden.features.block_operands.operands:MXFP4_E2M1"),
    "mxfp4_e2m1_up": _of("sim.golden.features.block_operands.operands:MXFP4_E2M1_UP"),
    "nvfp4": _of("sim.golden.features.nvfp4.operands:NVFP4"),
})


def operands_of(name: str) -> Operands:
    """Look up a format by name; raises ``ValueError`` if there is none."""
    if name not in OPERANDS:
        raise ValueError(choice_error("Operands", OPERANDS, name))
    return OPERANDS[name]


def rounded(x: Array, operands: str) -> Array:
    """Round binary32 numbers to an operand format."""
    result: Array = operands_of(operands).round(np.ascontiguousarray(x, np.float32).view(np.uint32)).view(np.float32)
    return result


def exact(a: Array, b: Array) -> bool:
    """Whether no product of two nonzero elements is below 2^-126, so that binary32 gives the same products."""
    least = [np.abs(x[x != 0]).min(initial=np.float32(np.inf)) for x in (a, b)]
    return bool(float(least[0]) * float(least[1]) >= 2.0**-126)


def product(a: Array, b: Array, initial: Array | None = None, *, operands: str = FP32) -> Array:
    """Binary32 matrix products (…, m, k) by (…, k, n) with operands rounded to a format; otherwise like
    :func:`sim.golden.summation.product`."""
    form = operands_of(operands)
    if operands == FP32:
        return summation.product(a, b, initial)
    if form.product is not None:
        return form.product(a, b, initial)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if initial is None else np.array(initial, np.float32)
    left, right = (np.ascontiguousarray(x, np.float32).view(np.uint32) for x in (a, b))
    for k in range(a.shape[-1]):
        total = total + form.multiply(left[..., :, k, None], right[..., None, k, :]).view(np.float32)
    return summation.canonical(total)
