"""Golden model of the dot product of blocks: exact integers, and every cycle."""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden.block_cycles import Output
from sim.golden.block_format import BlockFormat, Blocks
from sim.golden.stream import Feed

__all__ = ["DotProducts", "Trace", "dot_product", "trace_dot_product"]

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class DotProducts:
    """Results of pairs of blocks: sums of the stored exponents, exact totals, and flags of NaNs."""

    exponents: Integers
    totals: list[int]
    nan: Flags


def dot_product(model: BlockFormat, a: Blocks, b: Blocks) -> DotProducts:
    """Dot product of each pair of blocks, in units of the smallest product of two elements.

    The unit is the square of the smallest number of the format, in subsets with the largest differences.
    """
    guard = (1 << model.difference_bits) - 1
    factors = []
    nan = np.zeros(len(a.exponents), np.bool_)
    for blocks in (a, b):
        numbers = model.integers(blocks.codes)
        if model.difference_bits:
            numbers = numbers << guard - np.repeat(blocks.differences, model.subset, axis=1)
        factors.append(numbers.tolist())
        magnitude = blocks.codes & (1 << model.magnitude_bits) - 1
        nan |= blocks.exponents == model.nan
        if model.infinities:
            nan |= ((magnitude >> model.fraction_bits) == model.top_field + 1).any(axis=1)
        if model.nan_magnitude is not None:
            nan |= (magnitude == model.nan_magnitude).any(axis=1)
    totals = [sum(left * right for left, right in zip(*rows, strict=True)) for rows in zip(*factors, strict=True)]
    return DotProducts(a.exponents + b.exponents, totals, nan)


@dataclasses.dataclass(frozen=True)
class Trace:
    """Handshakes, cycle by cycle; ``offered`` is the index of the result on offer, or -1."""

    a_valid: Flags
    a_ready: Flags
    b_valid: Flags
    b_ready: Flags
    o_valid: Flags
    offered: Integers


def trace_dot_product(model: BlockFormat, beats: int, *, lanes: int, latency: int, a_willing: npt.ArrayLike,
                      b_willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
    """Trace every cycle of a dot product.

    Parameters
    ----------
    model : BlockFormat
    beats : int
        Beats of each stream.
    lanes : int
        Elements per beat.
    latency : int
        Latency of the unit, in cycles.
    a_willing, b_willing : array of cycles
        Whether each source may begin to offer its next beat.
    ready : array of cycles
        Whether the sink is ready.
    """
    a, b, output = Feed(beats, a_willing), Feed(beats, b_willing), Output(ready)
    end = output.end
    moves = np.zeros(end, np.bool_)
    inside: list[int] = []
    now, taken = 0, 0
    while now < end:
        moves[now] = True
        if max(a.offered, b.offered) <= now:
            a.take(now)
            b.take(now)
            taken += 1
            if taken % (model.block // lanes) == 0:
                inside.append(latency)
        inside = [left - 1 for left in inside]
        following = now + 1
        if inside and inside[0] == 0:
            inside.pop(0)
            following = output.take(now + 1)
        now = following
    return Trace(a.valid, moves & b.valid, b.valid, moves & a.valid, output.offered >= 0, output.offered)
