"""Defaults of a run that depend on several sections of its description."""

import dataclasses
from typing import Any

from hdl.board import BOARDS
from host.features.grid.course import grid_size
from host.features.quorum.config import Late, LateConfig, stragglers
from host.run.sections import (
    TEXT_BATCH,
    TEXT_INTERVAL,
    TEXT_STEPS,
    Moments,
    Program,
    Quorum,
    SideBySide,
    Streaming,
    Update,
)
from host.run.spec import RunSpec, paths_of
from host.training.optimizers import LEARNING_RATES, OptimizerName
from host.training.record import DEFAULT, MACS, NODE, FarMemory, TrainingConfig
from host.training.workloads import TEXT_LEARNING_RATES, WorkloadName
from host.transports.session import LATENCY, TransportName
from sim.golden.codecs import RAW, ZERO_VALUE
from sim.golden.operands import FP32
from sim.link_faults import RandomFaults
from sim.verilated import toolchain
from sim.verilated.native import Arithmetic

__all__ = ["NODES", "is_programmed", "with_defaults", "without_defaults"]

#: Nodes, or workers, of schedules on no board.
NODES = {Update: 4, Program: 4, Quorum: LateConfig.workers, Streaming: 4, SideBySide: 8}

_RATES = {Quorum: LateConfig.learning_rate, Streaming: 0.05}

#: Steps of layer streaming.
_SETS = 6


def with_defaults(spec: RunSpec) -> RunSpec:
    """The same run with all defaults that apply to it; what they depend on the data for is still None.

    A run with its defaults has no other ones: the function is idempotent.
    """
    spec = _backend(spec)
    spec = _schedule(spec)
    for fill in (_workload, _ring, _optimizer, _formats, _compute, _rest):
        spec = spec.replace(_missing(spec, fill(spec)))
    return spec


def without_defaults(spec: RunSpec) -> RunSpec:
    """The same run without values that it would have by default, so that another value of one changes the rest."""
    full = with_defaults(spec)
    for path in paths_of(spec):
        section, _, name = path.partition(".")
        default = type(getattr(spec, section)).__dataclass_fields__[name].default
        shorter = spec.replace({path: default})
        if with_defaults(shorter) == full:
            spec = shorter
    plain = dataclasses.replace(spec, schedule=None)
    return plain if with_defaults(plain) == full else spec


def _missing(spec: RunSpec, defaults: dict[str, Any]) -> dict[str, Any]:
    """Defaults of fields that are not given."""
    return {path: value for path, value in defaults.items() if spec.value(path) is None and value is not None}


def _backend(spec: RunSpec) -> RunSpec:
    """Transport and board, which most other defaults depend on."""
    transport = spec.backend.transport
    if transport is None:
        transport = TransportName.VERILATED if spec.backend.device is None else TransportName.SERIAL
    board = spec.backend.board
    if board is None and transport in (TransportName.BOARD, TransportName.SERIAL):
        board = "simulated"
    return spec.replace({"backend.transport": transport, "backend.board": board})


def _schedule(spec: RunSpec) -> RunSpec:
    """The schedule: a program for perceptrons on nodes that compute."""
    if spec.schedule is None and is_programmed(spec):
        return spec.replace({"schedule.overlap": "none"})
    if spec.schedule is None:
        return spec.replace({"schedule.kind": Update.kind})
    if isinstance(spec.schedule, Quorum):
        late = Late.APPLY if spec.schedule.stale_gradients is None else spec.schedule.stale_gradients
        waits = late is Late.WAIT
        workers = LateConfig.workers if spec.ring.nodes is None else spec.ring.nodes
        slow = stragglers(spec.schedule.straggler or "")
        return spec.replace(_missing(spec, {
            "schedule.stale_gradients": late, "schedule.skew": LateConfig.skew, "schedule.cycles": LateConfig.cycles,
            "schedule.deadline": None if waits else LateConfig.deadline,
            "schedule.quorum": None if waits else max(1, workers - len(slow)),
            "schedule.staleness_factor": LateConfig.factor if late is Late.APPLY else None}))
    if isinstance(spec.schedule, Streaming):
        return spec.replace(_missing(spec, {"schedule.format": RAW, "schedule.server_far": "4",
                                            "schedule.worker_far": "1", "schedule.window": 4160}))
    return spec


def is_programmed(spec: RunSpec) -> bool:
    """Whether nodes compute by a program unless another schedule is asked for."""
    return (spec.compute.on == NODE and spec.workload.name is WorkloadName.DIGITS and spec.formats.density is None
            and spec.backend.board is None)


def _is_ring(spec: RunSpec) -> bool:
    """Whether the run is of one job, in steps of all workers."""
    return isinstance(spec.schedule, Update | Program)


def _workload(spec: RunSpec) -> dict[str, Any]:
    text, own = spec.workload.name is WorkloadName.TEXT, spec.workload
    if isinstance(spec.schedule, Quorum):
        return {"workload.batch": LateConfig.batch}
    if isinstance(spec.schedule, Streaming):
        return {"workload.steps": _SETS}
    lengths: dict[str, Any] = {}
    if own.epochs is None and own.steps is None:
        on_board = spec.backend.transport is TransportName.BOARD
        lengths = ({"workload.steps": TEXT_STEPS} if text else
                   {"workload.epochs": 1 if on_board else TrainingConfig.epochs})
    return {**lengths, "workload.batch": TEXT_BATCH if text else TrainingConfig.batch,
            "workload.interval": TEXT_INTERVAL if text else None}


def _ring(spec: RunSpec) -> dict[str, Any]:
    board = spec.backend.board
    nodes = NODES[type(spec.schedule)]
    if board is not None:
        nodes = BOARDS[board].nodes
    if spec.ring.topology is not None:
        rows, columns = grid_size(spec.ring.topology)
        nodes = rows * columns
    simulated = spec.backend.transport not in (TransportName.BOARD, TransportName.SERIAL)
    latency = LATENCY if simulated and not isinstance(spec.schedule, Streaming | SideBySide) else None
    return {"ring.nodes": nodes, "ring.link_latency": latency}


def _optimizer(spec: RunSpec) -> dict[str, Any]:
    """Update rule and constants; the constants of the other schedules are those of momentum."""
    text, board, rule = spec.workload.name is WorkloadName.TEXT, spec.backend.board, spec.optimizer.rule
    if not _is_ring(spec):
        rate = _RATES.get(type(spec.schedule), LEARNING_RATES[OptimizerName.MOMENTUM])
        return {"optimizer.learning_rate": rate, "optimizer.momentum": 0.9}
    if rule is None:
        has_state = board is None or bool(BOARDS[board].node.memories.planes)
        rule = OptimizerName.ADAM if text else OptimizerName.MOMENTUM if has_state else OptimizerName.SGD
    rates = TEXT_LEARNING_RATES if text else LEARNING_RATES
    return {"optimizer.rule": rule, "optimizer.learning_rate": rates[rule],
            "optimizer.momentum": 0.9 if rule in (OptimizerName.MOMENTUM, OptimizerName.NESTEROV) else None,
            "optimizer.dampening": 0.0 if rule is OptimizerName.MOMENTUM else None,
            "optimizer.moments": None if rule is OptimizerName.SGD else Moments.FP32}


def _formats(spec: RunSpec) -> dict[str, Any]:
    if isinstance(spec.schedule, Streaming | SideBySide):
        return {}
    return {"formats.weights": RAW, "formats.gradients": ZERO_VALUE if _is_ring(spec) else None}


def _compute(spec: RunSpec) -> dict[str, Any]:
    own, digits = spec.compute, spec.workload.name is WorkloadName.DIGITS
    engine = own.on == NODE or spec.value("schedule.overlap") is not None or isinstance(spec.schedule, Quorum)
    macs = LateConfig.macs if isinstance(spec.schedule, Quorum) else MACS
    return {"compute.macs": macs if engine else None,
            "compute.format": FP32 if digits and _is_ring(spec) else None,
            "compute.tiling": DEFAULT if own.on == NODE and digits else None,
            "compute.far": None if own.activations is None else f"1/{1 / FarMemory.rate:.0f}",
            "compute.memory": None if own.activations is None else FarMemory.kind}


def _rest(spec: RunSpec) -> dict[str, Any]:
    backend = spec.backend
    integers = backend.board is not None and BOARDS[backend.board].node.is_int16
    serial = backend.transport in (TransportName.BOARD, TransportName.SERIAL)
    has_units = backend.transport is TransportName.VERILATED and not integers
    return {"backend.arithmetic": Arithmetic.GATEWARE if has_units else None,
            "backend.reconnect": 30.0 if serial else None,
            "faults.seed": None if spec.faults.rate is None else RandomFaults.seed,
            "output.folder": toolchain.BUILD / "sim",
            "output.check": True if _is_ring(spec) and backend.transport is not TransportName.GOLDEN else None}
