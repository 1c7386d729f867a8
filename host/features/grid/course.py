"""Course of a grid through a run: which parts leave and come after which step, and the rings in between.

Example
-------
::

    course = Course(2, 4, [Request.parse("card1@40"), Request.parse("card1@80", enable=True)])
    [len(stage.plan.active) for stage in course.stages]  # [8, 4, 8]
    course.at(40)  # 1: the stage of the step that follows 40 steps
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from hdl.config import NodeConfig
from host.features.grid.grid import Part, Plan, Shape, Topology, TopologyError
from host.features.grid.switching import check_weights
from host.run.sections import Ring
from host.training.checkpoint import ADVICE, CheckpointError
from host.training.record import TrainingConfig
from host.training.updates import check_run
from host.training.workloads import Workload

__all__ = ["Course", "Request", "Stage", "course_of", "grid_size"]

#: Shapes in which all nodes train one model.
SHAPES = (Shape.GRID, Shape.FLAT)


def grid_size(text: str) -> tuple[int, int]:
    """Rows and columns of a text like ``2x4``."""
    found = re.fullmatch(r"(\d{1,3})x(\d{1,3})", text)
    if not found:
        raise ValueError(f"Topology must be rows and columns like 2x4, not {text!r}")
    return int(found[1]), int(found[2])


@dataclasses.dataclass(frozen=True)
class Request:
    """A part that leaves, or comes, after a number of steps."""

    step: int
    part: Part
    enable: bool = False

    @classmethod
    def parse(cls, text: str, *, enable: bool = False) -> "Request":
        """Make a request from its text: ``card1@40`` for card 1 after 40 steps, 0 for before the first one."""
        part, at, step = text.partition("@")
        if not at or not re.fullmatch(r"\d{1,12}", step):
            raise ValueError(f"Request must be a part and a number of steps like card1@40, node5@0 or link5:0@60, "
                             f"not {text!r}")
        return cls(int(step), Part.parse(part), enable)

    def __str__(self) -> str:
        return f"{'enable' if self.enable else 'disable'} {self.part}"


@dataclasses.dataclass(frozen=True)
class Stage:
    """Rings of the steps between two changes."""

    step: int  # steps before it
    requests: tuple[Request, ...]  # requests that begin it
    plan: Plan
    why_flat: str | None = None  # reason why the enabled nodes are in a flat ring, where no shape was asked for

    def __str__(self) -> str:
        nodes = len(self.plan.active)
        rings = f"{nodes} node{'s' if nodes > 1 else ''}, {self.plan.shape.value}"
        return f"{rings} ({self.why_flat})" if self.why_flat else rings


class Course:
    """Rings of a grid from the first step of a run to the last.

    Raises ``TopologyError``: a request cannot be carried out; the message names it.

    Parameters
    ----------
    requests : sequence of Request
        In any order; those of one step are carried out together.
    shape : Shape, optional
        ``FLAT``, or ``GRID`` for sums in two dimensions. By default ``GRID`` where the enabled nodes are whole rows
        and columns, more than one of each, and all their links are enabled; else ``FLAT``.
    """

    def __init__(self, rows: int, columns: int, requests: Sequence[Request] = (), shape: Shape | None = None):
        if shape is not None and shape not in SHAPES:
            possible = " or ".join(one.value for one in SHAPES)
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
                plan, why_flat = _plan(grid, shape)
            except ValueError as error:
                if not wanted:
                    raise
                raise TopologyError(f"{when}, {' and '.join(map(str, wanted))}: {error}") from None
            stages.append(Stage(step, wanted, plan, why_flat))
        self.stages = tuple(stages)

    @property
    def nodes(self) -> int:
        """Nodes of the whole grid."""
        return self.rows * self.columns

    @property
    def fewest(self) -> int:
        """Nodes that are there where there are fewest, whose memories hold the most."""
        return min(len(stage.plan.active) for stage in self.stages)

    def at(self, steps: int) -> int:
        """Number of the stage to which the step belongs that follows so many steps."""
        return max(number for number, stage in enumerate(self.stages) if stage.step <= steps)

    def check(self, total: int) -> None:
        """Raise ``TopologyError`` unless each request is followed by a step of a run of ``total`` steps."""
        for request in self.requests:
            if request.step >= total:
                raise TopologyError(f"Request to {request} must be after at most {total - 1} of the run's {total} "
                                    f"steps, so that a step follows, not after {request.step}")

    def check_run(self, node: NodeConfig, task: Workload, config: TrainingConfig) -> None:
        """Raise ``ValueError`` unless the nodes of every stage can do a run."""
        self.check(config.steps(task.examples))
        for stage in self.stages:
            check_weights(stage.plan, node)
        for nodes in sorted({len(stage.plan.active) for stage in self.stages}):
            check_run(node, task, config, nodes=nodes)

    def check_past(self, content: dict[str, Any], path: str) -> None:
        """Raise ``CheckpointError`` unless the run of a checkpoint has carried out the requests of this one.

        Requests after the last step of the checkpoint may be others.
        """
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
        """Lines about the rings that there will be."""
        lines = [f"topology: {self.rows} x {self.columns} nodes"]
        for stage in self.stages:
            what = f", {' and '.join(map(str, stage.requests))}" if stage.requests else ""
            lines.append(f"  from step {stage.step + 1}{what}: {stage}")
        return lines

    def texts(self, before: int | None = None) -> list[str]:
        """Requests as texts; only those after fewer than ``before`` steps, which have been carried out by then."""
        return [f"{request}@{request.step}" for request in self.requests if before is None or request.step < before]


def course_of(ring: Ring) -> Course:
    """Course of a grid by the options of a run.

    Raises ``ValueError``: a part or a request is none, or a request cannot be carried out.
    """
    rows, columns = grid_size(ring.topology or "")
    NodeConfig().check_ring(rows * columns)
    if ring.nodes is not None and ring.nodes != rows * columns:
        raise ValueError(f"Nodes must be {rows * columns} with --topology {ring.topology}, not {ring.nodes}: leave "
                         f"out --nodes")
    requests = [Request.parse(text.strip(), enable=enables)
                for given, enables in ((ring.disable, False), (ring.enable, True)) if given
                for text in given.split(",")]
    return Course(rows, columns, requests, None if ring.shape is None else Shape(ring.shape))


def _changed(grid: Topology, requests: Sequence[Request]) -> Topology:
    """The grid after some requests, each of which must change it."""
    for request in requests:
        if request.enable and request.part not in grid.disabled:
            grid.enable(request.part)  # a part that the grid does not have is named first
            off = ", ".join(sorted(map(str, grid.disabled))) or "nothing"
            raise TopologyError(f"{request.part} must be disabled to be enabled; {off} is")
        if not request.enable and request.part in grid.disabled:
            raise TopologyError(f"{request.part} must be enabled to be disabled, and is disabled already")
        grid = grid.enable(request.part) if request.enable else grid.disable(request.part)
    return grid


def _plan(grid: Topology, shape: Shape | None) -> tuple[Plan, str | None]:
    """Rings of the enabled nodes, and the reason for a flat one."""
    if shape is not None:
        return grid.plan(shape), None
    rows, columns = ({divmod(node, grid.columns)[place] for node in grid.enabled_nodes} for place in (0, 1))
    if min(len(rows), len(columns)) < 2:
        return grid.plan(Shape.FLAT), None
    try:
        return grid.plan(Shape.GRID), None
    except TopologyError as error:
        return grid.plan(Shape.FLAT), str(error).partition(": ")[0]
