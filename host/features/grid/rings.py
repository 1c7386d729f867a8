"""Rings that a run trains on, one after the other, as nodes, cards and links of a grid leave and come."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from host.driver.protocols import TrainingRing
from host.driver.results import Cycles
from host.features.grid.course import Course
from host.features.grid.grid import Plan, Shape
from host.features.grid.owners import carry_over, hand_over
from host.training.record import Change, DivergenceError, TrainingConfig
from host.training.stages import RingStages

if TYPE_CHECKING:
    from host.features.grid.switching import GridNodes

__all__ = ["Rings"]


class Rings(RingStages):
    """Rings of a grid, stage by stage of a course; the clock has the cycles so far, None where they are not
    modelled."""

    def __init__(self, grid: "GridNodes", course: Course, *, clock: Callable[[], Cycles] = lambda: 0):
        self._grid = grid
        self._course = course
        self._clock = clock
        self.enter(course.at(0))

    @property
    def plan(self) -> Plan:
        return self._course.stages[self.stage].plan

    @property
    def flat(self) -> bool:
        return self.plan.shape is not Shape.GRID

    @property
    def order(self) -> Sequence[int]:
        return self.plan.order

    def enter(self, stage: int) -> TrainingRing:
        self.stage = stage
        plan = self.plan
        self._grid.switch(plan)
        self._grid.counters.clear()
        self.ring = self._grid.ring(plan) if plan.shape is Shape.FLAT else self._grid.rings(plan)
        return self.ring

    def due(self, steps: int) -> bool:
        return self._course.at(steps) != self.stage

    def move(self, steps: int, length: int, config: TrainingConfig) -> Change:
        """Go on to the stage of the next step, and give its nodes what those of the present one have.

        Every command has ended on every node, so that nothing is under way: the switches refuse to change otherwise.
        ``DivergenceError`` if not every word that was sent has been received, ``RingError`` if a packet is under way
        at a node.
        """
        before, old, begun = self.ring, self.plan, self._clock()
        self.balance(steps)
        after = self.enter(self._course.at(steps))
        switched = self._clock()
        carried = carry_over(before, after, config.allocation(length), old=old, new=self.plan)
        return Change(
            step=steps, requests=list(map(str, self._course.stages[self.stage].requests)),
            shape=self.plan.shape.value, nodes=list(self.plan.order), left=list(carried.left),
            joined=list(carried.joined), heirs=[list(pair) for pair in carried.heirs.items()], moved=carried.moved,
            dropped=carried.dropped, switch_cycles=_since(begun, switched),
            carry_cycles=_since(switched, self._clock()))

    def balance(self, steps: int) -> None:
        counters = self._grid.counters.read()
        sent, received = (sum(one[name] for one in counters) for name in ("WORDS_SENT", "WORDS_RECEIVED"))
        if (sent - received) % (1 << 32):
            raise DivergenceError(f"Step {steps}: nodes have sent {sent:,} words since their rings were formed, and "
                                  f"received {received:,}")

    def handed_over(self, arrays: dict[str, Any], old: Plan) -> dict[str, Any]:
        found = dict(arrays)
        for name in ("errors", "residuals"):
            if arrays[name] is not None:
                rows = hand_over(dict(zip(old.order, arrays[name], strict=True)), old, self.plan).rows
                found[name] = np.stack([rows[node] for node in self.plan.order])
        return found

    def forget(self) -> None:
        self._grid.counters.clear()
        self.ring.counters.clear()


def _since(begun: Cycles, ended: Cycles) -> Cycles:
    """Cycles between two times."""
    return None if begun is None or ended is None else ended - begun
