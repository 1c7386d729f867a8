"""Golden model of the vector unit's cycles, with memories that never make it wait.

Mirrors :mod:`hdl.compute.vector`, :mod:`hdl.compute.row_loader` and :mod:`hdl.compute.program_sequencer`.
"""

import dataclasses

__all__ = ["VectorCycles"]

#: Threads of a unit, and cycles of a frame.
THREADS = 16
#: Frames of the program: for each sixteen elements of a unit, for each column, and for each block.
EXPONENTIAL, SUM, ONCE = 12, 1, 17


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorCycles:
    """Cycles of jobs.

    Parameters
    ----------
    units : int
        Multiply-add pipelines.
    interval : int
        Cycles of a quotient.
    quotient_latency : int
        Cycles from an element to its gradient.
    answer : int
        Cycles from a request to its answer.
    """

    units: int = 4
    interval: int = 2
    quotient_latency: int = 53
    answer: int = 5

    def job(self, rows: int, columns: int, *, loss_lane: int = 0) -> int:
        """Cycles from the acceptance of a job to ``done``."""
        # The first label is answered; the last element of the first block is taken.
        end = 3 + self.answer + min(rows, self.block) * (columns + 1) + 2
        while True:
            block = min(rows, self.block)
            end = self._block(block, columns, end)
            rows -= block
            if rows == 0:
                return end + loss_lane + 5
            end += 1 + min(rows, self.block) * (columns + 1) - 1

    @property
    def block(self) -> int:
        """Rows of a block."""
        return THREADS * self.units

    def _block(self, rows: int, columns: int, loaded: int) -> int:
        """Last cycle of a block whose last element is taken in a cycle."""
        elements = -(-rows // self.units) * columns
        frames = EXPONENTIAL * -(-elements // THREADS) + SUM * columns + ONCE
        begin = loaded + THREADS * frames + 1
        written = begin + self.interval * (rows * columns - 1) + self.quotient_latency + 2
        summed = begin + 2 + THREADS * (rows + 1)
        return max(written, summed) + 1
