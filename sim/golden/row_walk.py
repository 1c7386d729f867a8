"""Golden model of walks through the rows of memory of a part of a matrix, and of rows that are fetched ahead.

Mirrors :mod:`hdl.compute.row_walk` and :mod:`hdl.compute.row_fetch`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden.stream import Feed, Output, Trace, first_from

__all__ = ["Step", "Walk", "fetch", "steps", "trace"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walk:
    """Walk: first row, rows from line to line, last line and group, lines and groups inside, mask of the last one."""

    row: int
    pitch: int
    line: int
    group: int
    lines: int
    edge: int
    mask: int
    tag: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Step of a walk."""

    row: int
    line: int
    group: int
    keep: int
    last: int
    tag: int


def steps(walk: Walk, lanes: int) -> list[Step]:
    """Steps of a walk, in order."""
    found = []
    for line in range(walk.line + 1):
        for group in range(walk.group + 1):
            inside = line < walk.lines and group <= walk.edge
            keep = walk.mask if group == walk.edge else (1 << lanes) - 1
            found.append(Step(row=walk.row + line * walk.pitch + group, line=line, group=group, keep=keep * inside,
                              last=int(line == walk.line and group == walk.group), tag=walk.tag))
    return found


def trace(walks: Sequence[Walk], *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
    """Trace every cycle of the handshakes of a walk, from reset: a step is offered when the one before departs."""
    feed, output = Feed(len(walks), willing), Output(ready)
    for walk in walks:
        loaded = feed.accept(output.departed)
        for number in range((walk.line + 1) * (walk.group + 1)):
            output.load(loaded if number == 0 else output.departed)
    feed.accept(output.departed)
    return Trace(feed.valid, feed.ready, output.offered >= 0, output.offered)


def fetch(reads: Sequence[bool], *, depth: int, latency: int, willing: npt.ArrayLike, free: npt.ArrayLike,
          ready: npt.ArrayLike) -> Trace:
    """Trace every cycle of the handshakes of a fetch, from reset; ``i_ready`` is set where a row is taken.

    Parameters
    ----------
    reads : sequence of bool
        Per row, whether it is read.
    depth, latency : int
        Places, and cycles from a request to its answer.
    willing, free, ready : array of bool
        Per cycle, whether the source may begin to offer a row, a request is accepted, and the sink is ready.
    """
    feed, output, requests = Feed(len(reads), willing), Output(ready), first_from(free)
    departed: list[int] = []
    i_ready = np.zeros(feed.end, np.bool_)
    accepted = -1
    for number, read in enumerate(reads):
        room = departed[number - depth] + 1 if number >= depth else 0
        room = max(room, accepted + 1)
        wanted = min(max(feed.offered, room), feed.end)
        accepted = requests[wanted] if read else wanted
        if accepted >= feed.end:
            break
        i_ready[accepted] = True
        feed.take(accepted)
        output.load(max(accepted + latency if read else accepted, output.departed))
        departed.append(output.departed)
    return Trace(feed.valid, i_ready, output.offered >= 0, output.offered)
