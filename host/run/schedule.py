"""Schedule of a run: how workers compute and update, and who carries the run out."""

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

#: Fields that apply to schedules with their own loop, which have momentum.
WITH_MOMENTUM = ("workload.seed", "ring.nodes", "backend.threads", "backend.arithmetic", "model.hidden",
                 "optimizer.learning_rate", "optimizer.momentum", "output.folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Section):
    """Base of schedules. The members give the values that other sections of a run have with it."""

    #: Name of the schedule, and the option that selects it.
    kind: ClassVar[str]
    lead: ClassVar[str]
    #: Position in lists of schedules.
    place: ClassVar[int]
    #: Nodes, or workers, on no board.
    nodes: ClassVar[int] = 4
    #: Whether the run is of one job, in steps of all workers.
    in_steps: ClassVar[bool] = False
    #: Whether several processes can simulate the nodes, and whether links have a latency.
    has_processes: ClassVar[bool] = False
    has_latency: ClassVar[bool] = True
    #: Formats that it has: weights, gradients, or both.
    formats: ClassVar[tuple[str, ...]] = ()
    #: Defaults of the workload, where they differ from a run in steps.
    workload: ClassVar[Mapping[str, Any] | None] = None
    #: Default of a schedule with momentum, and no other rule.
    learning_rate: ClassVar[float | None] = None
    #: Default of multiply-adds per cycle, where an engine is expected.
    macs: ClassVar[int | None] = None
    #: Fields of other sections that apply to it; None for all.
    applicable: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def couplings(cls) -> "Iterable[Coupling]":
        """Couplings of its fields."""
        return ()

    @classmethod
    def files(cls) -> Iterable[str]:
        """Names of files that only its runs write."""
        return ()

    @classmethod
    def schema(cls) -> "Schema | None":
        """Schema of the reports of its runs; None for reports of runs in steps."""
        return None

    @property
    def several(self) -> bool:
        """Whether it consists of several runs in steps, one after the other."""
        return False

    def check_given(self, spec: "RunSpec") -> None:
        """Raise ``ValueError`` for a field that does not apply, as the run is described, without defaults."""

    def defaults(self, spec: "RunSpec") -> dict[str, Any]:
        """Defaults of its own fields, by their paths."""
        return {}

    def configs(self, config: "TrainingConfig") -> "list[TrainingConfig]":
        """Configurations of its runs in steps."""
        return [config]

    def check(self, spec: "RunSpec") -> None:
        """Raise ``ValueError`` if a run with all defaults is impossible."""
        raise NotImplementedError

    def train(self, spec: "RunSpec") -> Any:
        """Carry a run with all defaults out; return its report, or its reports."""
        raise NotImplementedError

    def needed(self, spec: "RunSpec") -> None:
        """Raise an error unless packages are there that a run needs."""

    def write(self, report: dict[str, Any], spec: "RunSpec", task: "Workload", folder: Path) -> list[Path]:
        """Write its own files of a run in steps; return their paths."""
        return []
