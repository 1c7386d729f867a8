"""Dependencies between a run's options: a value of one may require certain values of another, with a reason."""

import dataclasses
from typing import Any

from host.run.sections import SECTIONS, flag
from host.run.spec import RunSpec
from host.training.optimizers import OptimizerName
from host.training.record import HOST, NODE

__all__ = ["Coupling"]

#: Options that determine the value of an option that is not set.
_SOURCES = {"backend.transport": ("backend.device",), "backend.board": ("backend.device", "backend.transport"),
            "schedule.overlap": ("compute.on",), "optimizer.rule": ("workload.name", "backend.board")}


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _words(values: tuple[Any, ...]) -> str:
    *first, last = (str(_plain(value)) for value in values)
    return f"{', '.join(first)} or {last}" if first else last


@dataclasses.dataclass(frozen=True)
class Coupling:
    """Condition for the use of an option."""

    #: Field of the option; if ``value`` is set, the coupling applies only to this value.
    option: str
    #: Field that the option depends on, or several fields; one of them must be set.
    other: str | tuple[str, ...]
    #: Values of the other field that allow the option; None means any value, and () means that it must not be set.
    allowed: tuple[Any, ...] | None
    #: Reason why the option does not apply if the other field has a different value.
    reason: str
    value: Any = None

    def violated(self, spec: RunSpec, full: RunSpec) -> bool:
        """Whether a run violates the coupling, given its own values and its values with all defaults."""
        if not spec.given(self.option) or self.value not in (None, spec.value(self.option)):
            return False
        other_values = [_value(full, path) for path in self._others]
        if self.allowed is None:
            return all(_is_absent(other) for other in other_values)
        if self.allowed == ():
            return not _is_absent(other_values[0])
        return other_values[0] not in self.allowed

    @property
    def _others(self) -> tuple[str, ...]:
        return (self.other,) if isinstance(self.other, str) else self.other

    @property
    def left(self) -> str:
        """Name of the option, and its value if the coupling applies to this value only."""
        return flag(self.option) + ("" if self.value is None else f" {_plain(self.value)}")

    @property
    def condition(self) -> str:
        """Description of the runs for which the option is allowed."""
        flags = _words(tuple(flag(path) + (f" {NODE}" if path == "compute.on" else "") for path in self._others))
        if not self.allowed:
            return f"a run {'with' if self.allowed is None else 'without'} {flags}"
        named = tuple(value for value in self.allowed if value is not None)
        section, _, name = self._others[0].partition(".")
        if not named:  # all allowed values belong to features that are not in this copy
            return f"a run without {flag(self._others[0])}"
        choices = SECTIONS[section].options()[name].choices if section in SECTIONS else None
        rest = tuple(choice for choice in choices or () if choice not in named)
        if None in self.allowed and 0 < len(rest) < len(named):  # fewer values are excluded than allowed
            return f"a run without {flag(self._others[0])} {_words(rest)}"
        text = f"{flag(self._others[0])} {_words(named)}"
        return text if None not in self.allowed else f"{text}, or a run without {flag(self._others[0])}"

    def message(self, spec: RunSpec, full: RunSpec) -> str:
        """Error message, given a run's own values and its values with all defaults."""
        other, value = self._others[0], _value(full, self._others[0])
        actual = f", not {_words((value,))}" if self.allowed and value is not None else ""
        if not spec.given(other) and not _is_absent(value):
            source = next((path for path in _SOURCES.get(other, ()) if spec.given(path)), None)
            actual += "" if source is None else f", which {flag(source)} implies"
        return f"Option {self.left} is for {self.condition}{actual} ({self.reason}): leave it out"


def _is_absent(value: Any) -> bool:
    """Whether an option is not set; zero is a value."""
    return value is None or value is False or value == HOST


def _value(spec: RunSpec, path: str) -> Any:
    """Return the value of a field; the rule is momentum for every schedule with its own loop."""
    has_momentum = path == "optimizer.rule" and spec.schedule is not None and spec.schedule.applicable is not None
    return OptimizerName.MOMENTUM if has_momentum else spec.value(path)
