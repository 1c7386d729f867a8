"""Constraints between run options: values of an option that require certain values of another, and why.

This list is the only source: runs are checked against it, and error messages, docs/run.md and ``gradring info`` print
it.
"""

from collections.abc import Callable
from typing import Any

from hdl.board import BOARDS
from hdl.compression.registry import GRADIENT_CODECS
from host.run import sections
from host.run.coupling import Coupling, Except
from host.run.defaults import with_defaults
from host.run.sections import SCHEDULES, SECTIONS, of_schedule
from host.run.spec import RunSpec
from host.training.optimizers import OptimizerName
from host.training.record import NODE
from host.training.workloads import WorkloadName
from host.transports.session import TransportName
from sim.golden.codecs import RAW, ZERO_VALUE

__all__ = ["COUPLINGS", "check"]

_V, _M, _P, _G, _B, _S = (TransportName.VERILATED, TransportName.MESSAGES, TransportName.PYSIM, TransportName.GOLDEN,
                          TransportName.BOARD, TransportName.SERIAL)
_DIGITS, _TEXT = WorkloadName.DIGITS, WorkloadName.TEXT
_MOMENTUM, _NESTEROV = OptimizerName.MOMENTUM, OptimizerName.NESTEROV
_DROPPING = tuple(name for name, codec in GRADIENT_CODECS.items() if codec.drops_zeros)
_INTEGERS = tuple(name for name, codec in GRADIENT_CODECS.items() if codec.agreed)
_NOT_INTEGERS = Except(_INTEGERS)
_NO_ROOM = "a board's nodes have no room to stage gradients"
_FIXED = "a program and its buffers are made for one ring"
_BUILT = "a board's nodes have a fixed configuration"


def _boards(has: Callable[[Any], Any]) -> tuple[str, ...]:
    """Return the names of the boards with nodes that satisfy ``has``."""
    return tuple(name for name in BOARDS.present if has(BOARDS[name].node))


COUPLINGS = (
    # Transport, which most options depend on.
    Coupling("backend.device", "backend.transport", (_S,), "it is a serial port"),
    Coupling("backend.threads", "backend.transport", (_V, _M),
             "other transports simulate in one thread, or not at all"),
    Coupling("backend.processes", "backend.transport", (_V,), "other transports use one process"),
    Coupling("backend.host_port", "backend.transport", (_V,), "other transports always have the host port"),
    Coupling("backend.arithmetic", "backend.transport", (_V,), "only Verilated nodes have native units"),
    *(Coupling("backend.board", "backend.arithmetic", (), "it has no floating-point units", value=name)
      for name in _boards(lambda node: not node.has_ring)),
    Coupling("ring.link_latency", "backend.transport", (_V, _M, _P, _G), "a board's links have a fixed latency"),
    Coupling("backend.baud", "backend.transport", (_S,), "it is the rate of a serial port"),
    Coupling("backend.reconnect", "backend.transport", (_B, _S), "only these transports can lose their port"),
    Coupling("ring.topology", "backend.transport", (_V, _M, _P, _G, _B), "a board has no switches"),
    Coupling("ring.links", "backend.transport", (_V, _M, _P), "boards are built with credit-based links",
             value=sections.SLOTS),
    Coupling("backend.transport", "ring.links", (sections.SLOTS,), "messages travel in slots", value=_M),
    Coupling("ring.slow_link", "backend.transport", (_V,), "only Verilated links can be slow"),
    # Golden nodes.
    Coupling("backend.transport", "faults.rate", (), "golden nodes have no links", value=_G),
    Coupling("backend.transport", "backend.board", (), "golden nodes do not run on boards", value=_G),
    Coupling("output.check", "backend.transport", (_V, _M, _P, _B, _S), "golden nodes are the golden model"),
    Coupling("compute.tiling", "backend.transport", (_V, _M, _P, _B, _S), "searches use measured cycles",
             value="searched"),
    # Boards.
    Coupling("backend.state_planes", "backend.board", (), _BUILT),
    Coupling("faults.rate", "backend.board", (), _BUILT),
    Coupling("ring.topology", "backend.board", ("simulated", None), _BUILT),
    Coupling("compute.on", "backend.board", (*_boards(lambda node: node.compute), None),
             "other boards have no compute engine", value=NODE),
    *(Coupling("optimizer.rule", "backend.board",
               (*_boards(lambda node: node.memories.planes > 1), None),
               "at most one word of state per weight", value=rule)
      for rule in (OptimizerName.ADAM, OptimizerName.ADAMW)),
    # Microbatches.
    Coupling("workload.microbatches", "formats.gradients", _INTEGERS, "other sums depend on the order of additions",
             context=("schedule.kind", "update")),
    Coupling("workload.microbatches", "compute.on", (), "nodes that compute have only one gradient"),
    Coupling("workload.microbatches", "schedule.overlap", (), "a pass uses one gradient of each node"),
    Coupling("workload.microbatches", "backend.board", (), _BUILT),
    Coupling("formats.density", "formats.gradients", _DROPPING, "zeros do not make other packets shorter"),
    Coupling("formats.density", "backend.board", (*_boards(lambda node: node.sparsify), None),
             "other boards do not keep gradients that are not sent"),
    Coupling("ring.links", "backend.board", (), _BUILT, value=sections.SLOTS),
    Coupling("ring.slow_link", "backend.board", (), _BUILT),
    # Workloads.
    Coupling("model.hidden", "workload.name", (_DIGITS,), "the transformer has one shape"),
    Coupling("compute.format", "workload.name", (_DIGITS,), "the transformer is computed in fp32"),
    Coupling("compute.tiling", "compute.on", (NODE,), "only nodes that compute have tiles"),
    Coupling("compute.tiling", "workload.name", (_DIGITS,), "the transformer's tiles are fixed by its lists"),
    Coupling("workload.name", "backend.board", (), "a board's nodes have no room for the transformer", value=_TEXT),
    # Optimizers.
    Coupling("optimizer.momentum", "optimizer.rule", (_MOMENTUM, _NESTEROV), "other rules do not use it"),
    Coupling("optimizer.dampening", "optimizer.rule", (_MOMENTUM,), "other rules do not use it"),
    Coupling("optimizer.moments", "optimizer.rule", (_MOMENTUM, _NESTEROV, OptimizerName.ADAM, OptimizerName.ADAMW),
             "sgd has no state"),
    # The grid.
    Coupling("ring.disable", "ring.topology", None, "only parts of a grid can leave and return"),
    Coupling("ring.enable", "ring.topology", None, "only parts of a grid can leave and return"),
    Coupling("ring.shape", "ring.topology", None, "a ring has one shape"),
    Coupling("compute.on", "ring.topology", (), _FIXED, value=NODE),
    Coupling("ring.slow_link", "ring.topology", (), "rates are measured on a single ring"),
    Coupling("ring.links", "ring.topology", (), "slots are defined for a single ring", value=sections.SLOTS),
    Coupling("ring.shape", "formats.gradients", _NOT_INTEGERS, "integers are summed on a single ring",
             value=sections.GRID),
    # Links.
    Coupling("faults.seed", "faults.rate", None, "there are no faults to generate"),
    Coupling("ring.slow_link", "faults.rate", (), "repeated words would distort the measured rates"),
    Coupling("ring.slow_link", "compute.activations", (), "lists determine the owners of blocks"),
    Coupling("ring.slow_link", "formats.weights", (RAW,), "the root sends its weights unencoded"),
    Coupling("ring.slow_link", "formats.gradients", (ZERO_VALUE,), "sums are added in this codec"),
    Coupling("ring.links", "ring.slow_link", (), "slots have the same length on all links", value=sections.SLOTS),
    Coupling("ring.links", "formats.gradients", _NOT_INTEGERS, "nodes with slots interleave segments",
             value=sections.SLOTS),
    Coupling("ring.links", "compute.activations", (), "moves need a third queue, and control words support only two",
             value=sections.SLOTS),
    # Computation and memory.
    Coupling("compute.macs", ("schedule.overlap", "schedule.straggler", "compute.on"), None,
             "no compute engine is used or modelled"),
    Coupling("compute.activations", "workload.name", (_TEXT,), "a perceptron's maps always fit"),
    Coupling("compute.activations", "compute.on", (NODE,), "the host has room for all maps"),
    Coupling("compute.activations", "backend.transport", (_V,), "only Verilated nodes have far memories"),
    Coupling("compute.activations", "backend.board", (), _BUILT),
    Coupling("compute.far", "compute.activations", None, "without it all maps fit"),
    Coupling("compute.memory", "compute.activations", None, "without it all maps fit"),
    # Schedules.
    *(coupling for schedule in SCHEDULES.values() for coupling in schedule.couplings()),
)


def check(spec: RunSpec) -> None:
    """Raise ``ValueError`` for the first option that does not apply to the run."""
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
    """Raise ``ValueError`` if an option does not apply to the schedule."""
    schedule = spec.known_schedule
    schedule.check_given(spec)
    if schedule.applicable is None:
        return
    for path in (f"{section}.{name}" for section, part in SECTIONS.items() for name in part.options()):
        if spec.given(path) and path not in schedule.applicable:
            raise ValueError(of_schedule(path, schedule.kind))
