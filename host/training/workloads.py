"""Workloads to train on a ring: they compute losses and gradients for shares of a batch, and test models."""

import abc
import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.masking import Mask, MaskJob, Matrices
from host.models.digits import Dataset
from host.models.layer_shapes import Dense, in_groups, layers_of
from host.models.layers import ALTERNATIVE, Array, perceptron
from host.models.text import Bigram, Characters, Text, collate, decode, encode
from host.models.transformer import Request, Transformer, TransformerConfig, Use, lockstep
from host.training.optimizers import LEARNING_RATES, OptimizerName
from sim.arithmetic.functions import exp
from sim.golden.operands import FP32

__all__ = ["TEXT_LEARNING_RATES", "CharacterModel", "Classifier", "Masks", "Workload", "WorkloadName", "mask_jobs"]

#: Default initial learning rates of the character model.
TEXT_LEARNING_RATES = {**LEARNING_RATES, OptimizerName.ADAM: 0.03, OptimizerName.ADAMW: 0.03}

#: Start of a text that the model continues, number of characters to add, and sampling temperature.
_PROMPT, _WRITTEN, _TEMPERATURE = "the ", 76, 0.6

Examples = npt.NDArray[np.intp]

#: Function that masks matrices, given the mask jobs of each node and the value that replaces masked elements.
Masks = Callable[[Sequence[Sequence[MaskJob]], float], list[list[Matrices]]]


class WorkloadName(enum.Enum):
    """Workloads, with the names used on the command line."""

    DIGITS = "digits"
    TEXT = "text"


class Workload(abc.ABC):
    """Base class of workloads: a model, its data, and the computation of its gradients."""

    name: WorkloadName
    #: Parameters of the model, as a flat vector.
    parameters: Array
    #: Number of training examples; a batch is an array of their indices.
    examples: int

    @abc.abstractmethod
    def initialize(self, seed: int) -> None:
        """Initialize all parameters from a seed."""

    @abc.abstractmethod
    def count(self, batch: Examples) -> int:
        """Return the number of losses that are summed for the examples of a batch."""

    @abc.abstractmethod
    def differentiate(self, shares: Sequence[Examples], masks: Masks) -> list[tuple[float, Array]]:
        """Return the loss (summed) and the gradient of each share. ``masks`` masks matrices on nodes."""

    @abc.abstractmethod
    def measure(self, nodes: int, masks: Masks, *, last: bool) -> float:
        """Return the accuracy or loss on all test data if this is the ``last`` measurement, else on a subset."""

    @abc.abstractmethod
    def examples_of(self, share: Examples) -> Any:
        """Return the examples of a node's share, in the form that computing nodes require."""

    @abc.abstractmethod
    def element_at(self, index: int) -> tuple[str, str, tuple[int, ...]] | None:
        """Return an element's layer name, parameter name, and indices in the parameter; None for padding."""

    @property
    def in_groups(self) -> bool:
        """Whether all layers that may be summed separately start at a new group without any padding."""
        return True

    def compact(self, parameters: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return parameters, or other values with the same layout, without the elements that pad groups."""
        return parameters

    def sample(self, nodes: int, masks: Masks) -> dict[str, Any] | None:
        """Return a sample of the trained model's output for the report."""
        return None


class Classifier(Workload):
    """Perceptron that is evaluated by its accuracy on the test set. For ``align`` see
    :class:`host.models.layers.Model`, and for ``operands`` :class:`host.models.layers.Linear`."""

    name = WorkloadName.DIGITS

    def __init__(self, data: Dataset, hidden: Sequence[int], *, align: int = 1, operands: str = FP32):
        self._data = data
        #: Widths of all layers, including inputs and outputs.
        self.widths = [data.train_x.shape[1], *hidden, data.classes]
        self._model = perceptron(data.train_x.shape[1], hidden, data.classes, align=align, operands=operands)
        self.parameters = self._model.parameters
        self.examples = len(data.train_x)

    @property
    def layers(self) -> list[Dense]:
        """Layers of the perceptron, with the positions of their parameters on computing nodes or in a schedule."""
        return layers_of(self.widths)

    def element_at(self, index: int) -> tuple[str, str, tuple[int, ...]] | None:
        element = self._model.element_at(index)
        # Each layer except the last is followed by a ReLU.
        return element and (f"layer {element[0] // 2 + 1}", *element[1:])

    @property
    def in_groups(self) -> bool:
        return in_groups(self.widths)

    def initialize(self, seed: int) -> None:
        self._model.initialize(seed)

    def count(self, batch: Examples) -> int:
        return len(batch)

    def differentiate(self, shares: Sequence[Examples], masks: Masks) -> list[tuple[float, Array]]:
        return [self._model.differentiate(self._data.train_x[share], self._data.train_y[share]) for share in shares]

    def measure(self, nodes: int, masks: Masks, *, last: bool) -> float:
        return self._model.accuracy(self._data.test_x, self._data.test_y)

    def examples_of(self, share: Examples) -> tuple[Array, npt.NDArray[np.int64]]:
        """Return the inputs and labels of a share of a batch."""
        return self._data.train_x[share], self._data.train_y[share]

    @property
    def test_x(self) -> Array:
        """Return the inputs of the test set."""
        return self._data.test_x

    def rate(self, scores: Array) -> float:
        """Return the fraction of the test set for which the label has the highest score."""
        return float((scores.argmax(axis=1) == self._data.test_y).mean())

    def scores(self) -> Array:
        """Compute the scores on the test set with the current parameters."""
        return self._model.scores(self._data.test_x)

    def compact(self, parameters: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(parameters[self._model.places])


class CharacterModel(Workload):
    """Causal transformer that predicts characters. It is evaluated by its loss on held-out text, in nats per
    character; before the end of training, only on every ``sample``-th sequence.

    A node masks the attention scores of the sequences in its share, and the padding rows of the loss's gradient, with
    one job per sequence, since lengths differ. Shares pass through the model in parallel, so that all nodes mask at
    the same time. For held-out text, each node masks ``chunk`` sequences at a time.
    """

    name = WorkloadName.TEXT

    def __init__(self, text: Text, config: TransformerConfig | None = None, *, sample: int = 4, chunk: int = 32):
        for name, value in (("Sample", sample), ("Chunk", chunk)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        self._text, self._sample, self._chunk = text, sample, chunk
        self.model = Transformer(TransformerConfig() if config is None else config)
        self.parameters = self.model.parameters
        self.examples = len(text.train)
        #: Loss of a bigram model on the held-out text, for comparison.
        self.bigram_loss = Bigram(text.train).loss(text.test)

    def initialize(self, seed: int) -> None:
        self.model.initialize(seed)

    def element_at(self, index: int) -> tuple[str, str, tuple[int, ...]] | None:
        return self.model.element_at(index)

    def count(self, batch: Examples) -> int:
        return sum(len(self._text.train[example]) - 1 for example in batch)

    def differentiate(self, shares: Sequence[Examples], masks: Masks) -> list[tuple[float, Array]]:
        batches = [collate([self._text.train[example] for example in share]) for share in shares]
        with np.errstate(over="ignore", invalid="ignore"):
            return lockstep([self.model.gradient_pass(batch) for batch in batches], _answer(masks))

    def examples_of(self, share: Examples) -> list[Characters]:
        """Return the character sequences of a share of a batch."""
        return [self._text.train[example] for example in share]

    def measure(self, nodes: int, masks: Masks, *, last: bool) -> float:
        sequences = sorted(self._text.test[::1 if last else self._sample], key=len)
        chunks = [sequences[n:n + self._chunk] for n in range(0, len(sequences), self._chunk)]
        total = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for n in range(0, len(chunks), nodes):
                group = [*chunks[n:n + nodes], *[[]] * nodes][:nodes]
                total += sum(lockstep([self.model.loss_pass(collate(part)) for part in group], _answer(masks)))
        return total / sum(len(sequence) - 1 for sequence in sequences)

    def sample(self, nodes: int, masks: Masks) -> dict[str, Any] | None:
        """Return a held-out sequence, its attention weights in the first layer (in a batch with a longer sequence),
        and a text that the model has generated."""
        config = self.model.config
        longest = max(self._text.test, key=len)
        middle = 2 + 2 * (len(longest) - 1) // 3
        sequence = min(self._text.test, key=lambda part: abs(len(part) - middle))
        _, weights = self._output([sequence, longest], nodes, masks)
        written = list(encode(_PROMPT))
        generator = np.random.default_rng(0)
        for _ in range(_WRITTEN):
            scores = self._output([np.array([*written[-config.context:], 0])], nodes, masks)[0][0, -1] / _TEMPERATURE
            # Choose the index at which the cumulative probability reaches a random number; 0 is an unknown character.
            powers = exp(scores[1:] - scores[1:].max()).astype(np.float64).cumsum()
            written.append(1 + int(np.searchsorted(powers, generator.random() * powers[-1])))
        return {"text": decode(sequence[:-1]), "attention": weights[0][0].tolist(), "written": decode(written)}

    def _output(self, sequences: Sequence[Characters], nodes: int, masks: Masks) -> tuple[Array, list[Array]]:
        """Compute the model's output and attention weights, with masking on the first node."""
        def answer(requests: list[Request | None]) -> list[Array | None]:
            return _answer(masks)([*requests, *[None] * (nodes - 1)])[:1]

        return lockstep([self.model.output_pass(collate(sequences))], answer)[0]


def mask_jobs(request: Request) -> list[MaskJob]:
    """Return the mask jobs for the request of a pass, one per sequence."""
    rows, columns = request.values.shape[2:]
    scores, lengths = request.use is Use.SCORES, map(int, request.lengths)
    return [MaskJob(matrices=matrices, mask=Mask(
        triangle=scores, padding=True, length_rows=rows if scores else length,
        length_columns=length if scores else columns))
        for matrices, length in zip(request.values, lengths, strict=True)]


def _answer(masks: Masks) -> Callable[[list[Request | None]], list[Array | None]]:
    """Return a function that answers the mask requests of passes. Each node masks the values of one pass."""
    def answer(requests: list[Request | None]) -> list[Array | None]:
        use = next(request.use for request in requests if request is not None)
        masked = masks([[] if request is None else mask_jobs(request) for request in requests],
                       ALTERNATIVE if use is Use.SCORES else 0.0)
        return [None if request is None else np.stack(results)
                for request, results in zip(requests, masked, strict=True)]

    return answer
