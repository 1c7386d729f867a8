"""Golden model of the block dot product array: tile results and cycle-accurate timing.

Mirrors :mod:`hdl.features.block_operands.block_former`, :mod:`hdl.features.block_operands.block_sums` and
:mod:`hdl.features.block_operands.block_array`.
"""

import dataclasses
import itertools
from collections import deque

import numpy as np
import numpy.typing as npt

from sim.golden import floating
from sim.golden.features.block_operands.operands import block_numbers, block_terms
from sim.golden.features.compute.mac_array import SLOTS, Beats, Results, results_of, tile_order
from sim.golden.features.mx.block_format import BlockFormat
from sim.golden.operands import operands_of
from sim.golden.stream import Feed, Trace

__all__ = ["BANKS", "BlockArray", "BlockUnits"]

Bits = npt.NDArray[np.uint32]

#: Maximum number of tiles with sums in the array.
BANKS = 4


class BlockUnits:
    """Cycle-accurate state of a ``rows`` by ``columns`` array with blocks of ``block`` elements; scales arrive
    ``delay`` cycles after exponents."""

    SKID = 2

    def __init__(self, rows: int, columns: int, block: int, delay: int) -> None:
        # Cycles per block, and latency from the decision to read a tile's last block to the complete tile.
        self._block, self._cycles = block, block * SLOTS
        self._to_complete = 7 + block + 4 + delay + self._cycles + 4 + 7
        self.leaving: deque[int] = deque()  # result rows in the skid buffer: 1 for the last row of a tile, else 0
        self._columns, self._elements = columns, SLOTS * rows * columns
        self._slot, self._term, self._begun = 0, 0, False
        # For each half of the element memory: None if empty, else whether its block begins and ends a tile.
        self._filled: list[tuple[bool, bool] | None] = [None, None]
        self._writes, self._reads, self._current = 0, 0, 0
        self._count: int | None = None
        self._held, self._waiting, self._number = 0, 0, 0
        self._complete: deque[int] = deque()
        # Drain stages: whether the element read ends a row and the tile; whether a complete row ends the tile.
        self._read: tuple[bool, int] | None = None
        self._whole: int | None = None

    def step(self, cycle: int, take: bool) -> bool:
        """Advance by one cycle, taking a result row if ``take``; return whether a beat can be accepted."""
        ready = self._filled[self._writes] is None
        held = self._held
        if self._complete and self._complete[0] <= cycle:
            self._complete.popleft()
            self._waiting += 1
        free = len(self.leaving) < self.SKID
        if take:
            self.leaving.popleft()
        if free:
            if self._whole is not None:
                self.leaving.append(self._whole)
            self._whole = self._read[1] if self._read is not None and self._read[0] else None
            self._read = None
            if self._waiting:
                ends = self._number == self._elements - 1
                self._read = self._number % self._columns == self._columns - 1, int(ends)
                self._number = 0 if ends else self._number + 1
                self._waiting -= ends
                self._held -= ends
        final, frees = self._count == self._cycles - 1, self._count == self._cycles - 2
        following = self._filled[self._reads]
        go = (self._count is None or final) and following is not None and (held < BANKS or not following[0])
        current = self._current
        if self._count is not None:
            self._count = None if final else self._count + 1
        if go and following is not None:
            self._count, self._current, self._reads = 0, self._reads, 1 - self._reads
            self._held += following[0]
            if following[1]:
                self._complete.append(cycle + self._to_complete)
        if frees:
            self._filled[current] = None
        return ready

    def accept(self, *, initial: bool, last: bool) -> None:
        """Accept a beat in the cycle of the most recent step."""
        ends, self._slot = self._slot == SLOTS - 1, (self._slot + 1) % SLOTS
        if initial or not ends:
            return
        self._term += 1
        if self._term == self._block or last:
            self._filled[self._writes] = not self._begun, last
            self._begun, self._writes, self._term = not last, 1 - self._writes, 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockArray:
    """Block dot product array of ``rows`` by ``columns`` units."""

    #: Parameters of the gateware unit.
    rows: int
    columns: int
    operands: str  # operand format; must be a block format

    @property
    def _model(self) -> BlockFormat:
        model: BlockFormat | None = operands_of(self.operands).block
        if model is None:
            raise ValueError(f"Operands of an array of blocks must have blocks, not {self.operands}")
        return model

    def order(self, tile: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Order of a tile's results: see :func:`~sim.golden.features.compute.mac_array.tile_order`."""
        return tile_order(self.rows, tile)

    def results(self, beats: Beats) -> Results:
        """Compute the result rows of all complete tiles of a sequence of beats."""
        ends = np.flatnonzero(beats.last.reshape(-1, SLOTS)[:, 0]) + 1
        tiles: list[tuple[Bits, int]] = []
        for begin, end in itertools.pairwise((0, *ends)):
            part = slice(begin * SLOTS, end * SLOTS)
            local = Beats(**{field.name: getattr(beats, field.name)[part] for field in dataclasses.fields(Beats)})
            tiles.append((self._tile(local), int(local.tile[0])))
        return results_of(tiles, rows=self.rows, columns=self.columns)

    def _tile(self, beats: Beats) -> Bits:
        """Compute the sums of a tile, with shape (slots, rows, columns)."""
        total = np.zeros((SLOTS, self.rows, self.columns), np.uint32)
        initial = beats.initial.reshape(-1, SLOTS)[:, 0]
        a, b, taken = (x.reshape(-1, SLOTS, x.shape[1]) for x in (beats.a, beats.b, beats.rows))
        for number in np.flatnonzero(initial):
            total = np.where(taken[number][:, :, None], b[number][:, None, :], total)
        a, b = (np.moveaxis(x[~initial], 0, -1) for x in (a, b))  # shape (slots, rows or columns, terms)
        (left, left_exponents), (right, right_exponents) = (block_terms(self._model, np.ascontiguousarray(x))
                                                            for x in (a, b))
        for block in range(left.shape[-2]):
            totals = left[..., block, :] @ np.swapaxes(right[..., block, :], -1, -2)
            numbers = block_numbers(self._model, totals, left_exponents[..., :, None, block],
                                    right_exponents[..., None, :, block])
            total = floating.add(numbers.view(np.uint32), total)
        return total

    def trace(self, beats: Beats, *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
        """Trace every cycle from reset, with a source and a sink that may stall. ``willing`` gives the cycles when
        the source may start to offer a beat, and ``ready`` the cycles when the sink is ready."""
        feed, sink = Feed(len(beats), willing), np.asarray(ready, np.bool_)
        units = BlockUnits(self.rows, self.columns, self._model.block, operands_of(self.operands).delay)
        offered = np.full(feed.end, -1, np.int64)
        count, row = 0, 0
        for cycle in range(feed.end):
            take = False
            if units.leaving:
                offered[cycle] = row
                take = bool(sink[cycle])
                row += take
            feed.ready[cycle] = units.step(cycle, take)
            if feed.ready[cycle] and feed.offered <= cycle:
                units.accept(initial=bool(beats.initial[count]), last=bool(beats.last[count]))
                count += 1
                feed.take(cycle)
        return Trace(feed.valid, feed.ready, offered >= 0, offered)
