"""Golden model of :mod:`hdl.features.far.guard`, cycle by cycle; rows are the engine's, or the far memory's."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    row: int | None
    write: bool
    ready: bool
    answers: bool
    link_reset: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    ready: bool
    asked: int | None
    given: bool
    zeros: bool
    stray: bool
    owes: bool


class FarGuard:
    def __init__(self, base: int, rows: int) -> None:
        self._base, self._rows = base, rows
        self._owed = self._of_before = 0  # rows that are on their way, and those asked for before a link reset
        self._zeros = self._stray = self._given = False

    def step(self, given: Inputs) -> Outputs:
        """Outputs in this cycle, behind which the next one begins."""
        inside = given.row is not None and given.row < self._rows
        may = given.write or not self._of_before
        asked = self._base + given.row if given.row is not None and inside and may else None
        ready = (may and given.ready) if inside else (given.write or not self._owed)
        shown = Outputs(ready=given.row is not None and ready, asked=asked,
                        given=self._given, zeros=self._zeros, stray=self._stray,
                        owes=self._owed > 0)
        self._stray = given.row is not None and not inside and ready
        self._zeros = self._stray and not given.write and not given.link_reset
        self._given = given.answers and not self._of_before
        if given.answers and self._owed:
            self._owed -= 1
            self._of_before = max(0, self._of_before - 1)
        self._owed += asked is not None and given.ready and not given.write
        if given.link_reset:
            self._of_before = self._owed
        return shown
