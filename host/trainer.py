"""Data-parallel training on a ring of nodes, checked bit for bit.

In each step a batch is split into one share per node. The host differentiates every share in float32 and writes the
gradients to the nodes; the ring sums them, the owner of each block updates it, and the new weights come back to every
node. Then all nodes' weights are compared with each other and with the golden model, as bit patterns, and the words
that each node has sent with those the golden model predicts. Where nodes have a weight codec, the new weights come
back through it, gradients are those at the decoded weights, and the owners' masters are compared as well; a codec
with a codebook is given one of the first weights, and a new one of the masters now and then. Where they have a
gradient codec that loses something, what each of them has kept of that is compared at the end of the run.

Nodes of 16-bit integers do the same with fixed points (:mod:`host.elements`) and :mod:`sim.golden.reduced`. They have
no links: what is compared is the number of words of their gradients in compressed form.

Where the workload has something to be masked, nodes mask it, and everything that they mask is compared likewise. With
a density, nodes send only the largest elements of their gradients, and add what they have not sent to the next ones.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from host.allocation import Allocation, block_bounds, errors_base
from host.clustering import codebook
from host.data import Dataset
from host.elements import Elements, check_optimizer, elements_of
from host.layers import Array
from host.masking import MaskJob, Matrices
from host.optimizers import LEARNING_RATES, SGD, Optimizer, OptimizerName
from host.outcome import Outcome
from host.reference import IntegerReference, Reference, words_of
from host.ring import Ring, Vector
from host.threshold import Threshold
from host.workloads import Classifier, Workload, WorkloadName

__all__ = ["DivergenceError", "Step", "Training", "TrainingConfig", "TrainingError", "check_run", "train"]


#: What :class:`TrainingConfig` trains with, unless another optimizer is asked for.
MOMENTUM = SGD(learning_rate=LEARNING_RATES[OptimizerName.MOMENTUM], momentum=0.9)


#: Largest number of epochs, steps or examples.
_MOST = 1_000_000_000

_ADVICE = "training has diverged, try a smaller learning rate"


class TrainingError(Exception):
    """Training cannot go on; the message says at which step, and which node is the cause."""


class DivergenceError(TrainingError):
    """A node holds other bits, or has sent other words, than the golden model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """What is trained, and how.

    Parameters
    ----------
    epochs : int
        Passes over the training set.
    max_steps : int, optional
        Steps of the whole run, in place of epochs.
    interval : int, optional
        The model is measured after every so many steps, and after the last one; by default after every epoch.
    batch : int
        Most examples in a step. An epoch is cut into as few batches as that allows, of sizes as equal as possible.
    hidden : tuple of int
        Width of each hidden layer, where a perceptron is trained.
    optimizer : Optimizer
        Its learning rate is that of the first step; it falls to zero along a straight line over all steps.
    packed_state : bool
        Whether nodes store the optimizer's state as bfloat16.
    density : float, optional
        Part of the elements that nodes send, the largest ones, on average over the hops of scatter-reduce; by default
        they send what is not zero.
    seed : int
        Of the initial weights and of the order of the examples.
    refresh : int
        With a weight codec that has a codebook, steps between one that is made of the masters and the next. 12 is an
        epoch of digits.
    check : bool
        Whether to compare every node with the golden model after every step. Without it, the weights of node 0 are
        taken at their word.
    """

    epochs: int = 14
    max_steps: int | None = None
    interval: int | None = None
    batch: int = 128
    hidden: tuple[int, ...] = (64,)
    optimizer: Optimizer = MOMENTUM
    packed_state: bool = False
    density: float | None = None
    seed: int = 0
    refresh: int = 12
    check: bool = True

    def __post_init__(self) -> None:
        for name, value in (("Epochs", self.epochs), ("Batch", self.batch), ("Refresh", self.refresh),
                            ("Steps", self.max_steps), ("Interval", self.interval)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
            if value is not None and value > _MOST:
                raise ValueError(f"{name} must be at most {_MOST:,}, not {value:,}")
        if self.density is not None and not 0 < self.density <= 1:
            raise ValueError(f"Density must be above 0 and at most 1, not {self.density!r}")
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"Widths of hidden layers must be at least 1, not {self.hidden!r}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"Seed must be zero or more, and below 2^63, not {self.seed!r}")

    def steps(self, examples: int) -> int:
        """Steps of the whole run on so many examples."""
        return self.epochs * -(-examples // self.batch) if self.max_steps is None else self.max_steps

    def largest(self, examples: int) -> int:
        """Examples in the largest batch of so many."""
        return -(-examples // -(-examples // self.batch))

    def allocation(self, length: int) -> Allocation:
        """What the nodes keep, for so many parameters."""
        return Allocation(length=length, planes=self.optimizer.planes, packed_state=self.packed_state,
                          errors=self.density is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Figures of one step.

    Members
    -------
    number : int
        From 1.
    epoch : int
        From 1.
    loss : float
        Mean over the batch, before the update.
    cycles, bound : int
        Of the fused update, on the node that took longest; and its link-cycle bound.
    scatter_cycles, scatter_bound : int
        The same for its scatter-reduce phase alone.
    words_sent, words_dense : int
        Words on all links, headers and CRCs included; and with raw payloads. Of a node of 16-bit integers, words of
        its gradient in compressed form, and without compression.
    density : list of float
        Non-zero elements at each hop of scatter-reduce, or of the compressed gradient.
    scatter_words : int
        Those of the words on all links that are scatter-reduce's.
    weight_elements, weight_words : int
        Weights that all links have carried, and words that those took, without headers and CRCs.
    codebook_words : int
        Words of codebooks that all nodes were given before this step.
    sparsify_cycles : int
        Of choosing what is sent, on the node that took longest; 0 where everything is.
    threshold : float, optional
        Least magnitude of what is sent, where not everything is.
    mask_cycles : int
        Of the commands that mask, one after the other, each on the node where it took longest.
    elements_masked, elements_through : int
        Elements that masks have replaced in this step, and all that nodes were given to mask.
    """

    number: int
    epoch: int
    loss: float
    cycles: int
    bound: int
    scatter_cycles: int
    scatter_bound: int
    words_sent: int
    words_dense: int
    density: list[float]
    scatter_words: int = 0
    weight_elements: int = 0
    weight_words: int = 0
    codebook_words: int = 0
    sparsify_cycles: int = 0
    threshold: float | None = None
    mask_cycles: int = 0
    elements_masked: int = 0
    elements_through: int = 0


@dataclasses.dataclass(kw_only=True)
class Training:
    """Outcome of a training run.

    Members
    -------
    nodes, parameters : int
    steps : list of Step
    losses, measures : list of float
        Mean training loss during each interval, and what the workload measures after it.
    measured : list of int
        Steps after which that was.
    mask_cycles, elements_through : int
        Of all commands that mask, those of measurements included: cycles, each on the node where it took longest, and
        elements that nodes were given to mask.
    elements_masked, mask_words_fetched : int
        As the nodes have counted: elements that masks have replaced or that were not sent, and words of masks that
        were read from memory.
    sample : dict, optional
        See :meth:`host.workloads.Workload.sample`.
    bit_exact : bool, optional
        True where every comparison was made and held; None where none was asked for. (One that fails is an
        exception.)
    """

    nodes: int
    parameters: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    measures: list[float] = dataclasses.field(default_factory=list)
    measured: list[int] = dataclasses.field(default_factory=list)
    mask_cycles: int = 0
    elements_through: int = 0
    elements_masked: int = 0
    mask_words_fetched: int = 0
    sample: dict[str, Any] | None = None
    bit_exact: bool | None = None


class _Codebooks:
    """Gives nodes and the golden model their codebooks, where the weight codec has such.

    Members
    -------
    words : int
        Words that all nodes were given for the step to come, or for the first weights.
    """

    def __init__(self, ring: Ring, weights: Array, interval: int):
        self._ring = ring
        self._length = weights.size
        self._interval = interval
        self.first = self._load(weights) if ring.has_codebook else None

    def _load(self, weights: Array) -> npt.NDArray[np.uint32]:
        centroids = codebook(self._ring.weight_codec, weights)
        self.words = self._ring.write_codebook(centroids)
        return centroids

    def refresh(self, number: int, reference: Reference) -> int:
        """Before a step, make a codebook of the masters if it is time for that: words that nodes were given since
        the step before."""
        if self.first is None:
            return 0
        if number > 1:
            self.words = 0
            if (number - 1) % self._interval == 0:
                reference.bind(self._load(self._ring.read_master(self._length)))
        return self.words


class _Masks:
    """Masks on the nodes, and compares what comes back with the golden model.

    Members
    -------
    number : int
        Step for which it masks.
    cycles, replaced, elements, words : int
        Of all commands so far: cycles, each on the node where it took longest; elements that became the alternative;
        all elements; and words of external masks.
    """

    def __init__(self, ring: Ring, reference: Reference, config: TrainingConfig):
        length = reference.weights.size
        self._ring = ring
        self._reference = reference
        self._check = config.check
        self._behind = length if config.density is None else errors_base(length) + length
        self.number = 0
        self.cycles = self.replaced = self.elements = self.words = 0

    def __call__(self, jobs: Sequence[Sequence[MaskJob]], alternative: float) -> list[list[Matrices]]:
        outcome = self._ring.mask(jobs, alternative=alternative, behind=self._behind)
        self.cycles += outcome.cycles
        self.replaced += sum(outcome.replaced)
        self.elements += sum(job.matrices.size for mine in jobs for job in mine)
        self.words += sum(-(-job.matrices.size // 32) for mine in jobs for job in mine if job.mask.external)
        if self._check:
            for rank, (mine, results) in enumerate(zip(jobs, outcome.results, strict=True)):
                replaced = sum(self._compare(rank, number, job, result, alternative)
                               for number, (job, result) in enumerate(zip(mine, results, strict=True)))
                if outcome.replaced[rank] != replaced:
                    raise DivergenceError(f"Step {self.number}: node {rank} has replaced {outcome.replaced[rank]} "
                                          f"elements, and must have replaced {replaced}")
        return outcome.results

    def _compare(self, rank: int, number: int, job: MaskJob, result: Matrices, alternative: float) -> int:
        """Elements that had to be replaced."""
        expected, replaced = self._reference.mask(job, alternative)
        found = words_of(result)
        wrong = np.argwhere(found != expected)
        if len(wrong):
            place = tuple(wrong[0].tolist())
            raise DivergenceError(
                f"Step {self.number}: {len(wrong)} of {found.size} masked elements of job {number} of node {rank} "
                f"differ from the golden model, first matrix {place[0]}, row {place[1]}, column {place[2]}, which is "
                f"0x{found[place]:08x} and must be 0x{expected[place]:08x}")
        return replaced


class _Sparsifier:
    """Has nodes choose what they send, and compares how much that is with the golden model.

    Members
    -------
    dropped : int
        Elements that were not sent, of all nodes and so far.
    threshold : float, optional
        Of the last step.
    cycles : int
        Of the last step.
    """

    def __init__(self, ring: Ring, reference: Reference, form: Elements, config: TrainingConfig, steps: int):
        self._ring = ring
        self._reference = reference
        self._form = form
        self._check = config.check
        self._controller: Threshold | None = None
        self.dropped = 0
        self.threshold: float | None = None
        self.cycles = 0
        if config.density is not None:
            # Of a node without a link it is what it keeps that is compressed: as at the only hop of two nodes.
            nodes = 2 if ring.reduced else ring.nodes
            self._controller = Threshold(density=config.density, nodes=nodes, steps=steps)
            ring.clear_errors(reference.weights.size)

    def __call__(self, number: int, gradients: Sequence[Vector]) -> Sequence[Vector]:
        """What is sent of the gradients, which nodes have in memory."""
        if self._controller is None:
            return gradients
        threshold, self.threshold = self._form.threshold(self._controller.choose(gradients))
        outcome = self._ring.sparsify(self._reference.weights.size, threshold=threshold)
        self._controller.observe(sum(outcome.dropped))
        self.cycles = outcome.cycles
        self.dropped += sum(outcome.dropped)
        sent, expected = self._reference.sparsify(gradients, threshold)
        if self._check and outcome.dropped != expected:
            raise DivergenceError(f"Step {number}: nodes have dropped {_names(outcome.dropped)} elements, and must "
                                  f"have dropped {_names(expected)}")
        return sent


def _batches(examples: int, batch: int, generator: np.random.Generator) -> list[npt.NDArray[np.intp]]:
    """The examples in a new order, cut into as few batches of at most ``batch`` as possible."""
    return np.array_split(generator.permutation(examples), -(-examples // batch))


def _schedule(examples: int, config: TrainingConfig) -> Iterator[tuple[int, npt.NDArray[np.intp], bool]]:
    """Epoch and batch of each step, and whether the model is measured after it."""
    generator = np.random.default_rng((config.seed, 1))
    total, number = config.steps(examples), 0
    for epoch in itertools.count(1):
        batches = _batches(examples, config.batch, generator)
        for place, batch in enumerate(batches, start=1):
            number += 1
            due = place == len(batches) if config.interval is None else number % config.interval == 0
            yield epoch, batch, due or number == total
            if number == total:
                return


def _compare(name: str, number: int, expected: npt.NDArray[np.uint32], nodes: npt.NDArray[np.uint32]) -> None:
    """Each row of ``nodes`` against the golden model."""
    wrong = nodes != expected
    if wrong.any():
        node = int(np.flatnonzero(wrong.any(axis=1))[0])
        index = int(np.flatnonzero(wrong[node])[0])
        others = [other for other in range(len(nodes)) if np.array_equal(nodes[other], nodes[node])]
        raise DivergenceError(
            f"Step {number}: {wrong[node].sum()} of {len(expected)} {name} of node {node} differ from the golden "
            f"model, first number {index}, which is 0x{nodes[node, index]:08x} and must be 0x{expected[index]:08x}; "
            f"nodes with the same {name}: {_names(others)}")


def _compare_state(name: str, number: int, expected: npt.NDArray[np.uint32], found: npt.NDArray[np.uint32],
                   nodes: int) -> None:
    """A state plane of the whole vector, each block from its owner, against the golden model."""
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        index = int(wrong[0])
        block = next(n for n, (start, stop) in enumerate(block_bounds(len(expected), nodes)) if start <= index < stop)
        raise DivergenceError(
            f"Step {number}: {wrong.size} of {len(expected)} {name} differ from the golden model, first number "
            f"{index}, on node {(block - 1) % nodes}, which is 0x{found[index]:08x} and must be "
            f"0x{expected[index]:08x}")


def _read_weights(ring: Ring, reference: Reference, config: TrainingConfig, number: int) -> Vector:
    """Weights of a node; where that is asked for, those of all nodes are compared first, masters too."""
    length = len(reference.weights)
    if not config.check:
        return np.asarray(ring.read_weights(length, ranks=[0])[0])
    weights = ring.read_weights(length)
    _compare("weights", number, reference.weights, words_of(weights))
    if reference.coded:
        found = ring.read_master(length).view(np.uint32)
        _compare_state("master weights", number, reference.master, found, ring.nodes)
    return np.asarray(weights[0])


def _growth(name: str, before: list[dict[str, int]], after: list[dict[str, int]]) -> list[int]:
    """How far a counter of each node, which wraps at 32 bits, has gone on."""
    return [(now[name] - was[name]) % (1 << 32) for was, now in zip(before, after, strict=True)]


def _gradients(number: int, form: Elements, differences: Sequence[Array]) -> list[Vector]:
    """Those of each node, in the form in which it is given them."""
    try:
        return form.gradients(differences)
    except ValueError as error:
        raise TrainingError(f"Step {number}: {error}; {_ADVICE}") from None


def _refuse_nonfinite(number: int, outcome: Outcome) -> None:
    if outcome.local_nan:
        nodes = _names(outcome.local_nan)
        raise TrainingError(f"Step {number}: NaN among the gradients of node {nodes}; {_ADVICE}")
    if outcome.not_finite:
        nodes = _names(outcome.not_finite)
        raise TrainingError(f"Step {number}: a sum of gradients is not finite, found by node {nodes}; {_ADVICE}")


def _names(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def check_run(node: NodeConfig, workload: Workload, config: TrainingConfig, *, nodes: int) -> None:
    """Check that a ring of such nodes can do a training run, before there is one.

    Raises
    ------
    ValueError
        It cannot; the message says why.
    """
    if node.reduced:
        if workload.name is not WorkloadName.DIGITS:
            raise ValueError(f"Workload of int16 nodes must be digits, not {workload.name.value}")
        check_optimizer(config.optimizer)
    if config.density is not None and not node.error_feedback:
        raise ValueError("Nodes must have error feedback for a density, which is what they do not send")
    config.allocation(workload.parameters.size).check(node, nodes=nodes)


def train(ring: Ring, data: Dataset | Workload, config: TrainingConfig, *,
          on_step: Callable[[Training], None] = lambda training: None) -> Training:
    """Train on the ring.

    Parameters
    ----------
    ring : Ring
    data : Dataset or Workload
        What is trained; of a data set, a perceptron that classifies it.
    config : TrainingConfig
    on_step : callable
        Called after every step, and after every measurement, with what there is so far.

    Raises
    ------
    DivergenceError
        A node does not agree with the golden model.
    TrainingError
        Gradients are not finite.
    RingError
        A command has failed.
    """
    workload = Classifier(data, config.hidden) if isinstance(data, Dataset) else data
    workload.initialize(config.seed)
    parameters = workload.parameters
    length = parameters.size
    planes = config.optimizer.planes
    form = elements_of(ring, config.optimizer, config.largest(workload.examples))
    ring.require(config.allocation(length))
    codebooks = _Codebooks(ring, parameters, config.refresh)
    weights = form.weights(parameters)
    reference = (IntegerReference(weights) if ring.reduced
                 else Reference(ring, weights, planes, codebooks.first))
    masks = _Masks(ring, reference, config)
    ring.distribute(weights)  # residuals are zeros afterwards
    if reference.coded or ring.reduced:
        parameters[...] = form.parameters(_read_weights(ring, reference, config, 0))
    if planes:
        ring.clear_state(length, packed_state=config.packed_state)
    total = config.steps(workload.examples)
    sparsify = _Sparsifier(ring, reference, form, config, total)
    ring.clear_counters()
    first = counters = ring.counters()
    training = Training(nodes=ring.nodes, parameters=length)
    interval_loss, interval_count = 0.0, 0

    for epoch, batch, due in _schedule(workload.examples, config):
        number = masks.number = len(training.steps) + 1
        shares = np.array_split(batch, ring.nodes)
        cycles, replaced, elements = masks.cycles, masks.replaced, masks.elements
        codebook_words = codebooks.refresh(number, reference)
        losses, differences = zip(*workload.differentiate(shares, masks), strict=True)
        count = workload.count(batch)
        gradients = _gradients(number, form, differences)
        settings = form.settings(
            config.optimizer, number, count=count, packed_state=config.packed_state,
            learning_rate=config.optimizer.learning_rate * (1 - (number - 1) / total))
        ring.write_settings(settings)
        ring.write_gradients(gradients)
        sent_gradients = sparsify(number, gradients)
        outcome = ring.fused_update(length)
        _refuse_nonfinite(number, outcome)

        traffic = reference.step(sent_gradients, settings)
        before, counters = counters, ring.counters()
        sent = _growth(reference.counter, before, counters)
        parameters[...] = form.parameters(_read_weights(ring, reference, config, number))
        if config.check and sent != traffic.words.tolist():
            raise DivergenceError(f"Step {number}: nodes have sent {_names(sent)} words, and must have sent "
                                  f"{_names(traffic.words.tolist())}")

        interval_loss += sum(losses)
        interval_count += count
        training.steps.append(Step(
            number=number, epoch=epoch, loss=sum(losses) / count, cycles=outcome.cycles, bound=traffic.bound,
            scatter_cycles=max(_growth("SCATTER_REDUCE_CYCLES", before, counters)),
            scatter_bound=traffic.scatter_bound, words_sent=sum(sent), words_dense=traffic.dense_words,
            density=traffic.density.tolist(), scatter_words=int(traffic.scatter_words.sum()),
            weight_elements=traffic.gather_elements, weight_words=traffic.gather_payload,
            codebook_words=codebook_words,
            sparsify_cycles=sparsify.cycles, threshold=sparsify.threshold,
            mask_cycles=masks.cycles - cycles, elements_masked=masks.replaced - replaced,
            elements_through=masks.elements - elements))
        on_step(training)
        if due:
            training.losses.append(interval_loss / interval_count)
            training.measures.append(workload.measure(ring.nodes, masks, last=number == total))
            training.measured.append(number)
            interval_loss, interval_count = 0.0, 0
            on_step(training)

    training.sample = workload.sample(ring.nodes, masks)
    training.mask_cycles, training.elements_through = masks.cycles, masks.elements
    if masks.elements or config.density is not None:
        counters = ring.counters()
        training.elements_masked = sum(_growth("ELEMENTS_MASKED", first, counters))
        training.mask_words_fetched = sum(_growth("MASK_WORDS_FETCHED", first, counters))
    if config.check:
        _compare_end(ring, reference, config, training, masks.replaced + sparsify.dropped, masks.words)
        training.bit_exact = True
    return training


def _compare_end(ring: Ring, reference: Reference, config: TrainingConfig, training: Training,
                 replaced: int, words: int) -> None:
    """What is left on the nodes, and what they have counted, against the golden model."""
    length, number = training.parameters, len(training.steps)
    names = ["momenta"] if len(reference.state) == 1 else ["first moments", "second moments"]
    for plane, expected in enumerate(reference.state):
        found = ring.read_state(length, plane, packed_state=config.packed_state)
        _compare_state(names[plane], number, expected, found.view(np.uint32), ring.nodes)
    if config.density is not None:
        for rank, errors in enumerate(words_of(ring.read_errors(length))):
            _compare_errors("errors", number, rank, reference.errors[rank], errors)
    if reference.residuals is not None:
        for rank, residuals in enumerate(ring.read_residual(length).view(np.uint32)):
            _compare_errors("residuals", number, rank, reference.residuals[rank], residuals)
    # Lists of masks are written behind the weights, of which none may have changed since the last step.
    _compare("weights", number, reference.weights, words_of(ring.read_weights(length)))
    if (training.elements_masked, training.mask_words_fetched) != (replaced, words):
        raise DivergenceError(
            f"Step {number}: nodes have counted {training.elements_masked} elements masked and "
            f"{training.mask_words_fetched} words fetched, and must have counted {replaced} and {words}")


def _compare_errors(name: str, number: int, rank: int, expected: npt.NDArray[np.uint32],
                    found: npt.NDArray[np.uint32]) -> None:
    """What a node has kept of its gradients against the golden model."""
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        index = int(wrong[0])
        raise DivergenceError(
            f"Step {number}: {wrong.size} of {len(expected)} {name} of node {rank} differ from the golden model, "
            f"first number {index}, which is 0x{found[index]:08x} and must be 0x{expected[index]:08x}")
