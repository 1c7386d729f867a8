"""Golden model of the panel buffer: the operands that it delivers, and its exact timing.

Mirrors :mod:`hdl.features.compute.panel`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden.stream import Feed, Stages

__all__ = ["Fill", "PanelBuffer", "Read", "Trace"]

Numbers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fill:
    """Memory rows that fill a panel, in order: elements of each row and their position in the panel."""

    elements: npt.NDArray[np.uint32]
    block: Numbers
    row: Numbers
    transposed: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """Reads of operands from a panel, in order."""

    block: Numbers
    row: Numbers
    part: Numbers


@dataclasses.dataclass(frozen=True)
class Trace:
    """Handshakes of all streams of the panel buffer, cycle by cycle."""

    #: Values per cycle of ``fill__valid``, ``fill__ready``, ``read__valid``, ``read__ready`` and ``o__valid``.
    signals: dict[str, npt.NDArray[np.bool_]]
    offered: npt.NDArray[np.int64]  # index of the operands offered with ``o__valid``, otherwise -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PanelBuffer:
    """Golden model of the panel buffer."""

    #: Parameters of the gateware unit.
    lanes: int
    width: int
    blocks: int

    #: Latency in cycles from accepting the last row of a panel to the first read.
    FILL = 2
    #: Number of pipeline stages of a read.
    READ = 4
    HALVES = 2

    def operands(self, fills: Sequence[Fill], reads: Sequence[Read]) -> npt.NDArray[np.uint32]:
        """Compute the operands that all reads return, panel by panel."""
        content = np.zeros((self.HALVES, self.blocks, self.lanes, self.lanes), np.uint32)
        result = []
        for number, (fill, read) in enumerate(zip(fills, reads, strict=True)):
            panel = content[number % self.HALVES]
            for elements, block, row, transposed in zip(fill.elements, fill.block, fill.row, fill.transposed,
                                                        strict=True):
                if transposed:
                    panel[block, row] = elements
                else:
                    panel[block, :, row] = elements
            places = read.part[:, None] * self.width + np.arange(self.width)
            result.append(panel[read.block[:, None], places, read.row[:, None]])
        return np.concatenate(result)

    def trace(self, fills: Sequence[int], reads: Sequence[int], *, willing: Sequence[npt.ArrayLike],
              ready: npt.ArrayLike) -> Trace:
        """Trace every cycle from reset, for panels of ``fills`` memory rows and ``reads`` reads. ``willing`` gives
        the cycles when the sources of rows and reads may start to offer a beat, and ``ready`` the cycles when the
        sink is ready."""
        stages = Stages(self.READ, ready)
        filling, reading = Feed(sum(fills), willing[0]), Feed(sum(reads), willing[1])
        readable = np.zeros(stages.end, np.bool_)
        released: list[int] = []
        for number, (rows, columns) in enumerate(zip(fills, reads, strict=True)):
            free = released[number - self.HALVES] + 1 if number >= self.HALVES else 0
            accepted = -1
            for _ in range(rows):
                accepted = filling.accept(free)
                free = accepted + 1
            full = accepted + self.FILL
            entered = stages.end
            for _ in range(columns):
                entered = min(stages.enter(max(reading.offered, full))[0], stages.end)
                reading.take(entered)
            readable[full:entered + 1] = True
            released.append(entered)
        # The buffer half not used by the latest panel is free once the previous panel has been released.
        if len(released) >= self.HALVES:
            filling.accept(max(released[-self.HALVES] + 1, free))
        else:
            filling.accept(free)
        signals = {"fill__valid": filling.valid, "fill__ready": filling.ready, "read__valid": reading.valid,
                   "read__ready": readable & stages.moves, "o__valid": stages.offered >= 0}
        return Trace(signals, stages.offered)
