"""Checks of the types, bounds and fields of values, applied after reading and before use."""

import math
import re
from collections.abc import Callable, Collection
from typing import Any

__all__ = ["Check", "choice", "having", "integer", "mapping", "number", "optional", "pair", "record", "several",
           "text"]

Check = Callable[[Any], bool]

_EXACT = 1 << 53


def integer(minimum: int, maximum: int) -> Check:
    """Check for an integer between two bounds."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def number(minimum: float = -math.inf, maximum: float = math.inf) -> Check:
    """Check for a finite number within bounds; integers must be exact in binary64, that is, at most 2^53."""
    return lambda value: (((isinstance(value, float) and math.isfinite(value)) or integer(-_EXACT, _EXACT)(value))
                          and minimum <= value <= maximum)


def text(pattern: str) -> Check:
    """Check for a string that matches a regular expression."""
    compiled = re.compile(pattern, re.ASCII)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def choice(choices: Collection[str]) -> Check:
    """Check for one of several strings."""
    return lambda value: isinstance(value, str) and value in choices


def several(check: Check, minimum: int, maximum: int) -> Check:
    """Check for a list with a bounded number of values, each of which passes a check."""
    return lambda value: isinstance(value, list) and minimum <= len(value) <= maximum and all(map(check, value))


def pair(first: Check, second: Check) -> Check:
    """Check for a list of two values, with one check for each."""
    return lambda value: isinstance(value, list) and len(value) == 2 and first(value[0]) and second(value[1])


def mapping(key: Check, check: Check, maximum: int) -> Check:
    """Check for a dictionary of at most ``maximum`` entries, with one check for keys and one for values."""
    return lambda value: isinstance(value, dict) and len(value) <= maximum and all(
        key(name) and check(entry) for name, entry in value.items())


def record(_more: dict[str, Check] | None = None, **checks: Check) -> Check:
    """Check for a dictionary with exactly these fields, and optional fields ``_more``."""
    known = {**checks, **(_more or {})}
    return lambda value: isinstance(value, dict) and checks.keys() <= value.keys() <= known.keys() and all(
        known[name](entry) for name, entry in value.items())


def having(_more: dict[str, Check] | None = None, **checks: Check) -> Check:
    """Check for a dictionary with these fields, optional fields ``_more``, and any other fields unchecked."""
    more = _more or {}
    return lambda value: isinstance(value, dict) and checks.keys() <= value.keys() and all(
        check(value[name]) for name, check in {**checks, **more}.items() if name in value)


def optional(check: Check) -> Check:
    """Return a check that accepts None and any value that passes ``check``."""
    return lambda value: value is None or check(value)
