"""Golden model of the matrix product: memory rows of its operands, initial values, and results.

Mirrors :mod:`hdl.features.compute.product`.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden import operands as formats
from sim.golden.features.compute.loop_nest import Job, LoopNest, Tile
from sim.golden.features.compute.mac_array import SLOTS, MacArray
from sim.golden.features.compute.panel import Fill
from sim.golden.lazy_table import OnDemand
from sim.golden.operands import FP32, operands_of

__all__ = ["MatrixProduct"]

Bits = npt.NDArray[np.uint32]

#: Array model for operands in block formats.
_BLOCK_ARRAY: OnDemand[Any] = OnDemand(
    "sim.golden.features.block_operands.block_array:BlockArray", lambda array: array)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """Golden model of the matrix product unit."""

    #: Parameters of the gateware unit.
    rows: int
    columns: int
    blocks: int = 128
    product: int = 6  # latency in cycles from elements to their product
    operands: str = FP32  # format of operands

    #: Latency in cycles from a job to the first beat at the panels, from the last row of a panel to a read, and from
    #: a read to the array.
    FIRST = 10
    FILL = 2
    READ = 4

    @property
    def loops(self) -> LoopNest:
        """Model of the unit's loop nest."""
        return LoopNest(rows=self.rows, lanes=self.columns, blocks=self.blocks,
                        terms=operands_of(self.operands).terms)

    @property
    def array(self) -> Any:
        """Model of the unit's array."""
        if operands_of(self.operands).block is not None:
            return _BLOCK_ARRAY.load()(rows=self.rows, columns=self.columns, operands=self.operands)
        return MacArray(rows=self.rows, columns=self.columns, product=self.product, operands=self.operands)

    def fills(self, job: Job, a: Bits, b: Bits, *, by_rows: tuple[bool, bool]) -> dict[str, list[Fill]]:
        """Panels of A, of shape (m, k), and of B, of shape (k, n), in loading order. Each memory row holds part of a
        row or of a column of its matrix."""
        panels: dict[str, list[Fill]] = {"a": [], "b": []}
        stride = self.loops.strides(job)
        for step in self.loops.steps(job):
            panel = step.panel
            if panel is not None and panel.a:
                part = a[panel.m:panel.m + stride["m"], panel.k:panel.k + stride["k"]]
                panels["a"].append(self._fill(part, transposed=by_rows[0]))
            if panel is not None and panel.b:
                part = b.T[panel.n:panel.n + stride["n"], panel.k:panel.k + stride["k"]]
                panels["b"].append(self._fill(part, transposed=not by_rows[1]))
        return panels

    def _fill(self, part: Bits, *, transposed: bool) -> Fill:
        """Return the memory rows of a panel with the given rows and terms."""
        lanes = self.columns
        groups, terms = (-(-length // lanes) for length in part.shape)
        padded = np.zeros((groups * lanes, terms * lanes), np.uint32)
        padded[:part.shape[0], :part.shape[1]] = part
        if transposed:
            outer, inner = (grid.ravel() for grid in np.indices((part.shape[0], terms)))
            blocks, rows = (outer // lanes, inner), outer % lanes
            elements = padded[outer[:, None], inner[:, None] * lanes + np.arange(lanes)]
        else:
            inner, outer = (grid.ravel() for grid in np.indices((part.shape[1], groups)))
            blocks, rows = (outer, inner // lanes), inner % lanes
            elements = padded[outer[:, None] * lanes + np.arange(lanes), inner[:, None]]
        block = np.array([self.loops.block(*pair) for pair in zip(*map(np.ndarray.tolist, blocks), strict=True)])
        return Fill(elements=elements, block=block, row=rows, transposed=np.full(len(rows), transposed))

    def tiles(self, job: Job, a: Bits, b: Bits, c: Bits) -> tuple[list[Tile], Bits, Bits]:
        """Return a job's tiles, the initial values of tiles that request them, and the result rows, in order.

        Elements of tiles beyond the edge of the matrix are set to zero and must be ignored.
        """
        tile_rows, tile_columns = self.rows << job.tile, self.columns * (SLOTS >> job.tile)
        shape = tuple(-(-size // length) * length for size, length in ((job.m, tile_rows), (job.n, tile_columns)))
        states = {0: c if job.resume else np.zeros((job.m, job.n), np.uint32)}
        terms = operands_of(self.operands).terms
        for k in range(0, job.k, terms):
            end = min(k + terms, job.k)
            left, right, before = (np.ascontiguousarray(x).view(np.float32)
                                   for x in (a[:, k:end], b[k:end], states[k]))
            with np.errstate(all="ignore"):
                after = formats.product(left, right, before, operands=self.operands)
            states[end] = after.astype(np.float32).view(np.uint32)
        tiles, initials, results = [], [], []
        rows, groups, slots = self.array.order(job.tile)
        done: dict[tuple[int, int], int] = {}
        for step in self.loops.steps(job):
            for tile, beats in step.tiles:
                if tile is None:
                    continue
                tiles.append(tile)
                begin = done.get((tile.m, tile.n), 0)
                terms = sum(not beat.initial for beat in beats) // SLOTS
                end = begin + terms if tile.partial or beats[-1].last else job.k
                done[tile.m, tile.n] = end
                pieces = []
                for k in (begin, end):
                    padded = np.zeros(shape, np.uint32)
                    padded[:job.m, :job.n] = states[k]
                    corner = padded[tile.m:tile.m + tile_rows, tile.n:tile.n + tile_columns]
                    pieces.append(corner.reshape(tile_rows, -1, self.columns)[rows, groups])
                if tile.initial:
                    # Sorted by row of units, then by slot; values shared by all rows are included once.
                    rounds = 1 if job.common and not tile.again else self.rows
                    initials.append(pieces[0][np.lexsort((slots, rows % self.rows))][:rounds * SLOTS])
                results.append(pieces[1])
        empty = np.zeros((0, self.columns), np.uint32)
        return tiles, np.concatenate([empty, *initials]), np.concatenate(results)

    def cycles(self, job: Job, *, filled: int) -> int:
        """Latency in cycles from the offer of a job to the end of the last result row, if nothing stalls the array
        and the first panels are accepted ``filled`` cycles after the offer."""
        first = max(self.FIRST, filled - 1 + self.FILL) + self.READ
        return first + self.loops.cycles(job) + self.product + SLOTS + 4 + SLOTS * self.rows
