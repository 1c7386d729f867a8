"""Constraints between a run's options: the value of one option may restrict the values of another."""

import dataclasses
from typing import Any

from host.run.sections import SECTIONS, flag
from host.run.spec import RunSpec
from host.training.optimizers import OptimizerName
from host.training.record import HOST, NODE

__all__ = ["Coupling", "Except"]

#: Options with derived defaults, and the options from which their values are derived.
_SOURCES = {"backend.transport": ("backend.device",), "backend.board": ("backend.device", "backend.transport"),
            "schedule.overlap": ("compute.on",), "optimizer.rule": ("workload.name", "backend.board")}


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _words(values: tuple[Any, ...]) -> str:
    *first, last = (str(_plain(value)) for value in values)
    return f"{', '.join(first)} or {last}" if first else last


@dataclasses.dataclass(frozen=True)
class Except:
    """All values of an option except the listed ones; the option may also be unset."""

    values: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Coupling:
    """A condition that a run must satisfy to use an option."""

    #: Constrained option. If ``value`` is set, the constraint applies only to this value of it.
    option: str
    #: Option that the constraint depends on, or several options, of which one is enough.
    other: str | tuple[str, ...]
    #: Values of ``other`` for which ``option`` is allowed. None means any value, and () means that it must be unset.
    allowed: tuple[Any, ...] | Except | None
    #: Reason why ``option`` is not allowed if ``other`` has a different value.
    reason: str
    value: Any = None
    #: An additional option and its value: the constraint applies only if the option has this value.
    context: tuple[str, Any] | None = None

    def violated(self, spec: RunSpec, full: RunSpec) -> bool:
        """Return whether a run violates the constraint; ``full`` is the run with defaults filled in."""
        if not spec.given(self.option) or self.value not in (None, spec.value(self.option)):
            return False
        if self.context is not None and _value(full, self.context[0]) != self.context[1]:
            return False
        other_values = [_value(full, path) for path in self._others]
        if self.allowed is None:
            return all(_is_absent(other) for other in other_values)
        if self.allowed == ():
            return not _is_absent(other_values[0])
        if isinstance(self.allowed, Except):
            return other_values[0] in self.allowed.values
        return other_values[0] not in self.allowed

    @property
    def _others(self) -> tuple[str, ...]:
        return (self.other,) if isinstance(self.other, str) else self.other

    @property
    def left(self) -> str:
        """Name of the constrained option, with the value and additional option that the constraint is limited to."""
        named = flag(self.option) + ("" if self.value is None else f" {_plain(self.value)}")
        return named if self.context is None else f"{named} with {flag(self.context[0])} {_plain(self.context[1])}"

    @property
    def condition(self) -> str:
        """Text that describes the runs that may use the constrained option."""
        flags = _words(tuple(flag(path) + (f" {NODE}" if path == "compute.on" else "") for path in self._others))
        if isinstance(self.allowed, Except):
            if not self.allowed.values:  # all excluded values belong to features removed from this copy
                return "any run"
            return f"a run without {flag(self._others[0])} {_words(self.allowed.values)}"
        if not self.allowed:
            return f"a run {'with' if self.allowed is None else 'without'} {flags}"
        named = tuple(value for value in self.allowed if value is not None)
        section, _, name = self._others[0].partition(".")
        if not named:  # all allowed values belong to features removed from this copy
            return f"a run without {flag(self._others[0])}"
        choices = SECTIONS[section].options()[name].choices if section in SECTIONS else None
        rest = tuple(choice for choice in choices or () if choice not in named)
        if None in self.allowed and 0 < len(rest) < len(named):  # listing the excluded values is shorter
            return f"a run without {flag(self._others[0])} {_words(rest)}"
        text = f"{flag(self._others[0])} {_words(named)}"
        return text if None not in self.allowed else f"{text}, or a run without {flag(self._others[0])}"

    def message(self, spec: RunSpec, full: RunSpec) -> str:
        """Build the error message for a run; ``full`` is the run with defaults filled in."""
        other, value = self._others[0], _value(full, self._others[0])
        actual = f", not {_words((value,))}" if self.allowed and value is not None else ""
        if not spec.given(other) and not _is_absent(value):
            source = next((path for path in _SOURCES.get(other, ()) if spec.given(path)), None)
            actual += "" if source is None else f", which {flag(source)} implies"
        return f"Option {self.left} is for {self.condition}{actual} ({self.reason}): leave it out"


def _is_absent(value: Any) -> bool:
    """Return whether an option's value is unset; zero counts as set."""
    return value is None or value is False or value == HOST


def _value(spec: RunSpec, path: str) -> Any:
    """Return the value of a field. A schedule with its own training loop has momentum as its update rule."""
    has_momentum = path == "optimizer.rule" and spec.schedule is not None and spec.schedule.applicable is not None
    return OptimizerName.MOMENTUM if has_momentum else spec.value(path)
