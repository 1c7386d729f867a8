"""Driver for sums of several gradients per node."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hdl.control.registers import register
from host.driver.memory import aligned
from host.driver.words import Vector
from host.features.microbatches.limits import check_counts

if TYPE_CHECKING:
    from host.driver.protocols import TrainingRing

__all__ = ["RingMicrobatches"]


class RingMicrobatches:
    """Gradients of microbatches on the nodes of a ring.

    Raises ``ValueError`` if the nodes do not have the feature.
    """

    def __init__(self, ring: "TrainingRing"):
        if not ring.config.has("microbatches"):
            raise ValueError("Nodes must have features=(Microbatches(),) to sum several gradients each")
        self._ring = ring
        self._known: tuple[list[int], int] | None = None

    def write(self, gradients: Sequence[Vector], counts: Sequence[int]) -> None:
        """Write several gradients to each node; later sums add all of them. Rank r gets the next ``counts[r]``
        gradients, which are stored one after another from the start of the gradient memory.

        Raises ``ValueError`` if the counts do not match or a node lacks memory.
        """
        check_counts(counts, nodes=self._ring.nodes, gradients=len(gradients))
        length = len(gradients[0])
        stride = aligned(length)
        words = (max(counts) - 1) * stride + length
        room = self._ring.config.memories.gradient
        if words > room:
            raise ValueError(f"Gradients must take at most the {room:,} elements of a node's memory, not {words:,}")
        self._set(list(counts), stride)
        ends = np.cumsum(counts)
        self._ring.memory.write_space("gradients", [_joined(gradients[end - count:end], stride)
                                                    for count, end in zip(counts, ends, strict=True)])

    def clear(self) -> None:
        """Reset the nodes, so that later sums add a single gradient per node."""
        settings = self._ring.settings
        settings.write_each("MICROBATCHES", [0] * self._ring.nodes)
        self._known = None

    def _set(self, counts: list[int], stride: int) -> None:
        """Write the counts and the stride to registers, unless they already have these values."""
        if self._known == (counts, stride):
            return
        settings, count, total = self._ring.settings, *map(register("MICROBATCHES").field, ("count", "total"))
        settings.write_each("MICROBATCHES", [own << count.bit | sum(counts) << total.bit for own in counts])
        settings.write_each("MICROBATCH_STRIDE", [stride] * len(counts))
        self._known = counts, stride


def _joined(gradients: Sequence[Vector], stride: int) -> Vector:
    """Join the gradients of a node into one vector, ``stride`` elements apart."""
    length = len(gradients[0])
    row = np.zeros((len(gradients) - 1) * stride + length, dtype=np.float32)
    for number, gradient in enumerate(gradients):
        row[number * stride:number * stride + length] = gradient
    return row
