"""Cache of build products: a folder is reused as long as it is unchanged, and rebuilt otherwise.

Each folder also contains ``manifest.json`` with the size and SHA-256 digest of every file. Files that have been
truncated or modified, by a full disk, a crash or a person, are never used: loading a truncated library would crash
this process. Subfolders are not kept, so everything in an entry has a digest.

Any number of processes may need the same folder at the same time (:mod:`sim.verilated.locks`). The paths come from
:mod:`sim.verilated.cache_folder`, and :mod:`sim.verilated.cache_bound` keeps the cache from filling the disk.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim import json_files
from sim.verilated import cache_folder
from sim.verilated.cache_bound import built
from sim.verilated.cache_entries import MANIFEST, beside, remove_stale
from sim.verilated.locks import entry_lock, use
from sim.verilated.processes import ToolError

__all__ = ["cached", "complete"]

#: Amount of free space in bytes below which a failed program is assumed to have filled the disk.
_FULL = 1 << 20

#: Sizes and times of the files in folders known to be complete, so that each file is read only once.
_seen: dict[Path, dict[str, tuple[int, int]]] = {}


def cached(directory: Path, build: Callable[[Path], None], *,
           announce: Callable[[str], None] = lambda stage: None) -> Path:
    """Build ``directory`` once, and rebuild it only if one of its files has changed.

    ``build`` fills a fresh folder, which is renamed to ``directory`` when complete, so a failed or interrupted build
    leaves nothing that could be mistaken for a result. If two processes need the same entry, one builds it and the
    other waits. Leftovers of killed builds are removed. No other process removes the folder as long as this process
    runs.

    Parameters
    ----------
    directory : Path
        A cache entry, in the folder of its kind and with a digest in its name.
    build : callable
        Function that is called with the fresh folder and must write at least one file into it. Subfolders are removed
        at the end of the build.
    announce : callable
        Called with a line of text if this process waits for another process that builds the same entry.

    Raises
    ------
    ToolError
        The folder cannot be written, or does not belong to the cache; the message names the folder and the remedy.
    ValueError
        The folder is not an entry of the cache.
    """
    parent, name = directory.parent, directory.name
    if not cache_folder.is_entry(name):
        raise ValueError(f"Entry of the cache must have a name with a digest of 24 hexadecimal digits, not {name!r}")
    try:
        cache_folder.make(parent)
        use(parent, name)
    except OSError as error:
        if complete(directory):  # without write access, existing entries are still usable
            return directory
        raise _refusal(parent, error) from error
    if complete(directory):
        _touch(directory)
        return directory
    limit = cache_folder.limit()  # check the limit now, so that an error is raised before the long build
    try:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(entry_lock(parent, name, wait=False))
            except BlockingIOError:
                announce("waiting for another process that builds the same")
                held.enter_context(entry_lock(parent, name))
            if complete(directory):
                return directory
            remove_stale(parent, held=name)
            size = _build(directory, build)
    except OSError as error:  # an error that names no file, for example on a full disk
        raise _refusal(directory, error) from error
    built(size, limit)
    return directory


def _build(directory: Path, build: Callable[[Path], None]) -> int:
    """Build a folder while its lock is held; return its size in bytes."""
    fresh, replaced = beside(directory), beside(directory)
    try:
        fresh.mkdir(mode=0o755)
        try:
            build(fresh)
        except ToolError as error:
            if shutil.disk_usage(fresh).free < _FULL:
                raise _refusal(directory, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from error
            raise
        size = _seal(fresh)
        if directory.is_symlink():
            directory.unlink()
        elif directory.exists():  # incomplete; a folder cannot be renamed to a non-empty one
            directory.rename(replaced)
        fresh.rename(directory)
        return size
    finally:
        for folder in (fresh, replaced):
            shutil.rmtree(folder, ignore_errors=True)


def complete(directory: Path) -> bool:
    """Whether a folder contains all files as written, with unchanged sizes and digests.

    A folder is not complete if other users may write to it or to its files, or if the folder or a file has been
    replaced by a link.
    """
    try:
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or not cache_folder.owned(status):
            return False
        stamps = {MANIFEST: _stamp(directory / MANIFEST)}
        manifest = _manifest(json_files.read(directory / MANIFEST))
        stamps |= {name: _stamp(directory / name) for name in manifest}
        if _seen.get(directory) == stamps:
            return True
        for name, (size, digest) in manifest.items():
            if stamps[name][0] != size or _digest(directory / name) != digest:
                return False
    except (OSError, ValueError):
        return False
    _seen[directory] = stamps
    return True


def _manifest(value: Any) -> dict[str, tuple[int, str]]:
    """Size and digest of each file; raises ``ValueError`` if :func:`_seal` did not write the value."""
    if not isinstance(value, dict) or not value:
        raise ValueError("manifest must be an object of files, at least of a single one")
    for name, entry in value.items():
        if name in ("", ".", "..", MANIFEST) or "/" in name or "\0" in name:
            raise ValueError("manifest must have names of files in the folder")
        if not isinstance(entry, list) or [type(part) for part in entry] != [int, str]:
            raise ValueError("manifest must have the size and the digest of each file")
    return {name: (size, digest) for name, (size, digest) in value.items()}


#: Error numbers that only a write can cause, and those among them that are due to a lack of disk space.
_WRITING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EEXIST,
            errno.ENOTDIR, errno.ENAMETOOLONG, errno.ENOLCK)
_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _refusal(folder: Path, error: OSError) -> ToolError:
    reason = error.strerror or str(error)
    reason = reason[:1].lower() + reason[1:]
    if error.errno not in _WRITING:
        named = f" ({error.filename})" if error.filename else ""
        return ToolError(f"{folder} could not be built: {reason}{named}")
    advice = f"set {cache_folder.VARIABLE} to a folder that can be"
    if error.errno in _ROOM:
        advice = f"make room there ('gradring cache' shows what there is), or {advice}"
    return ToolError(f"{folder} cannot be written: {reason}; {advice}")


def _seal(folder: Path) -> int:
    """Remove subfolders, write the manifest, and return the total size of all files in bytes.

    Other users cannot write to the files, regardless of this user's umask.
    """
    manifest = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            _restrict(path)
            manifest[path.name] = (_stamp(path)[0], _digest(path))
    if not manifest:
        raise ToolError(f"{folder} must have at least a file once it is built")
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    _restrict(folder / MANIFEST)
    return sum(size for size, _ in manifest.values())


def _restrict(path: Path) -> None:
    """Revoke other users' write access to a file."""
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        raise ToolError(f"{path} must be a file once it is built, not a link or a device")
    path.chmod(stat.S_IMODE(mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def _touch(directory: Path) -> None:
    """Record that a folder is in use by setting its modification time."""
    with contextlib.suppress(OSError):
        os.utime(directory)


def _stamp(path: Path) -> tuple[int, int]:
    """Size and modification time of a file; raises ``ValueError`` unless only this user may write to it."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or not cache_folder.owned(status):
        raise ValueError(f"{path} must be a file that no other user may write")
    return status.st_size, status.st_mtime_ns


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
