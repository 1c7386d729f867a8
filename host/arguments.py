"""Checks of arguments where a function of the library is called: each is of its type and in its range.

Example
-------
::

    @checked(nodes=Integer(1, 255), density=Optional(Number(0, 1, above=True)))
    def simulate(*, nodes, density=None): ...

    simulate(nodes="2")     # TypeError: Nodes must be an integer from 1 to 255, not '2'

Numpy's integers are integers and its floats are numbers; a truth value is neither.
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

#: Most characters of a value in a message.
_WIDTH = 80

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def represent(value: Any) -> str:
    """A value in a message: one line of at most 80 characters."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH - 2]} …"


def label(name: str) -> str:
    """Name of a parameter in a message."""
    return name.replace("_", " ").capitalize()


def wrong(kind: type[Exception], name: str, wanted: str, value: Any) -> Exception:
    """The error for a value: ``name`` must be ``wanted``."""
    return kind(f"{name} must be {wanted}, not {represent(value)}")


class Argument(abc.ABC):
    """A kind of argument."""

    @abc.abstractmethod
    def wanted(self) -> str:
        """The kind, as in "must be …"."""

    @abc.abstractmethod
    def take(self, name: str, value: Any) -> Any:
        """Check a value, and return it as the type that the code has.

        Parameters
        ----------
        name : str
            Name of the argument in a message.

        Raises
        ------
        TypeError
            The value is of another type.
        ValueError
            It is out of range.
        """


@dataclasses.dataclass(frozen=True)
class Integer(Argument):
    """An integer from ``low`` to ``high``; without ``high`` there is no largest one."""

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
        if number < self.low or (self.high is not None and number > self.high):
            raise wrong(ValueError, name, self.wanted(), number)
        return number


@dataclasses.dataclass(frozen=True)
class Number(Argument):
    """A finite number from ``low`` to ``high``, or one above ``low``, or one below ``high``."""

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
        if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
            raise wrong(TypeError, name, self.wanted(), value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and self.low <= number <= self.high) or (
                self.above and number == self.low) or (self.below and number == self.high):
            raise wrong(ValueError, name, self.wanted(), value)
        return value if isinstance(value, int | Fraction) else number


class _Typed(Argument):
    """A kind of argument that has its type alone to check."""

    text: ClassVar[str]
    types: ClassVar[Any]
    #: Type that the code has; by default the value's own.
    made: ClassVar[type | None] = None

    def wanted(self) -> str:
        return self.text

    def take(self, name: str, value: Any) -> Any:
        if not isinstance(value, self.types):
            raise wrong(TypeError, name, self.text, value)
        return value if self.made is None else self.made(value)


class Flag(_Typed):
    """A truth value."""

    text, types, made = "True or False", (bool, np.bool_), bool


class Text(_Typed):
    """A text."""

    text, types = "a text", str


class Call(_Typed):
    """A function."""

    text, types = "a function", Callable


class PathName(_Typed):
    """A path, as a text or a Path."""

    text, types, made = "a path", (str, Path), Path


@dataclasses.dataclass(frozen=True)
class Choice(Argument):
    """One of several texts."""

    choices: Collection[str]

    def wanted(self) -> str:
        return f"one of {', '.join(self.choices)}"

    def take(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise wrong(TypeError, name, self.wanted(), value)
        if value not in self.choices:
            raise wrong(ValueError, name, self.wanted(), value)
        return value


@dataclasses.dataclass(frozen=True)
class Member(Argument):
    """A member of an enumeration."""

    kind: type[enum.Enum]

    def wanted(self) -> str:
        return f"one of {', '.join(map(str, self.kind))}"

    def take(self, name: str, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise wrong(TypeError, name, self.wanted(), value)
        return value


@dataclasses.dataclass(frozen=True)
class Instance(Argument):
    """An instance of a class, or of a class named by its module and name, which is loaded when it is needed."""

    kind: type | tuple[str, str]
    text: str

    def wanted(self) -> str:
        return self.text

    def take(self, name: str, value: Any) -> Any:
        kinds = {(base.__module__, base.__name__) for base in type(value).__mro__}
        if not (self.kind in kinds if isinstance(self.kind, tuple) else isinstance(value, self.kind)):
            raise wrong(TypeError, name, self.wanted(), value)
        return value


@dataclasses.dataclass(frozen=True)
class Optional(Argument):
    """None, or an argument of a kind."""

    kind: Argument

    def wanted(self) -> str:
        return f"None or {self.kind.wanted()}"

    def take(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self.kind.take(name, value)
        except (TypeError, ValueError) as error:
            raise wrong(type(error), name, self.wanted(), value) from None


@dataclasses.dataclass(frozen=True)
class Items(Argument):
    """A sequence with an item of each of several kinds."""

    kinds: tuple[Argument, ...]
    text: str

    def wanted(self) -> str:
        return self.text

    def take(self, name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray) or (
                isinstance(value, np.ndarray) and not value.ndim):
            raise wrong(TypeError, name, self.wanted(), value)
        if len(value) != len(self.kinds):
            raise wrong(ValueError, name, self.wanted(), value)
        try:
            return tuple(kind.take(name, item) for kind, item in zip(self.kinds, value, strict=True))
        except (TypeError, ValueError) as error:
            raise wrong(type(error), name, self.wanted(), value) from None


@dataclasses.dataclass(frozen=True)
class Table(Argument):
    """A mapping of texts to values of a kind."""

    kind: Argument
    text: str

    def wanted(self) -> str:
        return self.text

    def take(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise wrong(TypeError, name, self.wanted(), value)
        try:
            return {key: self.kind.take(name, item) for key, item in value.items()}
        except (TypeError, ValueError) as error:
            raise wrong(type(error), name, self.wanted(), value) from None


def checked(together: Callable[..., None] | None = None, /,
            **arguments: Argument) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function to check its arguments when it is called, before anything else is done.

    Parameters
    ----------
    together : callable, optional
        Called with all arguments by their names, once each is right, to check them together.
    arguments
        Kinds by the names of parameters; a parameter that has none is left to the function. A default is not
        checked.
    """
    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(function)
        assert arguments.keys() <= signature.parameters.keys()

        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # raises Python's own error, with the name of the function
            for name, value in bound.arguments.items():
                if name in arguments:
                    bound.arguments[name] = arguments[name].take(label(name), value)
            bound.apply_defaults()
            if together is not None:
                together(**bound.arguments)
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate
