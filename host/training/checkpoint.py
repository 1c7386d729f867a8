"""Checkpoints: one file that holds everything which the rest of a training run depends on.

The file is an npz archive (a zip of npy files, uncompressed). Its member ``header`` is a text, JSON: ``schema``,
``version``, ``identity`` and ``content``. In ``content`` an array stands as ``{"$array": name}``, where ``name`` is
another member. The comment of the archive, which is the end of the file, is the SHA-256 of all bytes before it in
hexadecimal digits, so that every bit of the file counts.
"""

import hashlib
import importlib.metadata
import io
import json
import platform
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from host.output import write_bytes

__all__ = ["ADVICE", "NAME", "SCHEMA", "VERSION", "CheckpointError", "load", "save", "versions"]

NAME = "checkpoint.npz"
SCHEMA = "gradring.checkpoint"
VERSION = 4

_DIGITS = 64  # of a SHA-256


class CheckpointError(ValueError):
    """A file is no checkpoint of this run; the message says why in one line."""


def versions() -> dict[str, str]:
    """Versions that the bits of a run depend on: program, Python, and numpy, which draws the first weights."""
    return {"gradring": importlib.metadata.version("gradring"), "python": platform.python_version(),
            "numpy": np.__version__}


def save(path: Path, identity: dict[str, Any], content: Any) -> None:
    """Write a file that replaces an older one once it is whole.

    Parameters
    ----------
    path : Path
    identity : dict
        Values that must be the same where the file is read, as JSON has them: a dictionary of dictionaries.
    content : object
        None, numbers, texts and arrays, in lists and in dictionaries whose keys are texts.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    arrays: dict[str, Any] = {}
    header = {"schema": SCHEMA, "version": VERSION, "identity": identity, "content": _pack(content, arrays)}
    buffer = io.BytesIO()
    np.savez(buffer, header=np.array(json.dumps(header)), **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(_DIGITS)
    data = buffer.getvalue()[:-_DIGITS]
    write_bytes(path, data + _digest(data))


def load(path: Path, identity: dict[str, Any]) -> Any:
    """The content of a file.

    Raises
    ------
    CheckpointError
        The file is damaged, torn, another, or of another run.
    OSError
        The file cannot be read.
    """
    data = path.read_bytes()
    body, digest = data[:-_DIGITS], data[-_DIGITS:]
    if digest != _digest(body):
        raise CheckpointError(f"{path} must be a whole checkpoint, not a damaged one or another file: its "
                              f"{len(data):,} bytes do not end with their SHA-256; {ADVICE}")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop("header")))
        schema, version = header["schema"], header["version"]
    except (zipfile.BadZipFile, EOFError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} must be an npz archive with the header of a checkpoint; {ADVICE}") from None
    if (schema, version) != (SCHEMA, VERSION):
        raise CheckpointError(f"{path} must be of schema {SCHEMA}, version {VERSION}, not {schema}, {version}; "
                              f"{ADVICE}")
    others = _others(json.loads(json.dumps(identity)), header["identity"])
    if others:
        raise CheckpointError(f"{path} must be of a run with the same options and versions, not with "
                              f"{', '.join(others)}; take those, or {ADVICE}")
    return _unpack(header["content"], arrays)


#: Advice to who cannot go on from a file.
ADVICE = "leave out --resume to begin anew"


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _pack(value: Any, arrays: dict[str, Any]) -> Any:
    """A value without its arrays, which are put into ``arrays``."""
    if isinstance(value, np.ndarray):
        name = f"array_{len(arrays)}"
        arrays[name] = value
        return {"$array": name}
    if isinstance(value, dict):
        return {key: _pack(one, arrays) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(one, arrays) for one in value]
    return value


def _unpack(value: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return (arrays[value["$array"]] if value.keys() == {"$array"} else
                {key: _unpack(one, arrays) for key, one in value.items()})
    if isinstance(value, list):
        return [_unpack(one, arrays) for one in value]
    return value


def _others(here: Any, there: Any, name: str = "") -> list[str]:
    """Names and values of the entries that differ in the file."""
    if isinstance(here, dict) and isinstance(there, dict):
        return [text for key in sorted({*here, *there})
                for text in _others(here.get(key), there.get(key), key if name in _LEVELS else f"{name}.{key}")]
    return [] if here == there else [f"{name} {there!r} (here {here!r})"]


#: Names of the levels of an identity that say nothing by themselves.
_LEVELS = ("", "options", "versions")
