"""Golden timing model of the vector unit, for memories without wait cycles.

Mirrors :mod:`hdl.features.compute.vector`, :mod:`hdl.features.compute.row_loader` and
:mod:`hdl.features.compute.program_sequencer`.
"""

import dataclasses

__all__ = ["VectorCycles"]

#: Number of threads of a unit, and number of cycles in a frame.
THREADS = 16
#: Number of program frames for every sixteen elements of a unit, for each column, for each block, and for each block
#: of a softmax.
EXPONENTIAL, SUM, ONCE, BRIEF = 12, 1, 17, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorCycles:
    """Timing model for jobs of the vector unit."""

    units: int = 4  # number of multiply-add pipelines
    interval: int = 2  # cycles of a division
    quotient_latency: int = 53  # latency in cycles from an element to its gradient
    answer: int = 5  # latency in cycles from a request to its answer
    product_latency: int = 20  # latency in cycles from an element to its product with a reciprocal

    def job(self, rows: int, columns: int, *, loss_lane: int = 0, softmax: bool = False) -> int:
        """Latency in cycles of a vector job, from its acceptance to ``done``."""
        # Cycle when the last element of the first block is accepted, including the latency of the first response.
        row = columns if softmax else columns + 1
        end = 3 + self.answer + min(rows, self.block) * row + 2
        while True:
            block = min(rows, self.block)
            end = self._softmax(block, columns, end) if softmax else self._block(block, columns, end)
            rows -= block
            if rows == 0:
                return end + (2 if softmax else loss_lane + 5)
            end += 1 + min(rows, self.block) * row - (not softmax)

    @property
    def block(self) -> int:
        """Number of rows in a block."""
        return THREADS * self.units

    def _program(self, rows: int, columns: int, once: int) -> int:
        """Number of cycles of the program for one block."""
        elements = -(-rows // self.units) * columns
        return THREADS * (EXPONENTIAL * -(-elements // THREADS) + SUM * columns + once)

    def _softmax(self, rows: int, columns: int, loaded: int) -> int:
        """Last cycle of a softmax block whose last element is accepted in cycle ``loaded``.

        The row totals enter the divider one at a time. Elements follow after the last total, but not before the
        reciprocal of their row is ready.
        """
        first = loaded + self._program(rows, columns, BRIEF) + 1
        last, reciprocal = first + self.interval * (rows - 1), self.quotient_latency - THREADS
        end = max(last + 1 + rows * columns, first + reciprocal + rows * columns, last + reciprocal + columns)
        return end + self.product_latency + 2

    def _block(self, rows: int, columns: int, loaded: int) -> int:
        """Last cycle of a block whose last element is accepted in cycle ``loaded``."""
        begin = loaded + self._program(rows, columns, ONCE) + 1
        written = begin + self.interval * (rows * columns - 1) + self.quotient_latency + 2
        summed = begin + 2 + THREADS * (rows + 1)
        return max(written, summed) + 1
