"""Data-parallel training on a ring of nodes, checked bit for bit.

In each step a batch is split into one share per node. The host differentiates every share in float32 and writes the
gradients to the nodes; the ring sums them, the owner of each block updates it, and the new weights come back to every
node. Then all nodes' weights are compared with each other and with the golden model, as bit patterns, and the words
that each node has sent with those the golden model predicts.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from host.data import Dataset
from host.layers import Array, perceptron
from host.optimizers import LEARNING_RATES, SGD, Optimizer, OptimizerName
from host.ring import Outcome, Ring, Settings, block_bounds

if TYPE_CHECKING:
    from sim.golden.ring import Traffic, Update

__all__ = ["DivergenceError", "Step", "Training", "TrainingConfig", "TrainingError", "train"]


#: What :class:`TrainingConfig` trains with, unless another optimizer is asked for.
MOMENTUM = SGD(learning_rate=LEARNING_RATES[OptimizerName.MOMENTUM], momentum=0.9)


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
    batch : int
        Most examples in a step. An epoch is cut into as few batches as that allows, of sizes as equal as possible.
    hidden : tuple of int
        Width of each hidden layer.
    optimizer : Optimizer
        Its learning rate is that of the first step; it falls to zero along a straight line over all steps.
    packed_state : bool
        Whether nodes store the optimizer's state as bfloat16.
    seed : int
        Of the initial weights and of the order of the examples.
    check : bool
        Whether to compare every node with the golden model after every step. Without it, the weights of node 0 are
        taken at their word.
    """

    epochs: int = 14
    batch: int = 128
    hidden: tuple[int, ...] = (64,)
    optimizer: Optimizer = MOMENTUM
    packed_state: bool = False
    seed: int = 0
    check: bool = True

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.capitalize()} must be at least 1, not {getattr(self, name)!r}")
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"Widths of hidden layers must be at least 1, not {self.hidden!r}")
        if self.seed < 0:
            raise ValueError(f"Seed must be zero or more, not {self.seed!r}")

    def steps(self, examples: int) -> int:
        """Steps of the whole run on so many examples."""
        return self.epochs * -(-examples // self.batch)


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
        Words on all links, headers and CRCs included; and with raw payloads.
    density : list of float
        Non-zero elements at each hop of scatter-reduce.
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


@dataclasses.dataclass(kw_only=True)
class Training:
    """Outcome of a training run.

    Members
    -------
    nodes, parameters : int
    steps : list of Step
    losses, accuracies : list of float
        Mean training loss during each epoch, and test accuracy after it.
    bit_exact : bool, optional
        True where every comparison was made and held; None where none was asked for. (One that fails is an
        exception.)
    """

    nodes: int
    parameters: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    accuracies: list[float] = dataclasses.field(default_factory=list)
    bit_exact: bool | None = None


class _Reference:
    """The golden model of the same training run."""

    def __init__(self, ring: Ring, weights: Array, planes: int):
        # Loaded here, since nothing else in host/ needs the models of what is inside a node.
        from sim.golden import ring as golden

        self._golden = golden
        self._ring = ring
        self.weights = golden.bits(weights)
        self.state = [np.zeros_like(self.weights) for _ in range(planes)]

    def step(self, gradients: Sequence[Array], settings: Settings) -> "Traffic":
        """Do what the ring does."""
        golden = self._golden
        numbers = dataclasses.asdict(settings)
        packed_state = numbers.pop("packed_state")
        update: Update = golden.fused_update(
            golden.bits(np.stack(gradients)), self.weights, self.state, golden.settings(**numbers),
            packed_state=packed_state, segment=self._ring.segment, lanes=self._ring.lanes)
        self.weights = update.weights
        self.state = update.state
        return update.traffic


def _batches(examples: int, batch: int, generator: np.random.Generator) -> list[npt.NDArray[np.intp]]:
    """The examples in a new order, cut into as few batches of at most ``batch`` as possible."""
    return np.array_split(generator.permutation(examples), -(-examples // batch))


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


def _growth(name: str, before: list[dict[str, int]], after: list[dict[str, int]]) -> list[int]:
    """How far a counter of each node, which wraps at 32 bits, has gone on."""
    return [(now[name] - was[name]) % (1 << 32) for was, now in zip(before, after, strict=True)]


def _refuse_nonfinite(number: int, outcome: Outcome) -> None:
    advice = "training has diverged, try a smaller learning rate"
    if outcome.local_nan:
        nodes = _names(outcome.local_nan)
        raise TrainingError(f"Step {number}: NaN among the gradients of node {nodes}; {advice}")
    if outcome.not_finite:
        nodes = _names(outcome.not_finite)
        raise TrainingError(f"Step {number}: a sum of gradients is not finite, found by node {nodes}; {advice}")


def _names(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def train(ring: Ring, data: Dataset, config: TrainingConfig, *,
          on_step: Callable[[Training], None] = lambda training: None) -> Training:
    """Train a perceptron on the ring.

    Parameters
    ----------
    ring : Ring
    data : Dataset
    config : TrainingConfig
    on_step : callable
        Called after every step with what there is so far.

    Raises
    ------
    DivergenceError
        A node does not agree with the golden model.
    TrainingError
        Gradients are not finite.
    RingError
        A command has failed.
    """
    model = perceptron(data.train_x.shape[1], config.hidden, data.classes)
    model.initialize(config.seed)
    length = model.size
    planes = config.optimizer.planes
    ring.require(length, planes=planes, packed_state=config.packed_state)
    order = np.random.default_rng((config.seed, 1))
    reference = _Reference(ring, model.parameters, planes)
    ring.write_weights(model.parameters)
    if planes:
        ring.clear_state(length, packed_state=config.packed_state)
    ring.clear_counters()
    counters = ring.counters()
    training = Training(nodes=ring.nodes, parameters=length)
    total = config.steps(len(data.train_x))

    for epoch in range(1, config.epochs + 1):
        epoch_loss = 0.0
        for batch in _batches(len(data.train_x), config.batch, order):
            number = len(training.steps) + 1
            shares = np.array_split(batch, ring.nodes)
            losses, gradients = zip(
                *(model.differentiate(data.train_x[share], data.train_y[share]) for share in shares), strict=True)
            settings = dataclasses.replace(
                config.optimizer.settings(
                    number, gradient_scale=1 / len(batch),
                    learning_rate=config.optimizer.learning_rate * (1 - (number - 1) / total)),
                packed_state=config.packed_state)
            ring.write_settings(settings)
            ring.write_gradients(gradients)
            outcome = ring.fused_update(length)
            _refuse_nonfinite(number, outcome)

            traffic = reference.step(gradients, settings)
            before, counters = counters, ring.counters()
            sent = _growth("WORDS_SENT", before, counters)
            if config.check:
                weights = ring.read_weights(length)
                _compare("weights", number, reference.weights, weights.view(np.uint32))
                if sent != traffic.words.tolist():
                    raise DivergenceError(f"Step {number}: nodes have sent {_names(sent)} words, and must have sent "
                                          f"{_names(traffic.words.tolist())}")
                model.parameters[...] = weights[0]
            else:
                model.parameters[...] = ring.read_weights(length, ranks=[0])[0]

            epoch_loss += sum(losses)
            training.steps.append(Step(
                number=number, epoch=epoch, loss=sum(losses) / len(batch), cycles=outcome.cycles, bound=traffic.bound,
                scatter_cycles=max(_growth("SCATTER_REDUCE_CYCLES", before, counters)),
                scatter_bound=traffic.scatter_bound, words_sent=sum(sent), words_dense=traffic.dense_words,
                density=traffic.density.tolist()))
            on_step(training)
        training.losses.append(epoch_loss / len(data.train_x))
        training.accuracies.append(model.accuracy(data.test_x, data.test_y))
        on_step(training)

    if config.check:
        names = ["momenta"] if planes == 1 else ["first moments", "second moments"]
        for plane, expected in enumerate(reference.state):
            found = ring.read_state(length, plane, packed_state=config.packed_state)
            _compare_state(names[plane], total, expected, found.view(np.uint32), ring.nodes)
        training.bit_exact = True
    return training
