"""Section of a run description for two concurrent runs."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from hdl.features.slots.job_table import JOBS
from host.options import option
from host.run.schedule import WITH_MOMENTUM, Schedule

if TYPE_CHECKING:
    from host.run.coupling import Coupling
    from host.run.spec import RunSpec

__all__ = ["SideBySide"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideBySide(Schedule):
    """Schedule options for two jobs that share one ring in alternate slots."""

    kind: ClassVar[str] = "side-by-side"
    lead: ClassVar[str] = "--jobs"
    place: ClassVar[int] = 4
    nodes: ClassVar[int] = 8
    has_latency: ClassVar[bool] = False
    applicable: ClassVar[tuple[str, ...]] = (
        *WITH_MOMENTUM, "workload.steps", "workload.epochs", "workload.batch", "ring.links")
    panel: ClassVar[str] = "Schedule: side by side"

    jobs: int | None = option(None, "--jobs", minimum=1, maximum=JOBS, help=(
        f"Number of training runs on one ring with --links slots, up to {JOBS}. Two runs use alternate nodes, with "
        f"--seed and the next seed."), shown_default="1, on all nodes")

    @classmethod
    def couplings(cls) -> "Iterable[Coupling]":
        from host.run.coupling import Coupling
        from host.run.sections import SLOTS

        return (Coupling("schedule.jobs", "ring.links", (SLOTS,), "jobs take turns in slots"),)

    @classmethod
    def files(cls) -> Iterable[str]:
        return [f"job-{job}/report.json" for job in range(JOBS)]

    def check(self, spec: "RunSpec") -> None:
        from host.features.slots.side_by_side import check_jobs

        check_jobs(spec)

    def train(self, spec: "RunSpec") -> Any:
        from host.features.slots.side_by_side import train

        return train(spec)
