"""Configuration of a training run, and the record of its results."""

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

#: Where gradients are computed: on the host, or on the nodes.
HOST, NODE = "host", "node"
#: Sources of the tile factors of matrix products: a model, or a search on a node.
DEFAULT, SEARCHED = "default", "searched"
#: Treatments of activations that do not fit into memory: see :data:`host.features.compute.memory.chain.KINDS`.
MEMORY_KINDS = ("keep", "swap", "recompute", "mixed")
#: Default optimizer of :class:`TrainingConfig`.
_MOMENTUM = SGD(learning_rate=LEARNING_RATES[OptimizerName.MOMENTUM], momentum=0.9)


class TrainingError(ExpectedError):
    """Training cannot continue; the message names the step, and the node that caused the failure."""


class DivergenceError(TrainingError):
    """The contents of a node, or the words that it has sent, differ from the golden model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FarMemory:
    """Far memory of computing nodes, and its use."""

    #: Words of the activation memory that buffers may occupy.
    activations: int
    #: Words per cycle to and from the far memory.
    rate: float = 1 / 4
    #: Treatment of activations that do not fit: one of :data:`MEMORY_KINDS`.
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
    """Configuration of a training run: its length, data order and options."""

    #: Number of passes over the training set.
    epochs: int = 14
    #: Number of steps of the whole run, instead of epochs.
    max_steps: int | None = None
    #: Steps between measurements of the model; the last step is always followed by one. The default is an epoch.
    interval: int | None = None
    #: Maximum examples in a step. An epoch is split into the smallest number of batches, with nearly equal sizes.
    batch: int = 128
    #: Width of each hidden layer, for a perceptron.
    hidden: tuple[int, ...] = (64,)
    #: Optimizer with the initial learning rate, which decreases linearly to zero over all steps.
    optimizer: Optimizer = _MOMENTUM
    #: Whether nodes store the optimizer's state as bfloat16.
    packed_state: bool = False
    #: Fraction of the elements that nodes send, on average over the hops of scatter-reduce: the largest elements. By
    #: default they send all nonzero elements.
    density: float | None = None
    #: Seed of the initial weights and of the order of the examples.
    seed: int = 0
    #: Steps between codebooks computed from the master weights, for a weight codec with a codebook. 12 steps are an
    #: epoch of digits.
    refresh: int = 12
    #: Schedule of computation and communication: see :class:`host.features.programs.schedules.Schedule`; by default
    #: there is no schedule, and the host computes.
    overlap: str | None = None
    #: ``node`` if each node computes the gradients of its share of a batch; ``host`` if the host computes them.
    compute: str = HOST
    #: Format that operands of matrix products are rounded to: a name in :data:`sim.golden.operands.OPERANDS`. Sums,
    #: weights and all values between products are in binary32.
    compute_format: str = FP32
    #: Multiply-adds per cycle of the nodes' engine, or of the engine that a schedule assumes.
    macs: int = MACS
    #: ``searched`` to search tile factors of matrix products on a node first, ``default`` to compute them with a
    #: model; for computing nodes.
    tiling: str = DEFAULT
    #: Far memory of nodes that compute text models; by default all saved activations stay in the activation memory.
    far: FarMemory | None = None
    #: Whether to compare every node with the golden model after every step. Otherwise, node 0's weights are used
    #: unchecked.
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
        """Number of steps of the whole run on ``examples`` examples."""
        return self.epochs * -(-examples // self.batch) if self.max_steps is None else self.max_steps

    def largest(self, examples: int) -> int:
        """Number of examples in the largest batch of a data set of ``examples`` examples."""
        return -(-examples // -(-examples // self.batch))

    @property
    def align(self) -> int:
        """Alignment of a perceptron's layers, in elements, so that each can be sent separately."""
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
    """Figures recorded for one training step."""

    #: Number of the step, counted from 1.
    number: int
    #: Number of the epoch, counted from 1.
    epoch: int
    #: Loss before the update, averaged over the batch.
    loss: float
    #: Cycles of the fused update on the slowest node, and the lower bound set by the busiest link.
    cycles: Cycles
    bound: int

    #: Cycles of the update's scatter-reduce phase on the slowest node, and the lower bound set by the busiest link.
    scatter_cycles: Cycles
    scatter_bound: int

    #: Words on all links, including headers and CRCs: as sent, and if all payloads were raw. On nodes for 16-bit
    #: integers, words of the gradient with compression, and without compression.
    words_sent: int
    words_dense: int

    #: Fraction of nonzero elements at each hop of scatter-reduce, or in the compressed gradient.
    density: list[float]
    #: Words sent during scatter-reduce, included in the words on all links.
    scatter_words: int = 0
    #: Number of weights that all links have carried, and their words, without headers and CRCs.
    weight_elements: int = 0
    weight_words: int = 0

    #: Words of codebooks written to all nodes before this step.
    codebook_words: int = 0
    #: Cycles of sparsification on the slowest node; 0 if all elements are sent.
    sparsify_cycles: Cycles = 0
    #: Smallest magnitude of the elements that are sent; None if all elements are sent.
    threshold: float | None = None
    #: Sum of the cycles of masking commands, each on its slowest node.
    mask_cycles: Cycles = 0
    #: Number of elements that masks have replaced in this step, and number of all elements in masked matrices.
    elements_masked: int = 0
    elements_through: int = 0

    #: Schedule of the step, if nodes have a program; ``cycles`` is then for the whole pass.
    schedule: str | None = None
    #: Cycles of the pass according to the golden timing model with measured durations, and the sum of these durations
    #: in each queue, on the node with the largest sum; 0 without a program, except for computing nodes.
    modelled_cycles: Cycles = 0
    compute_cycles: Cycles = 0
    communicate_cycles: Cycles = 0

    #: Cycles of matrix products, and of row functions, on the slowest node; 0 if the host computes.
    gemm_cycles: Cycles = 0
    vector_cycles: Cycles = 0

    #: Multiplications by all nodes in products with tables of centroids; 0 in a program, which does not count them.
    centroid_multiplications: int = 0
    #: Repairs of links with replay since the previous step, summed over all nodes.
    link_restarts: int = 0
    words_repeated: int = 0
    checks_failed: int = 0

    #: Faults injected into the simulated links since the previous step.
    faults_injected: int = 0
    #: Number of times that the step was repeated after ring failures; all other figures are for the last attempt.
    repeats: int = 0
    #: Number of nodes in the step.
    nodes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """Change of the rings between two steps."""

    #: Number of steps before the change.
    step: int
    #: Cards, nodes and links that were disabled or enabled, as requests such as ``disable card1``.
    requests: list[str]
    #: Shape of the new rings.
    shape: str
    #: Numbers of the grid's nodes in the new rings, in the order in which a batch is divided among them.
    nodes: list[int]
    #: Nodes that have left, and nodes that have joined.
    left: list[int]
    joined: list[int]

    #: Pairs of nodes: a node that has left, and the node that received its residuals and errors.
    heirs: list[list[int]]
    #: Number of elements with state and master weights that have a new owner.
    moved: int
    #: Number of elements of residuals and errors that were set to zero, as their sum was not finite.
    dropped: int
    #: Cycles until the new rings were ready: for reading counters, SWITCH on all nodes, and restarting links.
    switch_cycles: Cycles
    #: Cycles of the host's reads from the old owners and writes to the new owners.
    carry_cycles: Cycles

    @property
    def line(self) -> str:
        """Describe the change in one line."""
        nodes = len(self.nodes)
        return (f"after step {self.step}, {' and '.join(self.requests)}: {nodes} node{'s' * (nodes > 1)}, "
                f"{self.shape}; {self.moved:,} elements have another owner" + ("" if self.switch_cycles is None else
                f"; {self.switch_cycles:,} cycles to switch, {self.carry_cycles:,} to carry over"))


@dataclasses.dataclass(kw_only=True)
class Training:
    """Results of a training run."""

    #: Number of nodes at the beginning.
    nodes: int
    parameters: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    #: Changes of the rings between steps.
    changes: list[Change] = dataclasses.field(default_factory=list)
    #: Number of repetitions, after ring failures, of steps, measurements and distributions of initial weights.
    repeats: int = 0
    #: Mean training loss during each interval, and the workload's measure after the interval.
    losses: list[float] = dataclasses.field(default_factory=list)
    measures: list[float] = dataclasses.field(default_factory=list)

    #: Numbers of the steps after which the model was measured.
    measured: list[int] = dataclasses.field(default_factory=list)
    #: Sums over all masking commands, including those during measurements: cycles on the slowest node, and elements
    #: in masked matrices.
    mask_cycles: Cycles = 0
    elements_through: int = 0

    #: Counts by the nodes: elements that masks have replaced, elements that were not sent, and mask words read from
    #: memory.
    elements_masked: int = 0
    mask_words_fetched: int = 0

    #: Commands of the last step's pass, in the form of :class:`sim.golden.features.programs.program.Span`, if nodes
    #: have a program.
    timeline: list[list[Any]] | None = None
    #: Log lines of the search for a schedule.
    search: list[str] = dataclasses.field(default_factory=list)
    #: Output of the trained model; see :meth:`host.training.workloads.Workload.sample`.
    sample: dict[str, Any] | None = None
    #: True if all comparisons were made and succeeded; None without comparisons. (Failures raise an exception.)
    bit_exact: bool | None = None

    def figures(self) -> dict[str, Any]:
        """Convert the results, with steps and changes, to dictionaries. Lists are not copied."""
        return {**vars(self), "steps": [vars(step) for step in self.steps],
                "changes": [vars(change) for change in self.changes]}

    @classmethod
    def from_figures(cls, figures: dict[str, Any]) -> "Training":
        """Create the results from the output of :meth:`figures`."""
        return cls(**{**figures, "steps": [Step(**step) for step in figures["steps"]],
                      "changes": [Change(**change) for change in figures["changes"]]})
