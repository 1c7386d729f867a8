"""Cycle-accurate golden model of :mod:`hdl.features.far.guard`."""

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
        self._owed = self._of_before = 0  # rows in flight, and rows requested before a link reset
        self._zeros = self._stray = self._given = False

    def step(self, inputs: Inputs) -> Outputs:
        """Return the outputs of this cycle, and advance the model to the next cycle."""
        inside = inputs.row is not None and inputs.row < self._rows
        may = inputs.write or not self._of_before
        asked = self._base + inputs.row if inputs.row is not None and inside and may else None
        ready = (may and inputs.ready) if inside else (inputs.write or not self._owed)
        shown = Outputs(ready=inputs.row is not None and ready, asked=asked,
                        given=self._given, zeros=self._zeros, stray=self._stray,
                        owes=self._owed > 0)
        self._stray = inputs.row is not None and not inside and ready
        self._zeros = self._stray and not inputs.write and not inputs.link_reset
        self._given = inputs.answers and not self._of_before
        if inputs.answers and self._owed:
            self._owed -= 1
            self._of_before = max(0, self._of_before - 1)
        self._owed += asked is not None and inputs.ready and not inputs.write
        if inputs.link_reset:
            self._of_before = self._owed
        return shown
