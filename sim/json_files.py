"""Bounded, strict JSON for files and messages between processes, without Python's extensions.

Invalid text raises ``ValueError`` with one line that names the file. The text must be UTF-8, without duplicate keys
in an object; numbers must be finite, integers have at most 128 bits, and the nesting depth is at most :data:`DEPTH`.

JSON has no infinite numbers and no NaN: :func:`finite` replaces them, so that any value can be written.

Values that a program stores for its own use are sealed (:func:`sealed`): the file includes the value's SHA-256
digest, so that modified or damaged content is rejected.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim import bounded_files

__all__ = ["DEPTH", "LARGEST", "NOT_FINITE", "finite", "parse", "parse_product", "read", "read_product",
           "read_sealed", "sealed"]

#: Maximum text size in bytes (parsed values take up to 25 times the memory) and maximum nesting depth.
LARGEST, DEPTH = 1 << 24, 64
#: Exclusive upper bound on an integer's magnitude; random number generators have 128-bit states.
_MAX_INTEGER = 1 << 128
#: Keys for the digest of a sealed value, and for the value's infinities and NaNs.
_SEAL, NOT_FINITE = "sha256", "not_finite"


def _integer(text: str) -> int:
    value = int(text) if len(text) <= 40 else _MAX_INTEGER
    if abs(value) >= _MAX_INTEGER:
        raise ValueError("an integer must have at most 128 bits")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a number must be finite, not {text[:20]}")
    return value


def _constant(text: str) -> None:
    raise ValueError(f"a number must be finite, not {text}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object must have each key once")
    return value


def _check_depth(text: str) -> None:
    """Raise ``ValueError`` if values are nested too deeply, without using recursion."""
    if text.count("[") + text.count("{") <= DEPTH:
        return
    depth = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text, re.DOTALL):
        first = token[0][0]
        depth += (first in "[{") - (first in "]}")
        if depth > DEPTH:
            raise ValueError(f"values must be nested at most {DEPTH} deep")


def parse(data: bytes | str, *, largest: int = LARGEST) -> Any:
    """Parse JSON text and return its value.

    Parameters
    ----------
    data : bytes or str
    largest : int
        Maximum number of bytes or characters.

    Raises
    ------
    ValueError
        The text is not valid JSON, or exceeds the bounds.
    """
    if len(data) > largest:
        raise ValueError(f"it must have at most {largest:,} bytes")
    text = data if isinstance(data, str) else data.decode()
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float,
                           parse_constant=_constant)
    except RecursionError:
        raise ValueError(f"values must be nested at most {DEPTH} deep") from None
    if re.search(r"\\u[dD][89a-fA-F]", text):
        json.dumps(value, ensure_ascii=False).encode()  # rejects unpaired surrogates
    return value


def read(path: Path, *, largest: int = LARGEST) -> Any:
    """Return the value in a file of at most ``largest`` bytes.

    Raises
    ------
    ValueError
        The file is damaged or of a different kind; the message names the file.
    OSError
        The file cannot be read.
    """
    try:
        return parse(bounded_files.read_bytes(path, largest=largest), largest=largest)
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, not damaged or another file: {error}") from None


def parse_product(text: str | bytes) -> Any:
    """Parse text that another program has just written for this one, through a pipe or in memory."""
    return json.loads(text)


def read_product(path: Path) -> Any:
    """Read a file that a tool has written into a cache entry, which records the file's digest."""
    return json.loads(path.read_bytes())


def finite(value: Any) -> Any:
    """Replace infinite and NaN numbers in a value by null, so that it can be written as JSON.

    If there are any, the object gets a member ``not_finite`` that maps their paths to the numbers: ``{"rows[3].loss":
    "nan"}``.
    """
    numbers: dict[str, str] = {}
    made = _finite(value, "", numbers)
    return {**made, NOT_FINITE: numbers} if numbers and isinstance(made, dict) else made


def _finite(value: Any, path: str, numbers: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        numbers[path] = str(float(value))
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item, f"{path}.{key}" if path else str(key), numbers) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{path}[{number}]", numbers) for number, item in enumerate(value)]
    return value


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps({name: part for name, part in value.items() if name != _SEAL}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value, prepared by :func:`finite`, with a digest for :func:`read_sealed`."""
    written = finite(value)
    return {**written, _SEAL: _digest(json.loads(json.dumps(written, allow_nan=False)))}  # JSON keys are strings


def read_sealed(path: Path, *, largest: int = LARGEST) -> dict[str, Any]:
    """Read a file with :func:`sealed` content and return the value without the digest.

    Raises
    ------
    ValueError
        The file is damaged, was changed by hand, or is of a different kind; the message names the file.
    OSError
        The file cannot be read.
    """
    value = read(path, largest=largest)
    if not isinstance(value, dict) or value.get(_SEAL) != _digest(value):
        raise ValueError(f"{path} must have the digest of its content, as gradring has written it: it is damaged, "
                         f"changed by hand, or of an earlier version")
    del value[_SEAL]
    return value
