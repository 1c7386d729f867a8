"""Training step of the text model on one sequence, split into node steps: forward, loss and backward.

Results equal :mod:`host.models.transformer` bit for bit. Row vectors, such as means and sums, are separate
buffers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from host.features.compute.memory.chain import Chain, chain_of
from host.features.compute.memory.steps import Step, StepProgram, pass_cycles, product_cycles
from host.models.layers import ALTERNATIVE, EPSILON, Array, Views, keep
from host.models.transformer import Transformer, TransformerConfig
from sim.arithmetic.functions import canonical, column_sums, exp, gather_sums, log, mean, product, row_sums
from sim.golden.features.compute.vector_cycles import VectorCycles

__all__ = ["CONFIG", "text_chain", "text_program"]

#: Sizes of the model in docs/text.md.
CONFIG = TransformerConfig()


def text_program(config: TransformerConfig = CONFIG, *, parameters: Array | None = None,
                 gradient: Array | None = None, length: int | None = None, scaled_again: bool = False,
                 in_place: bool = False) -> StepProgram:
    """Build the steps of a sequence of ``config.context`` positions, from ``tokens`` to ``losses``.

    Parameters
    ----------
    parameters, gradient : array, optional
        Parameters and memory for their gradient, each with :attr:`Transformer.size` elements. Only needed to run it.
    length : int, optional
        Number of positions that are not padding; by default all.
    scaled_again : bool
        Whether layer norms store only normalised rows, which the backward pass scales again.
    in_place : bool
        Whether element-wise steps overwrite their first operand where possible. The score of each label is then
        read before its row is overwritten.
    """
    model = Transformer(config)
    zeros = np.zeros(model.size, np.float32)
    builder = _Builder(config, model.views(zeros if parameters is None else parameters),
                       model.views(zeros.copy() if gradient is None else gradient), scaled_again=scaled_again,
                       early=in_place)
    builder.forward()
    builder.loss(config.context if length is None else length)
    builder.backward()
    program = StepProgram(shapes=builder.shapes, steps=builder.steps, given=("tokens", "labels"), taken=("losses",))
    return program.in_place() if in_place else program


def text_chain() -> Chain:
    """Build the chain of maps that the model saves per sequence. Layer norms save their normalised rows, which the
    backward pass scales again."""
    return chain_of(text_program(scaled_again=True), name="text", turn="d output")


def _integers(x: Array) -> npt.NDArray[np.int64]:
    return x[:, 0].astype(np.int64)


def _into(gradient: Array, function: Callable[..., Array]) -> Callable[..., None]:
    """Return a function that writes the result of ``function`` to a gradient."""
    return lambda *operands: np.copyto(gradient, function(*operands))


class _Builder:
    def __init__(self, config: TransformerConfig, parameters: Mapping[str, Views], gradients: Mapping[str, Views], *,
                 scaled_again: bool, early: bool):
        self._config = config
        self._rows = config.context
        self._parameters = parameters
        self._gradients = gradients
        self._again = scaled_again
        self._early = early
        self._softmax = VectorCycles()
        self.steps: list[Step] = []
        self.shapes: dict[str, tuple[int, int]] = {"tokens": (self._rows, 1), "labels": (self._rows, 1)}

    def _step(self, write: str | None, reads: str, function: Callable[..., Any], shape: tuple[int, int] | None = None,
              **options: Any) -> None:
        """Add a step that reads a comma-separated list of buffers and writes a buffer or a gradient."""
        operands = tuple(reads.split(", "))
        if write is not None and shape is not None:
            self.shapes[write] = shape
        written = () if write is None else (write,)
        if "cycles" not in options:
            options["cycles"] = pass_cycles(max(math.prod(self.shapes[name]) for name in (*operands, *written)))
        self.steps.append(Step(name=write or f"gradient of {reads}", reads=operands, writes=written,
                               function=function, **options))

    def _pass(self, write: str, reads: str, function: Callable[..., Any]) -> None:
        """Add an element-wise step with a result of the same shape as its first operand."""
        self._step(write, reads, function, self.shapes[reads.split(", ")[0]], elementwise=True)

    def _row(self, write: str, reads: str, function: Callable[..., Any]) -> None:
        """Add a step with one result per row of the first buffer that it reads."""
        self._step(write, reads, function, (self.shapes[reads.split(", ")[0]][0], 1))

    def _product(self, write: str | None, reads: str, function: Callable[..., Any], sizes: tuple[int, int, int], *,
                 count: int = 1, shape: tuple[int, int] | None = None,
                 columns: tuple[int, int] | None = None) -> None:
        self._step(write, reads, function, shape, columns=columns, cycles=product_cycles(*sizes, count=count),
                   multiplications=count * math.prod(sizes))

    def forward(self) -> None:
        """Add all steps of the forward pass, up to the scores."""
        embedding, rows = self._parameters["embedding"], self._rows
        self._step("x 0", "tokens", lambda tokens: (embedding["character"][_integers(tokens)]
                                                     + embedding["position"][:rows]), (rows, self._config.width))
        for n in range(self._config.layers):
            self._norm(f"norm_{n}", f"x {2 * n}")
            self._attend(n)
            self._pass(f"x {2 * n + 1}", f"outward {n}, x {2 * n}", lambda output, x: x + output)
            self._norm(f"feed_norm_{n}", f"x {2 * n + 1}")
            self._linear(f"rise_{n}", f"scaled feed_norm_{n}", relu=True)
            self._linear(f"fall_{n}", f"rise_{n}")
            self._pass(f"x {2 * n + 2}", f"fall_{n}, x {2 * n + 1}", lambda output, x: x + output)
        self._norm("norm", f"x {2 * self._config.layers}")
        self._linear("output", "scaled norm")

    def _norm(self, name: str, x: str) -> None:
        def deviation(centred: Array) -> Array:
            return np.asarray(np.float32(1) / np.sqrt(mean(centred * centred) + np.float32(EPSILON)))

        self._row(f"mean {name}", x, mean)
        self._pass(f"centred {name}", f"{x}, mean {name}", lambda x, mean: x - mean)
        self._row(f"deviation {name}", f"centred {name}", deviation)
        self._pass(f"normal {name}", f"centred {name}, deviation {name}", lambda x, by: canonical(x * by))
        self._scale(f"scaled {name}", name)

    def _scale(self, write: str, name: str) -> None:
        own = self._parameters[name]
        self._pass(write, f"normal {name}", lambda normal: normal * own["scale"] + own["shift"])

    def _linear(self, name: str, x: str, *, relu: bool = False) -> None:
        own, rows = self._parameters[name], self._rows
        outputs, inputs = own["weight"].shape

        def function(x: Array) -> Array:
            result = product(x, own["weight"].T, np.broadcast_to(own["bias"], (rows, outputs)))
            return np.where(result <= 0, np.float32(0), result) if relu else result

        self._product(name, x, function, (rows, inputs, outputs), shape=(rows, outputs))

    def _heads(self, function: Callable[[int], Array]) -> Array:
        """Stack the results of all heads vertically."""
        return np.concatenate([function(head) for head in range(self._config.heads)])

    def _part(self, x: Array, part: int, head: int) -> Array:
        """Return a head's columns in ``x``, which has queries (0), keys (1) and values (2), or only one of them."""
        size = self._config.width // self._config.heads
        begin = part * self._config.width + head * size
        return np.ascontiguousarray(x[:, begin:begin + size])

    def _of(self, x: Array, head: int) -> Array:
        """Return the rows of one head; the matrix ``x`` has the heads stacked vertically."""
        return x[head * self._rows:(head + 1) * self._rows]

    @property
    def _gain(self) -> np.float32:
        return np.float32(1 / math.sqrt(self._config.width // self._config.heads))

    def _attend(self, n: int) -> None:
        rows, width, heads = self._rows, self._config.width, self._config.heads
        parameters, kept, count = self._parameters[f"attention_{n}"], keep(rows, np.array([rows]))[0], heads * rows
        sizes = rows, width // heads, rows
        self._product(f"parts {n}", f"scaled norm_{n}", lambda x: product(x, parameters["inward"]),
                      (rows, width, 3 * width), shape=(rows, 3 * width))
        self._product(f"scores {n}", f"parts {n}", lambda parts: self._heads(lambda head: np.where(
            kept, product(self._part(parts, 0, head), self._part(parts, 1, head).T) * self._gain,
            np.float32(ALTERNATIVE))), sizes, count=heads, shape=(count, rows))
        self._powers(f"{n}", f"scores {n}")
        self._step(f"reciprocal {n}", f"sum {n}", lambda total: np.float32(1) / total, (count, 1), cycles=0)
        self._step(f"weights {n}", f"powers {n}, reciprocal {n}", lambda x, by: canonical(x * by), (count, rows),
                   elementwise=True, cycles=0)
        self._product(f"heads {n}", f"weights {n}, parts {n}", lambda weights, parts: np.hstack([
            product(self._of(weights, head), self._part(parts, 2, head)) for head in range(heads)]),
            sizes, count=heads, shape=(rows, width))
        self._product(f"outward {n}", f"heads {n}", lambda x: product(x, parameters["outward"]), (rows, width, width),
                      shape=(rows, width))

    def _powers(self, name: str, scores: str) -> None:
        """Add the steps of a softmax that compute maxima, exponentials and their sums. All modelled cycles of the
        softmax are attributed to the exponentials."""
        rows, columns = self.shapes[scores]
        self._step(f"largest {name}", scores, lambda x: x.max(axis=1, keepdims=True), (rows, 1), cycles=0)
        if name == "loss" and self._early:
            self._step("margin", f"{scores}, largest {name}, labels", _margin, (rows, 1), cycles=0)
        self._step(f"powers {name}", f"{scores}, largest {name}", lambda x, largest: exp(x - largest),
                   (rows, columns), elementwise=True, cycles=self._softmax.job(rows, columns))
        self._step(f"sum {name}", f"powers {name}", row_sums, (rows, 1), cycles=0)

    def loss(self, length: int) -> None:
        """Add the loss of each row, and the gradient of the scores, which is zero in padding rows."""
        rows = self._rows

        def gradient(powers: Array, total: Array, labels: Array) -> Array:
            result = canonical(powers / total)
            result[np.arange(rows), _integers(labels)] -= np.float32(1)
            result[length:] = 0
            return result

        self._powers("loss", "output")
        if self._early:
            self._step("losses", "sum loss, margin", lambda total, margin: log(total) - margin, (rows, 1), cycles=0)
        else:
            self._step("losses", "output, largest loss, sum loss, labels", lambda x, largest, total, labels: (
                log(total) - _margin(x, largest, labels)), (rows, 1), cycles=0)
        self._step("d output", "powers loss, sum loss, labels", gradient, self.shapes["powers loss"],
                   elementwise=True, cycles=0)

    def backward(self) -> None:
        """Add the steps of the backward pass that follow the gradient of the scores."""
        self._linear_back("output", "scaled norm", "d output", "d scaled norm")
        upstream = self._norm_back("norm", "d scaled norm")
        for n in reversed(range(self._config.layers)):
            self._linear_back(f"fall_{n}", f"rise_{n}", upstream, f"d rise_{n}", gate=True)
            self._linear_back(f"rise_{n}", f"scaled feed_norm_{n}", f"d rise_{n}", f"d scaled feed_norm_{n}")
            self._pass(f"d x {2 * n + 1}", f"{self._norm_back(f'feed_norm_{n}', f'd scaled feed_norm_{n}')}, "
                                           f"{upstream}", lambda x, upstream: upstream + x)
            upstream = f"d x {2 * n + 1}"
            self._attend_back(n, upstream)
            self._pass(f"d x {2 * n}", f"{self._norm_back(f'norm_{n}', f'd scaled norm_{n}')}, {upstream}",
                       lambda x, upstream: upstream + x)
            upstream = f"d x {2 * n}"
        gradients, characters = self._gradients["embedding"], self._config.characters

        def embed(upstream: Array, tokens: Array) -> None:
            gradients["character"][...] = gather_sums(upstream, _integers(tokens), characters)
            gradients["position"][:len(upstream)] = column_sums(upstream.reshape(1, -1)).reshape(upstream.shape)

        self._step(None, f"{upstream}, tokens", embed)

    def _scaled(self, x: str) -> str:
        """Return a layer norm's scaled rows: either stored by the forward pass, or recomputed here from the
        normalised rows."""
        if not self._again or not x.startswith("scaled "):
            return x
        self._scale(f"{x} again", x.removeprefix("scaled "))
        return f"{x} again"

    def _linear_back(self, name: str, x: str, upstream: str, inward: str, *, gate: bool = False) -> None:
        weight, gradients = self._parameters[name]["weight"], self._gradients[name]
        outputs, inputs = weight.shape
        sizes, shape = (self._rows, inputs, outputs), (self._rows, inputs)
        self._product(None, f"{self._scaled(x)}, {upstream}", _into(
            gradients["weight"], lambda x, upstream: product(upstream.T, x)), sizes)
        self._step(None, upstream, _into(gradients["bias"], column_sums))
        if gate:
            self._product(inward, f"{upstream}, {x}", lambda upstream, x: np.where(
                x > 0, product(upstream, weight), np.float32(0)), sizes, shape=shape)
        else:
            self._product(inward, upstream, lambda upstream: product(upstream, weight), sizes, shape=shape)

    def _norm_back(self, name: str, upstream: str) -> str:
        scale, gradients = self._parameters[name]["scale"], self._gradients[name]
        self._step(None, f"{upstream}, normal {name}", _into(
            gradients["scale"], lambda upstream, normal: column_sums(upstream * normal)))
        self._step(None, upstream, _into(gradients["shift"], column_sums))
        self._pass(f"times {name}", upstream, lambda upstream: upstream * scale)
        self._row(f"middle {name}", f"times {name}", mean)
        self._row(f"along {name}", f"times {name}, normal {name}", lambda scaled, normal: mean(scaled * normal))
        self._pass(f"d {name}", f"times {name}, normal {name}, middle {name}, along {name}, deviation {name}",
                   lambda scaled, normal, middle, along, deviation: (scaled - middle - normal * along) * deviation)
        return f"d {name}"

    def _attend_back(self, n: int, upstream: str) -> None:
        rows, width, heads = self._rows, self._config.width, self._config.heads
        parameters, gradients = self._parameters[f"attention_{n}"], self._gradients[f"attention_{n}"]
        sizes, shape = (rows, width // heads, rows), self.shapes[f"weights {n}"]

        def matrix(side: str) -> Callable[..., None]:
            return _into(gradients[side], lambda x, upstream: product(x.T, upstream))

        def part(number: int, reads: str, function: Callable[[Array, Array, int], Array]) -> None:
            """Add the gradient of the queries, keys or values, as selected by ``number``."""
            self._product(f"d parts {n}", reads, lambda x, other: np.hstack([
                function(x, other, head) for head in range(heads)]), sizes, count=heads, shape=(rows, 3 * width),
                columns=(number * width, (number + 1) * width))

        self._product(None, f"heads {n}, {upstream}", matrix("outward"), (rows, width, width))
        self._product(f"d heads {n}", upstream, lambda x: product(x, parameters["outward"].T), (rows, width, width),
                      shape=(rows, width))
        self._product(f"d weights {n}", f"d heads {n}, parts {n}", lambda x, parts: self._heads(
            lambda head: product(self._part(x, 0, head), self._part(parts, 2, head).T)), sizes, count=heads,
            shape=shape)
        part(2, f"weights {n}, d heads {n}", lambda weights, x, head: product(
            self._of(weights, head).T, self._part(x, 0, head)))
        self._pass(f"weighted {n}", f"d weights {n}, weights {n}", lambda x, weights: x * weights)
        self._row(f"sum weighted {n}", f"weighted {n}", row_sums)
        self._pass(f"difference {n}", f"d weights {n}, sum weighted {n}", lambda x, total: x - total)
        self._pass(f"d scores {n}", f"difference {n}, weights {n}", lambda x, weights: weights * x * self._gain)
        part(0, f"d scores {n}, parts {n}", lambda x, parts, head: product(
            self._of(x, head), self._part(parts, 1, head)))
        part(1, f"d scores {n}, parts {n}", lambda x, parts, head: product(
            self._of(x, head).T, self._part(parts, 0, head)))
        self._product(None, f"{self._scaled(f'scaled norm_{n}')}, d parts {n}", matrix("inward"),
                      (rows, width, 3 * width))
        self._product(f"d scaled norm_{n}", f"d parts {n}", lambda x: product(x, parameters["inward"].T),
                      (rows, 3 * width, width), shape=(rows, width))


def _margin(scores: Array, largest: Array, labels: Array) -> Array:
    """Return the score of each row's label minus the largest score of the row."""
    rows = np.arange(len(scores))
    return (scores[rows, _integers(labels)] - largest[:, 0])[:, None]
