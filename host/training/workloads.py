"""Workloads of the ring: shares of a batch in, losses and gradients out, and a measure of the model's quality."""

import abc
import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.masking import Mask, MaskJob, Matrices
from host.models.digits import Dataset
from host.models.layer_shapes import Dense, layers_of
from host.models.layers import ALTERNATIVE, Array, perceptron
from host.models.text import Bigram, Characters, Text, collate, decode, encode
from host.models.transformer import Request, Transformer, TransformerConfig, Use, lockstep
from host.training.optimizers import LEARNING_RATES, OptimizerName
from sim.arithmetic.functions import exp
from sim.golden.operands import FP32

__all__ = ["TEXT_LEARNING_RATES", "CharacterModel", "Classifier", "Masks", "Workload", "WorkloadName", "mask_jobs"]

#: Default learning rates at the first step of training the character model.
TEXT_LEARNING_RATES = {**LEARNING_RATES, OptimizerName.ADAM: 0.03, OptimizerName.ADAMW: 0.03}

#: Beginning of the text that a model writes, the number of characters that it adds, and their temperature.
_PROMPT, _WRITTEN, _TEMPERATURE = "the ", 76, 0.6

Examples = npt.NDArray[np.intp]

#: Makes the masked matrices of each job, from the jobs of each node and the alternative.
Masks = Callable[[Sequence[Sequence[MaskJob]], float], list[list[Matrices]]]


class WorkloadName(enum.Enum):
    """Workloads, by their names on the command line."""

    DIGITS = "digits"
    TEXT = "text"


class Workload(abc.ABC):
    """A model and its data."""

    name: WorkloadName
    #: Parameters of the model, flat.
    parameters: Array
    #: Examples for training; a batch is an array of their numbers.
    examples: int

    @abc.abstractmethod
    def initialize(self, seed: int) -> None:
        """Draw all parameters again."""

    @abc.abstractmethod
    def count(self, batch: Examples) -> int:
        """Number of losses in the sum over these examples."""

    @abc.abstractmethod
    def differentiate(self, shares: Sequence[Examples], masks: Masks) -> list[tuple[float, Array]]:
        """Sum of the losses of each node's share, in order of rank, and its gradient; ``masks`` masks on nodes."""

    @abc.abstractmethod
    def measure(self, nodes: int, masks: Masks, *, last: bool) -> float:
        """Accuracy or loss on data for tests; on all of them after the ``last`` step, else on a part of them."""

    @abc.abstractmethod
    def examples_of(self, share: Examples) -> Any:
        """Examples of a node's share, for a node that differentiates."""

    def compact(self, parameters: Array) -> Array:
        """Parameters without elements that only fill up groups."""
        return parameters

    def sample(self, nodes: int, masks: Masks) -> dict[str, Any] | None:
        """Sample of the trained model's work, for a report."""
        return None


class Classifier(Workload):
    """A perceptron, measured by its accuracy on the test set; see :class:`host.models.layers.Model` for ``align``,
    and :class:`host.models.layers.Linear` for ``operands``."""

    name = WorkloadName.DIGITS

    def __init__(self, data: Dataset, hidden: Sequence[int], *, align: int = 1, operands: str = FP32):
        self._data = data
        #: Widths of all layers, inputs and outputs included.
        self.widths = [data.train_x.shape[1], *hidden, data.classes]
        self._model = perceptron(data.train_x.shape[1], hidden, data.classes, align=align, operands=operands)
        self.parameters = self._model.parameters
        self.examples = len(data.train_x)

    @property
    def layers(self) -> list[Dense]:
        """Layers, and the positions of their parameters on nodes that compute or in a schedule."""
        return layers_of(self.widths)

    def initialize(self, seed: int) -> None:
        self._model.initialize(seed)

    def count(self, batch: Examples) -> int:
        return len(batch)

    def differentiate(self, shares: Sequence[Examples], masks: Masks) -> list[tuple[float, Array]]:
        return [self._model.differentiate(self._data.train_x[share], self._data.train_y[share]) for share in shares]

    def measure(self, nodes: int, masks: Masks, *, last: bool) -> float:
        return self._model.accuracy(self._data.test_x, self._data.test_y)

    def examples_of(self, share: Examples) -> tuple[Array, npt.NDArray[np.int64]]:
        """Inputs and labels."""
        return self._data.train_x[share], self._data.train_y[share]

    @property
    def test_x(self) -> Array:
        """Inputs of the test set."""
        return self._data.test_x

    def rate(self, scores: Array) -> float:
        """Fraction of the test set with the largest score at the label."""
        return float((scores.argmax(axis=1) == self._data.test_y).mean())

    def scores(self) -> Array:
        """Scores of the test set."""
        return self._model.scores(self._data.test_x)

    def compact(self, parameters: Array) -> Array:
        return np.asarray(parameters[self._model.places])


class CharacterModel(Workload):
    """A causal transformer that predicts characters, measured by its loss on held-out text, in nats per character: on
    each ``sample``-th of its sequences before the end of training.

    A node masks the attention scores of its share's sequences, and the rows of its loss's gradient that are padding:
    one job per sequence, since lengths differ. Shares go through the model side by side, so that all nodes mask at
    the same time; of held-out text each masks ``chunk`` sequences at a time.
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
        #: Loss of a bigram model on the held-out text.
        self.bigram_loss = Bigram(text.train).loss(text.test)

    def initialize(self, seed: int) -> None:
        self.model.initialize(seed)

    def count(self, batch: Examples) -> int:
        return sum(len(self._text.train[example]) - 1 for example in batch)

    def differentiate(self, shares: Sequence[Examples], masks: Masks) -> list[tuple[float, Array]]:
        batches = [collate([self._text.train[example] for example in share]) for share in shares]
        with np.errstate(over="ignore", invalid="ignore"):
            return lockstep([self.model.gradient_pass(batch) for batch in batches], _answer(masks))

    def examples_of(self, share: Examples) -> list[Characters]:
        """Sequences of characters."""
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
        """A held-out sequence in a batch with a longer one, its attention weights in the first layer, and a text that
        the model writes by itself."""
        config = self.model.config
        longest = max(self._text.test, key=len)
        middle = 2 + 2 * (len(longest) - 1) // 3
        sequence = min(self._text.test, key=lambda part: abs(len(part) - middle))
        _, weights = self._output([sequence, longest], nodes, masks)
        written = list(encode(_PROMPT))
        generator = np.random.default_rng(0)
        for _ in range(_WRITTEN):
            scores = self._output([np.array([*written[-config.context:], 0])], nodes, masks)[0][0, -1] / _TEMPERATURE
            # The first number that reaches the drawn share of the probability; 0 is an unknown character.
            powers = exp(scores[1:] - scores[1:].max()).astype(np.float64).cumsum()
            written.append(1 + int(np.searchsorted(powers, generator.random() * powers[-1])))
        return {"text": decode(sequence[:-1]), "attention": weights[0][0].tolist(), "written": decode(written)}

    def _output(self, sequences: Sequence[Characters], nodes: int, masks: Masks) -> tuple[Array, list[Array]]:
        """Output and attention weights, masked by the first node."""
        def answer(requests: list[Request | None]) -> list[Array | None]:
            return _answer(masks)([*requests, *[None] * (nodes - 1)])[:1]

        return lockstep([self.model.output_pass(collate(sequences))], answer)[0]


def mask_jobs(request: Request) -> list[MaskJob]:
    """The jobs of a pass's request, one per sequence."""
    rows, columns = request.values.shape[2:]
    scores, lengths = request.use is Use.SCORES, map(int, request.lengths)
    return [MaskJob(matrices=matrices, mask=Mask(
        triangle=scores, padding=True, length_rows=rows if scores else length,
        length_columns=length if scores else columns))
        for matrices, length in zip(request.values, lengths, strict=True)]


def _answer(masks: Masks) -> Callable[[list[Request | None]], list[Array | None]]:
    """Answer to requests: each node masks the values of one pass."""
    def answer(requests: list[Request | None]) -> list[Array | None]:
        use = next(request.use for request in requests if request is not None)
        masked = masks([[] if request is None else mask_jobs(request) for request in requests],
                       ALTERNATIVE if use is Use.SCORES else 0.0)
        return [None if request is None else np.stack(results)
                for request, results in zip(requests, masked, strict=True)]

    return answer
