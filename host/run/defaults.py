"""Defaults that depend on several sections of a run's description."""

import dataclasses
import math
from typing import Any

from hdl.board import BOARDS
from host.feature import feature
from host.run.sections import TEXT_BATCH, TEXT_INTERVAL, TEXT_STEPS, Moments, Update
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

__all__ = ["is_programmed", "with_defaults", "without_defaults"]


def with_defaults(spec: RunSpec) -> RunSpec:
    """Fill in all applicable defaults that do not depend on data. Calling this twice has no further effect."""
    spec = _schedule(_backend(spec))
    for fill in (_workload, _ring, _optimizer, _formats, _compute, _rest):
        spec = spec.replace(_missing(spec, fill(spec)))
    return spec


def without_defaults(spec: RunSpec) -> RunSpec:
    """Remove values that equal their defaults, so that a change of one value can change other defaults."""
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
    """Return the defaults of the fields that are not set."""
    return {path: value for path, value in defaults.items() if spec.value(path) is None and value is not None}


def _backend(spec: RunSpec) -> RunSpec:
    """Set the transport and the board, on which most other defaults depend."""
    transport = spec.backend.transport
    if transport is None:
        transport = TransportName.VERILATED if spec.backend.device is None else TransportName.SERIAL
    board = spec.backend.board
    if board is None and transport in (TransportName.BOARD, TransportName.SERIAL):
        board = "simulated"
    return spec.replace({"backend.transport": transport, "backend.board": board})


def _schedule(spec: RunSpec) -> RunSpec:
    """Set the schedule; the default for perceptrons on computing nodes is a program."""
    if spec.schedule is not None:
        return spec.replace(_missing(spec, spec.schedule.defaults(spec)))
    return spec.replace({"schedule.overlap": "none"} if is_programmed(spec) else {"schedule.kind": Update.kind})


def is_programmed(spec: RunSpec) -> bool:
    """Return whether nodes run a program by default, if no other schedule is requested."""
    return (spec.compute.on == NODE and spec.workload.name is WorkloadName.DIGITS and spec.formats.density is None
            and spec.backend.board is None)


def _workload(spec: RunSpec) -> dict[str, Any]:
    text, own = spec.workload.name is WorkloadName.TEXT, spec.workload
    if (other := spec.known_schedule.workload) is not None:
        return dict(other)
    epochs = 1 if spec.backend.transport is TransportName.BOARD else TrainingConfig.epochs
    length = {"workload.steps": TEXT_STEPS} if text else {"workload.epochs": epochs}
    return {**(length if own.epochs is None and own.steps is None else {}),
            "workload.batch": TEXT_BATCH if text else TrainingConfig.batch,
            "workload.interval": TEXT_INTERVAL if text else None}


def _ring(spec: RunSpec) -> dict[str, Any]:
    board = spec.backend.board
    nodes = spec.known_schedule.nodes if board is None else BOARDS[board].nodes
    if spec.ring.topology is not None:
        nodes = math.prod(feature("grid").size(spec.ring.topology))
    simulated = spec.backend.transport not in (TransportName.BOARD, TransportName.SERIAL)
    latency = LATENCY if simulated and spec.known_schedule.has_latency else None
    return {"ring.nodes": nodes, "ring.link_latency": latency}


def _optimizer(spec: RunSpec) -> dict[str, Any]:
    """Set the default update rule and its constants. Schedules with their own training loop use momentum defaults."""
    text, board, rule = spec.workload.name is WorkloadName.TEXT, spec.backend.board, spec.optimizer.rule
    if not spec.known_schedule.in_steps:
        rate = spec.known_schedule.learning_rate or LEARNING_RATES[OptimizerName.MOMENTUM]
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
    formats = {"weights": RAW, "gradients": ZERO_VALUE}
    return {f"formats.{name}": formats[name] for name in spec.known_schedule.formats}


def _compute(spec: RunSpec) -> dict[str, Any]:
    own, digits = spec.compute, spec.workload.name is WorkloadName.DIGITS
    engine = own.on == NODE or spec.value("schedule.overlap") is not None
    return {"compute.macs": MACS if engine else spec.known_schedule.macs,
            "compute.format": FP32 if digits and spec.known_schedule.in_steps else None,
            "compute.tiling": DEFAULT if own.on == NODE and digits else None,
            "compute.far": None if own.activations is None else f"1/{1 / FarMemory.rate:.0f}",
            "compute.memory": None if own.activations is None else FarMemory.kind}


def _rest(spec: RunSpec) -> dict[str, Any]:
    backend = spec.backend
    integers = backend.board is not None and not BOARDS[backend.board].node.has_ring
    serial = backend.transport in (TransportName.BOARD, TransportName.SERIAL)
    is_golden = backend.transport is TransportName.GOLDEN
    has_units = backend.transport is TransportName.VERILATED and not integers
    return {"backend.arithmetic": Arithmetic.GATEWARE if has_units else None,
            "backend.reconnect": 30.0 if serial else None,
            "faults.seed": None if spec.faults.rate is None else RandomFaults.seed,
            "output.folder": toolchain.BUILD / "sim",
            "output.check": True if spec.known_schedule.in_steps and not is_golden else None}
