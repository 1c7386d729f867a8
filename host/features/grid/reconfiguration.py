"""Reconfiguration plan of a grid: which parts leave or join between steps, and the resulting rings.

Example
-------
::

    reconfiguration = ReconfigurationPlan(2, 4, [Request.parse("card1@40"), Request.parse("card1@80", enable=True)])
    [len(stage.plan.active) for stage in reconfiguration.stages]  # [8, 4, 8] reconfiguration.at(40)  # 1, the stage
    of the step after step 40
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hdl.compression.registry import GRADIENT_CODECS, ZERO_VALUE
from hdl.config import NodeConfig
from host.driver.protocols import TrainingRing
from host.driver.results import Cycles
from host.features.grid.grid import Part, Plan, Shape, Topology, TopologyError
from host.features.grid.owners import carry_over, hand_over
from host.features.grid.switching import GridNodes, check_formats
from host.run.sections import Ring
from host.training.checkpoint import ADVICE, CheckpointError
from host.training.record import Change, DivergenceError, TrainingConfig
from host.training.stages import RingStages
from host.training.updates import check_run
from host.training.workloads import Workload

__all__ = ["ReconfigurationPlan", "Request", "Rings", "Stage", "grid_size", "reconfiguration_plan"]

SHAPES = (Shape.GRID, Shape.FLAT)  # shapes of rings in which all nodes train the same model


def grid_size(text: str) -> tuple[int, int]:
    """Parse a grid size such as ``2x4`` into rows and columns."""
    match = re.fullmatch(r"(\d{1,3})x(\d{1,3})", text)
    if not match:
        raise ValueError(f"Topology must be rows and columns like 2x4, not {text!r}")
    return int(match[1]), int(match[2])


@dataclasses.dataclass(frozen=True)
class Request:
    """Request to disable or enable a part of the grid after a number of steps."""

    step: int
    part: Part
    enable: bool = False

    @classmethod
    def parse(cls, text: str, *, enable: bool = False) -> "Request":
        """Parse a request: ``card1@40`` disables or enables card 1 after 40 steps; 0 is before the first step."""
        part, at, step = text.partition("@")
        if not at or not re.fullmatch(r"\d{1,12}", step):
            raise ValueError(f"Request must be a part and a number of steps like card1@40, node5@0 or link5:0@60, "
                             f"not {text!r}")
        return cls(int(step), Part.parse(part), enable)

    def __str__(self) -> str:
        return f"{'enable' if self.enable else 'disable'} {self.part}"


@dataclasses.dataclass(frozen=True)
class Stage:
    """Rings for the steps between two reconfigurations."""

    step: int  # number of steps before the stage
    requests: tuple[Request, ...]  # requests that take effect at the start of the stage
    plan: Plan
    why_flat: str | None = None  # why the ring is flat, if no shape was requested

    def __str__(self) -> str:
        nodes = len(self.plan.active)
        rings = f"{nodes} node{'s' if nodes > 1 else ''}, {self.plan.shape.value}"
        return f"{rings} ({self.why_flat})" if self.why_flat else rings


class ReconfigurationPlan:
    """Rings of a grid over all steps of a run.

    Requests for the same step are applied together; an impossible request raises ``TopologyError``. ``shape`` is
    ``FLAT``, or ``GRID`` for two-dimensional sums. The default is ``GRID`` if the enabled nodes form complete rows
    and columns, at least two of each, with all links enabled; otherwise it is ``FLAT``. The default is also ``FLAT``
    if the format of ``gradients`` sums integers, which must be rounded only once.
    """

    def __init__(self, rows: int, columns: int, requests: Sequence[Request] = (), shape: Shape | None = None, *,
                 gradients: str = ZERO_VALUE):
        if shape is not None and shape not in SHAPES:
            possible = " or ".join(option.value for option in SHAPES)
            raise ValueError(f"Shape must be {possible} for nodes that train one model, not {shape.value}: rings of "
                             f"that shape are apart, and have no sum in common")
        self.rows, self.columns, self.shape = rows, columns, shape
        self.requests = tuple(sorted(requests, key=lambda request: request.step))
        grid = Topology(rows, columns)
        stages = []
        for step in sorted({0, *(request.step for request in requests)}):
            wanted = tuple(request for request in self.requests if request.step == step)
            when = f"After step {step}" if step else "Before step 1"
            try:
                grid = _changed(grid, wanted)
                plan, why_flat = _plan(grid, shape, gradients)
            except ValueError as error:
                if not wanted:
                    raise
                raise TopologyError(f"{when}, {' and '.join(map(str, wanted))}: {error}") from None
            stages.append(Stage(step, wanted, plan, why_flat))
        self.stages = tuple(stages)

    @property
    def fewest(self) -> int:
        """Number of nodes in the smallest stage, where each node must store the most."""
        return min(len(stage.plan.active) for stage in self.stages)

    @property
    def most(self) -> int:
        """Number of nodes in the largest stage."""
        return max(len(stage.plan.active) for stage in self.stages)

    def at(self, steps: int) -> int:
        """Return the index of the stage that is active for the step after ``steps`` steps."""
        return max(number for number, stage in enumerate(self.stages) if stage.step <= steps)

    def check(self, total: int) -> None:
        """Raise ``TopologyError`` unless a step follows each request in a run of ``total`` steps."""
        for request in self.requests:
            if request.step >= total:
                raise TopologyError(f"Request to {request} must be after at most {total - 1} of the run's {total} "
                                    f"steps, so that a step follows, not after {request.step}")

    def check_run(self, node: NodeConfig, task: Workload, config: TrainingConfig) -> None:
        """Raise ``ValueError`` unless the nodes of every stage support the run."""
        self.check(config.steps(task.examples))
        for stage in self.stages:
            check_formats(stage.plan, node)
        for nodes in sorted({len(stage.plan.active) for stage in self.stages}):
            check_run(node, task, config, nodes=nodes)

    def check_past(self, content: dict[str, Any], path: str) -> None:
        """Raise ``CheckpointError`` unless the checkpoint's run had the same requests up to its last step."""
        done = None if content["run"] else content["state"]["batches"]["number"]
        there, here = ({text for text in texts if done is None or int(text.rpartition("@")[2]) < done}
                       for texts in (content["requests"], self.texts()))
        if there != here:
            until = "" if done is None else f" before step {done + 1}"
            named = [", ".join(sorted(texts)) or "none" for texts in (there - here, here - there)]
            raise CheckpointError(f"{path} must be of a run with the same changes{until}, not with {named[0]} (here "
                                  f"{named[1]}); take those, or {ADVICE}")

    @property
    def lines(self) -> list[str]:
        """Return lines that describe the rings of all stages."""
        return [f"topology: {self.rows} x {self.columns} nodes",
                *(f"  from step {stage.step + 1}{', ' * bool(stage.requests)}"
                  f"{' and '.join(map(str, stage.requests))}: {stage}" for stage in self.stages)]

    def texts(self) -> list[str]:
        """All requests as strings."""
        return [f"{request}@{request.step}" for request in self.requests]


def reconfiguration_plan(ring: Ring, gradients: str) -> ReconfigurationPlan:
    """Create a run's plan from its options and its format of gradients; raises ``ValueError`` if a request is
    malformed or impossible."""
    rows, columns = grid_size(ring.topology or "")
    NodeConfig().check_ring(rows * columns)
    if ring.nodes is not None and ring.nodes != rows * columns:
        raise ValueError(f"Nodes must be {rows * columns} with --topology {ring.topology}, not {ring.nodes}: leave "
                         f"out --nodes")
    requests = [Request.parse(text.strip(), enable=enables)
                for option, enables in ((ring.disable, False), (ring.enable, True)) if option
                for text in option.split(",")]
    return ReconfigurationPlan(rows, columns, requests, None if ring.shape is None else Shape(ring.shape),
                               gradients=gradients)


def _changed(grid: Topology, requests: Sequence[Request]) -> Topology:
    """Apply requests to a grid; raises ``TopologyError`` if a request would change nothing."""
    for request in requests:
        if request.enable and request.part not in grid.disabled:
            grid.enable(request.part)  # raises an error if the part is not in the grid
            off = ", ".join(sorted(map(str, grid.disabled))) or "nothing"
            raise TopologyError(f"{request.part} must be disabled to be enabled; {off} is")
        if not request.enable and request.part in grid.disabled:
            raise TopologyError(f"{request.part} must be enabled to be disabled, and is disabled already")
        grid = grid.enable(request.part) if request.enable else grid.disable(request.part)
    return grid


def _plan(grid: Topology, shape: Shape | None, gradients: str) -> tuple[Plan, str | None]:
    """Plan the rings of the enabled nodes; also return the reason if the default has to be a flat ring."""
    if shape is not None:
        return grid.plan(shape), None
    rows, columns = ({divmod(node, grid.columns)[axis] for node in grid.enabled_nodes} for axis in (0, 1))
    if min(len(rows), len(columns)) < 2:
        return grid.plan(Shape.FLAT), None
    if GRADIENT_CODECS[gradients].agreed:
        return grid.plan(Shape.FLAT), f"{gradients} sums integers in one ring"
    try:
        return grid.plan(Shape.GRID), None
    except TopologyError as error:
        return grid.plan(Shape.FLAT), str(error).partition(": ")[0]


class Rings(RingStages):
    """Rings of a grid, stage by stage; ``clock`` returns the cycles so far, or None without a cycle model."""

    def __init__(self, grid: GridNodes, reconfiguration: ReconfigurationPlan, *,
                 clock: Callable[[], Cycles] = lambda: 0):
        self._grid = grid
        self._reconfiguration = reconfiguration
        self._clock = clock
        self.enter(reconfiguration.at(0))

    @property
    def plan(self) -> Plan:
        return self._reconfiguration.stages[self.stage].plan

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
        return self._reconfiguration.at(steps) != self.stage

    def move(self, steps: int, length: int, config: TrainingConfig) -> Change:
        """Enter the stage of the next step, and copy all vectors from the current nodes to the new ones.

        All commands must have ended on all nodes. Raises ``DivergenceError`` if words were sent but not received, and
        ``RingError`` if a node still holds a packet in transit.
        """
        before, old, begun = self.ring, self.plan, self._clock()
        self.balance(steps)
        after = self.enter(self._reconfiguration.at(steps))
        switched = self._clock()
        carried = carry_over(before, after, config.allocation(length), old=old, new=self.plan)
        return Change(
            step=steps, requests=list(map(str, self._reconfiguration.stages[self.stage].requests)),
            shape=self.plan.shape.value, nodes=list(self.plan.order), left=list(carried.left),
            joined=list(carried.joined), heirs=[list(pair) for pair in carried.heirs.items()], moved=carried.moved,
            dropped=carried.dropped, switch_cycles=_since(begun, switched),
            carry_cycles=_since(switched, self._clock()))

    def balance(self, steps: int) -> None:
        counters = self._grid.counters.read()
        sent, received = (sum(counts[name] for counts in counters) for name in ("WORDS_SENT", "WORDS_RECEIVED"))
        if (sent - received) % (1 << 32):
            raise DivergenceError(f"Step {steps}: nodes have sent {sent:,} words since their rings were formed, and "
                                  f"received {received:,}")

    def handed_over(self, arrays: dict[str, Any], old: Plan) -> dict[str, Any]:
        result = dict(arrays)
        for name in ("errors", "residuals"):
            if arrays[name] is not None:
                rows = hand_over(dict(zip(old.order, arrays[name], strict=True)), old, self.plan).rows
                result[name] = np.stack([rows[node] for node in self.plan.order])
        return result

    def forget(self) -> None:
        self._grid.counters.clear()
        self.ring.counters.clear()


def _since(begun: Cycles, ended: Cycles) -> Cycles:
    """Return the cycles between two times, or None if either is unknown."""
    return None if begun is None or ended is None else ended - begun
