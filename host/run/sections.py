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

#: When a node sends: whenever its successor can buffer a packet, or in time slots of a clock that all nodes share.
CREDITS, SLOTS = "credits", "slots"
#: Topologies in which all nodes of a grid train one model.
GRID, FLAT = "grid", "flat"


class Moments(enum.Enum):
    """Formats for storing the optimizer's state on nodes."""

    FP32 = "fp32"
    BF16 = "bf16"


def _rates(rates: dict[OptimizerName, float]) -> str:
    return ", ".join(f"{name.value} {rate}" for name, rate in rates.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload(Section):
    """Section with the model, the data and the length of a run."""

    name: WorkloadName = option(WorkloadName.DIGITS, "--workload", help=(
        "Model: a perceptron that classifies digits, or a causal transformer that predicts characters of text."))
    seed: int = option(TrainingConfig.seed, "--seed", help=(
        "Seed of the initial weights and of the order of the examples."))
    epochs: int | None = option(None, "--epochs", help=(
        "Number of passes over the training set."),
        shown_default=f"digits {TrainingConfig.epochs}, on a simulated board 1")
    steps: int | None = option(None, "--steps", help=(
        "Number of steps, instead of --epochs."), shown_default=f"text {TEXT_STEPS}, layer streaming 6")
    batch: int | None = option(None, "--batch", help=(
        "Maximum number of examples in a step; with quorum updates, the number per worker."),
        shown_default=f"digits {TrainingConfig.batch}, text {TEXT_BATCH}, quorum updates 16")
    microbatches: int | None = option(None, "--microbatches", minimum=1, maximum=256, label="Microbatches", help=(
        "Number of microbatches in a step, each with its own gradient. Nodes sum these gradients as integers, so "
        "weights do not depend on the number of nodes. With layer streaming, number of parts of a batch that pass "
        "through the layers one after another."),
        shown_default="one per node; with layer streaming, chosen from the cycles of the first step")
    interval: int | None = option(None, "--interval", help=(
        "Number of steps between measurements of the model."),
        shown_default=f"digits one epoch, text {TEXT_INTERVAL}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Section):
    """Section with the shape of the perceptron."""

    panel: ClassVar[str] = "Workload"

    hidden: str | None = option(None, "--hidden", metavar="WIDTH,...", help=(
        "Widths of the perceptron's hidden layers, such as 64,32, or 32x9 for nine layers of width 32, or none. "
        "Simulated nodes get sufficient memory."),
        shown_default="64, or none if a board has no room; layer streaming 64x4")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring(Section):
    """Section with the nodes and the links between them."""

    nodes: int | None = option(None, "--nodes", help=(
        "Number of nodes in the ring, 1 to 255; with layer streaming, number of workers."),
        shown_default="4; 8 for two jobs; on a board, all of its nodes")
    link_latency: int | None = option(None, "--link-latency", minimum=1, maximum=MAX_LATENCY, label="Link latency",
                                      help="Latency of a link in cycles.", shown_default=str(LATENCY))
    links: str = option(CREDITS, "--links", choices=(CREDITS, SLOTS), metavar=f"{CREDITS}|{SLOTS}", help=(
        f"When nodes send packets: when they have {CREDITS} from their successors, or in {SLOTS} of a common time."))
    slow_link: str | None = option(None, "--slow-link", metavar="RANK:RATE", help=(
        "A slow link: the rank that sends on it and its words per cycle, such as 2:0.5. The host measures the links, "
        "and makes one node the owner of all blocks if that is faster."),
        shown_default="all links carry one word per cycle")
    topology: str | None = option(None, "--topology", metavar="ROWSxCOLUMNS", help=(
        "Grid of nodes with two ports: rows x columns, such as 2x4. Each row is a card."), shown_default="a ring")
    disable: str | None = option(None, "--disable", metavar="PART@STEP,...", help=(
        "Cards, nodes and links to disable, each after a number of steps, such as card1@40,node5@120,link5:0@60 "
        "(link at port 0 of node 5)."))
    enable: str | None = option(None, "--enable", metavar="PART@STEP,...", help=(
        "Cards, nodes and links to enable again, in the same notation."))
    shape: str | None = option(None, "--shape", choices=(GRID, FLAT), metavar=f"{GRID}|{FLAT}", help=(
        "Rings of the grid: grid for sums in rows and then in columns, flat for a single ring."),
        shown_default="grid if the enabled nodes are whole rows and columns, else flat; flat for sums of integers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend(Section):
    """Section with the transport to the nodes, and options of their simulation."""

    transport: TransportName | None = option(None, "--transport", help="Transport to the nodes.",
                                             shown_default=TransportName.VERILATED.value)
    device: str | None = option(None, "--device", help=(
        "Serial port of a board, such as /dev/ttyUSB0; implies --transport serial."))
    board: str | None = option(None, "--board", choices=tuple(BOARDS), help=(
        f"Board at the serial port, or board to simulate: {', '.join(BOARDS)}."),
        shown_default="simulated if the transport is board or serial; else no board")
    baud: int | None = option(None, "--baud", minimum=1, maximum=COUNT, label="Baud rate", help=(
        "Baud rate of the serial port in bits per second."), shown_default="the rate in the bitstream")
    reconnect: float | None = option(None, "--reconnect", minimum=0, maximum=COUNT, label="Seconds to reconnect",
                                     help=(
        "Seconds to wait for a lost serial port to return before training ends."), shown_default="30")
    arithmetic: Arithmetic | None = option(None, "--arithmetic", help=(
        "Simulate nodes' floating-point units as gateware, or as native instructions with the same bits and cycles."),
        shown_default=Arithmetic.GATEWARE.value)
    host_port: bool = option(False, "--host-port", help=(
        "Simulate the nodes' host ports word by word. Otherwise, memories are accessed directly, and the time of the "
        "ports is computed."))
    threads: int | None = option(None, "--threads", help=(
        "Number of threads of the simulation, which affects only its speed."),
        shown_default="2, or 1 on a single core")
    processes: int | None = option(None, "--processes", help=(
        "Number of processes that share the simulation of the nodes; under mpirun, the number that it has started. "
        "Affects only the speed."), shown_default="1")
    state_planes: int | None = option(None, "--state-planes", minimum=0, maximum=2, help=(
        "Number of state planes of simulated nodes, 0 to 2."), shown_default="the number that the optimizer needs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Section):
    """Section with the update rule and its constants."""

    rule: OptimizerName | None = option(None, "--optimizer", help="Update rule.", shown_default=(
        "digits momentum, or sgd if nodes have no state; text adam"))
    learning_rate: float | None = option(None, "--learning-rate", help=(
        "Learning rate at the first step; it decreases linearly to zero, except with quorum updates and layer "
        "streaming."),
        shown_default=f"digits {_rates(LEARNING_RATES)}; text {_rates(TEXT_LEARNING_RATES)}; quorum updates and "
                      f"layer streaming 0.05")
    momentum: float | None = option(None, "--momentum", help="Momentum factor of the rules momentum and nesterov.",
                                    shown_default="0.9")
    dampening: float | None = option(None, "--dampening", help="Dampening of the rule momentum.", shown_default="0.0")
    weight_decay: float | None = option(None, "--weight-decay", help=(
        "Weight decay: decoupled with adamw, otherwise added to the gradient."), shown_default="adamw 0.01, others 0")
    clip: float | None = option(None, "--clip", help=(
        "Largest magnitude of an element of the mean gradient; larger elements are clipped."), shown_default="none")
    moments: Moments | None = option(None, "--moments", help=(
        "Format of the optimizer's state; in bf16, second moments do not decay with adam's default b2."),
        shown_default=Moments.FP32.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Formats(Section):
    """Section with the formats of weights and gradients on links."""

    weights: str | None = option(None, "--weights", choices=WEIGHT_CODECS, label="Weight codec", help=(
        f"Codec for new weights; the owners keep master weights in fp32. One of {', '.join(WEIGHT_CODECS)}."),
        shown_default="raw")
    gradients: str | None = option(None, "--gradients", choices=GRADIENT_CODECS, label="Gradient codec", help=(
        f"Codec for gradients and their sums; its error is added to the next gradients, unless integers are summed. "
        f"One of {', '.join(GRADIENT_CODECS)}."),
        shown_default="zero_value")
    density: float | None = option(None, "--density", help=(
        "Fraction of the gradient elements that nodes send, on average over the hops of the scatter-reduce. Nodes "
        "send the largest elements, and add the rest to the next gradients."), shown_default="all nonzero elements")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compute(Section):
    """Section with options for the computation of gradients."""

    on: str = option(HOST, "--compute", help=(
        "Where gradients are computed: on the host, or on each node, by a program unless --density is set."),
        metavar=f"{HOST}|{NODE}")
    format: str | None = option(None, "--compute-format", help=(
        f"Format of the operands of matrix products, on the host or on nodes: {', '.join(OPERANDS)}."),
        shown_default="fp32")
    macs: int | None = option(None, "--macs", minimum=1, maximum=COUNT, label="Multiply-adds per cycle", help=(
        "Multiply-adds per cycle of each node's compute engine, or of the engine that a schedule models."),
        shown_default=str(MACS))
    tiling: str | None = option(None, "--tiling", help=(
        "Tile factors of matrix products on nodes that compute: default, or searched on a simulated node first."),
        shown_default="default")
    activations: int | None = option(None, "--activations", help=(
        "Words of each node's activation memory available to a sequence of text, in addition to the instruction "
        "lists. Saved activation maps that do not fit are swapped or recomputed, according to a plan."),
        shown_default="enough for all maps")
    far: str | None = option(None, "--far", metavar="RATE", help=(
        "Throughput of each node's far memory in words per cycle, such as 1/4."),
        shown_default=f"1/{1 / FarMemory.rate:.0f}")
    memory: str | None = option(None, "--memory", help=(
        f"Treatment of saved activation maps: {', '.join(MEMORY_KINDS)}."), shown_default=FarMemory.kind)


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
    """Section with faults that damage words on links."""

    panel: ClassVar[str] = "Ring"

    rate: float | None = option(None, "--faults", metavar="RATE", help=(
        "Use links with replay, and flip a random wire of each link in this fraction of the cycles."),
        shown_default="neither replay nor faults")
    seed: int | None = option(None, "--fault-seed", help="Seed of the faults.",
                              shown_default=str(RandomFaults.seed))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output(Section):
    """Section with options for checks, checkpoints and output files."""

    folder: Path | None = option(None, "--output", help=(
        "Folder for report.json, report.png, report.html, run.toml, weights.npz and checkpoint.tar."),
        shown_default="build/sim")
    check: bool | None = option(None, "--check/--no-check", help=(
        "Compare all nodes with the golden model after every step."), shown_default="check")
    compare: bool | None = option(None, "--compare/--no-compare", help=(
        "Also train a second run for comparison, with the same ring, seed and batches: a dense run if --density is "
        "set, otherwise a run with plain sgd."),
        shown_default="no-compare")
    checkpoint: int | None = option(None, "--checkpoint", minimum=0, maximum=COUNT,
                                    label="Steps between checkpoints", help=(
        "Number of steps between writes of checkpoint.tar; 0 for no checkpoints."),
        shown_default="whenever the model is measured; on digits, every epoch")
    resume: bool = option(False, "--resume", help=(
        "Continue from checkpoint.tar in the output folder, if there is one."))
    tensorboard: Path | None = option(None, "--tensorboard", help=(
        "Folder for TensorBoard events, with a subfolder for each run: loss, accuracy, cycles, words and density of "
        "every step. Needs gradring[tensorboard]."))
    chakra: Path | None = option(None, "--chakra", help=(
        "Prefix of the names of execution traces for ASTRA-sim. They show the last step of a run by a program on "
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
    """Return the error message for a field that belongs to a different schedule than the ``chosen`` one."""
    return f"Option {flag(path)} is for a run without {SCHEDULES[chosen].lead}: leave it out"
