"""Nodes of a run by its options: with other formats, links that repeat words or send in slots of a common time, or a
place in a grid, from which parts leave and to which they come back.
"""

from collections.abc import Callable
from typing import Any

from hdl.config import Configuration, NodeConfig, Peer, Weights
from hdl.features.grid.feature import Grid
from hdl.features.replay.feature import Replay
from hdl.features.slots.feature import Slots
from host.features.grid.course import Course, Request, grid_size
from host.features.grid.grid import Shape
from host.features.grid.switching import check_weights
from host.run.sections import SLOTS
from host.training.checkpoint import ADVICE, CheckpointError
from host.training.record import TrainingConfig
from host.training.updates import check_run
from host.training.workloads import Workload
from sim.golden.codecs import RAW, ZERO_VALUE

__all__ = ["check_past", "check_stages", "course_of", "lines", "with_formats", "with_links", "with_ring"]


def with_formats(node: Configuration, *, weights: str, gradients: str) -> Configuration:
    """The same node with codecs of new weights and of gradients; ``ValueError`` if nodes cannot have them."""
    if not node.is_int16:
        return node.replace(weights=Weights(codec=weights), gradients=gradients)
    if (weights, gradients) != (RAW, ZERO_VALUE):
        raise ValueError(f"Nodes of 16-bit integers must have weights {RAW} and gradients {ZERO_VALUE}, not "
                         f"{weights} and {gradients}: leave --weights and --gradients out")
    return node


def with_ring(node: Configuration, *, replay: bool, grid: bool) -> Configuration:
    """The same node with links that repeat words, or in a grid; ``ValueError`` if nodes have no neighbours."""
    if node.is_int16:
        raise ValueError("Nodes of 16-bit integers must be alone, without links that fail: leave --topology and "
                         "--faults out")
    return node.replace(**{"link": Replay(ingress=node.link.ingress)} if replay else {},
                        **{"topology": Grid(max_nodes=node.topology.max_nodes)} if grid else {})


def with_links(links: str, node: Configuration, *, messages: bool = False) -> Configuration:
    """The same node with links on credit, or in slots, which may have room for messages."""
    if links != SLOTS:
        return node
    return node.replace(link=Slots(ingress=15, messages=messages), programs={}, role=Peer(interleaved=True))


def course_of(topology: str | None, *, disable: str | None, enable: str | None, shape: Shape | None,
              nodes: int | None) -> Course | None:
    """Course of a grid by the options of a run; None for a ring.

    Raises ``ValueError``: a part or a request is none, or a request cannot be carried out.
    """
    if topology is None:
        return None
    rows, columns = grid_size(topology)
    NodeConfig().check_ring(rows * columns)
    if nodes is not None and nodes != rows * columns:
        raise ValueError(f"Nodes must be {rows * columns} with --topology {topology}, not {nodes}: leave out "
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
