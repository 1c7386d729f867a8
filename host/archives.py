"""Reader for files of numpy arrays, without pickles and with limits on sizes.

The sizes that a file declares are checked against each other, the expected types and the limits before any memory is
allocated, so a small file cannot demand a large amount of memory.
"""

import contextlib
import dataclasses
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from host.printable import one_line
from sim.bounded_files import read_bytes

__all__ = ["Kind", "read_arrays", "read_header"]

#: Maximum number of arrays in a file, and maximum size in bytes of its directory and of an array's header.
_MAX_ARRAYS, _MAX_DIRECTORY, _MAX_HEADER = 4096, 1 << 20, 1024
#: Maximum length of a string in an array, in characters.
_MAX_CHARACTERS = 256
#: Fields at the end of a zip file without a comment, and the signature that precedes them in files over 4 GB.
_END, _END_64 = struct.Struct("<4s4H2LH"), b"PK\6\7"
_HEADER = re.compile(
    rb"\{'descr': '([<|][biufU][1-9]\d{0,3})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,12}(?:, \d{1,12}){0,7},?)?)\), \} *\n")
_DAMAGES = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError, RuntimeError,
            OverflowError, IndexError, KeyError, TypeError)


class _KindError(ValueError):
    """The type or shape of an array differs from the expected one."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Description of an expected array."""

    #: Type of the array's elements; strings may have any length.
    dtype: npt.DTypeLike
    dimensions: int = 0

    def check(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Raise ``_KindError`` if an array has a different type or number of dimensions."""
        expected = np.dtype(self.dtype)
        if dtype.kind != expected.kind or (dtype.kind != "U" and dtype != expected):
            raise _KindError(f"Array {name} must be of type {expected.name}, not {dtype.name}")
        if dtype.itemsize > 4 * _MAX_CHARACTERS:
            raise _KindError(f"Array {name} must have at most {_MAX_CHARACTERS} characters")
        if len(shape) != self.dimensions:
            dimensions = ("one number or text", "a vector", "a matrix")[self.dimensions]
            raise _KindError(f"Array {name} must be {dimensions}, not of shape {shape!r}")


def read_arrays(path: Path, expected: Mapping[str, Kind], *, largest: int) -> dict[str, npt.NDArray[Any]]:
    """Read all arrays of an npz file; return them keyed by name.

    ``expected`` describes the arrays that the file may contain, keyed by regular expressions for their names. The
    file, and all arrays together, may have at most ``largest`` bytes. Raises ``ValueError`` if the file is damaged,
    is not an npz file, or contains unexpected or larger arrays, and ``OSError`` if it cannot be read.
    """
    with _damages(path):
        data = read_bytes(path, largest=largest)
        _check_end(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > _MAX_ARRAYS:
                raise ValueError(f"it must have at most {_MAX_ARRAYS} arrays")
            arrays: dict[str, npt.NDArray[Any]] = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name == member.filename or name in arrays:
                    raise ValueError(f"it must have arrays of different names, not {member.filename[:40]!r}")
                kind = next((kind for pattern, kind in expected.items() if re.fullmatch(pattern, name)), None)
                if kind is None:
                    raise _KindError(f"Arrays must have names that gradring writes, not {name[:40]}")
                largest -= member.file_size
                if largest < 0:
                    raise ValueError("its arrays must be smaller")
                arrays[name] = _array(archive, member, name, kind)
    return arrays


@contextlib.contextmanager
def _damages(path: Path) -> Iterator[None]:
    """Convert every error caused by a damaged file to a one-line ``ValueError``."""
    try:
        yield
    except _KindError as error:
        raise ValueError(f"{path}: {error}") from None
    except _DAMAGES as error:
        raise ValueError(f"{path} must be an npz file, not a damaged one or another: {one_line(error)}") from None


def _check_end(data: bytes) -> None:
    """Raise ``ValueError`` if a file does not end like a zip file or its directory is too large."""
    if len(data) < _END.size:
        raise ValueError("it must be a zip file")
    signature, *_, entries, directory, offset, comment = _END.unpack(data[-_END.size:])
    if signature != b"PK\5\6" or comment:
        raise ValueError("it must be a zip file, whole and without a comment")
    if entries > _MAX_ARRAYS or directory > _MAX_DIRECTORY or data[-_END.size - 20:-_END.size - 16] == _END_64:
        raise ValueError(f"it must have at most {_MAX_ARRAYS:,} arrays, in {_MAX_DIRECTORY:,} bytes of directory")
    if offset + directory != len(data) - _END.size:
        raise ValueError("its directory must be at the end")


def read_header(file: IO[bytes], name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Read the header of a version 1.0 npy file: type, shape, whether it is in column-major order, and header size.
    Raises ``ValueError`` with the array's name for any other header."""
    magic = file.read(10)
    length = int.from_bytes(magic[8:], "little")
    if magic[:8] != b"\x93NUMPY\1\0" or length > _MAX_HEADER:
        raise ValueError(f"array {name} must be an npy file of version 1.0")
    match = _HEADER.fullmatch(file.read(length))
    if match is None:
        raise ValueError(f"array {name} must have a type and a shape")
    try:
        dtype = np.dtype(match[1].decode())
    except TypeError:
        raise ValueError(f"array {name} must have a type of numpy") from None
    shape = tuple(int(size) for size in match[3].split(b",") if size.strip())
    return dtype, shape, match[2] == b"True", len(magic) + length


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, kind: Kind) -> npt.NDArray[Any]:
    """Read an array; memory is allocated only after checking the size against the zip member."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
        raise ValueError(f"array {name} must be stored or deflated")
    with archive.open(member) as file:
        dtype, shape, fortran, length = read_header(file, name)
        kind.check(name, dtype, shape)
        size = math.prod(shape) * dtype.itemsize
        if size != member.file_size - length:
            raise ValueError(f"array {name} must have the size of its shape, {size:,} bytes")
        content = np.empty(size, np.uint8)
        view, done = content.data, 0
        while done < size and (count := file.readinto(view[done:])):  # type: ignore[attr-defined]
            done += count
        if done < size or file.read(1):
            raise ValueError(f"array {name} must have the size of its shape, {size:,} bytes")
    array = content.view(dtype).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "U" and not array.item().isprintable():
        raise ValueError(f"array {name} must be a printable text")
    if dtype.kind == "b" and content.max(initial=0) > 1:
        raise ValueError(f"array {name} must have truth values, 0 or 1")
    return array
