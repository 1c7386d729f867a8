"""Golden model of matrix products of operands in memory: C = epilogue(start + A · B), bit for bit.

Mirrors :mod:`hdl.compute.gemm`; :mod:`sim.golden.gemm_cycles` has its cycles.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden import loop_nest, summation

__all__ = ["ONES", "GemmJob", "Matrix", "multiply", "read"]

Bits = npt.NDArray[np.uint32]

#: Place of an operand whose elements are all 1.0.
ONES = 3


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Matrix in memory: number of the memory, first row, and rows of memory from line to line."""

    place: int = 0
    row: int = 0
    stride: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmJob:
    """Product of A, m by k, and B, k by n; factors are base-2 logarithms.

    With ``transpose_a`` and ``transpose_b`` the memory holds the transposed matrix.
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
    a: Matrix = Matrix()
    b: Matrix = Matrix()
    c: Matrix = Matrix()
    start: Matrix = Matrix()
    gate: Matrix = Matrix()

    @property
    def loops(self) -> loop_nest.Job:
        """Job of the loop nest."""
        return loop_nest.Job(
            m=self.m, n=self.n, k=self.k, tile=self.tile, row_tiles=self.row_tiles, column_tiles=self.column_tiles,
            rounds=self.rounds, order=self.order, resume=self.initial, common=int(self.start.stride == 0),
            align_m=self.transpose_a, align_k=int(not self.transpose_a or self.transpose_b))

    def fields(self) -> dict[str, Any]:
        """Fields of the job's payload."""
        return dataclasses.asdict(self)


def read(memories: Sequence[Bits], matrix: Matrix, lines: int, length: int) -> npt.NDArray[np.float32]:
    """Matrix of ``lines`` by ``length`` elements in memories of rows."""
    if matrix.place == ONES:
        return np.ones((lines, length), np.float32)
    rows, places = _places(memories, matrix, lines, length)
    found: npt.NDArray[np.float32] = memories[matrix.place][rows, places].view(np.float32)
    return found


def _places(memories: Sequence[Bits], matrix: Matrix, lines: int, length: int) -> tuple[Any, Any]:
    lanes = memories[0].shape[1]
    column = np.arange(length)
    return matrix.row + np.arange(lines)[:, None] * matrix.stride + column // lanes, column % lanes


def multiply(job: GemmJob, memories: Sequence[Bits]) -> None:
    """Write the product of a job to its place in memories, which are arrays of (rows, lanes).

    Its factors do not matter.
    """
    a = read(memories, job.a, *((job.k, job.m) if job.transpose_a else (job.m, job.k)))
    b = read(memories, job.b, *((job.n, job.k) if job.transpose_b else (job.k, job.n)))
    start = read(memories, job.start, job.m, job.n) if job.initial else None
    with np.errstate(all="ignore"):
        c = summation.product(a.T if job.transpose_a else a, b.T if job.transpose_b else b, start)
        if job.relu:
            c = np.where(c <= 0, np.float32(0), c)
        if job.gated:
            c = np.where(read(memories, job.gate, job.m, job.n) > 0, c, np.float32(0))
    memories[job.c.place][_places(memories, job.c, job.m, job.n)] = c.view(np.uint32)
