"""Levels of reproducibility: changes that do not affect the bits of sums; see docs/numbers.md."""

import enum

from hdl.compression.registry import GRADIENT_CODECS

__all__ = ["Level", "described_levels", "levels_of_ring"]


class Level(enum.StrEnum):
    """A reproducibility property of gradient sums, in order from weakest to strongest."""

    RUN_TO_RUN = "run to run"
    """The same run has the same bits each time, for every latency and number of threads."""
    ANY_PROCESSOR = "any processor"
    """Gateware, golden nodes and every computer that simulates them give the same bits."""
    ANY_CUT = "any cut"
    """The division of a vector into commands, parts, layers or buckets does not matter."""
    ANY_ORDER = "any order and topology"
    """The positions of nodes, and the rings, grids or trees that connect them, do not matter."""
    ANY_COUNT = "any number of nodes"
    """The number of nodes that the same microbatches are distributed among does not matter."""


def levels_of_ring(gradients: str, *, cut: bool = True, microbatches: bool = False) -> list[Level]:
    """Return the levels of reproducibility of sums on a ring or grid, for a gradient format. ``cut`` is whether sums
    have :data:`ANY_CUT`, and ``microbatches`` is whether each microbatch has its own gradient.

    Sums of integers are rounded once, since a grid adds them in one ring. All other sums are rounded after each
    addition, in the order of the rings. An int16 node adds no sums of other nodes, and saturates after each addition.
    """
    return [Level.RUN_TO_RUN, Level.ANY_PROCESSOR, *([Level.ANY_CUT] if cut else []),
            *([Level.ANY_ORDER] if GRADIENT_CODECS[gradients].agreed else []),
            *([Level.ANY_COUNT] if microbatches else [])]


def described_levels(levels: list[Level]) -> str:
    """Return a sentence for a report that lists the levels which the sums have, and the levels which they lack."""
    missing = ", ".join(level for level in Level if level not in levels)
    return f"Sums have the same bits: {', '.join(levels)}" + (f"; not for {missing}." if missing else ".")
