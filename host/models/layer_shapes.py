"""Layer shapes of a perceptron, and the offsets of the layers in the parameter vector."""

import dataclasses
import itertools
from collections.abc import Sequence

from hdl.group import GROUP

__all__ = ["Dense", "in_groups", "layers_of"]


@dataclasses.dataclass(frozen=True)
class Dense:
    """A linear layer and its position in the parameter vector."""

    #: Number of the layer, counted from 1.
    number: int
    inputs: int
    outputs: int
    base: int  # index of the layer's first parameter, a multiple of 32

    @property
    def length(self) -> int:
        """Number of weights and biases, including the padding to the next group."""
        return int(-(-(self.inputs + 1) * self.outputs // GROUP) * GROUP)

    def multiplications(self, *, backward: bool) -> int:
        """Return the multiply-adds per example, forward or backward; the first layer needs no input gradient."""
        return self.inputs * self.outputs * (2 if backward and self.number > 1 else 1)


def layers_of(widths: Sequence[int]) -> list[Dense]:
    """Return the layers of a perceptron with the given widths, which include inputs and outputs."""
    if len(widths) < 2:
        raise ValueError(f"Widths must be two or more, not {list(widths)!r}")
    layers: list[Dense] = []
    for number, (before, after) in enumerate(itertools.pairwise(widths), start=1):
        layers.append(Dense(number, before, after, layers[-1].base + layers[-1].length if layers else 0))
    return layers


def in_groups(widths: Sequence[int]) -> bool:
    """Return whether every layer starts a new group without padding: all except the last have whole groups."""
    *before_last, _ = ((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))
    return all(length % GROUP == 0 for length in before_last)
