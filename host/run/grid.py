"""Grids of a run, from which parts leave and to which they come back: checks before work begins, and lines."""

from collections.abc import Callable
from typing import Any

from hdl.config import NodeConfig
from host.topology.course import Course, Request, grid_size
from host.topology.grid import Shape
from host.topology.switching import check_weights
from host.training.checkpoint import ADVICE, CheckpointError
from host.training.record import TrainingConfig
from host.training.run_check import check_run
from host.training.workloads import Workload

__all__ = ["check_past", "check_stages", "course_of", "lines"]


def course_of(topology: str | None, *, disable: str | None, enable: str | None, shape: Shape | None,
              nodes: int | None) -> Course | None:
    """Course of a grid by the options of a run; None for a ring.

    Raises
    ------
    ValueError
        A part or a request is none, or a request cannot be carried out.
    """
    if topology is None:
        return None
    rows, columns = grid_size(topology)
    NodeConfig().check_ring(rows * columns)
    if nodes is not None and nodes != rows * columns:
        raise ValueError(f"Nodes must be {rows * columns} in a {rows} x {columns} topology, not {nodes}: leave out "
                         f"--nodes")
    requests = [Request.parse(text.strip(), enable=enables) for given, enables in ((disable, False), (enable, True))
                if given for text in given.split(",")]
    return Course(rows, columns, requests, shape)


def check_stages(course: Course, node: NodeConfig, task: Workload, config: TrainingConfig) -> None:
    """Raise ``ValueError`` unless the nodes of every stage can do the run."""
    course.check(config.steps(task.examples))
    for stage in course.stages:
        check_weights(stage.plan, node)
    for nodes in sorted({len(stage.plan.active) for stage in course.stages}):
        check_run(node, task, config, nodes=nodes)


def check_past(course: Course | None, content: dict[str, Any], path: str) -> None:
    """Raise ``CheckpointError`` unless the run of a checkpoint has carried out the requests of this one.

    Requests after the last step of the checkpoint may be others.
    """
    if course is None:
        return
    done = None if content["run"] else content["state"]["batches"]["number"]
    there, here = ({text for text in texts if done is None or int(text.rpartition("@")[2]) < done}
                   for texts in (content["requests"], course.texts()))
    if there != here:
        until = "" if done is None else f" before step {done + 1}"
        named = [", ".join(sorted(texts)) or "none" for texts in (there - here, here - there)]
        raise CheckpointError(f"{path} must be of a run with the same changes{until}, not with {named[0]} (here "
                              f"{named[1]}); take those, or {ADVICE}")


def lines(course: Course, say: Callable[[str], None]) -> None:
    """Say which rings there will be."""
    say(f"topology: {course.rows} x {course.columns} nodes")
    for stage in course.stages:
        what = f", {' and '.join(map(str, stage.requests))}" if stage.requests else ""
        say(f"  from step {stage.step + 1}{what}: {stage}")
