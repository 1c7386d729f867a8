"""Section of a run description for quorum updates."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from host.features.quorum.config import Late, LateConfig, stragglers
from host.options import COUNT, option
from host.run.schedule import WITH_MOMENTUM, Schedule

if TYPE_CHECKING:
    from host.run.coupling import Coupling
    from host.run.spec import RunSpec
    from host.schema import Schema

__all__ = ["Quorum"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quorum(Schedule):
    """Options of quorum updates, a schedule that does not wait for stragglers."""

    kind: ClassVar[str] = "quorum"
    lead: ClassVar[str] = "--straggler"
    place: ClassVar[int] = 2
    nodes: ClassVar[int] = LateConfig.workers
    formats: ClassVar[tuple[str, ...]] = ("weights",)
    workload: ClassVar[Mapping[str, Any]] = {"workload.batch": LateConfig.batch}
    learning_rate: ClassVar[float] = LateConfig.learning_rate
    macs: ClassVar[int] = LateConfig.macs
    applicable: ClassVar[tuple[str, ...]] = (
        *WITH_MOMENTUM, "workload.batch", "ring.link_latency", "backend.host_port", "formats.weights", "compute.macs",
        "faults.rate", "faults.seed", "output.checkpoint", "output.resume")
    panel: ClassVar[str] = "Schedule: quorum"

    straggler: str | None = option(None, "--straggler", metavar="WORKER:FACTOR,...", help=(
        "Slow workers and the factors by which their computations take longer, such as 3:4.5,1:2. A quorum of "
        "workers then closes each update; computation is modelled."))
    quorum: int | None = option(None, "--quorum", help=(
        "Number of on-time gradients that close an update."),
        shown_default="the number of workers that are not stragglers")
    stale_gradients: Late | None = option(None, "--stale-gradients", help=(
        "Treatment of gradients that are late for their update: apply them in a later update, wait for them, or drop "
        "them."), shown_default="apply-late")
    staleness_factor: float | None = option(None, "--staleness-factor", minimum=0, maximum=1, help=(
        "Factor applied to a late gradient for each update of delay."), shown_default=f"{LateConfig.factor:g}")
    deadline: int | None = option(None, "--deadline", minimum=0, maximum=(1 << 32) - 1, help=(
        "Cycles after which an update that has a gradient is closed."), shown_default="none")
    skew: float | None = option(None, "--skew", minimum=0, maximum=1, help=(
        "Fraction of each worker's examples that are taken from the worker's own classes."),
        shown_default=f"{LateConfig.skew:g}")
    cycles: int | None = option(None, "--cycles", minimum=1, maximum=COUNT, help="Duration of the run in cycles.",
                                shown_default=f"{LateConfig.cycles:,}")
    switch_out: bool = option(False, "--switch-out", help=(
        "Continue without a worker if, in a block of updates, none of its gradients was on time and some were "
        "dropped. Its node, which has two ports, is switched out of the ring."))

    @classmethod
    def couplings(cls) -> "Iterable[Coupling]":
        from host.run.coupling import Coupling

        waits = "every update includes all workers"
        return (
            Coupling("schedule.quorum", "schedule.stale_gradients", (Late.APPLY, Late.DROP), waits),
            Coupling("schedule.deadline", "schedule.stale_gradients", (Late.APPLY, Late.DROP), waits),
            Coupling("schedule.staleness_factor", "schedule.stale_gradients", (Late.APPLY,),
                     "no stale gradient is added"))

    @classmethod
    def schema(cls) -> "Schema":
        from host.features.quorum.report import SCHEMA

        return SCHEMA

    def check_given(self, spec: "RunSpec") -> None:
        from host.run.sections import flag

        for name in self.options() if self.straggler is None else ():
            if spec.given(f"schedule.{name}"):
                raise ValueError(f"Option {flag(f'schedule.{name}')} is for a run with --straggler: leave it out")

    def defaults(self, spec: "RunSpec") -> dict[str, Any]:
        late = Late.APPLY if self.stale_gradients is None else self.stale_gradients
        waits = late is Late.WAIT
        workers = LateConfig.workers if spec.ring.nodes is None else spec.ring.nodes
        return {
            "schedule.stale_gradients": late, "schedule.skew": LateConfig.skew, "schedule.cycles": LateConfig.cycles,
            "schedule.deadline": None if waits else LateConfig.deadline,
            "schedule.quorum": None if waits else max(1, workers - len(stragglers(self.straggler or ""))),
            "schedule.staleness_factor": LateConfig.factor if late is Late.APPLY else None}

    def check(self, spec: "RunSpec") -> None:
        from host.features.quorum.run import config_of

        config_of(spec)

    def train(self, spec: "RunSpec") -> Any:
        from host.features.quorum.run import train

        return train(spec)
