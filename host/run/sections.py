"""Sections of a training run's description: options grouped by subject, with help text, unit and range.

A value of None means that the option is not set: its default depends on other sections (:mod:`host.run.defaults`), or
it does not apply to the run (:mod:`host.run.couplings`).
"""

import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hdl.board import BOARDS
from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
from hdl.registry import FEATURES
from host.feature import feature
from host.options import COUNT, Section, option
from host.run.schedule import Schedule
from host.training.optimizers import LEARNING_RATES, OptimizerName
from host.training.record import HOST, MACS, MEMORY_KINDS, NODE, FarMemory, TrainingConfig
from host.training.workloads import TEXT_LEARNING_RATES, WorkloadName
from host.transports.session import LATENCY, MAX_LATENCY, TransportName
from sim.golden.operands import OPERANDS
from sim.link_faults import RandomFaults
from sim.verilated.native import Arithmetic

if TYPE_CHECKING:
    from host.run.spec import RunSpec

__all__ = ["CREDITS", "FLAT", "GRID", "SCHEDULES", "SECTIONS", "SLOTS", "TEXT_BATCH", "TEXT_INTERVAL", "TEXT_STEPS",
           "Backend", "Compute", "Faults", "Formats", "Model", "Moments", "Optimizer", "Output", "Ring", "Update",
           "Workload", "flag", "of_schedule"]

#: Default number of steps, batch size, and number of steps between measurements for the character model.
TEXT_STEPS, TEXT_BATCH, TEXT_INTERVAL = 200, 64, 20

#: Rules for when a node sends: when its successor has room, or in slots of a common time base.
CREDITS, SLOTS = "credits", "slots"
#: Ring shapes for all nodes of a grid to train one model.
GRID, FLAT = "grid", "flat"


class Moments(enum.Enum):
    """Formats for storing the optimizer's state on nodes."""

    FP32 = "fp32"
    BF16 = "bf16"


def _rates(rates: dict[OptimizerName, float]) -> str:
    return ", ".join(f"{name.value} {rate}" for name, rate in rates.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload(Section):
    """Model, data and length of a run."""

    name: WorkloadName = option(WorkloadName.DIGITS, "--workload", help=(
        "A perceptron that classifies digits, or a causal transformer that predicts characters of text."))
    seed: int = option(TrainingConfig.seed, "--seed", help=(
        "Seed of the initial weights and of the order of the examples."))
    epochs: int | None = option(None, "--epochs", help=(
        "Passes over the training set."), shown_default=f"digits {TrainingConfig.epochs}, on a simulated board 1")
    steps: int | None = option(None, "--steps", help=(
        "Steps, in place of epochs."), shown_default=f"text {TEXT_STEPS}, layer streaming 6")
    batch: int | None = option(None, "--batch", help=(
        "Largest number of examples in a step; with quorum updates, examples of each worker."),
        shown_default=f"digits {TrainingConfig.batch}, text {TEXT_BATCH}, quorum updates 16")
    microbatches: int | None = option(None, "--microbatches", minimum=1, maximum=256, label="Microbatches", help=(
        "Microbatches of a step, each with a gradient of its own. Nodes sum these as integers, so weights do not "
        "depend on the number of nodes; with layer streaming, parts of a batch that pass through all layers."),
        shown_default="one for each node; layer streaming chooses by the cycles of the first step")
    interval: int | None = option(None, "--interval", help=(
        "Steps between measurements of the model."), shown_default=f"digits an epoch, text {TEXT_INTERVAL}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Section):
    """Shape of the perceptron."""

    panel: ClassVar[str] = "Workload"

    hidden: str | None = option(None, "--hidden", metavar="WIDTH,...", help=(
        "Widths of the perceptron's hidden layers, such as 64,32, or 32x9 for nine of 32, or none; simulated nodes "
        "are made to have room."), shown_default="64, or none where a board has no room; layer streaming 64x4")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring(Section):
    """Nodes and the links between them."""

    nodes: int | None = option(None, "--nodes", help=(
        "Nodes in the ring, 1 to 255; with layer streaming, workers."),
        shown_default="4; 8 for two jobs; on a board, all of its nodes")
    link_latency: int | None = option(None, "--link-latency", minimum=1, maximum=MAX_LATENCY, label="Link latency",
                                      help="Cycles from one node to the next.", shown_default=str(LATENCY))
    links: str = option(CREDITS, "--links", choices=(CREDITS, SLOTS), metavar=f"{CREDITS}|{SLOTS}", help=(
        f"When nodes send: on {CREDITS} of their successors, or in {SLOTS} of a common time."))
    slow_link: str | None = option(None, "--slow-link", metavar="RANK:RATE", help=(
        "A slow link: the rank that sends on it and its words per cycle, such as 2:0.5. Links are measured, and one "
        "node owns all blocks if that is faster."), shown_default="all links carry a word per cycle")
    topology: str | None = option(None, "--topology", metavar="ROWSxCOLUMNS", help=(
        "Grid of nodes with two ports, rows x columns, such as 2x4; a card is a row."), shown_default="a ring")
    disable: str | None = option(None, "--disable", metavar="PART@STEP,...", help=(
        "Parts that leave, each after a number of steps, such as card1@40,node5@120,link5:0@60 (port 0 of node 5)."))
    enable: str | None = option(None, "--enable", metavar="PART@STEP,...", help="Parts that come back, likewise.")
    shape: str | None = option(None, "--shape", choices=(GRID, FLAT), metavar=f"{GRID}|{FLAT}", help=(
        "Rings of the grid: grid for sums in rows and columns, flat for one ring."),
        shown_default="grid where the enabled nodes are whole rows and columns, else flat; flat where integers are "
                      "summed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend(Section):
    """Transport to the nodes, and their simulation."""

    transport: TransportName | None = option(None, "--transport", help="Transport to the nodes.",
                                             shown_default=TransportName.VERILATED.value)
    device: str | None = option(None, "--device", help=(
        "Serial port of a board, such as /dev/ttyUSB0; implies --transport serial."))
    board: str | None = option(None, "--board", choices=tuple(BOARDS), help=(
        f"Board at the port, or simulated: {', '.join(BOARDS)}."),
        shown_default="simulated, if it is to be a board; else nodes that gradring info shows")
    baud: int | None = option(None, "--baud", minimum=1, maximum=COUNT, label="Baud rate", help=(
        "Bits per second of the serial port."), shown_default="the rate in the bitstream")
    reconnect: float | None = option(None, "--reconnect", minimum=0, maximum=COUNT, label="Seconds to reconnect",
                                     help=(
        "Seconds to wait for a serial port that is lost, before training ends."), shown_default="30")
    arithmetic: Arithmetic | None = option(None, "--arithmetic", help=(
        "Simulate nodes' floating-point units as gateware, or as native instructions with the same bits and cycles."),
        shown_default=Arithmetic.GATEWARE.value)
    host_port: bool = option(False, "--host-port", help=(
        "Simulate the nodes' host ports word by word; else memories are read and written directly, and the ports' "
        "time is computed."))
    threads: int | None = option(None, "--threads", help=(
        "Threads of the simulation; they change only its speed."), shown_default="2, where there are as many cores")
    processes: int | None = option(None, "--processes", help=(
        "Processes of this machine that simulate the nodes, a share each; under mpirun, the number that it has "
        "started. Only the speed depends on them."), shown_default="1")
    state_planes: int | None = option(None, "--state-planes", minimum=0, maximum=2, help=(
        "State planes of simulated nodes, 0 to 2."), shown_default="those of the optimizer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Section):
    """Update rule and its constants."""

    rule: OptimizerName | None = option(None, "--optimizer", help="Update rule.", shown_default=(
        "digits momentum, or sgd where nodes have no state; text adam"))
    learning_rate: float | None = option(None, "--learning-rate", help=(
        "Learning rate at the first step; it falls to zero linearly, except with quorum updates and layer "
        "streaming."),
        shown_default=f"digits {_rates(LEARNING_RATES)}; text {_rates(TEXT_LEARNING_RATES)}; quorum updates and "
                      f"layer streaming 0.05")
    momentum: float | None = option(None, "--momentum", help="Momentum of momentum and nesterov.",
                                    shown_default="0.9")
    dampening: float | None = option(None, "--dampening", help="Dampening of momentum.", shown_default="0.0")
    weight_decay: float | None = option(None, "--weight-decay", help=(
        "Decoupled with adamw, else added to the gradient."), shown_default="adamw 0.01, others 0")
    clip: float | None = option(None, "--clip", help=(
        "Largest magnitude of an element of the mean gradient."), shown_default="none")
    moments: Moments | None = option(None, "--moments", help=(
        "Format of momentum and moments; second moments of bf16 do not decay with adam's b2."),
        shown_default=Moments.FP32.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Formats(Section):
    """Formats of weights and gradients on links."""

    weights: str | None = option(None, "--weights", choices=WEIGHT_CODECS, label="Weight codec", help=(
        f"Codec of new weights; their owners keep fp32 master weights: {', '.join(WEIGHT_CODECS)}."),
        shown_default="raw")
    gradients: str | None = option(None, "--gradients", choices=GRADIENT_CODECS, label="Gradient codec", help=(
        f"Codec of gradients and their sums; its error is added to the next gradients, unless integers are summed: "
        f"{', '.join(GRADIENT_CODECS)}."),
        shown_default="zero_value")
    density: float | None = option(None, "--density", help=(
        "Fraction of the elements that nodes send, on average over the hops of scatter-reduce: the largest ones; the "
        "rest is added to the next gradients."), shown_default="all that are not zero")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compute(Section):
    """Computation of gradients."""

    on: str = option(HOST, "--compute", help=(
        "Computes gradients: host, or node, by a program unless there is a density."),
        metavar=f"{HOST}|{NODE}")
    format: str | None = option(None, "--compute-format", help=(
        f"Format of the factors of matrix products, on the host or on nodes: {', '.join(OPERANDS)}."),
        shown_default="fp32")
    macs: int | None = option(None, "--macs", minimum=1, maximum=COUNT, label="Multiply-adds per cycle", help=(
        "Multiply-adds per cycle of each node's engine, or of the modelled one of a schedule."),
        shown_default=str(MACS))
    tiling: str | None = option(None, "--tiling", help=(
        "Factors of matrix products on nodes that compute: default, or searched on a simulated node first."),
        shown_default="default")
    activations: int | None = option(None, "--activations", help=(
        "Words of each node's activation memory that a sequence of text may take, without lists; saved maps that do "
        "not fit are swapped or recomputed, by a plan."), shown_default="enough for all maps")
    far: str | None = option(None, "--far", metavar="RATE", help=(
        "Words per cycle of each node's far memory, such as 1/4."), shown_default=f"1/{1 / FarMemory.rate:.0f}")
    memory: str | None = option(None, "--memory", help=(
        f"Treatment of saved maps: {', '.join(MEMORY_KINDS)}."), shown_default=FarMemory.kind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update(Schedule):
    """Schedule of fused updates; the host starts each step."""

    kind: ClassVar[str] = "update"
    lead: ClassVar[str] = "--schedule update"
    in_steps: ClassVar[bool] = True
    has_processes: ClassVar[bool] = True
    formats: ClassVar[tuple[str, ...]] = ("weights", "gradients")

    def check_given(self, spec: "RunSpec") -> None:
        from host.run.defaults import is_programmed

        if is_programmed(spec):
            raise ValueError("Option --schedule update is for a run without --compute node, or with --density (a "
                             "perceptron on nodes that compute is trained by a program): leave it out")

    def check(self, spec: "RunSpec") -> None:
        from host.run import preparation

        preparation.prepare(spec)

    def train(self, spec: "RunSpec") -> dict[str, Any]:
        from host.run import steps

        return steps.train(spec)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults(Section):
    """Faults that damage words on links."""

    panel: ClassVar[str] = "Ring"

    rate: float | None = option(None, "--faults", metavar="RATE", help=(
        "Links with replay, and damage to them: the fraction of cycles in which one wire of a link changes, at "
        "random."), shown_default="links without either")
    seed: int | None = option(None, "--fault-seed", help="Seed of --faults.",
                              shown_default=str(RandomFaults.seed))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output(Section):
    """Options for checks, checkpoints and output files."""

    folder: Path | None = option(None, "--output", help=(
        "Folder of report.json, report.png, report.html, run.toml, weights.npz and checkpoint.tar."),
        shown_default="build/sim")
    check: bool | None = option(None, "--check/--no-check", help=(
        "Compare all nodes with the golden model after every step."), shown_default="check")
    compare: bool | None = option(None, "--compare/--no-compare", help=(
        "Also train a run to compare with, on the same ring, seed and batches: dense with a density, else by plain "
        "sgd."),
        shown_default="no-compare")
    checkpoint: int | None = option(None, "--checkpoint", minimum=0, maximum=COUNT,
                                    label="Steps between checkpoints", help=(
        "Steps between writes of checkpoint.tar, 0 for never."),
        shown_default="whenever the model is measured, digits every epoch")
    resume: bool = option(False, "--resume", help=(
        "Continue from checkpoint.tar in the output folder, if there is one."))
    tensorboard: Path | None = option(None, "--tensorboard", help=(
        "Folder of events for TensorBoard, with a folder in it for each run: loss, accuracy, cycles, words and "
        "density of every step. Needs gradring[tensorboard]."))
    chakra: Path | None = option(None, "--chakra", help=(
        "Prefix of the names of execution traces for ASTRA-sim: the last step of a run by a program on "
        "digits. Needs gradring[chakra]."))


#: Sections of a run other than its schedule, keyed by name.
SECTIONS: dict[str, type[Section]] = {
    "workload": Workload, "model": Model, "ring": Ring, "backend": Backend,
    "optimizer": Optimizer, "formats": Formats, "compute": Compute,
    "faults": Faults, "output": Output}
_OTHERS: list[type[Schedule]] = [kind for name in FEATURES for kind in feature(name).schedules()]
#: Types of schedules, by kind.
SCHEDULES: dict[str, type[Schedule]] = {Update.kind: Update} | {
    other.kind: other for other in sorted(_OTHERS, key=lambda other: other.place)}


def flag(path: str) -> str:
    """Return the command-line option for a field, such as ``--momentum`` for ``optimizer.momentum``."""
    if path == "schedule.kind":
        return "--schedule"
    section, _, name = path.partition(".")
    kinds = tuple(SCHEDULES.values()) if section == "schedule" else (SECTIONS[section],)
    flags = next((kind.options()[name].flags for kind in kinds if name in kind.options()), (f"--{name}",))
    return flags[0].partition("/")[0]


def of_schedule(path: str, chosen: str) -> str:
    """Error message for a field that belongs to a schedule other than the ``chosen`` one."""
    return f"Option {flag(path)} is for a run without {SCHEDULES[chosen].lead}: leave it out"
