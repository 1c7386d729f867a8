"""Factors of a matrix product: how it is cut into panels and tiles."""

import dataclasses
import functools
import heapq
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hdl.compute.engine import BLOCKS
from hdl.compute.layer_list import Place
from hdl.compute.operands import FP32, OPERANDS, ScalarOperands
from sim.golden import gemm_factors
from sim.golden.compute import Engine
from sim.golden.gemm import GemmJob, Matrix
from sim.golden.gemm_cycles import GemmCycles
from sim.golden.gemm_estimate import bound

__all__ = ["FACTORS", "Array", "best_factors"]

#: Fields of an instruction, and of a job, that say how its product is cut.
FACTORS = ("tile", "row_tiles", "column_tiles", "rounds", "order")


#: Terms per unit of the largest product that is modelled cycle by cycle; candidates that are compared beyond that.
_MODELLED = 1 << 14
_COMPARED = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Array:
    """Array of multiply-accumulate units, and its panels.

    Parameters
    ----------
    rows, lanes : int
        Rows of the array, and its columns, which are the elements of a memory row as well.
    blocks : int
        Blocks of a panel.
    operands : str
        Format of operands.
    """

    rows: int
    lanes: int
    blocks: int = BLOCKS
    operands: str = FP32

    def engine(self, **options: Any) -> Engine:
        """Golden engine with such an array, and further options of an engine."""
        return Engine(rows=self.rows, lanes=self.lanes, blocks=self.blocks, operands=self.operands, **options)

    @property
    def model(self) -> GemmCycles:
        """Model of a product's cycles."""
        form = OPERANDS[self.operands]
        product = {"product": form.product_latency(4)} if isinstance(form, ScalarOperands) else {}
        return GemmCycles(rows=self.rows, lanes=self.lanes, blocks=self.blocks, operands=self.operands, **product)


@functools.cache
def best_factors(array: Array, sizes: tuple[int, int, int], *, transpose_a: bool = False, transpose_b: bool = False,
                 ones: bool = False, starts: bool = False, gated: bool = False,
                 resumes: bool = False) -> Mapping[str, int]:
    """Factors and order with the fewest cycles in quiet memories, as fields of an instruction.

    Parameters
    ----------
    sizes : tuple of int
        Rows of A, columns of A, and columns of B.
    transpose_a, transpose_b : bool
        Whether the memory has the transposed matrix.
    ones : bool
        Whether A is of ones, which are not read.
    starts : bool
        Whether sums begin with numbers of memory.
    gated : bool
        Whether a matrix of the shape of the product is read as well.
    resumes : bool
        Whether those numbers are a matrix of the shape of the product, and not one row for all rows.
    """
    m, k, n = sizes
    memory = Matrix(Place.ACTIVATIONS, 0, -(-max(sizes) // array.lanes))
    job = GemmJob(
        m=m, k=k, n=n, transpose_a=int(transpose_a), transpose_b=int(transpose_b), initial=int(starts),
        gated=int(gated), a=dataclasses.replace(memory, place=Place.ONES) if ones else memory, b=memory, c=memory,
        start=memory if resumes else Matrix(Place.WEIGHTS, 0, 0), gate=memory)
    modelled = m * k * n <= _MODELLED * array.rows * array.lanes
    best = (gemm_factors.best_factors if modelled else _estimated)(array.model, job)
    return MappingProxyType({name: getattr(best, name) for name in FACTORS})


def _estimated(model: GemmCycles, job: GemmJob) -> GemmJob:
    """Job whose factors take the fewest cycles by a bound, among those with the fewest beats."""
    few = heapq.nsmallest(_COMPARED, gemm_factors.candidates(model, job),
                          key=lambda found: model.loops.cycles(found.loops))
    return min(few, key=lambda found: bound(model, found))
