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

#: Where gradients are computed: on the host or on the nodes.
HOST, NODE = "host", "node"
#: Sources of the tile factors for matrix products: a model, or a search on a node.
DEFAULT, SEARCHED = "default", "searched"
#: How activations that do not fit in memory are handled: see :data:`host.features.compute.memory.chain.KINDS`.
MEMORY_KINDS = ("keep", "swap", "recompute", "mixed")
#: Default optimizer of :class:`TrainingConfig`.
_MOMENTUM = SGD(learning_rate=LEARNING_RATES[OptimizerName.MOMENTUM], momentum=0.9)


class TrainingError(ExpectedError):
    """Raised if training cannot continue. The message names the step and the node that caused the failure."""


class DivergenceError(TrainingError):
    """Raised if the contents of a node, or the words that it has sent, differ from the golden model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FarMemory:
    """Options of the far memory of computing nodes, and of its use."""

    #: Number of words in the activation memory that buffers may occupy.
    activations: int
    #: Far memory throughput in words per cycle.
    rate: float = 1 / 4
    #: How activations that do not fit into memory are handled: one of :data:`MEMORY_KINDS`.
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
    #: Total number of steps, instead of epochs.
    max_steps: int | None = None
    #: Number of steps between measurements of the model, which also follow the last step; by default an epoch.
    interval: int | None = None
    #: Maximum batch size. An epoch is split into as few batches as possible, with nearly equal sizes.
    batch: int = 128
    #: Width of each hidden layer of a perceptron.
    hidden: tuple[int, ...] = (64,)
    #: Optimizer with its initial learning rate, which decreases linearly to zero over all steps.
    optimizer: Optimizer = _MOMENTUM
    #: Whether nodes store the optimizer's state as bfloat16.
    packed_state: bool = False
    #: Fraction of the elements that nodes send, largest first, averaged over the hops of scatter-reduce. By
    #: default they send all nonzero elements.
    density: float | None = None
    #: Number of microbatches per batch. Each has its own gradient, so that sums of integers do not depend on the
    #: number of nodes. By default, each node has one gradient.
    microbatches: int | None = None
    #: Seed for the initial weights and the order of the examples.
    seed: int = 0
    #: Number of steps after which a codebook is computed again from the master weights, for weight codecs with a
    #: codebook. 12 steps are an epoch of digits.
    refresh: int = 12
    #: Schedule of computation and communication: see :class:`host.features.programs.schedules.Schedule`. By default,
    #: there is no schedule, and the host computes.
    overlap: str | None = None
    #: ``node`` if each node computes the gradients of its share of a batch, ``host`` if the host computes them.
    compute: str = HOST
    #: Format used to round operands of matrix products, a key of :data:`sim.golden.operands.OPERANDS`. Sums,
    #: weights and all other values are in binary32.
    compute_format: str = FP32
    #: Multiply-adds per cycle of the nodes' engine, or of the engine assumed by a schedule.
    macs: int = MACS
    #: For computing nodes: ``searched`` to find tile factors of matrix products by a search on a node, or ``default``
    #: to compute them with a model.
    tiling: str = DEFAULT
    #: Far memory of nodes that compute text models; by default, saved activations stay in the activation memory.
    far: FarMemory | None = None
    #: Whether to compare all nodes with the golden model after every step. Otherwise, node 0's weights are used
    #: unchecked.
    check: bool = True

    def __post_init__(self) -> None:
        for name, value in (("Epochs", self.epochs), ("Batch", self.batch), ("Refresh", self.refresh),
                            ("Steps", self.max_steps), ("Interval", self.interval),
                            ("Microbatches", self.microbatches)):
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
        """Total number of steps of a run on ``examples`` examples."""
        return self.epochs * -(-examples // self.batch) if self.max_steps is None else self.max_steps

    def largest(self, examples: int) -> int:
        """Number of examples in the largest batch of a data set with ``examples`` examples."""
        return -(-examples // -(-examples // self.batch))

    def smallest(self, examples: int) -> int:
        """Number of examples in the smallest batch of a data set with ``examples`` examples."""
        return examples // -(-examples // self.batch)

    @property
    def align(self) -> int:
        """Alignment in elements of a perceptron's layers, so that each layer can be sent separately."""
        return 1 if self.overlap is None and self.compute == HOST else GROUP

    @property
    def overlaps(self) -> bool:
        """Whether successive passes of the schedule overlap."""
        return self.overlap is not None and feature("programs").overlaps(self.overlap)

    @property
    def features(self) -> list[str]:
        """Return the names of the features that nodes need for the run."""
        return [name for name, needed in (
            ("compute", self.compute == NODE), ("programs", self.overlap is not None),
            ("microbatches", self.microbatches is not None)) if needed]

    def allocation(self, length: int) -> Allocation:
        """Return the memory allocation that nodes need for ``length`` parameters."""
        return Allocation(length=length, planes=self.optimizer.planes, packed_state=self.packed_state,
                          errors=self.density is not None, microbatches=self.microbatches)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Figures recorded for one training step."""

    #: Number of the step, counted from 1.
    number: int
    #: Number of the epoch, counted from 1.
    epoch: int
    #: Loss before the update, averaged over the batch.
    loss: float
    #: Number of cycles of the fused update on the slowest node, and the lower bound set by the busiest link.
    cycles: Cycles
    bound: int

    #: Number of cycles of the scatter-reduce phase on the slowest node, and the lower bound set by the busiest link.
    scatter_cycles: Cycles
    scatter_bound: int

    #: Number of words on all links, including headers and CRCs: as sent, and as they would be with raw payloads. On
    #: int16 nodes, number of words of the gradient with and without compression.
    words_sent: int
    words_dense: int

    #: Fraction of nonzero elements at each scatter-reduce hop, or in the compressed gradient.
    density: list[float]
    #: Number of words sent during scatter-reduce, which are included in ``words_sent``.
    scatter_words: int = 0
    #: Total number of weights carried over all links, and the number of their words, without headers and CRCs.
    weight_elements: int = 0
    weight_words: int = 0

    #: Number of codebook words written to all nodes before this step.
    codebook_words: int = 0
    #: Number of sparsification cycles on the slowest node; 0 if all elements are sent.
    sparsify_cycles: Cycles = 0
    #: Smallest magnitude of the sent elements; None if all elements are sent.
    threshold: float | None = None
    #: Total number of cycles of masking commands, each on its slowest node.
    mask_cycles: Cycles = 0
    #: Number of elements replaced by masks in this step, and total number of elements in masked matrices.
    elements_masked: int = 0
    elements_through: int = 0

    #: Schedule of the step, if nodes run a program; ``cycles`` then covers the whole pass.
    schedule: str | None = None
    #: Number of cycles of the pass in the golden timing model with measured durations, and the sum of these durations
    #: in each queue, on the node with the largest sum; 0 without a program, unless nodes compute.
    modelled_cycles: Cycles = 0
    compute_cycles: Cycles = 0
    communicate_cycles: Cycles = 0

    #: Number of cycles of matrix products and of row functions on the slowest node; 0 if the host computes.
    gemm_cycles: Cycles = 0
    vector_cycles: Cycles = 0

    #: Number of multiplications by centroids on all nodes; 0 if nodes run a program, which does not count them.
    centroid_multiplications: int = 0
    #: Repairs of links with replay since the previous step, summed over all nodes.
    link_restarts: int = 0
    words_repeated: int = 0
    checks_failed: int = 0

    #: Number of faults injected into the simulated links since the previous step.
    faults_injected: int = 0
    #: Number of times the step was repeated after ring failures; all other figures are for the last attempt.
    repeats: int = 0
    #: Number of nodes that took part in the step.
    nodes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """Reconfiguration of the rings between two steps."""

    #: Number of steps before the reconfiguration.
    step: int
    #: Requests to disable or enable cards, nodes and links, such as ``disable card1``.
    requests: list[str]
    #: Topology of the new rings.
    shape: str
    #: Grid node numbers in the new rings, in the order that is used to divide a batch.
    nodes: list[int]
    #: Nodes that have left and nodes that have joined.
    left: list[int]
    joined: list[int]

    #: Pairs of nodes: a node that has left, and the node that has received its residuals and errors.
    heirs: list[list[int]]
    #: Number of elements with state and master weights that have a new owner.
    moved: int
    #: Number of residual and error elements that were set to zero because their sum was not finite.
    dropped: int
    #: Number of cycles until the new rings were ready. In this time, counters are read, SWITCH is executed, and links
    #: are restarted.
    switch_cycles: Cycles
    #: Number of cycles for the host to read state from the old owners and write it to the new owners.
    carry_cycles: Cycles

    @property
    def line(self) -> str:
        """Describe the reconfiguration in one line."""
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
    #: Reconfigurations of the rings between steps.
    changes: list[Change] = dataclasses.field(default_factory=list)
    #: Number of times that steps, measurements or distributions of initial weights were repeated after ring failures.
    repeats: int = 0
    #: Mean training loss of each interval, and the accuracy or held-out loss after it.
    losses: list[float] = dataclasses.field(default_factory=list)
    measures: list[float] = dataclasses.field(default_factory=list)

    #: Step numbers after which the model was measured.
    measured: list[int] = dataclasses.field(default_factory=list)
    #: Sums over all masking commands, including measurements: cycles on the slowest node, and elements of matrices.
    mask_cycles: Cycles = 0
    elements_through: int = 0

    #: Counts from the nodes: elements replaced by masks, elements not sent, and mask words read from memory.
    elements_masked: int = 0
    mask_words_fetched: int = 0

    #: Commands of the last step's pass as :class:`sim.golden.features.programs.program.Span`, if nodes
    #: have a program.
    timeline: list[list[Any]] | None = None
    #: Log lines of the search for a schedule.
    search: list[str] = dataclasses.field(default_factory=list)
    #: Output of the trained model; see :meth:`host.training.workloads.Workload.sample`.
    sample: dict[str, Any] | None = None
    #: True if all comparisons were made and succeeded, None without comparisons. (A failure raises an exception.)
    bit_exact: bool | None = None

    def figures(self) -> dict[str, Any]:
        """Convert the results, including steps and changes, to dictionaries. Lists are not copied."""
        return {**vars(self), "steps": [vars(step) for step in self.steps],
                "changes": [vars(change) for change in self.changes]}

    @classmethod
    def from_figures(cls, figures: dict[str, Any]) -> "Training":
        """Create the results from the output of :meth:`figures`."""
        return cls(**{**figures, "steps": [Step(**step) for step in figures["steps"]],
                      "changes": [Change(**change) for change in figures["changes"]]})
