"""Draw random fields and values for runs, including pairs of options that exclude each other."""

import enum
import random
from pathlib import Path

from host.features.quorum.schedule_section import Quorum
from host.features.streaming.schedule_section import Streaming
from host.run.command_line import fields
from host.run.execution import check
from host.run.sections import flag
from host.run.spec import RunSpec
from host.training.optimizers import OptimizerName
from host.training.workloads import WorkloadName
from host.transports.session import TransportName

#: Values that can be drawn for each field, other than its default. Values of enumerations and switches are added
#: automatically.
VALUES = {
    "workload.seed": (3,), "workload.epochs": (1,), "workload.steps": (2,), "workload.batch": (64,),
    "workload.interval": (1,), "model.hidden": ("16", "none"), "optimizer.learning_rate": (0.25,),
    "optimizer.momentum": (0.5,), "optimizer.dampening": (0.5,), "optimizer.weight_decay": (0.1,),
    "optimizer.clip": (0.5,), "formats.weights": ("mx9", "bf16", "table32"),
    "formats.gradients": ("mx9", "sum32", "raw"),
    "formats.density": (0.1,), "compute.on": ("node",), "compute.format": ("mx9",), "compute.macs": (4,),
    "compute.tiling": ("searched",), "compute.activations": (6144,), "compute.far": ("1/2",),
    "compute.memory": ("swap",), "ring.nodes": (2,), "ring.link_latency": (32,), "ring.links": ("slots",),
    "ring.slow_link": ("1:0.5",), "ring.shape": ("grid", "flat"),
    "ring.topology": ("2x2",), "ring.disable": ("card1@1",),
    "ring.enable": ("card1@1",), "faults.rate": (1e-4,), "faults.seed": (7,),
    "schedule.overlap": ("none", "layers", "delayed:1", "search", "all"), "schedule.straggler": ("1:2",),
    "schedule.quorum": (1,), "schedule.staleness_factor": (0.5,), "schedule.deadline": (1000,),
    "schedule.skew": (0.5,), "schedule.cycles": (100_000,), "schedule.microbatch": (8,),
    "workload.microbatches": (4,), "schedule.format": ("mx4",), "schedule.server_far": ("2",),
    "schedule.worker_far": ("2",), "schedule.window": (2080,), "schedule.jobs": (2,),
    "backend.device": ("/dev/null",),
    "backend.transport": (TransportName.PYSIM, TransportName.BOARD, TransportName.GOLDEN),
    "backend.board": ("simulated", "icebreaker", "ulx3s-85f"), "backend.baud": (1_000_000,),
    "backend.reconnect": (5.0,), "backend.threads": (1,), "backend.processes": (2,), "backend.state_planes": (2,),
    "output.folder": (Path("out"),), "output.checkpoint": (1,), "output.tensorboard": (Path("events"),),
    "output.chakra": (Path("trace"),), "schedule.kind": ("streaming",),
}


def _values(path, kind, option):
    if path in VALUES:
        return VALUES[path]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(kind)
    return (True, False) if "/" in option.flags[0] else (True,)


#: For each field, all values that can be drawn.
FIELDS = {path: _values(path, kind, option) for path, _, kind, option, _ in fields()} | {
    "schedule.kind": VALUES["schedule.kind"]}


#: For each option, the other options without which it has no effect.
CONTEXTS = {
    "optimizer.momentum": {"optimizer.rule": OptimizerName.MOMENTUM},
    "optimizer.dampening": {"optimizer.rule": OptimizerName.MOMENTUM},
    "compute.tiling": {"compute.on": "node"}, "compute.macs": {"compute.on": "node"},
    "compute.activations": {"compute.on": "node", "workload.name": WorkloadName.TEXT},
    "compute.far": {"compute.activations": 6144, "compute.on": "node", "workload.name": WorkloadName.TEXT},
    "compute.memory": {"compute.activations": 6144, "compute.on": "node", "workload.name": WorkloadName.TEXT},
    "workload.microbatches": {"formats.gradients": "sum32"},
    "ring.disable": {"ring.topology": "2x2"}, "ring.enable": {"ring.topology": "2x2", "ring.disable": "card1@0"},
    "ring.shape": {"ring.topology": "2x2"}, "faults.seed": {"faults.rate": 1e-4},
    "backend.baud": {"backend.device": "/dev/null"}, "backend.reconnect": {"backend.device": "/dev/null"},
    "schedule.jobs": {"ring.links": "slots"}, "output.chakra": {"schedule.overlap": "layers"},
    **{f"schedule.{name}": {"schedule.straggler": "1:2"} for name in Quorum.options() if name != "straggler"},
}


def pairs(generator, count):
    """Yield random pairs of fields, with their values and the options that they require."""
    names = sorted(FIELDS)
    for _ in range(count):
        chosen = generator.sample(names, 2)
        values = {name: generator.choice(FIELDS[name]) for name in chosen}
        yield chosen, CONTEXTS.get(chosen[0], {}) | CONTEXTS.get(chosen[1], {}) | values


def sides(name):
    """Command-line options that belong to a field: its own option, the options that it requires, and its
    schedule's."""
    own = {flag(path) for path in (name, *CONTEXTS.get(name, ())) if path != "schedule.kind"}
    if name == "schedule.kind" or name.removeprefix("schedule.") in Streaming.options():
        own.add("--schedule")
    return own


def tried(seed, count):
    """Yield random pairs with their values and outcome: passed, rejected with both options in the message, or failed
    with an error."""
    for chosen, values in pairs(random.Random(seed), count):
        try:
            check(RunSpec().replace(dict(values)))
            outcome = "passed"
        except ValueError as error:
            named = all(any(option in str(error) for option in sides(name)) for name in chosen)
            outcome = "refused" if named and "\n" not in str(error) else str(error)
        yield chosen, values, outcome
