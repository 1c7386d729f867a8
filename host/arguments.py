"""Validation of the types and ranges of library function arguments.

Example
-------
::

    @checked(nodes=Integer(1, 255), density=Optional(Number(0, 1, above=True)))
    def simulate(*, nodes, density=None): ...

    simulate(nodes="2")     # TypeError: Nodes must be an integer from 1 to 255, not '2'

NumPy integers and floats are accepted, too; a bool counts as neither an integer nor a number.
"""

import abc
import dataclasses
import enum
import functools
import inspect
import math
import numbers
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np

__all__ = ["Argument", "Call", "Choice", "Flag", "Instance", "Integer", "Items", "Member", "Number", "Optional",
           "PathName", "Table", "Text", "checked", "label", "represent", "wrong"]

#: Maximum length of a value in an error message, in characters.
_WIDTH = 80

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def represent(value: Any) -> str:
    """Format a value for an error message, as a single line of at most 80 characters."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH - 2]} …"


def label(name: str) -> str:
    """Return a parameter's name as it appears in error messages."""
    return name.replace("_", " ").capitalize()


def wrong(kind: type[Exception], name: str, wanted: str, value: Any) -> Exception:
    """Create the exception for an invalid value, with the message "``name`` must be ``wanted``, not …"."""
    return kind(f"{name} must be {wanted}, not {represent(value)}")


class Argument(abc.ABC):
    """Base class for argument validators."""

    #: Description that follows "must be …" in error messages.
    text: str

    def wanted(self) -> str:
        """Return the description that follows "must be …" in error messages."""
        return self.text

    def _require(self, right: bool, error: type[Exception], name: str, value: Any) -> None:
        if not right:
            raise wrong(error, name, self.wanted(), value)

    @abc.abstractmethod
    def take(self, name: str, value: Any) -> Any:
        """Validate the value of argument ``name`` and return it, converted to the type used internally. Raises
        ``TypeError`` for a wrong type, and ``ValueError`` for a value out of range."""


@dataclasses.dataclass(frozen=True)
class Integer(Argument):
    """An integer from ``low`` to ``high``, or without an upper limit if ``high`` is None."""

    low: int
    high: int | None = None

    def wanted(self) -> str:
        return f"an integer of at least {self.low}" if self.high is None else (
            f"an integer from {self.low} to {self.high}")

    def take(self, name: str, value: Any) -> int:
        try:
            number = None if isinstance(value, bool | np.bool_) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise wrong(TypeError, name, self.wanted(), value)
        self._require(self.low <= number and (self.high is None or number <= self.high), ValueError, name, number)
        return number


@dataclasses.dataclass(frozen=True)
class Number(Argument):
    """A finite number from ``low`` to ``high``; ``above`` and ``below`` exclude the lower and the upper limit."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def wanted(self) -> str:
        if math.isfinite(self.low) and math.isfinite(self.high) and not (self.above or self.below):
            return f"a finite number from {self.low:g} to {self.high:g}"
        limits = []
        if self.low > -math.inf:
            limits.append(f" above {self.low:g}" if self.above else f" of {self.low:g} or more")
        if self.high < math.inf:
            limits.append(f" {'below' if self.below else 'at most'} {self.high:g}")
        return "a finite number" + " and".join(limits)

    def take(self, name: str, value: Any) -> float | Fraction:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
        self._require(real, TypeError, name, value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        self._require(math.isfinite(number) and self.low <= number <= self.high and not (
            self.above and number == self.low) and not (self.below and number == self.high), ValueError, name, value)
        return value if isinstance(value, int | Fraction) else number


class _Typed(Argument):
    """Base class for arguments that are checked for their type only."""

    types: ClassVar[Any]
    #: Type that valid values are converted to; None leaves them unchanged.
    made: ClassVar[type | None] = None

    def take(self, name: str, value: Any) -> Any:
        self._require(isinstance(value, self.types), TypeError, name, value)
        return value if self.made is None else self.made(value)


class Flag(_Typed):
    """An argument that is a bool."""

    text, types, made = "True or False", (bool, np.bool_), bool


class Text(_Typed):
    """An argument that is a string."""

    text, types = "a text", str


class Call(_Typed):
    """An argument that is a function."""

    text, types = "a function", Callable


class PathName(_Typed):
    """A path, given as a string or a Path."""

    text, types, made = "a path", (str, Path), Path


@dataclasses.dataclass(frozen=True)
class Choice(Argument):
    """A string from a fixed set of choices."""

    choices: Collection[str]

    def wanted(self) -> str:
        return f"one of {', '.join(self.choices)}"

    def take(self, name: str, value: Any) -> Any:
        self._require(isinstance(value, str), TypeError, name, value)
        self._require(value in self.choices, ValueError, name, value)
        return value


@dataclasses.dataclass(frozen=True)
class Member(Argument):
    """A member of an enumeration."""

    kind: type[enum.Enum]

    def wanted(self) -> str:
        return f"one of {', '.join(map(str, self.kind))}"

    def take(self, name: str, value: Any) -> Any:
        self._require(isinstance(value, self.kind), TypeError, name, value)
        return value


@dataclasses.dataclass(frozen=True)
class Instance(Argument):
    """An instance of a class; a class given as (module, name) is imported only when needed."""

    kind: type | tuple[str, str]
    text: str

    def take(self, name: str, value: Any) -> Any:
        kinds = {(base.__module__, base.__name__) for base in type(value).__mro__}
        self._require(self.kind in kinds if isinstance(self.kind, tuple) else isinstance(value, self.kind),
                      TypeError, name, value)
        return value


@dataclasses.dataclass(frozen=True)
class Optional(Argument):
    """Either None or an argument of the given kind."""

    kind: Argument

    def wanted(self) -> str:
        return f"None or {self.kind.wanted()}"

    def take(self, name: str, value: Any) -> Any:
        try:
            return None if value is None else self.kind.take(name, value)
        except (TypeError, ValueError) as error:
            raise wrong(type(error), name, self.wanted(), value) from None


@dataclasses.dataclass(frozen=True)
class Items(Argument):
    """A sequence of fixed length, with a kind for each item."""

    kinds: tuple[Argument, ...]
    text: str

    def take(self, name: str, value: Any) -> tuple[Any, ...]:
        self._require(isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
                      and getattr(value, "ndim", 1) > 0, TypeError, name, value)
        self._require(len(value) == len(self.kinds), ValueError, name, value)
        try:
            return tuple(kind.take(name, item) for kind, item in zip(self.kinds, value, strict=True))
        except (TypeError, ValueError) as error:
            raise wrong(type(error), name, self.wanted(), value) from None


@dataclasses.dataclass(frozen=True)
class Table(Argument):
    """A mapping from strings to values of the same kind."""

    kind: Argument
    text: str

    def take(self, name: str, value: Any) -> dict[str, Any]:
        texts = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        self._require(texts, TypeError, name, value)
        try:
            return {key: self.kind.take(name, item) for key, item in value.items()}
        except (TypeError, ValueError) as error:
            raise wrong(type(error), name, self.wanted(), value) from None


def checked(together: Callable[..., None] | None = None, /,
            **arguments: Argument) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function so that its arguments are validated before its body runs.

    ``arguments`` maps parameter names to kinds. Parameters without a kind and default values are not checked.
    Then ``together`` is called with all arguments as keywords, to check combinations of them.
    """
    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(function)
        assert arguments.keys() <= signature.parameters.keys()

        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # call it to raise Python's own error, which names the function
            for name, value in bound.arguments.items():
                if name in arguments:
                    bound.arguments[name] = arguments[name].take(label(name), value)
            bound.apply_defaults()
            if together is not None:
                together(**bound.arguments)
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate
