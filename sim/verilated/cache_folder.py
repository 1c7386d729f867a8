"""Folder of the cache: its place and its limit of size.

It belongs to no clone: Verilog, Verilated libraries, simulators, netlists and placements are the same in all of
them. It is ``GRADRING_CACHE`` where that is set, and else the user's cache folder. The results of a command
are not in it (:data:`sim.verilated.toolchain.BUILD`).
"""

import os
import re
from pathlib import Path

import platformdirs

from sim.verilated.processes import ToolError

__all__ = ["KINDS", "LIMIT", "VARIABLE", "folder", "limit", "make", "root", "size"]

#: Environment variables: folder of the cache, and bytes that it may take.
VARIABLE, LIMIT = "GRADRING_CACHE", "GRADRING_CACHE_LIMIT"

#: Folders of the cache, and what each is for.
KINDS = {
    "verilog": "Verilog of components",
    "verilated": "simulated rings, boards and units",
    "arithmetic": "arithmetic of the host",
    "regression": "simulators for cocotb",
    "formal": "proofs",
    "netlist": "netlists of tests",
    "placement": "synthesis and placements",
}

_DEFAULT = 10 * 10**9
_TAG = ("Signature: 8a477f597d28d172789f06886806bc55\n"
        "# Everything here is found again by its digest and built again where it is gone. See gradring cache.\n"
        "# For information about cache directory tags see https://bford.info/cachedir/\n")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def root() -> Path:
    """The cache folder, which may not exist yet.

    A relative path in ``GRADRING_CACHE`` counts from the folder in which it is first looked at, for all programs that
    this process starts as well.

    Raises
    ------
    ToolError
        ``GRADRING_CACHE`` begins with the home of a user who has none.
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return Path(platformdirs.user_cache_dir("gradring", appauthor=False))
    try:
        path = Path(given).expanduser()
    except RuntimeError:
        raise ToolError(f"{VARIABLE} must be a folder, not {given!r}: there is no such user") from None
    if not path.is_absolute() or str(path) != given:
        path = path.absolute()
        os.environ[VARIABLE] = str(path)
    return path


def folder(kind: str) -> Path:
    """Folder of the entries of one of :data:`KINDS`."""
    if kind not in KINDS:
        raise ValueError(f"Kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return root() / kind


def make(path: Path) -> None:
    """Make a folder; if it is in the cache, mark the cache so that backups can leave it out.

    Raises
    ------
    OSError
        The folder cannot be made.
    """
    if path.is_dir():
        return
    path.mkdir(parents=True, exist_ok=True)
    if path.parent == root():
        (path.parent / "CACHEDIR.TAG").write_text(_TAG)


def size(text: str) -> int:
    """Convert a text such as ``5GB``, ``500 MB`` or ``1.5GiB`` to bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text, flags=re.IGNORECASE)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"Size must be a number of bytes such as 5GB or 500MB, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def limit() -> int:
    """Bytes that the cache may take: ``GRADRING_CACHE_LIMIT``, or 10 GB.

    Raises
    ------
    ToolError
        The variable is no size.
    """
    given = os.environ.get(LIMIT)
    try:
        return size(given) if given else _DEFAULT
    except ValueError as error:
        raise ToolError(f"{LIMIT}: {error}") from None
