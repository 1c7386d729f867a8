"""Golden model of the stub that replaces a compute engine: its results and cycle timing."""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden.local_runner import LocalRunner
from sim.golden.row_reads import RowReads

__all__ = ["ComputeModel", "Inputs", "Outputs", "compute", "compute_cycles"]


def compute(memory: npt.NDArray[np.uint32], *, gradient_base: int, state_base: int,
            length: int) -> npt.NDArray[np.uint32]:
    """Return the gradient memory after a COMPUTE, which copies ``length`` elements from ``state_base``."""
    result = memory.copy()
    result[gradient_base:gradient_base + length] = memory[state_base:state_base + length]
    return result


def compute_cycles(length: int, duration: int, *, lanes: int) -> int:
    """Return the cycles of a COMPUTE command if its memory ports never stall."""
    rows = -(-length // lanes)
    return max(duration, rows + 7 if rows else 5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of the stub in one cycle."""

    command: dict[str, int] | None  # the offered command
    event_ready: bool
    read_ready: bool
    write_ready: bool
    link_reset: bool


@dataclasses.dataclass(kw_only=True)
class Outputs:
    """Outputs of the stub in one cycle."""

    command_ready: bool
    event: dict[str, int] | None  # tag, status, detail and cycle count of the offered event
    read: int | None  # requested row
    #: Offered row of the memory, the row that its elements come from, and the number of kept elements.
    write: tuple[int, int, int] | None
    busy: bool


class ComputeModel:
    """Cycle-accurate model of the unit in :mod:`hdl.features.compute_stub.compute_model`."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._runner = LocalRunner(always=True)
        self._trails = False
        self._command: dict[str, int] = {}
        self._clear()

    def _clear(self) -> None:
        """Discard the rows in flight."""
        self._step = 0  # number of steps of the pace that have elapsed
        self._reads = RowReads()
        self._taken = 0  # rows passed to the writer
        self._writes = False
        self._offered: tuple[int, int, int] | None = None
        self._ending = False  # whether the last row is being offered to the writer or needs no write
        self._done = False

    @property
    def _rows(self) -> int:
        return -(-self._command["length"] // self._lanes)

    def outputs(self) -> Outputs:
        """Outputs of the stub in the current cycle."""
        runner = self._runner
        shows = not runner.reset or self._trails
        return Outputs(command_ready=runner.ready, event=runner.event, read=self._reads.asked if shows else None,
                       write=self._offered if shows else None, busy=runner.busy)

    def step(self, inputs: Inputs) -> None:
        """Advance the stub by one cycle."""
        outputs, runner, done = self.outputs(), self._runner, self._done
        # A transfer interrupted by a link reset stays at the ports for one more cycle.
        self._trails = not runner.reset
        progress = 0 if runner.reset else self._advance(outputs, inputs, launch=runner.start)
        if runner.ready and inputs.command is not None:
            self._command = inputs.command
            self._clear()
        runner.step(command=inputs.command, taken=inputs.event_ready, progress=progress, done=done,
                    link_reset=inputs.link_reset)

    def _due(self) -> bool:
        """Return whether another row may leave in this cycle, at the pace of the command."""
        rows, steps = max(self._rows, 1), self._command["duration"] - 4
        if rows >= steps:
            return True
        # Step k ends k + 1 cycles after the start; row n may leave after ceil(n * steps / rows) steps.
        return (self._step - 1) * rows // steps > self._taken

    def _advance(self, outputs: Outputs, inputs: Inputs, *, launch: bool) -> int:
        """Advance the datapath by one cycle; return the number of elements that leave."""
        self._step += 1
        moved = 0
        rows, length = self._rows, self._command["length"]
        total = max(rows, 1)
        leaves = (self._writes and (self._offered is None or inputs.write_ready) and self._due()
                  and (self._reads.waits or length == 0))
        self._done = self._ending and (self._offered is None or inputs.write_ready)
        if self._offered is None or inputs.write_ready:
            self._offered, self._ending = None, False
        if leaves:
            self._taken += 1
            if length:
                source = self._reads.take()
                moved = min(self._lanes, length - self._lanes * (self._taken - 1))
                self._offered = self._command["gradient_base"] // self._lanes + self._taken - 1, source, moved
            if self._taken == total:
                self._writes, self._ending = False, True
        self._reads.step(outputs.read, inputs.read_ready)
        if launch:
            self._reads.begin(self._command["state_base"] // self._lanes, rows)
            self._writes = True
        return moved
