"""Assessors of a relay: rules that read what sets have left, and change the model.

Rules see reports alone (:class:`~host.relay.run.SetReport`): losses, and zeros and saturations of each layer. So they
decide the same in every run with the same bits.
"""

import collections
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from host.relay.edits import Kind, Structure
from host.relay.run import Assessor, Change, SetReport

__all__ = ["Blind", "Plateau", "Together", "Underflow"]


class Plateau:
    """Add a layer in front of the last one when the loss falls no more.

    Parameters
    ----------
    sets : int
        Sets whose mean loss is compared with that of as many before.
    ratio : float
        The loss falls no more if its mean is above this part of the one before.
    most : int
        Layers that are added at most; behind each, the comparison begins anew.
    """

    def __init__(self, *, sets: int = 15, ratio: float = 0.97, most: int = 1):
        if sets < 1 or most < 0:
            raise ValueError(f"Sets and layers of a plateau must be at least 1 and 0, not {sets!r} and {most!r}")
        self._sets, self._ratio, self._left = sets, ratio, most
        self._losses: collections.deque[float] = collections.deque(maxlen=2 * sets)

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        self._losses.append(report.mean_loss)
        losses = list(self._losses)
        if not self._left or len(losses) < 2 * self._sets:
            return []
        if sum(losses[self._sets:]) <= self._ratio * sum(losses[:self._sets]):
            return []
        self._left -= 1
        self._losses.clear()
        return [(following.layers, Kind.ADD, following.widths[-2])]

    def state(self) -> dict[str, Any]:
        return {"left": self._left, "losses": list(self._losses)}

    def restore(self, state: dict[str, Any]) -> None:
        self._left = state["left"]
        self._losses = collections.deque(state["losses"], maxlen=2 * self._sets)


class Underflow:
    """Widen the format of a layer whose weights become zeros in FETCH.

    Parameters
    ----------
    part : float
        Part of the weights above which a layer has too many zeros.
    sets : int
        Sets one after the other in which it must have too many.
    wider : mapping of str to str
        The next wider format of each format.
    """

    def __init__(self, *, part: float = 0.1, sets: int = 10,
                 wider: Mapping[str, str] = MappingProxyType({"mx4": "mx6"})):
        self._part, self._sets, self._wider = part, sets, wider
        self._count: collections.Counter[int] = collections.Counter()

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        changes: list[Change] = []
        if report.structure.formats != following.formats:  # layers have other numbers, or their formats changed
            self._count.clear()
            return changes
        for layer, counts in sorted(report.fetched.items()):
            self._count[layer] = self._count[layer] + 1 if counts.zero_part > self._part else 0
            name = following.formats[layer - 1]
            if self._count[layer] >= self._sets and name in self._wider:
                changes.append((layer, Kind.FORMAT, self._wider[name]))
                self._count[layer] = 0
        return changes

    def state(self) -> list[list[int]]:
        return [[layer, count] for layer, count in sorted(self._count.items())]

    def restore(self, state: list[list[int]]) -> None:
        self._count = collections.Counter({layer: count for layer, count in state})


class Blind:
    """Widen the formats of all layers as early as can be, whatever a set has left.

    Parameters
    ----------
    sets : int
        Sets before the change is sent.
    wider : mapping of str to str
        The next wider format of each format.
    """

    def __init__(self, *, sets: int = 1, wider: Mapping[str, str] = MappingProxyType({"mx4": "mx6"})):
        self._sets, self._wider = sets, wider

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        if report.number != self._sets - 1:
            return []
        return [(layer, Kind.FORMAT, self._wider[name]) for layer, name in enumerate(following.formats, start=1)
                if name in self._wider]

    def state(self) -> None:
        return None

    def restore(self, state: None) -> None:
        """Do nothing: the number of a set is in its report."""


class Together:
    """Several assessors, of which the first with changes is heard: layers have other numbers behind these."""

    def __init__(self, *assessors: Assessor):
        self._assessors = assessors

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        found = [one.assess(report, following) for one in self._assessors]
        return next((changes for changes in found if changes), [])

    def state(self) -> list[Any]:
        return [one.state() for one in self._assessors]

    def restore(self, state: list[Any]) -> None:
        for one, mine in zip(self._assessors, state, strict=True):
            one.restore(mine)
