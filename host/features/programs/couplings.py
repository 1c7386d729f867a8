"""Couplings of options of runs by programs."""

from host.features.programs.schedules import Kind
from host.run.coupling import Coupling
from host.run.sections import Moments
from host.training.workloads import WorkloadName
from host.transports.session import TransportName

__all__ = ["COUPLINGS"]

_FIXED = "a program and its buffers are of one ring"
_DIGITS = WorkloadName.DIGITS

#: Couplings of :class:`~host.features.programs.schedule_section.Program`, and of what needs one.
COUPLINGS = (
    Coupling("schedule.overlap", "backend.transport",
             tuple(name for name in TransportName if name is not TransportName.GOLDEN),
             "searches go by measured cycles", value="search"),
    Coupling("schedule.overlap", "backend.board", (), "a board's nodes have no room to stage gradients"),
    Coupling("schedule.overlap", "ring.topology", (), _FIXED),
    Coupling("schedule.overlap", "workload.name", (_DIGITS,), "programs are made of a perceptron's layers"),
    Coupling("optimizer.moments", "schedule.overlap", (Kind.NONE.value, Kind.STRICT.value, None),
             "state of a part may begin inside a word", value=Moments.BF16),
    Coupling("ring.slow_link", "schedule.overlap", (), "a program has owners of its own"),
    Coupling("output.chakra", "schedule.overlap", None, "a trace is of a program"),
    Coupling("output.chakra", "workload.name", (_DIGITS,), "only its program has names of layers"),
    Coupling("output.compare", "schedule.overlap", (), "its bits are those of a run without"),
    Coupling("formats.density", "schedule.overlap", (), "programs send everything"),
)
