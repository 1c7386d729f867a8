"""Predictions against what simulated rings take: errors of every measured point."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from host.cycles.costs import CountedCosts
from host.cycles.timing import timing_of
from host.cycles.walk import walk, walk_costs
from host.predict.points import FORMATS, Point, config_of, gradients
from host.program.estimate import Collective

__all__ = ["WORST", "Compared", "compare", "summary"]

#: Largest error that a point may have; those beyond it are listed.
WORST = 0.05


@dataclasses.dataclass(frozen=True)
class Compared:
    """A measured point, and the cycles and words that are predicted for it."""

    point: Point
    cycles: int
    words: int

    @property
    def error(self) -> float:
        """Predicted cycles less measured ones, in terms of these."""
        return self.cycles / self.point.cycles - 1

    @property
    def line(self) -> str:
        """The point as a line."""
        point = self.point
        return (f"{point.kind.name.lower()}, {point.form}, N={point.nodes}, K={point.length:,}, links of "
                f"{point.latency}: {point.cycles:,} cycles, {self.cycles:,} predicted, {self.error:+.1%}")


def compare(points: Sequence[Point], *, counted: bool = False) -> list[Compared]:
    """Predict points that were measured.

    Zeros are expected by the density of the format or, ``counted``, counted in the gradients that were summed.
    """
    found = []
    for point in points:
        form = FORMATS[point.form]
        timing = timing_of(config_of(form, point.nodes))
        if counted and form.density < 1:
            costs = CountedCosts(form, gradients(point), segment=timing.segment,
                                 sums=point.kind is Collective.ALL_REDUCE)
            one = walk_costs(point.kind, costs, timing, latency=point.latency)
        else:
            one = walk(point.kind, form, timing, length=point.length, nodes=point.nodes, latency=point.latency)
        found.append(Compared(point, one.cycles, one.words))
    return found


def _groups(compared: Sequence[Compared]) -> Iterator[tuple[str, list[Compared]]]:
    """Points in all, and by what they have in common."""
    yield "all", list(compared)
    for title, of in (("", lambda point: f"{point.kind.name.lower()}, {point.form}"),
                      ("N=", lambda point: point.nodes), ("K=", lambda point: point.length),
                      ("links of ", lambda point: point.latency)):
        groups: dict[str | int, list[Compared]] = {}
        for one in compared:
            groups.setdefault(of(one.point), []).append(one)
        for key in sorted(groups, key=lambda key: (isinstance(key, str), key)):
            yield f"{title}{key:,}" if isinstance(key, int) else key, groups[key]


def summary(compared: Sequence[Compared]) -> list[tuple[str, int, float, float]]:
    """Groups of points: name, number, mean and largest error."""
    return [(name, len(group), statistics.mean(abs(one.error) for one in group),
             max(abs(one.error) for one in group)) for name, group in _groups(compared)]
