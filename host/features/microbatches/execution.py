"""Steps in which each node has the gradients of several microbatches."""

from collections.abc import Sequence

import numpy as np

from hdl.control.registers import register
from host.driver.memory import aligned
from host.driver.protocols import TrainingRing
from host.driver.words import Vector
from host.training.batches import counts_of
from host.training.executions import Execution

__all__ = ["MicrobatchExecution"]


class MicrobatchExecution(Execution):
    """Execution of a run's steps with the gradients of several microbatches on each node, one behind the other."""

    def __init__(self, ring: TrainingRing, length: int):
        super().__init__(ring, length)
        self._counts: list[int] | None = None  # as in the registers of the nodes

    def write(self, gradients: Sequence[Vector]) -> None:
        """Write the gradients of all microbatches, in order; rank 0 has the first ones."""
        ring, stride = self._ring, aligned(self._length)
        counts = counts_of(len(gradients), ring.nodes)
        if counts != self._counts:
            self._write_counts(counts, stride)
        ends = np.cumsum(counts)
        ring.memory.write_space("gradients", [self._joined(gradients[end - count:end], stride)
                                              for count, end in zip(counts, ends, strict=True)])

    def _write_counts(self, counts: list[int], stride: int) -> None:
        """Set the number of gradients of each node and of all nodes, and their distance in elements."""
        settings, count, total = self._ring.settings, *map(register("MICROBATCHES").field, ("count", "total"))
        settings.write_each("MICROBATCHES", [own << count.bit | sum(counts) << total.bit for own in counts])
        settings.write_each("MICROBATCH_STRIDE", [stride] * len(counts))
        self._counts = counts

    def _joined(self, gradients: Sequence[Vector], stride: int) -> Vector:
        row = np.zeros((len(gradients) - 1) * stride + self._length, dtype=np.float32)
        for number, gradient in enumerate(gradients):
            row[number * stride:number * stride + self._length] = gradient
        return row
