"""Encode messages (registered dataclasses) as frames, which are validated before they are decoded.

A frame consists of a head of 24 bytes, a header in JSON and raw contents:

========  =========================================================
bytes     contents
========  =========================================================
4         ``grad``
2         version of the format, 1
2         zero
4         length of the header
8         length of the contents
4         CRC-32 of the 20 bytes before it, of the header and of the contents
========  =========================================================

The header names the class of a message and contains its fields; arrays and ``bytes`` are in the contents. Nothing is
executed or imported to decode a message. A class that is not in the registry, a field that its annotation does not
allow, a length above the limit or any other damage raises a :class:`MessageError`.
"""

import dataclasses
import json
import math
import struct
import types
import typing
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

__all__ = ["HEAD", "MAX_HEADER", "VERSION", "Dimensions", "MessageError", "Registry", "Within", "length_of"]

VERSION = 1

_MAGIC = b"grad"
_LENGTHS = struct.Struct(">4sHHIQ")
_CRC = struct.Struct(">I")

#: Number of bytes before the header of a frame.
HEAD = _LENGTHS.size + _CRC.size

#: Maximum length of a header, in bytes.
MAX_HEADER = 4 << 20

_MAX_DEPTH, _MAX_DIMENSIONS, _MAX_LENGTH, _MAX_BITS = 32, 8, 1 << 40, 256

#: Data types of arrays, keyed by their names in headers.
_TYPES = {np.dtype(name).newbyteorder("<").str: np.dtype(name)
          for name in ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")}

#: Errors that constructors and decoders raise for invalid values.
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, struct.error)


class MessageError(ValueError):
    """Raised for bytes that are not a valid message, or values that do not fit a message's fields."""


@dataclasses.dataclass(frozen=True)
class Dimensions:
    """Required number of dimensions of an array field, for use in ``Annotated``."""

    count: int

    def __str__(self) -> str:
        return f"in {self.count} dimension{'s' * (self.count != 1)}"

    def allows(self, value: Any) -> bool:
        """Return whether an array has the required number of dimensions."""
        return bool(value.ndim == self.count)


@dataclasses.dataclass(frozen=True)
class Within:
    """Inclusive bounds of a number, for use in ``Annotated``."""

    minimum: float
    maximum: float

    def __str__(self) -> str:
        return f"from {self.minimum:g} to {self.maximum:g}"

    def allows(self, value: Any) -> bool:
        """Return whether a number is within the bounds."""
        return bool(self.minimum <= value <= self.maximum)


class Registry:
    """Registry of message classes and of the dataclasses used in their fields.

    Classes are frozen dataclasses with different names. Fields may be None, bool, int, float, str, bytes, arrays of
    numbers, classes of the registry, and lists, tuples and dictionaries of these, with hashable keys of these kinds.
    A field that is annotated ``Any`` accepts all of them. ``Annotated`` can specify :class:`Dimensions` or
    :class:`Within`.

    Raises ``TypeError`` if a class is not a frozen dataclass, or a field has an unsupported annotation.
    """

    def __init__(self, *classes: type) -> None:
        self._classes = {cls.__name__: cls for cls in classes}
        self._fields: dict[type, dict[str, Any]] = {}
        for cls in classes:
            if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
                raise TypeError(f"Message must be a frozen dataclass, not {cls.__name__}")
            hints = typing.get_type_hints(cls, include_extras=True)
            self._fields[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
            for name, hint in self._fields[cls].items():
                if not _supported(hint):
                    raise TypeError(f"Field {name} of {cls.__name__} must be annotated with kinds of values that "
                                    f"messages have, not {hint}")

    def encode(self, message: Any) -> bytes:
        """Encode a message; raises ``MessageError`` if its class or one of its values is not supported."""
        contents: list[bytes] = []
        if type(message) not in self._fields:
            raise MessageError(f"Message must be of a class of the registry, not {type(message).__name__}")
        header = json.dumps(self._pack(message, contents, 0), separators=(",", ":"), allow_nan=False).encode()
        if len(header) > MAX_HEADER:
            raise MessageError(f"Header of a message must have at most {MAX_HEADER:,} bytes, not {len(header):,}")
        body = b"".join([header, *contents])
        lengths = _LENGTHS.pack(_MAGIC, VERSION, 0, len(header), len(body) - len(header))
        return b"".join([lengths, _CRC.pack(zlib.crc32(body, zlib.crc32(lengths))), body])

    def decode(self, frame: bytes | bytearray | memoryview) -> Any:
        """Decode a complete frame; raises ``MessageError`` if it does not contain a registered message."""
        view = memoryview(frame)
        length = length_of(view)
        if length != len(view):
            raise MessageError(f"Frame must have the {length} bytes that its head names, not {len(view):,}")
        _, _, _, header, _ = _LENGTHS.unpack(view[:_LENGTHS.size])
        if _CRC.unpack(view[_LENGTHS.size:HEAD])[0] != zlib.crc32(view[HEAD:], zlib.crc32(view[:_LENGTHS.size])):
            raise MessageError("Frame must have the CRC of its bytes: it was damaged")
        try:
            text = json.loads(bytes(view[HEAD:HEAD + header]).decode(), parse_int=_integer, parse_float=_refuse,
                              parse_constant=_refuse)
            reader = _Reader(view[HEAD + header:])
            message = self._unpack(text, reader, 0)
            if type(message) not in self._fields or reader.view:
                raise ValueError("one message and its contents")
        except MessageError:
            raise
        except _DAMAGE as error:
            raise MessageError(f"Message must have the format: {type(error).__name__}: {error}"[:500]) from None
        return message

    def _pack(self, value: Any, contents: list[bytes], depth: int) -> Any:
        """Convert a value to JSON; arrays and ``bytes`` are appended to ``contents``."""
        if depth > _MAX_DEPTH:
            raise MessageError(f"Values of a message must be nested at most {_MAX_DEPTH} times")

        def packed(items: Iterable[Any]) -> list[Any]:
            return [self._pack(item, contents, depth + 1) for item in items]

        if isinstance(value, list):
            return packed(value)
        if isinstance(value, tuple):
            return {"tuple": packed(value)}
        if isinstance(value, dict):
            return {"dict": [packed(pair) for pair in value.items()]}
        if type(value) in self._fields:
            fields = {name: getattr(value, name) for name in self._fields[type(value)]}
            self._check(type(value), fields)
            return {"class": type(value).__name__, "fields": dict(zip(fields, packed(fields.values()), strict=True))}
        return _pack_simple(value, contents)

    def _unpack(self, value: Any, reader: "_Reader", depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise MessageError(f"Values of a message must be nested at most {_MAX_DEPTH} times")

        def unpacked(items: Iterable[Any]) -> list[Any]:
            return [self._unpack(item, reader, depth + 1) for item in items]

        if isinstance(value, list):
            return unpacked(value)
        if not isinstance(value, dict):
            return value
        if value.keys() == {"class", "fields"}:
            kind = self._classes[value["class"]]
            fields = dict(zip(value["fields"], unpacked(value["fields"].values()), strict=True))
            self._check(kind, fields)
            return kind(**fields)
        (tag, inner), = value.items()
        if tag in _SIMPLE:
            return _SIMPLE[tag](inner, reader)
        if type(inner) is not list:
            raise ValueError(f"{tag} of items")
        if tag == "tuple":
            return tuple(unpacked(inner))
        if tag != "dict":
            raise ValueError(f"kind {tag!r}")
        pairs = [unpacked(pair) for pair in inner]
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("keys of a dictionary")
        return result

    def _check(self, kind: type, fields: dict[str, Any]) -> None:
        hints = self._fields[kind]
        if fields.keys() != hints.keys():
            raise MessageError(f"{kind.__name__} must have the fields {', '.join(hints)}, not "
                               f"{', '.join(map(repr, fields))}"[:500])
        for name, hint in hints.items():
            if not _matches(fields[name], hint):
                raise MessageError(f"{name} of {kind.__name__} must be {_title(hint)}, not "
                                   f"{_kind(fields[name])}"[:500])


def length_of(head: bytes | bytearray | memoryview) -> int | None:
    """Return the length of the frame that starts with these bytes, or None while its head is incomplete.

    Raises ``MessageError`` if the bytes are not the beginning of a frame.
    """
    start = bytes(head[:HEAD])
    if not _MAGIC.startswith(start[:len(_MAGIC)]):
        raise MessageError(f"Frame must begin with {_MAGIC!r}, not {start[:len(_MAGIC)]!r}")
    if len(start) < HEAD:
        return None
    _, version, zero, header, contents = _LENGTHS.unpack(start[:_LENGTHS.size])
    if (version, zero) != (VERSION, 0):
        raise MessageError(f"Frame must be of version {VERSION}, not {version}: both sides need the same release")
    if header > MAX_HEADER:
        raise MessageError(f"Header of a message must have at most {MAX_HEADER:,} bytes, not {header:,}")
    return int(HEAD + header + contents)


class _Reader:
    """Sequential reader for the contents of a message."""

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def take(self, length: int) -> memoryview:
        if type(length) is not int or not 0 <= length <= len(self.view):
            raise ValueError("length of contents")
        result, self.view = self.view[:length], self.view[length:]
        return result


def _integer(text: str) -> int:
    if len(text) > _MAX_BITS:
        raise ValueError("length of an integer")
    return int(text)


def _refuse(text: str) -> Any:
    raise ValueError("number of JSON")


def _array(description: Any, reader: _Reader) -> Any:
    name, shape = description
    dtype = _TYPES[name]
    if len(shape) > _MAX_DIMENSIONS or any(type(length) is not int or not 0 <= length < _MAX_LENGTH
                                           for length in shape):
        raise ValueError("shape of an array")
    data = reader.take(math.prod(shape) * dtype.itemsize)
    if dtype == np.bool_ and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise ValueError("bits of an array")
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)


#: Decoders of simple values, keyed by the value's tag.
_SIMPLE: dict[str, Callable[[Any, _Reader], Any]] = {
    "float": lambda text, reader: struct.unpack(">d", bytes.fromhex(text))[0],
    "bytes": lambda length, reader: bytes(reader.take(length)), "array": _array}


def _pack_simple(value: Any, contents: list[bytes]) -> Any:
    """Convert a scalar value to JSON."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        if int(value).bit_length() > _MAX_BITS:
            raise MessageError(f"Integers of a message must have at most {_MAX_BITS} bits")
        return int(value)
    if isinstance(value, float | np.floating):
        return {"float": struct.pack(">d", float(value)).hex()}
    if isinstance(value, bytes | bytearray | memoryview):
        contents.append(bytes(value))
        return {"bytes": len(contents[-1])}
    if isinstance(value, np.ndarray):
        little = value.dtype.newbyteorder("<").str
        if little not in _TYPES or value.ndim > _MAX_DIMENSIONS:
            raise MessageError(f"Arrays of a message must have numbers in at most {_MAX_DIMENSIONS} dimensions, not "
                               f"{value.dtype} in {value.ndim}")
        contents.append(np.asarray(value, value.dtype.newbyteorder("<")).tobytes())
        return {"array": [little, list(value.shape)]}
    raise MessageError(f"Values of a message must be of the kinds that it can have, not {type(value).__name__}")


def _supported(hint: Any) -> bool:
    """Return whether values can be checked against this annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint in (None, type(None), bool, int, float, str, bytes):
        return True
    if origin is typing.Annotated:
        return _supported(arguments[0]) and all(isinstance(bound, Dimensions | Within) for bound in arguments[1:])
    if origin in (typing.Union, types.UnionType, list, tuple, dict):
        return all(argument is Ellipsis or _supported(argument) for argument in arguments)
    return origin is np.ndarray or dataclasses.is_dataclass(hint)


def _matches(value: Any, hint: Any) -> bool:
    """Return whether a value matches an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Annotated:
        return _matches(value, arguments[0]) and all(bound.allows(value) for bound in arguments[1:])
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, argument) for argument in arguments)
    if origin in (list, tuple, dict):
        return _matches_items(value, origin, arguments)
    if origin is np.ndarray:
        kind, = typing.get_args(arguments[1]) or (Any,)
        return isinstance(value, np.ndarray) and (kind is Any or value.dtype == np.dtype(kind))
    if hint in (bool, str):
        return type(value) is hint
    if hint is bytes:
        return isinstance(value, bytes | bytearray | memoryview)
    if hint in (int, float):
        kinds = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
        return isinstance(value, kinds) and not isinstance(value, bool)
    return value is None if hint in (None, type(None)) else isinstance(value, hint)


def _matches_items(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(value, origin):
        return False
    if isinstance(value, dict):
        key, item = arguments
        return all(_matches(name, key) and _matches(content, item) for name, content in value.items())
    if origin is list or arguments[-1] is Ellipsis:
        return all(_matches(item, arguments[0]) for item in value)
    return len(value) == len(arguments) and all(map(_matches, value, arguments))


def _title(hint: Any) -> str:
    """Describe an annotation for use in an error message."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return " ".join([_title(arguments[0]), *map(str, arguments[1:])])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_title, arguments))
    if origin is np.ndarray:
        kind, = typing.get_args(arguments[1]) or (Any,)
        return "an array" if kind is Any else f"an array of {np.dtype(kind).name}"
    return "None" if hint in (None, type(None)) else hint.__name__ if origin is None else str(hint)


def _kind(value: Any) -> str:
    """Describe the kind of a value for use in an error message."""
    if isinstance(value, np.ndarray):
        return f"one of {value.dtype.name} {Dimensions(value.ndim)}"
    return repr(value) if isinstance(value, int | float | str) else type(value).__name__
