"""Cycle-accurate golden model of the runner for commands that need no other nodes.

Mirrors :mod:`hdl.control.local_runner`.
"""

from typing import Any

from hdl.control.protocol import EventStatus

__all__ = ["LocalRunner"]


class LocalRunner:
    """Golden model of a runner: its outputs in a cycle, and its next state given the inputs of that cycle.

    Parameters
    ----------
    failure : EventStatus, optional
        Status of a command rejected by the datapath, if the datapath can reject commands.
    other : EventStatus, optional
        Status of a rejected command while ``is_other`` is high.
    always : bool
        Whether a command of length 0 also starts the datapath.
    """

    def __init__(self, *, failure: Any = None, other: Any = None, always: bool = False) -> None:
        self._failure, self._other, self._always = failure, other, always
        self._state, self._age = "idle", 0
        self._event: dict[str, int] = {}

    @property
    def ready(self) -> bool:
        """Whether the runner accepts a command in this cycle."""
        return self._state == "idle"

    @property
    def busy(self) -> bool:
        return self._state == "run"

    @property
    def reset(self) -> bool:
        """Whether the runner holds the datapath in reset."""
        return not (self._state == "run" and self._age >= 1)

    @property
    def start(self) -> bool:
        return self._state == "run" and self._age == 1

    @property
    def event(self) -> dict[str, int] | None:
        """Tag, status, detail and cycle count of the offered event, or None."""
        return self._event if self._state == "report" else None

    @property
    def detail(self) -> int:
        """Progress of the command so far, which its event reports."""
        return self._event.get("detail", 0)

    def step(self, *, command: dict[str, int] | None, taken: bool, progress: int = 0, done: bool = False,
             bad: bool = False, number: int = 0, link_reset: bool = False, is_other: bool = False) -> None:
        """End a cycle with the given inputs; ``taken`` is whether an offered event is accepted."""
        if self._state == "idle" and command is not None:
            self._event = {"tag": command["tag"], "status": EventStatus.OK, "detail": 0, "cycles": 0}
            self._state, self._age = ("run", 0) if command["length"] or self._always else ("report", 0)
        elif self._state == "run":
            self._event["cycles"] += 1
            self._age += 1
            runs = self._age > 2
            if runs:
                self._event["detail"] += progress
                if bad:
                    self._event.update(status=self._other if is_other else self._failure, detail=number)
            ended = runs and (bad or done)
            if link_reset and not ended:
                self._event["status"] = EventStatus.LINK_RESET
            if link_reset or ended:
                self._state = "report"
        elif self._state == "report" and taken:
            self._state = "idle"
