"""The cache folder: path, tag and size limit.

All clones share the folder, since they produce the same Verilog, Verilated libraries, simulators, netlists and
placements. It is ``GRADRING_CACHE`` if set, otherwise the user's cache folder. Results of commands are stored
elsewhere (:data:`sim.verilated.toolchain.BUILD`).

``CACHEDIR.TAG`` marks the folder. A folder without this tag is never written to unless the folder is empty, so that a
mistyped variable cannot destroy files. A folder that other users may write to is never used, since its libraries are
executed.

Users without a home folder, as in some containers, get a private folder in the temporary folder instead.
"""

import contextlib
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path

import platformdirs

from sim.verilated.processes import ToolError

__all__ = ["KINDS", "LIMIT", "TAG", "VARIABLE", "checked", "folder", "is_entry", "limit", "make", "owned", "present",
           "root", "size"]

#: Environment variables that set the cache folder and the maximum size of the cache in bytes.
VARIABLE, LIMIT = "GRADRING_CACHE", "GRADRING_CACHE_LIMIT"

#: Folders in the cache, with the purpose of each.
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

#: Name of the file that marks the cache: the first line is the same in any cache, the second specific to this one.
TAG = "CACHEDIR.TAG"
_TAG = ("Signature: 8a477f597d28d172789f06886806bc55\n"
        "# Everything here is found again by its digest and built again where it is gone. See gradring cache.\n"
        "# For information about cache directory tags see https://bford.info/cachedir/\n")
#: Entry names consist of any text, a digest, and a suffix that distinguishes entries with the same digest.
_ENTRY = re.compile(r"[^./\s][^/\s]*-[0-9a-f]{24}(-[^/\s]+)?")
#: Permissions of folders, before the user's umask is applied: only the owner may write.
_MODE = 0o755

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def root() -> Path:
    """Return the path of the cache folder, which may not exist yet.

    A relative ``GRADRING_CACHE`` is resolved against the current folder at its first use, and programs started by
    this process inherit the result.

    For a user without a home folder, it is a private folder in the temporary folder. ``XDG_CACHE_HOME`` is also set
    to it, so that tools started by this process have a cache as well.

    Raises
    ------
    ToolError
        ``GRADRING_CACHE`` begins with the home folder of a user who has none; or there is no home folder, and no
        private folder can be created instead.
    """
    value = os.environ.get(VARIABLE)
    if not value:
        path = _user_folder()
        if path is None:
            os.environ["XDG_CACHE_HOME"] = str(_private())
            path = _user_folder()
        return Path(os.environ["XDG_CACHE_HOME"], "gradring") if path is None else path
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        raise ToolError(f"{VARIABLE} must be a folder, not {value!r}: there is no such user") from None
    if not path.is_absolute() or str(path) != value:
        path = path.absolute()
        os.environ[VARIABLE] = str(path)
    return path


def _user_folder() -> Path | None:
    """The user's cache folder, or None for a user without a home folder."""
    try:
        path = Path(platformdirs.user_cache_dir("gradring", appauthor=False))
    except RuntimeError:
        return None
    return path if path.is_absolute() else None


def _private() -> Path:
    """Create, if necessary, a folder in the temporary folder that only this user can access.

    Raises
    ------
    ToolError
        The folder cannot be created, or another user has created it.
    """
    path = Path(tempfile.gettempdir(), f"gradring-{os.geteuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.lstat()
    except OSError as error:
        raise ToolError(f"Home folder must be known for the cache, and {path} cannot be made in its stead: "
                        f"{error.strerror}; set {VARIABLE} to a folder") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ToolError(f"Home folder must be known for the cache, and {path} must be a folder of this user only in "
                        f"its stead: set {VARIABLE} to a folder")
    return path


def folder(kind: str) -> Path:
    """Path of the folder for one of :data:`KINDS`."""
    if kind not in KINDS:
        raise ValueError(f"Kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return root() / kind


def is_entry(name: str) -> bool:
    """Whether a name contains a digest in the expected form."""
    return _ENTRY.fullmatch(name) is not None


def present(kind: str) -> Path | None:
    """Folder for one of :data:`KINDS`, or None if it does not exist or has been replaced by a link.

    Raises
    ------
    ToolError
        See :func:`checked`.
    """
    top = checked()
    path = None if top is None else top / kind
    return path if path is not None and path.is_dir() and not path.is_symlink() else None


def owned(status: os.stat_result) -> bool:
    """Whether only this user or the system administrator can write to a file or folder."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Raise ``ToolError`` if other users may write to a folder."""
    if status.st_uid not in (0, os.geteuid()):
        raise ToolError(f"Cache folder {path} must be of this user, not of user {status.st_uid}, since its libraries "
                        f"are run: set {VARIABLE} to a folder of your own")
    if not owned(status):
        raise ToolError(f"Cache folder {path} must be writable for its owner only, not for other users, since its "
                        f"libraries are run: use 'chmod -R go-w' on it if they are trusted, or set {VARIABLE} to "
                        f"another folder")


def _tagged(top: Path) -> bool:
    """Whether a folder contains the tag of this cache."""
    try:
        descriptor = os.open(top / TAG, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        return os.read(descriptor, 4096).splitlines()[:2] == _TAG.encode().splitlines()[:2]
    finally:
        os.close(descriptor)


def checked() -> Path | None:
    """Path of the cache folder, or None if the folder does not exist or is still empty.

    Raises
    ------
    ToolError
        The path is not a folder, or the folder contains other files or may be written to by other users; the message
        gives the remedy.
    OSError
        The folder cannot be read.
    """
    top = root()
    try:
        status = top.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise ToolError(f"Cache folder {top} must be a folder, not a file: set {VARIABLE} to another path")
    if not _tagged(top):
        # Check the tag first: another process may have written it and created folders in the meantime.
        if not any(_other(name) for name in os.listdir(top)):
            return None
        if not _tagged(top):
            raise ToolError(f"Cache folder {top} must be empty or have the {TAG} of gradring, not other files: set "
                            f"{VARIABLE} to another folder, or empty this one if it was a cache")
    _check_owner(top, status)
    return top


def _other(name: str) -> bool:
    """Whether a name in the cache folder is not the name of a temporary file for the tag."""
    return re.fullmatch(rf"\.{re.escape(TAG)}-[0-9a-f]{{8}}", name) is None


def make(path: Path) -> None:
    """Create the folder for a kind of entry, after the cache folder with its tag.

    Raises
    ------
    ToolError
        See :func:`checked`; or the path is a link, or a folder that other users may write to.
    OSError
        The folder cannot be created.
    """
    top = root()
    if path.parent != top or path.name not in KINDS:
        raise ValueError(f"Folder must be that of a kind in the cache {top}, not {path}")
    if checked() is None:
        top.mkdir(mode=_MODE, parents=True, exist_ok=True)
        _check_owner(top, top.stat())
        _mark(top)
    path.mkdir(mode=_MODE, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{path} must be a folder, not a link, since nothing is removed through a link: remove it, "
                        f"or set {VARIABLE} to another folder")
    _check_owner(path, status)


def _mark(top: Path) -> None:
    """Write the cache folder's tag file atomically."""
    part = top / f".{TAG}-{secrets.token_hex(4)}"
    try:
        part.write_text(_TAG)
        part.replace(top / TAG)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def size(text: str) -> int:
    """Convert a size such as ``5GB``, ``500 MB`` or ``1.5GiB`` to bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text, flags=re.IGNORECASE)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"Size must be a number of bytes such as 5GB or 500MB, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def limit() -> int:
    """Maximum size of the cache in bytes: ``GRADRING_CACHE_LIMIT``, or 10 GB.

    Raises
    ------
    ToolError
        The variable is not a valid size.
    """
    value = os.environ.get(LIMIT)
    try:
        return size(value) if value else _DEFAULT
    except ValueError as error:
        raise ToolError(f"{LIMIT}: {error}") from None
