"""Golden model of the cycles of the unit that scales and masks results of a product.

Mirrors :mod:`hdl.compute.scale_mask`; :func:`sim.golden.gemm.epilogue` has its values.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden.stream import Feed, Trace, first_from

__all__ = ["ROWS", "trace"]

#: Rows of results on their way through the unit.
ROWS = 17


def trace(counts: Sequence[int], *, latency: int, announced: npt.ArrayLike, willing: npt.ArrayLike,
          ready: npt.ArrayLike) -> Trace:
    """Handshakes of results, cycle by cycle.

    A row is taken when its tile has been announced in an earlier cycle, the last row of the tile before was taken in
    an earlier cycle, and fewer than :data:`ROWS` are on their way at the begin of the cycle.

    Parameters
    ----------
    counts : sequence of int
        Rows of results of each tile.
    latency : int
        Cycles from a row to its offer.
    announced, willing : array of bool
        Cycles in which the source of tiles, and that of results, may begin to offer its next beat. There are never
        more tiles than the unit has places for.
    ready : array of bool
        Cycles in which the sink is ready.
    """
    tiles, rows = Feed(len(counts), announced), Feed(sum(counts), willing)
    end = rows.end
    first_ready = first_from(ready)
    o_valid, offered = np.zeros(end, np.bool_), np.full(end, -1)
    departed: list[int] = []
    head, taken = 0, -1
    for count in counts:
        head = max(tiles.accept(0) + 1, taken + 1)
        for _ in range(count):
            number = len(departed)
            place = departed[number - ROWS] + 1 if number >= ROWS else 0
            taken = rows.accept(max(head, taken + 1, place))
            offer = min(max(taken + latency, departed[-1] + 1 if departed else 0), end)
            departed.append(first_ready[offer])
            o_valid[offer:departed[-1] + 1] = True
            offered[offer:departed[-1] + 1] = number
    return Trace(rows.valid, rows.ready, o_valid, offered)
