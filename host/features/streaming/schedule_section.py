"""Run description section for layer streaming."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from host.options import COUNT, check_range, option
from host.run.schedule import WITH_MOMENTUM, Schedule
from sim.golden.codecs import RAW

if TYPE_CHECKING:
    from host.run.spec import RunSpec
    from host.schema import Schema

__all__ = ["Streaming"]

#: Largest number of microbatches of a step.
_MICROBATCHES = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Streaming(Schedule):
    """Options of layer streaming: a server sends layers to workers, which hold only a few at a time."""

    kind: ClassVar[str] = "streaming"
    lead: ClassVar[str] = "--schedule streaming"
    place: ClassVar[int] = 3
    has_latency: ClassVar[bool] = False
    workload: ClassVar[Mapping[str, Any]] = {"workload.steps": 6}
    learning_rate: ClassVar[float] = 0.05
    applicable: ClassVar[tuple[str, ...]] = (
        *WITH_MOMENTUM, "workload.steps", "workload.microbatches", "output.checkpoint", "output.resume")
    panel: ClassVar[str] = "Schedule: streaming"

    microbatch: int | None = option(None, "--microbatch", help="Number of examples in a microbatch.", minimum=1,
                                    maximum=COUNT, shown_default="the largest number that fits")
    plateau: bool = option(False, "--plateau", help="Add a layer whenever the loss stops decreasing.")
    format: str | None = option(None, "--format", help=(
        "Format of broadcast weights, one for all layers or a comma-separated list: raw, mx4, mx6 or mx9."),
        shown_default="raw")
    underflow: bool = option(False, "--underflow", help=(
        "Widen mx4 to mx6 in layers where more than 10 % of the weights are zeros."))
    server_far: str | None = option(None, "--server-far", metavar="RATE", help=(
        "Throughput of the server's far memory in words per cycle."), shown_default="4")
    worker_far: str | None = option(None, "--worker-far", metavar="RATE", help=(
        "Throughput of the workers' far memories in words per cycle."), shown_default="1")
    window: int | None = option(None, "--window", help="Number of elements in a memory window and in an accumulator.",
                                shown_default="4160")
    resident: bool = option(False, "--resident", help="Keep all layers on the workers.")

    @classmethod
    def schema(cls) -> "Schema":
        from host.features.streaming.report import SCHEMA

        return SCHEMA

    def defaults(self, spec: "RunSpec") -> dict[str, Any]:
        return {"schedule.format": RAW, "schedule.server_far": "4", "schedule.worker_far": "1",
                "schedule.window": 4160}

    def check_given(self, spec: "RunSpec") -> None:
        if spec.workload.microbatches is not None:
            check_range("Microbatches", spec.workload.microbatches, 1, _MICROBATCHES)

    def check(self, spec: "RunSpec") -> None:
        from host.features.streaming import steps

        steps.check(spec)

    def train(self, spec: "RunSpec") -> Any:
        from host.features.streaming import steps

        return steps.train(spec)
