"""Bit-exact golden model of matrix products in memory: C = epilogue(start + A · B).

Mirrors :mod:`hdl.features.compute.gemm`; :mod:`sim.golden.features.compute.gemm_cycles` models its timing.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.masking.mask import INDEX_BITS
from sim.golden import masking, summation
from sim.golden.features.compute import loop_nest
from sim.golden.operands import FP32, product

__all__ = ["ONES", "GemmJob", "Matrix", "ScaleMask", "epilogue", "multiply", "read",
           "scale_mask_fields"]

Bits = npt.NDArray[np.uint32]

#: Memory number of a virtual operand with all elements equal to 1.0.
ONES = 3


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Matrix in memory: memory number, first memory row, and line stride in memory rows."""

    place: int = 0
    row: int = 0
    stride: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaleMask:
    """Scaling and masking of a product; ``scale`` and ``alternative``, for masked elements, are bit patterns."""

    scaled: int = 0
    masked: int = 0
    scale: int = 0
    alternative: int = 0
    mask: masking.Mask = dataclasses.field(default_factory=masking.Mask)


def scale_mask_fields(options: ScaleMask) -> dict[str, Any]:
    """Return the job fields for scaling and masking, as unsigned numbers."""
    fields = dataclasses.asdict(options)
    mask: dict[str, int] = fields["mask"]
    mask.update({name: int(value) for name, value in mask.items()}, diagonal=mask["diagonal"] % (2 << INDEX_BITS))
    return fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmJob:
    """Product of A (m by k) and B (k by n); loop factors are given as base-2 logarithms.

    If ``transpose_a`` or ``transpose_b`` is set, the memory holds the transpose.
    """

    m: int
    n: int
    k: int
    tile: int = 0
    row_tiles: int = 0
    column_tiles: int = 0
    rounds: int = 0
    order: int = 0
    transpose_a: int = 0
    transpose_b: int = 0
    initial: int = 0
    relu: int = 0
    gated: int = 0
    scale_mask: ScaleMask = ScaleMask()
    a: Matrix = Matrix()
    b: Matrix = Matrix()
    c: Matrix = Matrix()
    start: Matrix = Matrix()
    gate: Matrix = Matrix()

    @property
    def loops(self) -> loop_nest.Job:
        """Job of the loop nest for this product."""
        return loop_nest.Job(
            m=self.m, n=self.n, k=self.k, tile=self.tile, row_tiles=self.row_tiles, column_tiles=self.column_tiles,
            rounds=self.rounds, order=self.order, resume=self.initial, common=int(self.start.stride == 0),
            align_m=self.transpose_a, align_k=int(not self.transpose_a or self.transpose_b))

    def fields(self) -> dict[str, Any]:
        """Fields of the job as they are sent to the unit."""
        return dataclasses.asdict(self) | {"scale_mask": scale_mask_fields(self.scale_mask)}


def read(memories: Sequence[Bits], matrix: Matrix, lines: int, length: int) -> npt.NDArray[np.float32]:
    """Read a matrix of ``lines`` by ``length`` elements from row memories."""
    if matrix.place == ONES:
        return np.ones((lines, length), np.float32)
    rows, places = _places(memories, matrix, lines, length)
    elements: npt.NDArray[np.float32] = memories[matrix.place][rows, places].view(np.float32)
    return elements


def _places(memories: Sequence[Bits], matrix: Matrix, lines: int, length: int) -> tuple[Any, Any]:
    lanes = memories[0].shape[1]
    column = np.arange(length)
    return matrix.row + np.arange(lines)[:, None] * matrix.stride + column // lanes, column % lanes


def multiply(job: GemmJob, memories: Sequence[Bits], *, operands: str = FP32) -> None:
    """Compute a job and write the product to its target, in memories of shape (rows, lanes).

    ``operands`` is the operand format. The job's factors do not affect the result.
    """
    a = read(memories, job.a, *((job.k, job.m) if job.transpose_a else (job.m, job.k)))
    b = read(memories, job.b, *((job.n, job.k) if job.transpose_b else (job.k, job.n)))
    start = read(memories, job.start, job.m, job.n) if job.initial else None
    with np.errstate(all="ignore"):
        c = product(a.T if job.transpose_a else a, b.T if job.transpose_b else b, start, operands=operands)
    gate = read(memories, job.gate, job.m, job.n) if job.gated else None
    c = epilogue(c, job.scale_mask, relu=bool(job.relu), gate=gate)
    memories[job.c.place][_places(memories, job.c, job.m, job.n)] = c.view(np.uint32)


def epilogue(c: npt.NDArray[np.float32], scale_mask: ScaleMask, *, relu: bool,
             gate: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32]:
    """Return the elements of C after scaling, masking, rectifying and gating, in this order.

    ReLU replaces every element with a set sign bit by +0.0; NaNs from sums and scaling are positive.
    """
    bits: Bits = c.view(np.uint32)
    if scale_mask.scaled:
        with np.errstate(all="ignore"):
            scaled = summation.canonical(c * np.array(scale_mask.scale, np.uint32).view(np.float32))
        bits = scaled.astype(np.float32).view(np.uint32)
    if scale_mask.masked:
        bits = np.where(scale_mask.mask.generated(*c.shape), bits, np.uint32(scale_mask.alternative))
    if relu:
        bits = np.where(bits >> 31, np.uint32(0), bits)
    if gate is not None:
        bits = np.where(gate > 0, bits, np.uint32(0))
    return np.ascontiguousarray(bits, np.uint32).view(np.float32)
