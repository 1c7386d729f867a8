"""Section of a run description for programs that run on the nodes."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from host.options import option
from host.run.schedule import Schedule

if TYPE_CHECKING:
    from host.run.coupling import Coupling
    from host.run.spec import RunSpec
    from host.training.record import TrainingConfig
    from host.training.workloads import Workload

__all__ = ["Program"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program(Schedule):
    """Options of a schedule that runs as programs on the nodes."""

    kind: ClassVar[str] = "program"
    lead: ClassVar[str] = "--overlap"
    place: ClassVar[int] = 1
    in_steps: ClassVar[bool] = True
    has_processes: ClassVar[bool] = True
    formats: ClassVar[tuple[str, ...]] = ("weights", "gradients")
    panel: ClassVar[str] = "Schedule: program"

    overlap: str | None = option(None, "--overlap", help=(
        "Overlap of computation and communication in a program: none, strict, layers, chunks:n for n layers at a "
        "time, delayed:k for weights of the first k layers that are one update old, search for the best n, or all "
        "to run each of these. Computation is modelled unless --compute node is set."),
        shown_default="no program; the host starts each step")

    @classmethod
    def couplings(cls) -> "Iterable[Coupling]":
        from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
        from host.features.programs.schedules import Kind
        from host.run.coupling import Coupling, Except
        from host.run.sections import Moments
        from host.training.workloads import WorkloadName
        from host.transports.session import TransportName

        def traced(other: str, allowed: Any) -> Coupling:
            return Coupling("output.chakra", other, allowed, "cycles unknown",
                            context=("backend.transport", TransportName.GOLDEN))

        integers = tuple(name for name, codec in GRADIENT_CODECS.items() if codec.agreed)
        codebooks = tuple(name for name, codec in WEIGHT_CODECS.items() if codec.codebook_words)
        one_ring, digits = "a program and its buffers are made for one ring", (WorkloadName.DIGITS,)
        measured = tuple(name for name in TransportName if name is not TransportName.GOLDEN)
        return (
            Coupling("schedule.overlap", "backend.transport", measured, "searches use measured cycles",
                     value="search"),
            Coupling("schedule.overlap", "backend.board", (), "a board's nodes have no room to stage gradients"),
            Coupling("schedule.overlap", "ring.topology", (), one_ring),
            Coupling("schedule.overlap", "workload.name", digits, "programs are built from a perceptron's layers"),
            Coupling("optimizer.moments", "schedule.overlap", (Kind.NONE.value, Kind.STRICT.value, None),
                     "state of a part may begin inside a word", value=Moments.BF16),
            Coupling("ring.slow_link", "schedule.overlap", (), "a program determines the owners of blocks"),
            Coupling("output.chakra", "schedule.overlap", None, "a trace shows a program"),
            Coupling("output.chakra", "workload.name", digits, "only its program has layer names"),
            traced("formats.gradients", Except(integers)),
            traced("formats.weights", Except(codebooks)),
            traced("compute.on", ()),
            Coupling("output.compare", "schedule.overlap", (), "overlapping does not change the results"),
            Coupling("formats.density", "schedule.overlap", (), "programs send everything"))

    @classmethod
    def files(cls) -> Iterable[str]:
        from host.features.programs.measured import timeline_names

        return timeline_names()

    @property
    def several(self) -> bool:
        return self.overlap == "all"

    def configs(self, config: "TrainingConfig") -> "list[TrainingConfig]":
        from host.features.programs.execution import overlaps

        names = overlaps(config) if self.several else [self.overlap]
        return [dataclasses.replace(config, overlap=name) for name in names]

    def check(self, spec: "RunSpec") -> None:
        from host.run import preparation

        preparation.prepare(spec)

    def train(self, spec: "RunSpec") -> dict[str, Any]:
        from host.run import steps

        return steps.train(spec)

    def needed(self, spec: "RunSpec") -> None:
        from host.features.programs import chakra

        if spec.output.chakra is not None:
            chakra.needed()

    def write(self, report: dict[str, Any], spec: "RunSpec", task: "Workload", folder: Path) -> list[Path]:
        from host.features.programs import measured
        from host.training.workloads import Classifier

        nodes, prefix = spec.known("ring.nodes"), spec.output.chakra
        written = measured.write(report, folder, nodes=nodes)
        if prefix is not None and isinstance(task, Classifier):
            written += measured.write_traces(report, task.layers, prefix, nodes=nodes)
        return written
