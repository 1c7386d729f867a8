"""Cycle-accurate golden model of the engine that moves activations to a far memory and back.

Mirrors :mod:`hdl.features.far.mover`.
"""

import collections
import dataclasses
import math

from hdl.control.protocol import EventStatus, Operation
from sim.golden.local_runner import LocalRunner
from sim.golden.row_reads import RowReads

__all__ = ["OUTSTANDING", "Inputs", "Mover", "Outputs", "move_cycles"]

#: Maximum number of rows requested from the far memory but not yet written.
OUTSTANDING = 32


def move_cycles(length: int, *, lanes: int, rate: float, latency: int, back: bool) -> int:
    """Number of cycles of a move to the far memory, or from it with ``back``, if only this memory adds wait cycles.

    The far memory transfers ``rate`` words per cycle, with a whole number of cycles per row, and answers after
    ``latency`` cycles, which must not exceed the time for :data:`OUTSTANDING` rows at this rate.
    """
    rows = -(-length // lanes)
    if not rows:
        return 0
    return math.ceil((rows - 1) * max(lanes / rate, 1)) + (latency + 6 if back else 8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of the activation mover in one cycle."""

    command: dict[str, int] | None  # the offered command
    event_ready: bool
    read_ready: bool
    write_ready: bool
    far_ready: bool
    link_reset: bool
    timeout: int
    answer: int | None  # row returned by the far memory


@dataclasses.dataclass(kw_only=True)
class Outputs:
    """Outputs of the activation mover in one cycle."""

    command_ready: bool
    event: dict[str, int] | None  # tag, status, detail and cycle count of the offered event
    read: int | None  # requested row of the near memory
    #: Offered row of the near memory, the far row that its elements come from, and the number of kept elements.
    write: tuple[int, int, int] | None
    #: Far row to read or write, the near row with the elements to write, and the number of kept elements.
    far: tuple[int, int | None, int] | None
    busy: bool


class Mover:
    """Cycle-accurate model of the engine that moves activations."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._runner = LocalRunner(failure=EventStatus.FAR_TIMEOUT)
        self._command: dict[str, int] = {"operation": 0, "length": 0, "weight_base": 0, "state_base": 0}
        self._owed = self._stale = 0
        self._clear()

    def _clear(self) -> None:
        """Discard the rows in flight."""
        rows = -(-self._command["length"] // self._lanes)
        self._near = RowReads()
        self._asked, self._written = rows, rows  # far rows still to be requested, and near rows still to be written
        self._sent = 0
        self._answers: collections.deque[int] = collections.deque()
        self._far: tuple[int, int | None, int] | None = None
        self._write: tuple[int, int, int] | None = None
        self._places = OUTSTANDING
        self._writes = self._far_ends = self._write_ends = self._done = False
        self._idle = 0

    @property
    def _back(self) -> bool:
        return bool(self._command["operation"] == Operation.MOVE_IN)

    @property
    def _rows(self) -> int:
        return -(-self._command["length"] // self._lanes)

    def _kept(self, row: int) -> int:
        """Number of elements in a row that belong to the command."""
        return min(self._lanes, self._command["length"] - self._lanes * row)

    def outputs(self) -> Outputs:
        """Outputs of the engine in the current cycle."""
        runner = self._runner
        return Outputs(command_ready=runner.ready, event=runner.event, read=self._near.asked, write=self._write,
                       far=self._far, busy=runner.busy)

    def step(self, inputs: Inputs) -> None:
        """Advance the engine by one cycle."""
        shown, runner, reset = self.outputs(), self._runner, self._runner.reset
        answered = inputs.answer is not None
        taken = self._far is not None and inputs.far_ready
        silent = not taken and not answered and (self._far is not None or self._owed > 0)
        late, done = silent and self._idle >= inputs.timeout, self._done
        progress = 0
        if self._back and self._write is not None and inputs.write_ready:
            progress = self._write[2]
        elif not self._back and taken and self._far is not None:
            progress = self._far[2]
        self._idle = self._idle + 1 if silent and not reset else 0
        fresh = answered and self._owed > 0 and self._stale == 0
        asked = taken and self._far is not None and self._far[1] is None
        owed = 0 if inputs.link_reset else self._owed + asked - (answered and self._owed > 0)
        stale = self._stale
        self._stale = owed if reset else 0 if inputs.link_reset else stale - (answered and stale > 0)
        self._owed = owed
        if not reset:
            self._datapath(inputs, shown, launch=runner.start, fresh=fresh, stale=stale)
        else:
            self._command = inputs.command if runner.ready and inputs.command is not None else self._command
            self._clear()
        runner.step(command=inputs.command, taken=inputs.event_ready, progress=progress, done=done, bad=late,
                    number=runner.detail, link_reset=inputs.link_reset)

    def _datapath(self, inputs: Inputs, shown: Outputs, *, launch: bool, fresh: bool, stale: int) -> None:
        back, rows = self._back, self._rows
        free, free_write = self._far is None or inputs.far_ready, self._write is None or inputs.write_ready
        self._done = (self._write_ends and free_write) if back else (self._far_ends and inputs.far_ready)
        asks = free and back and self._asked > 0 and self._places > 0 and stale == 0
        beat = free and not back and self._near.waits
        takes = back and bool(self._answers) and self._writes and free_write
        if free:
            self._far, self._far_ends = None, False
        if asks:
            self._far = self._command["state_base"] // self._lanes + rows - self._asked, None, 0
            self._asked -= 1
        if beat:
            self._far = (self._command["state_base"] // self._lanes + self._sent, self._near.take(),
                         self._kept(self._sent))
            self._sent += 1
            self._far_ends = self._sent == rows
        if free_write:
            self._write, self._write_ends = None, False
        if takes:
            row = rows - self._written
            self._write = (self._command["weight_base"] // self._lanes + row, self._answers.popleft(),
                           self._kept(row))
            self._written -= 1
            self._write_ends = self._written == 0
            self._writes = self._written > 0
        self._places += takes - asks
        if fresh and inputs.answer is not None:
            self._answers.append(inputs.answer)
        self._near.step(shown.read, inputs.read_ready)
        if launch:
            self._near.begin(self._command["weight_base"] // self._lanes, 0 if back else rows)
            self._writes = back
