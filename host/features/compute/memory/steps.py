"""Step programs: each step is described by its operands, its function and its modelled cycles.

The buffers and their plan (:mod:`host.features.compute.memory.plan`) are derived from the description. The program
can be run in a memory of exactly the planned size, so every number that a step reads comes from a planned address.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from host.features.compute.memory.plan import Operation, Profile
from sim.golden.constants import constant

__all__ = ["LANES", "PASS", "PRODUCT", "UNITS", "Step", "StepProgram", "pass_cycles", "perceptron_profile",
           "product_cycles"]

Array = npt.NDArray[np.float32]

#: Multiply-adds per cycle in products, and elements per cycle in element-wise passes.
UNITS, LANES = 16, 4
_ASSUMED = "assumed: docs/memory_planning.md"
PRODUCT = constant("steps in memory", 96, "overhead of a product, without its multiply-adds", _ASSUMED)
PASS = constant("steps in memory", 14, "overhead of an element-wise pass or a sum, without its elements", _ASSUMED)


def product_cycles(*sizes: int, count: int = 1) -> int:
    """Return the modelled cycles of ``count`` matrix products of the same sizes."""
    return count * (math.prod(sizes) // UNITS + PRODUCT)


def pass_cycles(words: int) -> int:
    """Return the modelled cycles of an element-wise pass, or of a summation, over ``words`` words."""
    return -(-words // LANES) + PASS


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A step of a program."""

    name: str
    #: Names of the buffers that are read, and of the buffers that are written.
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    function: Callable[..., Any]  # takes the arrays that are read; returns the array to write, or None
    #: First written column and the column after the last one; by default, all columns are written.
    columns: tuple[int, int] | None = None
    #: Whether every result element depends on just one element of the first operand, which it may overwrite.
    elementwise: bool = False
    cycles: int = 0
    multiplications: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StepProgram:
    """A program of steps in order."""

    #: Rows and columns of each buffer.
    shapes: Mapping[str, tuple[int, int]]
    steps: Sequence[Step]
    #: Buffers that the host writes before the first step, and buffers that it reads after the last step.
    given: Sequence[str] = ()
    taken: Sequence[str] = ()
    #: For each buffer that overwrites another one, the name of the buffer in whose place it is stored.
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def profile(self) -> Profile:
        """The program's buffers and operations."""
        words = {name: math.prod(shape) for name, shape in self.shapes.items() if name not in self.aliases}
        return Profile(words, [
            Operation("the host gives", writes=tuple(self.given)),
            *(Operation(step.name, self._named(step.reads), self._named(step.writes)) for step in self.steps),
            Operation("the host takes", reads=(*self.given, *self.taken))])

    def in_place(self) -> "StepProgram":
        """Return the program with element-wise steps overwriting operands that are no longer needed."""
        last = {name: number for number, step in enumerate(self.steps) for name in (*step.reads, *step.writes)}
        last |= dict.fromkeys((*self.given, *self.taken), len(self.steps))
        aliases: dict[str, str] = {}
        for number, step in enumerate(self.steps):
            if step.elementwise:
                source, (target,) = step.reads[0], step.writes
                if last[source] == number and self.shapes[source] == self.shapes[target]:
                    aliases[target] = aliases.get(source, source)
        return dataclasses.replace(self, aliases=aliases)

    def run(self, places: Mapping[str, int], tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array]:
        """Execute the steps in a memory of the planned size and return the arrays that the host reads."""
        words = self.profile.words
        memory = np.full(max(places[name] + count for name, count in words.items()), np.nan, np.float32)

        def view(name: str) -> Array:
            shape, base = self.shapes[name], places[self.aliases.get(name, name)]
            return memory[base:base + math.prod(shape)].reshape(shape)

        for name in self.given:
            view(name)[...] = tensors[name]
        for step in self.steps:
            result = step.function(*map(view, step.reads))
            for name in step.writes:
                view(name)[:, slice(*step.columns or (None,))] = result
        return {name: view(name).copy() for name in self.taken}

    def _named(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.aliases.get(name, name) for name in names))


def perceptron_profile(widths: Sequence[int], examples: int) -> Profile:
    """Describe the buffers of a perceptron of these widths (including inputs and outputs), for comparison.

    Here, softmax is separate from the loss and its gradient. The lists of :mod:`host.features.compute.lists` use a
    single instruction for both, pad rows to whole memory rows, and have a buffer for the loss. A product includes its
    bias and ReLU, and the backward pass includes the gate of the ReLU. Parameter gradients are not included.
    """
    count = len(widths) - 1
    outputs = ["inputs", *(f"output {number}" for number in range(1, count + 1))]
    words = {**{name: examples * width for name, width in zip(outputs, widths, strict=True)},
             "labels": examples, "softmax": examples * widths[-1],
             **{f"gradient {number}": examples * widths[number] for number in range(count, 0, -1)}}
    operations = [
        Operation("the host gives", writes=("inputs", "labels")),
        *(Operation(f"forward {after}", (before,), (after,)) for before, after in itertools.pairwise(outputs)),
        Operation("softmax", (outputs[-1],), ("softmax",)),
        Operation("cross-entropy", ("softmax", "labels"), (f"gradient {count}",))]
    for number in range(count, 0, -1):
        reads = (outputs[number - 1], f"gradient {number}")
        operations.append(Operation(f"weights {number}", reads))
        if number > 1:
            operations.append(Operation(f"backward {number}", reads, (f"gradient {number - 1}",)))
    return Profile(words, operations)
