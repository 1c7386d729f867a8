"""A step of a perceptron whose softmax, loss and gradient are operations of their own.

The lists of :mod:`host.compute.lists` have one instruction for the three, rows of whole memory rows, and a buffer of
the loss; this program has none of it, and is there for comparison.
"""

import itertools
from collections.abc import Sequence

from host.memory.profile import Operation, Profile

__all__ = ["perceptron_profile"]


def perceptron_profile(widths: Sequence[int], examples: int) -> Profile:
    """Buffers of a perceptron of the given widths, inputs and outputs included.

    A product's bias and ReLU are part of it, forward, and the ReLU's gate backward. Gradients of parameters lie
    elsewhere.
    """
    count = len(widths) - 1
    outputs = ["inputs", *(f"output {number}" for number in range(1, count + 1))]
    words = {name: examples * width for name, width in zip(outputs, widths, strict=True)}
    words |= {"labels": examples, "softmax": examples * widths[-1]}
    words |= {f"gradient {number}": examples * widths[number] for number in range(count, 0, -1)}
    operations = [Operation("the host gives", writes=("inputs", "labels"))]
    operations += [Operation(f"forward {after}", (before,), (after,))
                   for before, after in itertools.pairwise(outputs)]
    operations += [Operation("softmax", (outputs[-1],), ("softmax",)),
                   Operation("cross-entropy", ("softmax", "labels"), (f"gradient {count}",))]
    for number in range(count, 0, -1):
        reads = (outputs[number - 1], f"gradient {number}")
        operations.append(Operation(f"weights {number}", reads))
        if number > 1:
            operations.append(Operation(f"backward {number}", reads, (f"gradient {number - 1}",)))
    return Profile(words, operations)
