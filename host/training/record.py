"""The configuration of a training run, and the record of its outcome."""

import dataclasses
from typing import Any

from hdl.choices import choice_error, suggestion
from hdl.group import GROUP
from host.cycles.estimate import MACS
from host.driver.memory import Allocation
from host.driver.results import Cycles
from host.errors import ExpectedError
from host.feature import feature
from host.options import COUNT
from host.training.optimizers import LEARNING_RATES, SGD, Optimizer, OptimizerName
from sim.golden.operands import FP32, operands_of

__all__ = ["DEFAULT", "HOST", "MEMORY_KINDS", "NODE", "SEARCHED", "Change", "DivergenceError", "FarMemory", "Step",
           "Training", "TrainingConfig", "TrainingError"]

#: Who differentiates: the host, or the nodes.
HOST, NODE = "host", "node"
#: Sources of the factors of matrix products: a model, or a search on a node.
DEFAULT, SEARCHED = "default", "searched"
#: Treatments of maps that do not fit into a memory: see :data:`host.features.compute.memory.chain.KINDS`.
MEMORY_KINDS = ("keep", "swap", "recompute", "mixed")
#: Default optimizer of :class:`TrainingConfig`.
_MOMENTUM = SGD(learning_rate=LEARNING_RATES[OptimizerName.MOMENTUM], momentum=0.9)


class TrainingError(ExpectedError):
    """Training cannot continue; the message names the step, and the node that is the cause."""


class DivergenceError(TrainingError):
    """A node holds other bits, or has sent other words, than the golden model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FarMemory:
    """Far memory of nodes that compute, and its use."""

    #: Words of the activation memory that buffers may take.
    activations: int
    #: Words per cycle from and to the far memory.
    rate: float = 1 / 4
    #: Treatment of maps that do not fit: one of :data:`MEMORY_KINDS`.
    kind: str = "mixed"

    def __post_init__(self) -> None:
        if not 1 <= self.activations <= COUNT:
            raise ValueError(f"Activations must be between 1 and {COUNT:,} words, not {self.activations!r}")
        if not 1 / 1024 <= self.rate <= 1:
            raise ValueError(f"Rate of far memory must be between 1/1024 and 1 words per cycle, not {self.rate:g}")
        if self.kind not in MEMORY_KINDS:
            raise ValueError(choice_error("Memory", MEMORY_KINDS, self.kind))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Length, data order and options of a training run."""

    #: Passes over the training set.
    epochs: int = 14
    #: Steps of the whole run, in place of epochs.
    max_steps: int | None = None
    #: Steps between measurements of the model, with one after the last step; by default an epoch.
    interval: int | None = None
    #: Maximum examples in a step. An epoch has the fewest batches that this allows, of sizes as equal as possible.
    batch: int = 128
    #: Width of each hidden layer, where a perceptron is trained.
    hidden: tuple[int, ...] = (64,)
    #: Its learning rate is for the first step; it falls to zero along a straight line over all steps.
    optimizer: Optimizer = _MOMENTUM
    #: Whether nodes store the optimizer's state as bfloat16.
    packed_state: bool = False
    #: Fraction of the elements that nodes send, the largest ones, on average over the hops of scatter-reduce; by
    #: default they send all that are not zero.
    density: float | None = None
    #: Seed of the initial weights and of the order of the examples.
    seed: int = 0
    #: Steps between codebooks that are made of the master weights, for a weight codec that has one. 12 is an epoch of
    #: digits.
    refresh: int = 12
    #: Schedule of computing and communicating: see :class:`host.features.programs.schedules.Schedule`; by default
    #: there is none, and the host computes.
    overlap: str | None = None
    #: ``node`` for nodes that differentiate, each its share of a batch; ``host`` for a host that does.
    compute: str = HOST
    #: Format that factors of matrix products are rounded to: a name of :data:`sim.golden.operands.OPERANDS`. Sums,
    #: weights and all values between products are in binary32.
    compute_format: str = FP32
    #: Multiply-adds per cycle of the nodes' engine, or of the engine that a schedule expects.
    macs: int = MACS
    #: ``searched`` for factors of matrix products that are searched on a node first, ``default`` for factors of a
    #: model; of nodes that compute.
    tiling: str = DEFAULT
    #: Far memory of nodes that compute text; by default all saved maps are kept.
    far: FarMemory | None = None
    #: Whether to compare every node with the golden model after every step. Without it, the weights of node 0 are
    #: trusted.
    check: bool = True

    def __post_init__(self) -> None:
        for name, value in (("Epochs", self.epochs), ("Batch", self.batch), ("Refresh", self.refresh),
                            ("Steps", self.max_steps), ("Interval", self.interval)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
            if value is not None and value > COUNT:
                raise ValueError(f"{name} must be at most {COUNT:,}, not {value:,}")
        if self.density is not None and not 0 < self.density <= 1:
            raise ValueError(f"Density must be above 0 and at most 1, not {self.density!r}")
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"Widths of hidden layers must be at least 1, not {self.hidden!r}")
        if self.overlap is not None:
            feature("programs").overlaps(self.overlap)
        if self.compute not in (HOST, NODE):
            raise ValueError(f"Compute must be {HOST} or {NODE}, not {self.compute!r}"
                             f"{suggestion((HOST, NODE), self.compute)}")
        operands_of(self.compute_format)
        if self.tiling not in (DEFAULT, SEARCHED):
            raise ValueError(f"Tiling must be {DEFAULT} or {SEARCHED}, not {self.tiling!r}"
                             f"{suggestion((DEFAULT, SEARCHED), self.tiling)}")
        if self.far is not None and self.compute != NODE:
            raise ValueError(f"Compute must be {NODE} for a far memory, not {self.compute}")
        if not 1 <= self.macs <= COUNT:
            raise ValueError(f"Multiply-adds per cycle must be between 1 and {COUNT:,}, not {self.macs!r}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"Seed must be zero or more, and below 2^63, not {self.seed!r}")

    def steps(self, examples: int) -> int:
        """Steps of the whole run on ``examples`` examples."""
        return self.epochs * -(-examples // self.batch) if self.max_steps is None else self.max_steps

    def largest(self, examples: int) -> int:
        """Examples in the largest batch of ``examples`` examples."""
        return -(-examples // -(-examples // self.batch))

    @property
    def align(self) -> int:
        """Alignment of a perceptron's layers, in elements, so that parts of a model can be sent on their own."""
        return 1 if self.overlap is None and self.compute == HOST else GROUP

    @property
    def overlaps(self) -> bool:
        """Whether passes of the schedule overlap."""
        return self.overlap is not None and feature("programs").overlaps(self.overlap)

    def allocation(self, length: int) -> Allocation:
        """Memory that the nodes need for ``length`` parameters."""
        return Allocation(length=length, planes=self.optimizer.planes, packed_state=self.packed_state,
                          errors=self.density is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Figures of one step."""

    #: Number of the step, from 1.
    number: int
    #: Number of the epoch, from 1.
    epoch: int
    #: Mean over the batch, before the update.
    loss: float
    #: Cycles of the fused update on the node that took longest, and its link-cycle bound.
    cycles: Cycles
    bound: int

    #: The same for only its scatter-reduce phase.
    scatter_cycles: Cycles
    scatter_bound: int

    #: Words on all links, headers and CRCs included; and with raw payloads. Of a node of 16-bit integers, words of
    #: its gradient in compressed form, and without compression.
    words_sent: int
    words_dense: int

    #: Non-zero elements at each hop of scatter-reduce, or of the compressed gradient.
    density: list[float]
    #: Words of scatter-reduce among the words on all links.
    scatter_words: int = 0
    #: Weights that all links have carried, and the words of these weights, without headers and CRCs.
    weight_elements: int = 0
    weight_words: int = 0

    #: Words of codebooks that all nodes got before this step.
    codebook_words: int = 0
    #: Cycles of sparsification on the node that took longest; 0 where all elements are sent.
    sparsify_cycles: Cycles = 0
    #: Least magnitude of elements that are sent, where not all elements are.
    threshold: float | None = None
    #: Cycles of the commands that mask, one after the other, each on the node where it took longest.
    mask_cycles: Cycles = 0
    #: Elements that masks have replaced in this step, and all elements that nodes were to mask.
    elements_masked: int = 0
    elements_through: int = 0

    #: Schedule of the step, where nodes have a program; ``cycles`` are then of the whole pass.
    schedule: str | None = None
    #: Cycles of the pass by the golden model of time with the durations that were measured, and the sum of these in
    #: each queue, of the node where it is largest; 0 without a program, but for the commands of nodes that compute.
    modelled_cycles: Cycles = 0
    compute_cycles: Cycles = 0
    communicate_cycles: Cycles = 0

    #: Cycles of matrix products, and of functions of rows, of the node that took longest; 0 if the host computes.
    gemm_cycles: Cycles = 0
    vector_cycles: Cycles = 0

    #: Multiplications of all nodes in products with tables of centroids; 0 in a program, which counts none.
    centroid_multiplications: int = 0
    #: Repairs of links with replay, summed over all nodes, since the step before.
    link_restarts: int = 0
    words_repeated: int = 0
    checks_failed: int = 0

    #: Faults that were injected in the simulated links, since the step before.
    faults_injected: int = 0
    #: Repetitions of the step after a failure of the ring; all other figures are of the last repetition.
    repeats: int = 0
    #: Nodes of the step.
    nodes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """Change of the rings between two steps."""

    #: Steps before it.
    step: int
    #: Parts that were disabled and enabled.
    requests: list[str]
    #: Shape of the new rings.
    shape: str
    #: Nodes of the grid in the new rings, in the order of their shares of a batch.
    nodes: list[int]
    #: Nodes that have left, and nodes that have joined.
    left: list[int]
    joined: list[int]

    #: Pairs of a node that has left and the node that has its residuals and errors now, where nodes have any.
    heirs: list[list[int]]
    #: Elements with another owner of their state and master weights.
    moved: int
    #: Elements of residuals and errors with a sum that was not finite, now zeros.
    dropped: int
    #: Cycles until the new rings were in order: counters read, SWITCH on all nodes, and links started again.
    switch_cycles: Cycles
    #: Cycles of the host's reads from the old owners and writes to the new ones.
    carry_cycles: Cycles

    @property
    def line(self) -> str:
        """The change in a line."""
        nodes = len(self.nodes)
        return (f"after step {self.step}, {' and '.join(self.requests)}: {nodes} node{'s' * (nodes > 1)}, "
                f"{self.shape}; {self.moved:,} elements have another owner" + ("" if self.switch_cycles is None else
                f"; {self.switch_cycles:,} cycles to switch, {self.carry_cycles:,} to carry over"))


@dataclasses.dataclass(kw_only=True)
class Training:
    """Outcome of a training run."""

    #: Nodes that began.
    nodes: int
    parameters: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    #: Changes of the rings between steps.
    changes: list[Change] = dataclasses.field(default_factory=list)
    #: Steps, measurements and distributions of first weights that were done again after a failure of the ring.
    repeats: int = 0
    #: Mean training loss during each interval, and the workload's measure after it.
    losses: list[float] = dataclasses.field(default_factory=list)
    measures: list[float] = dataclasses.field(default_factory=list)

    #: Steps after which the model was measured.
    measured: list[int] = dataclasses.field(default_factory=list)
    #: Sums over all commands that mask, measurements included: cycles on the node where each took longest,
    #: and elements that nodes were to mask.
    mask_cycles: Cycles = 0
    elements_through: int = 0

    #: Counts of the nodes: elements that masks have replaced or that were not sent, and words of masks that were read
    #: from memory.
    elements_masked: int = 0
    mask_words_fetched: int = 0

    #: Commands of the last step's pass, as :class:`sim.golden.features.programs.program.Span` has them, where nodes
    #: have a program.
    timeline: list[list[Any]] | None = None
    #: Log of the search for a schedule.
    search: list[str] = dataclasses.field(default_factory=list)
    #: See :meth:`host.training.workloads.Workload.sample`.
    sample: dict[str, Any] | None = None
    #: True where every comparison was made and held; None without comparisons. (One that fails is an exception.)
    bit_exact: bool | None = None

    def figures(self) -> dict[str, Any]:
        """This outcome as a dictionary, steps and changes as dictionaries too; lists are not copied."""
        return {**vars(self), "steps": [vars(step) for step in self.steps],
                "changes": [vars(change) for change in self.changes]}

    @classmethod
    def from_figures(cls, figures: dict[str, Any]) -> "Training":
        """The training with these :meth:`figures`."""
        return cls(**{**figures, "steps": [Step(**step) for step in figures["steps"]],
                      "changes": [Change(**change) for change in figures["changes"]]})
