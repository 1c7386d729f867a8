"""Schedules of a run: how workers compute and update weights, and how the run is executed."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from host.options import Section

if TYPE_CHECKING:
    from host.run.couplings import Coupling
    from host.run.spec import RunSpec
    from host.schema import Schema
    from host.training.record import TrainingConfig
    from host.training.workloads import Workload

__all__ = ["WITH_MOMENTUM", "Schedule"]

#: Fields of a run that apply to schedules with their own training loop, which use momentum.
WITH_MOMENTUM = ("workload.seed", "ring.nodes", "backend.threads", "backend.arithmetic", "model.hidden",
                 "optimizer.learning_rate", "optimizer.momentum", "output.folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Section):
    """Base class of schedules. Its attributes determine values in other sections of a run's description."""

    #: Name of the schedule, and the option that selects the schedule.
    kind: ClassVar[str]
    lead: ClassVar[str]
    #: Position of the schedule in lists of schedules.
    place: ClassVar[int]
    #: Default number of nodes or workers without a board.
    nodes: ClassVar[int] = 4
    #: Whether a run is a single job in which all workers step together (a run in steps).
    in_steps: ClassVar[bool] = False
    #: Whether several processes can simulate the nodes, and whether links have a latency.
    has_processes: ClassVar[bool] = False
    has_latency: ClassVar[bool] = True
    #: Which formats can be set: of weights, of gradients, or both.
    formats: ClassVar[tuple[str, ...]] = ()
    #: Defaults for the workload; None means the defaults of a run in which all workers step together.
    workload: ClassVar[Mapping[str, Any] | None] = None
    #: Default learning rate of a schedule that supports only momentum.
    learning_rate: ClassVar[float | None] = None
    #: Default number of multiply-adds per cycle of a schedule that assumes an engine.
    macs: ClassVar[int | None] = None
    #: Fields of other sections that affect this schedule; None means all fields.
    applicable: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def couplings(cls) -> "Iterable[Coupling]":
        """Return the constraints on the schedule's fields."""
        return ()

    @classmethod
    def files(cls) -> Iterable[str]:
        """Return the names of the files that only runs with this schedule write."""
        return ()

    @classmethod
    def schema(cls) -> "Schema | None":
        """Return the schema of this schedule's reports; None means the common schema of training reports."""
        return None

    @property
    def several(self) -> bool:
        """Whether the schedule consists of several successive runs, in which all workers step together."""
        return False

    def check_given(self, spec: "RunSpec") -> None:
        """Raise ``ValueError`` for an inapplicable field, given the description without defaults."""

    def defaults(self, spec: "RunSpec") -> dict[str, Any]:
        """Return the defaults of the schedule's own fields, keyed by path."""
        return {}

    def configs(self, config: "TrainingConfig") -> "list[TrainingConfig]":
        """Return the training configuration of each of the schedule's successive runs."""
        return [config]

    def check(self, spec: "RunSpec") -> None:
        """Raise ``ValueError`` if a run with all defaults is impossible."""
        raise NotImplementedError

    def train(self, spec: "RunSpec") -> Any:
        """Execute a run described with all defaults; return its report or reports."""
        raise NotImplementedError

    def needed(self, spec: "RunSpec") -> None:
        """Raise an error if a package that the run needs is missing."""

    def write(self, report: dict[str, Any], spec: "RunSpec", task: "Workload", folder: Path) -> list[Path]:
        """Write additional files for a run in which all workers step together, and return their paths."""
        return []
