"""Golden model of the multiply-accumulate array: the sums in its slots and its cycle timing.

Mirrors :mod:`hdl.features.compute.multiply_accumulate` and :mod:`hdl.features.compute.array`.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sim.golden import floating
from sim.golden.operands import FP32, operands_of
from sim.golden.stream import Feed, Trace, first_from

__all__ = ["SLOTS", "Beats", "MacArray", "MacUnits", "Results", "accumulate", "concatenate", "results_of",
           "tile_order"]

#: Number of sums per unit, which is also the number of beats per round.
SLOTS = 8

Bits = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

_NEGATIVE = np.uint32(0x8000_0000)


def accumulate(total: npt.ArrayLike, a: npt.ArrayLike, b: npt.ArrayLike, *, first: npt.ArrayLike = False,
               negative: npt.ArrayLike = False, bubble: npt.ArrayLike = False,
               initial: npt.ArrayLike = False, operands: str = FP32) -> Bits:
    """Add one term to the sums, as bit patterns, rounding both the product and the sum.

    The term is the product of ``a`` and ``b``, which are in format ``operands``. A ``first`` term is added to +0.0,
    or to -0.0 if it is also ``negative``. A ``bubble`` adds -0.0 instead of the product, and an ``initial`` term is
    ``b`` itself.
    """
    zero = np.where(negative, _NEGATIVE, np.uint32(0))
    term = np.where(initial, np.asarray(b, np.uint32), operands_of(operands).multiply(a, b))
    term = np.where(bubble, _NEGATIVE, term)
    return floating.add(term, np.where(first, zero, np.asarray(total, np.uint32)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beats:
    """Operand beats of the array, in complete rounds of eight."""

    a: Bits  # shape (beats, rows)
    b: Bits  # shape (beats, columns)
    rows: Flags  # whether each row is used, with shape (beats, rows)
    #: Flags and tile number, with one value for each beat.
    initial: Flags
    first: Flags
    last: Flags
    tile: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.a)


def concatenate(parts: list[Beats]) -> Beats:
    """Concatenate several sequences of operand beats."""
    fields = [field.name for field in dataclasses.fields(Beats)]
    return Beats(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in fields})


@dataclasses.dataclass(frozen=True)
class Results:
    """Result rows in output order: elements, row and group in the tile, and whether they end the tile."""

    elements: Bits
    row: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    last: Flags


def tile_order(rows: int, tile: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return row in the tile, column group and slot of each result row, in output order, for an array with ``rows``
    rows."""
    groups = SLOTS >> tile
    row, group = (grid.ravel() for grid in np.indices((rows << tile, groups)))
    return row, group, row // rows * groups + group


def results_of(tiles: Iterable[tuple[Bits, int]], *, rows: int, columns: int) -> Results:
    """Return the results of consecutive tiles. A tile is given as a pair of its sums, of shape (slots, rows,
    columns), and its form."""
    empty = np.zeros(0, np.int64)
    parts = [(np.zeros((0, columns), np.uint32), empty, empty, empty.astype(np.bool_))]
    for totals, tile in tiles:
        row, group, slot = tile_order(rows, tile)
        parts.append((totals[slot, row % rows], row, group, np.arange(len(row)) == len(row) - 1))
    return Results(*(np.concatenate(column) for column in zip(*parts, strict=True)))


class MacUnits:
    """Cycle-accurate model of the array with ``rows`` rows of units and a multiplier latency of ``product``
    cycles."""

    SKID, BANKS = 2, 2

    def __init__(self, rows: int, product: int) -> None:
        self.leaving: deque[int] = deque()  # rows of results in the skid buffer: 1 for the last row of a tile, else 0
        self._rows, self._product = rows, product
        self._slot = 0
        self._held: tuple[bool, bool] | None = None  # whether the held beat begins or ends a last round
        self._issued, self._fresh, self._banks = 0, True, 0
        self._complete: deque[int] = deque()
        self._waiting, self._number = 0, 0
        self._stages: list[int | None] = [None] * 2  # row in each drain stage: 1 for the last of a tile, else 0

    def step(self, cycle: int, take: bool) -> bool:
        """Advance by one cycle, accepting a result row if ``take``; return whether a beat can be accepted."""
        if self._complete and self._complete[0] <= cycle:
            self._complete.popleft()
            self._waiting += 1
        banks = self._banks
        free = len(self.leaving) < self.SKID
        if take:
            self.leaving.popleft()
        if free:
            if self._stages[1] is not None:
                self.leaving.append(self._stages[1])
            banks -= self._stages[0] == 1
            entering = None
            if self._waiting:
                entering = int(self._number == SLOTS * self._rows - 1)
                self._number = 0 if entering else self._number + 1
                self._waiting -= entering
            self._stages = [entering, self._stages[0]]
        held = self._held
        if held is not None and (self._fresh or (cycle - self._issued) % SLOTS == 1) and not (
                held[0] and self._banks == self.BANKS):
            banks += held[0]
            self._fresh, self._issued, self._held = held[1], cycle, None
            if held[1]:
                self._complete.append(cycle + self._product + SLOTS + 1)
        self._banks = banks
        return self._held is None

    def accept(self, *, initial: bool, last: bool) -> None:
        """Accept a beat in the cycle of the latest :meth:`step`."""
        self._held = last and self._slot == 0, last and self._slot == SLOTS - 1
        self._slot = (self._slot + 1) % SLOTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class MacArray:
    """Multiply-accumulate array of ``rows`` by ``columns`` units."""

    #: Parameters of the gateware unit.
    rows: int
    columns: int
    product: int = 6  # latency in cycles from elements to their product
    operands: str = FP32  # format of operands

    #: Latency in cycles from issuing a beat until its sum is stored, excluding the multiplier's latency.
    STORE = SLOTS

    def order(self, tile: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Output order of a tile's results; see :func:`tile_order`."""
        return tile_order(self.rows, tile)

    def results(self, beats: Beats) -> Results:
        """Compute the result rows of all complete tiles of a sequence of beats."""
        rounds = len(beats) // SLOTS
        totals = np.zeros((SLOTS, self.rows, self.columns), np.uint32)
        tiles: list[tuple[Bits, int]] = []
        for start in range(0, rounds * SLOTS, SLOTS):
            part = slice(start, start + SLOTS)
            initial = beats.initial[part, None, None]
            totals = accumulate(
                totals, beats.a[part, :, None], beats.b[part, None, :], first=beats.first[part, None, None],
                negative=initial, initial=initial, bubble=~beats.rows[part, :, None], operands=self.operands)
            if beats.last[start]:
                tiles.append((totals, int(beats.tile[start])))
        return results_of(tiles, rows=self.rows, columns=self.columns)

    def trace(self, last: npt.ArrayLike, *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
        """Trace every cycle from reset. ``willing`` gives the cycles when the source may start to offer its next
        beat, ``ready`` the cycles when the sink is ready, and ``last`` the beats in the last round of a sum.

        A beat is accepted when the previous beat is issued, and can be issued from the next cycle on: in any cycle if
        no sum is in progress, otherwise 1, 9, 17, … cycles after the previous beat. The first beat of a last round
        also waits for a free bank: tiles alternate between two banks, and a bank is free once its last row has been
        read.
        """
        final = np.asarray(last, np.bool_)
        feed, drain = Feed(len(final), willing), _Drain(ready, SLOTS * self.rows)
        issued, fresh = 0, True
        for beat in range(len(final)):
            accepted = feed.accept(issued)
            earliest = accepted + 1
            if beat % SLOTS == 0 and final[beat]:
                earliest = max(earliest, drain.room)
            if not fresh:
                earliest += (issued + 1 - earliest) % SLOTS
            if accepted >= feed.end:
                break
            issued = min(earliest, feed.end)
            fresh = beat % SLOTS == SLOTS - 1 and bool(final[beat])
            if fresh:
                drain.tile(issued + self.product + self.STORE + 1)
        else:
            feed.accept(issued)
        return Trace(feed.valid, feed.ready, drain.offered >= 0, drain.offered)


class _Drain:
    """Drain of complete tiles. A stage for the row's position and a stage for the result advance together, and are
    followed by a skid buffer."""

    BANKS = 2

    def __init__(self, ready: npt.ArrayLike, length: int) -> None:
        self._ready = first_from(ready)
        self._length = length
        self._end = len(self._ready) - 1
        self.offered = np.full(self._end, -1, np.int64)  # index of the row offered in each cycle, or -1
        self._rows, self._placed, self._departed = 0, -1, -1
        # Periods in which the skid buffer was full, for the latest rows: (first cycle, cycle after the last).
        self._full: list[tuple[int, int]] = []
        self._read: list[int] = []

    @property
    def room(self) -> int:
        """First cycle when a bank is free for the next tile."""
        return 0 if len(self._read) < self.BANKS else self._read[-self.BANKS] + 1

    def tile(self, complete: int) -> None:
        """Drain a tile that is complete as of cycle ``complete``."""
        self._read.append([self._row(complete) for _ in range(self._length)][-1])

    def _row(self, cycle: int) -> int:
        """Drain a row, starting no earlier than ``cycle``; return the cycle when its result is read."""
        self._placed = self._move(max(cycle, self._placed + 1))
        read = self._move(self._placed + 1)
        accepted = self._move(read + 1)
        offered = min(max(accepted, self._departed) + 1, self._end)
        before, self._departed = self._departed, self._ready[offered]
        self.offered[offered:self._departed + 1] = self._rows
        self._rows += 1
        # Older rows can no longer delay the drain.
        self._full = [*self._full[-3:], (accepted + 1, before + 1)]
        return read

    def _move(self, cycle: int) -> int:
        """Return the first cycle from ``cycle`` on in which the stages move."""
        for first, after in self._full:
            if first <= cycle:
                cycle = max(cycle, after)
        return cycle
