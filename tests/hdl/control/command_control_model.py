"""Cycle model of the control of one queue: how commands start, time out, are dropped and end.

The queue has a slot for one command, its head, which is loaded while the previous command runs. The slot is freed
when the head starts, is certain to be rejected, or is dropped by ``stop``. A command is reloaded if a setting has
changed, or if it was rejected while another command ran; its count of waiting cycles is kept. While the units that
the command waits for are known to be working, the count stays at zero.
"""

import dataclasses
import enum

from hdl.control.command_control import Rejection

_COUNT = (1 << 32) - 1


class _Place(enum.Enum):
    """State of the head, which is the queue's next command."""

    EMPTY = enum.auto()
    LOADING = enum.auto()
    UNWANTED = enum.auto()
    """The head is being loaded, but has already been dropped."""
    REFUSED = enum.auto()
    """The head was rejected while another command ran, and is loaded again when that command has ended."""
    LOADED = enum.auto()


class _Phase(enum.Enum):
    """State of the queue's current command."""

    ALONE = enum.auto()
    START = enum.auto()
    RUN = enum.auto()
    REJECT = enum.auto()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a cycle, named like the ports; ``head`` has the head's ``wait``, ``signal`` and ``tag``."""

    available: bool
    of_program: bool
    granted: bool
    passed: bool
    refused: bool
    deferred: bool
    head: dict[str, int]
    stale: bool
    holds: bool
    alive: bool
    right: bool
    blocked: bool
    flags: int
    link_reset: bool
    timeout: int
    stop: bool
    ready: bool
    completion: bool
    good: bool
    queued: bool


@dataclasses.dataclass
class _Running:
    """The command that was started most recently."""

    tag: int = 0
    signal: int = 0
    of_program: bool = False
    seen: bool = False


class CommandControl:
    """Cycle-accurate model of :mod:`hdl.control.command_control`."""

    def __init__(self) -> None:
        self._place, self._phase = _Place.EMPTY, _Phase.ALONE
        self._of_program = False
        self._waited = 0
        self._expired = False  # whether the head had waited until the time-out in the previous cycle
        self._running = _Running()
        self._reason = Rejection.VERDICT
        self._missing = 0  # flags missing in the last cycle without a rejection

    @property
    def deliver(self) -> bool:
        """Whether a rejection can be delivered in this cycle."""
        alone = self._phase is _Phase.ALONE and self._place is not _Place.UNWANTED
        return alone or (self._phase is _Phase.REJECT and self._reason is Rejection.VERDICT)

    def wanted(self, *, available: bool, stop: bool) -> bool:
        """Whether the queue requests a command from the loader."""
        free = self._place is _Place.EMPTY or (self._place is _Place.REFUSED and self._phase is _Phase.ALONE)
        return free and available and not stop

    def outputs(self, inputs: Inputs) -> dict[str, int]:
        """Outputs in this cycle, keyed by port; ``missing`` is left out if no command is rejected."""
        phase, slot, running = self._phase, self._place, self._running
        action = self._action(inputs)
        loading, loaded = slot in (_Place.LOADING, _Place.UNWANTED), slot is _Place.LOADED
        runs = phase is _Phase.RUN
        ended = runs and inputs.completion and not running.seen
        ends = runs and inputs.completion and inputs.queued
        started = phase is _Phase.START and inputs.ready
        rejected = phase is _Phase.REJECT
        reject = isinstance(action, Rejection)
        return {
            "wanted": self.wanted(available=inputs.available, stop=inputs.stop),
            "deliver": self.deliver,
            "dismiss": rejected and inputs.queued and self._reason is Rejection.VERDICT,
            "head_of_program": self._of_program,
            "start__valid": phase is _Phase.START,
            "rejected": rejected,
            "reason": self._reason,
            "count": (self._waited + 1) & _COUNT,
            **({"missing": self._missing} if rejected else {}),
            "needs_flags": inputs.head["wait"] != 0,
            "takes": action == "start" and phase is _Phase.ALONE and inputs.head["wait"] != 0,
            "goes": action == "start",
            "removed": started or (rejected and inputs.queued),
            "taken": inputs.head["wait"] if started else 0,
            "given": running.signal if ends and inputs.good else 0,
            "started": started,
            "ended": ended,
            "done": ended and running.of_program and inputs.good,
            "failed": (ended and running.of_program and not inputs.good) or (reject and self._of_program),
            "tag": running.tag,
            "loading": loading,
            "loaded": loaded,
            "run_of_program": running.of_program,
            "known": running.seen,
            "busy": ((loading or loaded) and self._of_program) or (runs and running.of_program),
            "running": runs,
            "waiting": action in ("wait", "patience") or (reject and action in (Rejection.FLAGS, Rejection.AFTER)),
        }

    def _action(self, inputs: Inputs) -> Rejection | str:
        """Action for the head: a rejection, "start", "wait", "patience", "drop", "again" or none."""
        drop = inputs.stop and self._of_program
        missing = inputs.head["wait"] & ~inputs.flags
        if self._phase is _Phase.RUN and self._place is _Place.LOADED:
            # A head without flags to wait for starts immediately; any other outcome waits for the running command.
            at_once = inputs.holds and inputs.right and not (
                inputs.stale or inputs.link_reset or drop or inputs.head["wait"])
            return "start" if at_once and inputs.completion and inputs.queued else "drop" if drop else ""
        if self._phase is not _Phase.ALONE:
            return ""
        if inputs.refused and not drop:
            return Rejection.VERDICT
        if self._place is not _Place.LOADED:
            return ""
        if drop:
            return "drop"
        if inputs.stale:
            return "again"
        if inputs.link_reset:
            return Rejection.LINK_RESET
        if inputs.holds and not missing and not inputs.blocked:
            return "start" if inputs.right else Rejection.STALE
        if inputs.alive and not missing and not inputs.holds:
            return "patience"
        if self._expired and (missing or not inputs.holds):
            return Rejection.FLAGS if missing else Rejection.AFTER
        return "wait"

    def step(self, inputs: Inputs) -> None:
        """Advance the model by one cycle."""
        drop = inputs.stop and self._of_program
        action, phase = self._action(inputs), self._phase
        outputs = self.outputs(inputs)
        waits = action == "wait"
        if phase is not _Phase.REJECT:
            self._missing = inputs.head["wait"] & ~inputs.flags
        self._running.seen |= bool(outputs["ended"])
        self._load(inputs, drop=drop)
        if drop and phase is not _Phase.REJECT:
            self._waited = 0
        self._waited = 0 if action == "patience" else self._waited + waits
        # The time-out is compared one cycle late, and a command expires only if it is still waiting in that cycle.
        self._expired = inputs.timeout == 0 or (bool(outputs["waiting"]) and self._waited >= inputs.timeout)
        if isinstance(action, Rejection):
            self._phase, self._reason = _Phase.REJECT, action
        elif action == "start":
            self._phase = _Phase.START
        elif phase is _Phase.START and inputs.ready:
            head = inputs.head
            self._running = _Running(tag=head["tag"], signal=head["signal"], of_program=self._of_program)
            self._phase = _Phase.RUN
            self._leave()
        elif phase is _Phase.RUN and inputs.completion and inputs.queued:
            self._phase = _Phase.ALONE
        elif phase is _Phase.REJECT and inputs.queued:
            self._phase = _Phase.ALONE
            self._leave()
        if action in ("drop", "again"):
            self._place = _Place.EMPTY

    def _load(self, inputs: Inputs, *, drop: bool) -> None:
        """Update the state of the head from the signals of the loader."""
        if self._place is _Place.REFUSED and drop:
            self._place = _Place.EMPTY
        if inputs.granted:
            self._place, self._of_program = _Place.LOADING, inputs.of_program
            return
        unwanted = self._place is _Place.UNWANTED or drop
        if inputs.passed:
            self._place = _Place.EMPTY if unwanted else _Place.LOADED
        elif inputs.deferred:
            self._place = _Place.EMPTY if unwanted else _Place.REFUSED
        elif self._place is _Place.LOADING and drop and self._phase is not _Phase.REJECT:
            self._place = _Place.UNWANTED

    def _leave(self) -> None:
        """Free the slot of the head."""
        self._place, self._waited = _Place.EMPTY, 0
