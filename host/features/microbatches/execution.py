"""Training steps in which each node has the gradients of several microbatches."""

from collections.abc import Sequence

from host.driver.words import Vector
from host.training.batches import counts_of
from host.training.executions import Execution

__all__ = ["MicrobatchExecution"]


class MicrobatchExecution(Execution):
    """Executes the steps of a run with the gradients of several microbatches on each node."""

    def write(self, gradients: Sequence[Vector]) -> None:
        """Write the gradients of all microbatches to the nodes, in order, starting at rank 0."""
        self._ring.microbatches.write(gradients, counts_of(len(gradients), self._ring.nodes))

    def finish(self) -> None:
        """Reset the nodes, so that later sums add a single gradient per node."""
        self._ring.microbatches.clear()
