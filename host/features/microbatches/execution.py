"""Steps in which each node has the gradients of several microbatches."""

from collections.abc import Sequence

from host.driver.words import Vector
from host.training.batches import counts_of
from host.training.executions import Execution

__all__ = ["MicrobatchExecution"]


class MicrobatchExecution(Execution):
    """Execution of a run's steps with the gradients of several microbatches on each node."""

    def write(self, gradients: Sequence[Vector]) -> None:
        """Write the gradients of all microbatches, in order; rank 0 has the first ones."""
        self._ring.microbatches.write(gradients, counts_of(len(gradients), self._ring.nodes))

    def finish(self) -> None:
        """Let later sums add one gradient of each node."""
        self._ring.microbatches.clear()
