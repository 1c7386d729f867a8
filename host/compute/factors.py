"""Factors of a matrix product: how it is cut into panels and tiles."""

import dataclasses
import functools
import itertools

from hdl.compute.array import TILES
from sim.golden.loop_nest import Job, LoopNest
from sim.golden.mac_array import SLOTS

__all__ = ["Array", "best_factors"]

#: Factors of a panel, as base-2 logarithms: of its tiles, and of its terms.
_TILES, _ROUNDS = range(8), range(12)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Array:
    """Array of multiply-accumulate units, and its panels.

    Parameters
    ----------
    rows, lanes : int
        Rows of the array, and its columns, which are the elements of a memory row as well.
    blocks : int
        Blocks of a panel.
    """

    rows: int
    lanes: int
    blocks: int = 128

    @property
    def units(self) -> int:
        """Multiply-adds per cycle."""
        return self.rows * self.lanes


@functools.cache
def best_factors(array: Array, m: int, k: int, n: int, *, starts: bool = False) -> Job:
    """Factors with the least estimate of cycles: of the beats of the array, or of the memory rows if these are more.

    Memory rows that come before the first beat, or for which a smaller next panel leaves no time, are not foreseen.
    A panel has whole memory rows, whichever way its operand is stored.

    Parameters
    ----------
    array : Array
    m, k, n : int
        Sizes of the product.
    starts : bool
        Whether its sums begin with given numbers.
    """
    loops = LoopNest(rows=array.rows, lanes=array.lanes, blocks=array.blocks)
    least: tuple[int, int, int] | None = None
    best = None
    # Factors beyond the first that covers a size change nothing.
    for tile, rounds in itertools.product(range(TILES), _ROUNDS):
        if 1 << rounds < array.lanes or 1 << rounds >= 2 * max(k, array.lanes):
            continue
        rows, columns = array.rows << tile, array.lanes * (SLOTS >> tile)
        for row_tiles, column_tiles in itertools.product(_covering(m, rows), _covering(n, columns)):
            job = Job(m=m, n=n, k=k, tile=tile, row_tiles=row_tiles, column_tiles=column_tiles, rounds=rounds,
                      resume=int(starts))
            if rows << row_tiles < array.lanes or not loops.legal(job):
                continue
            beats, first, loads = loops.cycles(job), *_loads(array, job)
            cost = (max(beats + first, loads), beats, loads)
            if least is None or cost < least:
                least, best = cost, job
    if best is None:
        raise ValueError(f"Panels must have room for {array.lanes} terms of a tile, not {array.blocks} blocks")
    return best


def _covering(size: int, tile: int) -> range:
    """Factors up to the first whose tiles cover a size."""
    return range(min(max(-(-size // tile) - 1, 0).bit_length() + 1, len(_TILES)))


def _loads(array: Array, job: Job) -> tuple[int, int]:
    """Memory rows of the first panels, and of all, with k as the innermost loop."""
    strides = LoopNest(rows=array.rows, lanes=array.lanes, blocks=array.blocks).strides(job)
    panels = {name: -(-getattr(job, name) // strides[name]) for name in "mnk"}
    # A panel that stays is not loaded again: of A with one panel of terms, of B with one of rows as well.
    times = {"m": panels["n"] if panels["k"] > 1 else 1,
             "n": panels["m"] if panels["k"] > 1 or panels["n"] > 1 else 1}
    first = sum(min(getattr(job, name), strides[name]) * -(-min(job.k, strides["k"]) // array.lanes) for name in "mn")
    return first, sum(times[name] * getattr(job, name) * -(-job.k // array.lanes) for name in "mn")
