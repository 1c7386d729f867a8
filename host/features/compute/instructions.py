"""Encoding of the instructions in lists, and the factors that divide a product into panels and tiles."""

import dataclasses
import functools
import heapq
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from hdl.features.compute.engine import BLOCKS
from hdl.features.compute.feature import FP32
from hdl.features.compute.layer_list import BASE_BITS, INSTRUCTION_WORDS, OWNER_BITS, Kind, Place, gemm_layout
from hdl.features.compute.operands import OPERANDS, ScalarOperands
from hdl.group import GROUP
from host.features.compute.memory.plan import Room
from sim.golden.features.compute import gemm, gemm_factors
from sim.golden.features.compute.compute import Engine, pack
from sim.golden.features.compute.gemm import GemmJob
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.golden.features.compute.gemm_estimate import bound

__all__ = ["ADDRESSES", "FACTORS", "Array", "Buffers", "Factors", "Matrix", "Products", "Words", "at", "best_factors",
           "ended", "node_engine", "numbered", "up", "with_strides"]

#: Fields of an instruction and of a job that define the tiling of its product.
FACTORS = ("tile", "row_tiles", "column_tiles", "rounds", "order")

#: Maximum number of terms per unit up to which a product is modelled cycle by cycle, and number of candidate tilings
#: that are compared for larger products.
_MODELLED, _COMPARED = 1 << 14, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Array:
    """Array of multiply-accumulate units, and the size of its panels."""

    rows: int
    lanes: int  # columns, and elements of a memory row
    blocks: int = BLOCKS  # blocks of a panel
    operands: str = FP32  # number format of the operands

    def engine(self, **options: Any) -> Engine:
        """Create a golden engine with this array's properties; ``options`` are passed to :class:`Engine`."""
        return Engine(rows=self.rows, lanes=self.lanes, blocks=self.blocks, operands=self.operands, **options)

    @property
    def model(self) -> GemmCycles:
        """Create the cycle model of a product."""
        form = OPERANDS[self.operands]
        product = {"product": form.product_latency(4)} if isinstance(form, ScalarOperands) else {}
        return GemmCycles(rows=self.rows, lanes=self.lanes, blocks=self.blocks, operands=self.operands, **product)


def node_engine(config: NodeConfig) -> Engine:
    """Create the golden engine of a node."""
    compute = config.compute
    return Engine(rows=compute.rows, lanes=config.lanes, operands=compute.operands, centroids=compute.codebook,
                  scale_mask=compute.scale_mask, sequences=compute.sequences)


@functools.cache
def best_factors(array: Array, sizes: tuple[int, int, int], *, transpose_a: bool = False, transpose_b: bool = False,
                 ones: bool = False, starts: bool = False, gated: bool = False,
                 resumes: bool = False) -> Mapping[str, int]:
    """Find the tiling factors and loop order that take the fewest cycles, without other memory accesses.

    Parameters
    ----------
    sizes : tuple of int
        Number of rows of A, columns of A, and columns of B.
    transpose_a, transpose_b : bool
        Whether the matrix, A or B, is stored transposed.
    ones : bool
        Whether A consists of ones, which are not read.
    starts, resumes : bool
        Whether sums start from values in memory, and whether these values are a matrix rather than a single row.
    gated : bool
        Whether a gate, a matrix with the shape of the product, is read as well.
    """
    m, k, n = sizes
    memory = gemm.Matrix(Place.ACTIVATIONS, 0, -(-max(sizes) // array.lanes))
    job = GemmJob(
        m=m, k=k, n=n, transpose_a=int(transpose_a), transpose_b=int(transpose_b), initial=int(starts),
        gated=int(gated), a=dataclasses.replace(memory, place=Place.ONES) if ones else memory, b=memory, c=memory,
        start=memory if resumes else gemm.Matrix(Place.WEIGHTS, 0, 0), gate=memory)
    modelled = m * k * n <= _MODELLED * array.rows * array.lanes
    best = (gemm_factors.best_factors if modelled else _estimated)(array.model, job)
    return MappingProxyType({name: getattr(best, name) for name in FACTORS})


def _estimated(model: GemmCycles, job: GemmJob) -> GemmJob:
    """Return the tiling with the lowest cycle bound among the few candidates with the fewest beats."""
    few = heapq.nsmallest(_COMPARED, gemm_factors.candidates(model, job),
                          key=lambda candidate: model.loops.cycles(candidate.loops))
    return min(few, key=functools.partial(bound, model))


Words = npt.NDArray[np.uint32]
#: Function that returns the tiling factors of a product, like :func:`best_factors`.
Factors = Callable[..., Mapping[str, int]]
#: An operand and its stride.
Matrix = tuple[dict[str, int], int]

ADDRESSES = 1 << BASE_BITS
"""Number of elements that an operand can address."""


def up(words: int, multiple: int) -> int:
    """Round ``words`` up to a multiple of ``multiple``."""
    return -(-words // multiple) * multiple


def at(memory: Place, base: int, *, relative: bool = False, owner: int = 0) -> dict[str, int]:
    """Return the fields of an operand: memory, address, and buffer number."""
    if base >= ADDRESSES:
        raise ValueError(f"Operands of nodes that compute must begin below element {ADDRESSES:,}, not at {base:,}: "
                         f"take narrower layers or smaller batches")
    return {"place": memory, "base": base, "relative": int(relative), "owner": owner}


def numbered(position: int) -> int:
    """Return the buffer number of an index, counted from 1. If it exceeds the maximum, return 0, which is not
    compared."""
    return position + 1 if position + 1 < 1 << OWNER_BITS else 0


def ended(instructions: Sequence[Words]) -> Words:
    """Join instructions into an instruction list terminated by END and padded with zeros to a whole group."""
    words = np.concatenate([*instructions, np.zeros(INSTRUCTION_WORDS, np.uint32)])
    return np.concatenate([words, np.zeros(-len(words) % GROUP, np.uint32)])


def with_strides(operands: Mapping[str, Matrix]) -> dict[str, Any]:
    """Return instruction fields with the operands and their strides, keyed by field name."""
    return {field: value for name, (operand, stride) in operands.items()
            for field, value in ((name, operand), (f"stride_{name}", stride))}


class Buffers:
    """Activation buffers, each with a number and an address, by default right after the previous buffer."""

    def __init__(self, lanes: int, places: Mapping[str, int] | None):
        self._lanes = lanes
        self._places = places
        self._strides: dict[str, int] = {}
        self._owners: dict[str, int] = {}
        self.rooms: dict[str, Room] = {}

    @property
    def end(self) -> int:
        return max((room.base + room.words for room in self.rooms.values()), default=0)

    def new(self, name: str, rows: int, columns: int) -> Matrix:
        """Create a buffer with rows padded to whole memory rows."""
        stride = up(columns, self._lanes)
        base = self.end if self._places is None else self._places[name]
        self.rooms[name] = Room(base, up(rows * stride, GROUP))
        self._strides[name] = stride
        self._owners[name] = numbered(len(self._owners) + 1)
        return self[name]

    def __getitem__(self, name: str) -> Matrix:
        return self.part(name, 0)

    def part(self, name: str, offset: int) -> Matrix:
        """Return the matrix that starts at the given element of a buffer, with the buffer's stride."""
        return at(Place.ACTIVATIONS, self.rooms[name].base + offset, owner=self._owners[name]), self._strides[name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Products:
    """Encoder of matrix products as instructions for an array."""

    array: Array
    factors: Factors
    length: int  # command length assumed when choosing factors

    def __call__(self, sizes: tuple[int, int, int], *, a: Matrix, b: Matrix, c: Matrix, start: Matrix | None = None,
                 gate: Matrix | None = None, **options: int) -> Words:
        """Encode an m x k by k x n product of strided operands; a size of 0 stands for the command's length."""
        m, k, n = sizes
        resumes = {"resumes": True} if start is not None and start[1] > 0 else {}
        factors = self.factors(
            self.array, (m or self.length, k or self.length, n), transpose_a="transpose_a" in options,
            transpose_b="transpose_b" in options, ones=a[0]["place"] is Place.ONES, starts=start is not None,
            gated=gate is not None, **resumes)
        operands = {"a": a, "b": b, "c": c} | ({} if start is None else {"start": start}) | (
            {} if gate is None else {"gate": gate})
        return pack(gemm_layout(), {
            "kind": Kind.GEMM, "format": OPERANDS[self.array.operands].code, "m": m, "k": k, "n": n,
            "gated": int(gate is not None), **options, **factors, **with_strides(operands)})
