"""Cycles of the control of one queue: when each command starts, is given up or dropped, and how its end is seen.

The queue has a place for one command, its head, which is loaded while the command before it runs. The head is lost
when it starts, when its rejection is known, and when ``stop`` drops it; a command that is loaded anew because a
setting has changed, or because its refusal came while another one ran, keeps the cycles that it has waited. While
others are alive that do what it waits for, it has waited for none.
"""

import dataclasses
import enum

from hdl.control.command_control import Rejection

_COUNT = (1 << 32) - 1


class _Place(enum.Enum):
    """State of the head."""

    EMPTY = enum.auto()
    LOADING = enum.auto()
    UNWANTED = enum.auto()
    """It is being loaded, and was dropped meanwhile."""
    REFUSED = enum.auto()
    """It was refused while another one ran, and is loaded again when that one has ended."""
    LOADED = enum.auto()


class _Phase(enum.Enum):
    """Command that the queue is at."""

    ALONE = enum.auto()
    START = enum.auto()
    RUN = enum.auto()
    REJECT = enum.auto()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a cycle, by the names of the ports; ``head`` has ``wait``, ``signal`` and ``tag`` of the command."""

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
    """Command that was started last."""

    tag: int = 0
    signal: int = 0
    of_program: bool = False
    seen: bool = False


class CommandControl:
    """Model of the unit of :mod:`hdl.control.command_control`, one cycle after the other."""

    def __init__(self) -> None:
        self._place, self._phase = _Place.EMPTY, _Phase.ALONE
        self._of_program = False
        self._waited = 0
        self._expired = False  # with the cycle before, the head had waited for the time-out
        self._running = _Running()
        self._reason = Rejection.VERDICT
        self._missing = 0  # flags, in the latest cycle without a rejection

    @property
    def deliver(self) -> bool:
        """A refusal can be used in this cycle."""
        alone = self._phase is _Phase.ALONE and self._place is not _Place.UNWANTED
        return alone or (self._phase is _Phase.REJECT and self._reason is Rejection.VERDICT)

    def wanted(self, *, available: bool, stop: bool) -> bool:
        """Whether the loader is asked for a command."""
        free = self._place is _Place.EMPTY or (self._place is _Place.REFUSED and self._phase is _Phase.ALONE)
        return free and available and not stop

    def outputs(self, given: Inputs) -> dict[str, int]:
        """Outputs of this cycle by the names of the ports, but for ``missing`` of a command that is not rejected."""
        phase, place, running = self._phase, self._place, self._running
        action = self._action(given)
        loading, loaded = place in (_Place.LOADING, _Place.UNWANTED), place is _Place.LOADED
        runs = phase is _Phase.RUN
        ended = runs and given.completion and not running.seen
        ends = runs and given.completion and given.queued
        started = phase is _Phase.START and given.ready
        rejected = phase is _Phase.REJECT
        reject = isinstance(action, Rejection)
        return {
            "wanted": self.wanted(available=given.available, stop=given.stop),
            "deliver": self.deliver,
            "dismiss": rejected and given.queued and self._reason is Rejection.VERDICT,
            "head_of_program": self._of_program,
            "start__valid": phase is _Phase.START,
            "rejected": rejected,
            "reason": self._reason,
            "count": (self._waited + 1) & _COUNT,
            **({"missing": self._missing} if rejected else {}),
            "needs_flags": given.head["wait"] != 0,
            "takes": action == "start" and phase is _Phase.ALONE and given.head["wait"] != 0,
            "goes": action == "start",
            "removed": started or (rejected and given.queued),
            "taken": given.head["wait"] if started else 0,
            "given": running.signal if ends and given.good else 0,
            "started": started,
            "ended": ended,
            "done": ended and running.of_program and given.good,
            "failed": (ended and running.of_program and not given.good) or (reject and self._of_program),
            "tag": running.tag,
            "loading": loading,
            "loaded": loaded,
            "run_of_program": running.of_program,
            "known": running.seen,
            "busy": ((loading or loaded) and self._of_program) or (runs and running.of_program),
            "running": runs,
            "waiting": action in ("wait", "patience") or (reject and action in (Rejection.FLAGS, Rejection.AFTER)),
        }

    def _action(self, given: Inputs) -> Rejection | str:
        """Outcome of this cycle for the head: a rejection, "start", "wait", "patience", "drop", "again", nothing."""
        drop = given.stop and self._of_program
        missing = given.head["wait"] & ~given.flags
        if self._phase is _Phase.RUN and self._place is _Place.LOADED:
            # It follows at once if it waits for nothing; what else there is to say about it is said when it is alone.
            at_once = given.holds and given.right and not (
                given.stale or given.link_reset or drop or given.head["wait"])
            return "start" if at_once and given.completion and given.queued else "drop" if drop else ""
        if self._phase is not _Phase.ALONE:
            return ""
        if given.refused and not drop:
            return Rejection.VERDICT
        if self._place is not _Place.LOADED:
            return ""
        if drop:
            return "drop"
        if given.stale:
            return "again"
        if given.link_reset:
            return Rejection.LINK_RESET
        if given.holds and not missing and not given.blocked:
            return "start" if given.right else Rejection.STALE
        if given.alive and not missing and not given.holds:
            return "patience"
        if self._expired and (missing or not given.holds):
            return Rejection.FLAGS if missing else Rejection.AFTER
        return "wait"

    def step(self, given: Inputs) -> None:
        """Advance by one cycle."""
        drop = given.stop and self._of_program
        action, phase = self._action(given), self._phase
        outputs = self.outputs(given)
        waits = action == "wait"
        if phase is not _Phase.REJECT:
            self._missing = given.head["wait"] & ~given.flags
        self._running.seen |= bool(outputs["ended"])
        self._load(given, drop=drop)
        if drop and phase is not _Phase.REJECT:
            self._waited = 0
        self._waited = 0 if action == "patience" else self._waited + waits
        # The time-out counts as it was in the cycle before, and only a command that has waited in it has expired.
        self._expired = given.timeout == 0 or (bool(outputs["waiting"]) and self._waited >= given.timeout)
        if isinstance(action, Rejection):
            self._phase, self._reason = _Phase.REJECT, action
        elif action == "start":
            self._phase = _Phase.START
        elif phase is _Phase.START and given.ready:
            head = given.head
            self._running = _Running(tag=head["tag"], signal=head["signal"], of_program=self._of_program)
            self._phase = _Phase.RUN
            self._leave()
        elif phase is _Phase.RUN and given.completion and given.queued:
            self._phase = _Phase.ALONE
        elif phase is _Phase.REJECT and given.queued:
            self._phase = _Phase.ALONE
            self._leave()
        if action in ("drop", "again"):
            self._place = _Place.EMPTY

    def _load(self, given: Inputs, *, drop: bool) -> None:
        """Follow the loader."""
        if self._place is _Place.REFUSED and drop:
            self._place = _Place.EMPTY
        if given.granted:
            self._place, self._of_program = _Place.LOADING, given.of_program
            return
        unwanted = self._place is _Place.UNWANTED or drop
        if given.passed:
            self._place = _Place.EMPTY if unwanted else _Place.LOADED
        elif given.deferred:
            self._place = _Place.EMPTY if unwanted else _Place.REFUSED
        elif self._place is _Place.LOADING and drop and self._phase is not _Phase.REJECT:
            self._place = _Place.UNWANTED

    def _leave(self) -> None:
        """Free the place of the head."""
        self._place, self._waited = _Place.EMPTY, 0
