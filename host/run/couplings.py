"""Couplings of a run's options: values that one has only with some values of another, each with its reason.

This is the only list of them: runs are checked with it, and error messages, docs/run.md and ``gradring info`` print
it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from hdl.board import BOARDS
from hdl.compression.registry import GRADIENT_CODECS
from host.features.programs.schedules import Kind
from host.features.quorum.config import Late
from host.run import sections
from host.run.defaults import is_programmed, with_defaults
from host.run.sections import LEADS, SECTIONS, flag
from host.run.spec import RunSpec
from host.training.optimizers import OptimizerName
from host.training.record import HOST, NODE
from host.training.workloads import WorkloadName
from host.transports.session import TransportName
from sim.golden.codecs import RAW, ZERO_VALUE

__all__ = ["COUPLINGS", "SCHEDULED", "Coupling", "check"]


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _words(values: tuple[Any, ...]) -> str:
    *first, last = (str(_plain(value)) for value in values)
    return f"{', '.join(first)} or {last}" if first else last


@dataclasses.dataclass(frozen=True)
class Coupling:
    """Condition of an option."""

    #: Field of the option; the coupling is of one ``value`` of it, if there is one.
    option: str
    #: Field that it depends on, or fields of which one must be given.
    other: str | tuple[str, ...]
    #: Values of the other field with which the option applies; None for any that is given, and () for none.
    allowed: tuple[Any, ...] | None
    #: Why it does not apply otherwise.
    reason: str
    #: Value of the option.
    value: Any = None

    def violated(self, given: RunSpec, full: RunSpec) -> bool:
        """Whether a run breaks it, from the given values and from those with all defaults."""
        if not given.given(self.option) or self.value not in (None, given.value(self.option)):
            return False
        others = [_value(full, path) for path in self._others]
        if self.allowed is None:
            return all(_is_absent(other) for other in others)
        if self.allowed == ():
            return not _is_absent(others[0])
        return others[0] not in self.allowed

    @property
    def _others(self) -> tuple[str, ...]:
        return (self.other,) if isinstance(self.other, str) else self.other

    @property
    def left(self) -> str:
        """The option, with its value if the coupling is of one."""
        return flag(self.option) + ("" if self.value is None else f" {_plain(self.value)}")

    @property
    def condition(self) -> str:
        """Runs that it is for."""
        flags = _words(tuple(flag(path) + (f" {NODE}" if path == "compute.on" else "") for path in self._others))
        if self.allowed is None:
            return f"a run with {flags}"
        if self.allowed == ():
            return f"a run without {flags}"
        named = tuple(value for value in self.allowed if value is not None)
        section, _, name = self._others[0].partition(".")
        choices = SECTIONS[section].options()[name].choices if section in SECTIONS else None
        rest = tuple(choice for choice in choices or () if choice not in named)
        if None in self.allowed and 0 < len(rest) < len(named):  # the exceptions are fewer
            return f"a run without {flag(self._others[0])} {_words(rest)}"
        text = f"{flag(self._others[0])} {_words(named)}"
        return text if None not in self.allowed else f"{text}, or a run without {flag(self._others[0])}"

    def message(self, given: RunSpec, full: RunSpec) -> str:
        """Text of the error, for a run's given values and those with all defaults."""
        other, value = self._others[0], _value(full, self._others[0])
        actual = f", not {_words((value,))}" if self.allowed and value is not None else ""
        if not given.given(other) and not _is_absent(value):
            source = next((path for path in _SOURCES.get(other, ()) if given.given(path)), None)
            actual += "" if source is None else f", which {flag(source)} implies"
        return f"Option {self.left} is for {self.condition}{actual} ({self.reason}): leave it out"


def _is_absent(value: Any) -> bool:
    """Whether an option is not given; zero is a value."""
    return value is None or value is False or value == HOST


def _value(spec: RunSpec, path: str) -> Any:
    """Value of a field; schedules with a loop of their own all have momentum."""
    has_momentum = path == "optimizer.rule" and spec.value("schedule.kind") in SCHEDULED
    return OptimizerName.MOMENTUM if has_momentum else spec.value(path)


#: Options that lead to a value of an option that is not given.
_SOURCES = {"backend.transport": ("backend.device",), "backend.board": ("backend.device", "backend.transport"),
            "schedule.overlap": ("compute.on",), "optimizer.rule": ("workload.name", "backend.board")}

_V, _M, _P, _G, _B, _S = (TransportName.VERILATED, TransportName.MESSAGES, TransportName.PYSIM, TransportName.GOLDEN,
                          TransportName.BOARD, TransportName.SERIAL)
_DIGITS, _TEXT = WorkloadName.DIGITS, WorkloadName.TEXT
_MOMENTUM, _NESTEROV = OptimizerName.MOMENTUM, OptimizerName.NESTEROV
_DROPPING = tuple(name for name, codec in GRADIENT_CODECS.items() if codec.drops_zeros)
_NO_ROOM = "a board's nodes have no room to stage gradients"
_FIXED = "a program and its buffers are of one ring"
_BUILT = "a board's nodes are as they were built"


def _boards(has: Callable[[Any], Any]) -> tuple[str, ...]:
    """Boards with nodes that have something."""
    return tuple(name for name, board in BOARDS.items() if has(board.node))


COUPLINGS = (
    # The transport, which the most options depend on.
    Coupling("backend.device", "backend.transport", (_S,), "it is a serial port"),
    Coupling("backend.threads", "backend.transport", (_V, _M), "other transports simulate in one thread, or not"),
    Coupling("backend.processes", "backend.transport", (_V,), "other transports are of one process"),
    Coupling("backend.host_port", "backend.transport", (_V,), "other transports always have the host port"),
    Coupling("backend.arithmetic", "backend.transport", (_V,), "only Verilated nodes have native units"),
    *(Coupling("backend.board", "backend.arithmetic", (), "it has no floating-point units", value=name)
      for name, board in BOARDS.items() if board.node.is_int16),
    Coupling("ring.link_latency", "backend.transport", (_V, _M, _P, _G), "a board's wires are as long as they are"),
    Coupling("backend.baud", "backend.transport", (_S,), "it is the rate of a serial port"),
    Coupling("backend.reconnect", "backend.transport", (_B, _S), "no other transport loses its port"),
    Coupling("ring.topology", "backend.transport", (_V, _M, _P, _G, _B), "a board has no switches"),
    Coupling("ring.links", "backend.transport", (_V, _M, _P), "boards are built with links on credit",
             value=sections.SLOTS),
    Coupling("backend.transport", "ring.links", (sections.SLOTS,), "messages travel in slots", value=_M),
    Coupling("ring.slow_link", "backend.transport", (_V,), "only Verilated links can be slow"),
    # Golden nodes.
    Coupling("backend.transport", "faults.rate", (), "golden nodes have no links", value=_G),
    Coupling("backend.transport", "backend.board", (), "golden nodes are on no board", value=_G),
    Coupling("output.check", "backend.transport", (_V, _M, _P, _B, _S), "golden nodes have no second witness"),
    Coupling("schedule.overlap", "backend.transport", (_V, _M, _P, _B, _S), "searches go by measured cycles",
             value="search"),
    Coupling("compute.tiling", "backend.transport", (_V, _M, _P, _B, _S), "searches go by measured cycles",
             value="searched"),
    # Boards.
    Coupling("backend.state_planes", "backend.board", (), _BUILT),
    Coupling("faults.rate", "backend.board", (), _BUILT),
    Coupling("ring.topology", "backend.board", ("simulated", None), _BUILT),
    Coupling("schedule.overlap", "backend.board", (), _NO_ROOM),
    Coupling("compute.on", "backend.board", (*_boards(lambda node: not node.is_int16 and node.compute), None),
             "other boards have no compute engine", value=NODE),
    *(Coupling("optimizer.rule", "backend.board",
               (*_boards(lambda node: not node.is_int16 and node.memories.planes > 1), None),
               "at most one word of state per weight", value=rule)
      for rule in (OptimizerName.ADAM, OptimizerName.ADAMW)),
    Coupling("formats.density", "formats.gradients", _DROPPING, "zeros do not make other packets shorter"),
    Coupling("formats.density", "backend.board", (*_boards(lambda node: node.sparsify), None),
             "other boards do not keep what they do not send"),
    Coupling("ring.links", "backend.board", (), _BUILT, value=sections.SLOTS),
    Coupling("ring.slow_link", "backend.board", (), _BUILT),
    # Workloads.
    Coupling("model.hidden", "workload.name", (_DIGITS,), "the transformer has one shape"),
    Coupling("compute.format", "workload.name", (_DIGITS,), "the transformer is computed in fp32"),
    Coupling("compute.tiling", "compute.on", (NODE,), "only nodes that compute have tiles"),
    Coupling("compute.tiling", "workload.name", (_DIGITS,), "the transformer's tiles are those of its lists"),
    Coupling("workload.name", "backend.board", (), "a board's nodes have no room for the transformer", value=_TEXT),
    # Optimizers.
    Coupling("optimizer.momentum", "optimizer.rule", (_MOMENTUM, _NESTEROV), "other rules have none"),
    Coupling("optimizer.dampening", "optimizer.rule", (_MOMENTUM,), "other rules have none"),
    Coupling("optimizer.moments", "optimizer.rule", (_MOMENTUM, _NESTEROV, OptimizerName.ADAM, OptimizerName.ADAMW),
             "sgd has no state"),
    Coupling("optimizer.moments", "schedule.overlap", (Kind.NONE.value, Kind.STRICT.value, None),
             "state of a part may begin inside a word", value=sections.Moments.BF16),
    # The grid.
    Coupling("ring.disable", "ring.topology", None, "parts are those of a grid"),
    Coupling("ring.enable", "ring.topology", None, "parts are those of a grid"),
    Coupling("ring.shape", "ring.topology", None, "a ring has one shape"),
    Coupling("schedule.overlap", "ring.topology", (), _FIXED),
    Coupling("schedule.overlap", "workload.name", (_DIGITS,), "programs are made of a perceptron's layers"),
    Coupling("compute.on", "ring.topology", (), _FIXED, value=NODE),
    Coupling("ring.slow_link", "ring.topology", (), "rates are measured in one ring"),
    Coupling("ring.links", "ring.topology", (), "slots are of one ring", value=sections.SLOTS),
    # Links.
    Coupling("faults.seed", "faults.rate", None, "there are no faults to draw"),
    Coupling("ring.slow_link", "faults.rate", (), "words that are repeated are no measure of a link"),
    Coupling("ring.slow_link", "schedule.overlap", (), "a program has owners of its own"),
    Coupling("ring.slow_link", "compute.activations", (), "lists have owners of their own"),
    Coupling("ring.slow_link", "formats.weights", (RAW,), "the root passes weights on as it has them"),
    Coupling("ring.slow_link", "formats.gradients", (ZERO_VALUE,), "sums are added as they are coded"),
    Coupling("ring.links", "ring.slow_link", (), "slots are equally long", value=sections.SLOTS),
    Coupling("ring.links", "compute.activations", (), "moves have a queue of their own, and control words are of two",
             value=sections.SLOTS),
    # Computation and memory.
    Coupling("compute.macs", ("schedule.overlap", "schedule.straggler", "compute.on"), None,
             "no engine is counted on"),
    Coupling("output.chakra", "schedule.overlap", None, "a trace is of a program"),
    Coupling("output.chakra", "workload.name", (_DIGITS,), "only its program has names of layers"),
    Coupling("output.compare", "schedule.overlap", (), "its bits are those of a run without"),
    Coupling("formats.density", "schedule.overlap", (), "programs send everything"),
    Coupling("compute.activations", "workload.name", (_TEXT,), "a perceptron's maps always fit"),
    Coupling("compute.activations", "compute.on", (NODE,), "the host has room for all maps"),
    Coupling("compute.activations", "backend.transport", (_V,), "only Verilated nodes have far memories"),
    Coupling("compute.activations", "backend.board", (), _BUILT),
    Coupling("compute.far", "compute.activations", None, "without it all maps fit"),
    Coupling("compute.memory", "compute.activations", None, "without it all maps fit"),
    # Quorum updates, and jobs side by side.
    Coupling("schedule.quorum", "schedule.stale_gradients", (Late.APPLY, Late.DROP), "every update is of all "
                                                                                     "workers"),
    Coupling("schedule.deadline", "schedule.stale_gradients", (Late.APPLY, Late.DROP),
             "every update is of all workers"),
    Coupling("schedule.staleness_factor", "schedule.stale_gradients", (Late.APPLY,), "no stale gradient is added"),
    Coupling("schedule.jobs", "ring.links", (sections.SLOTS,), "jobs take turns in slots"),
)

_TIME = ("workload.seed", "ring.nodes", "backend.threads", "backend.arithmetic", "model.hidden",
         "optimizer.learning_rate", "optimizer.momentum", "output.folder")
#: Fields that apply to schedules with a loop of their own, other than the schedule's.
SCHEDULED: dict[str, tuple[str, ...]] = {
    sections.Quorum.kind: (*_TIME, "workload.batch", "ring.link_latency", "backend.host_port", "formats.weights",
                           "compute.macs", "faults.rate", "faults.seed", "output.checkpoint", "output.resume"),
    sections.Streaming.kind: (*_TIME, "workload.steps", "output.checkpoint", "output.resume"),
    sections.SideBySide.kind: (*_TIME, "workload.steps", "workload.epochs", "workload.batch", "ring.links"),
}


def check(spec: RunSpec) -> None:
    """Raise ``ValueError`` for the first option of a run that does not apply to it."""
    if spec.schedule is not None:
        _check_schedule(spec)
    full = with_defaults(spec)
    for coupling in COUPLINGS:
        if coupling.violated(spec, full):
            raise ValueError(coupling.message(spec, full))
    if spec.workload.epochs is not None and spec.workload.steps is not None:
        raise ValueError(f"Epochs or steps must be given, not both: --epochs {spec.workload.epochs!r} and --steps "
                         f"{spec.workload.steps!r}")


def _check_schedule(spec: RunSpec) -> None:
    """Raise ``ValueError`` for an option that the schedule does not take."""
    kind = spec.value("schedule.kind")
    if isinstance(spec.schedule, sections.Quorum) and spec.schedule.straggler is None:
        for name in spec.schedule.options():
            if spec.given(f"schedule.{name}"):
                raise ValueError(f"Option {flag(f'schedule.{name}')} is for a run with --straggler: leave it out")
    if kind == sections.Update.kind and is_programmed(spec):
        raise ValueError("Option --schedule update is for a run without --compute node, or with --density (a "
                         "perceptron on nodes that compute is trained by a program): leave it out")
    if kind not in SCHEDULED:
        return
    for section, part in SECTIONS.items():
        for name in part.options():
            path = f"{section}.{name}"
            if spec.given(path) and path not in SCHEDULED[kind]:
                raise ValueError(f"Option {flag(path)} is for a run without {LEADS[kind]}: leave it out")
