"""Entries of the on-disk cache: their manifest, names of adjacent files, and removal of entries."""

import contextlib
import re
import secrets
import shutil
from pathlib import Path

from sim.verilated import cache_folder
from sim.verilated.locks import entry_lock, folder_lock, in_use

__all__ = ["MANIFEST", "beside", "remove", "remove_stale"]

MANIFEST = "manifest.json"

#: Pattern for names of files and folders next to entries: folders that are being built or removed, and locks.
_BESIDE = re.compile(r"\.(.+)(-[0-9a-f]{8}|\.lock)")


def remove(directory: Path) -> bool:
    """Remove an entry unless a running process uses or builds it; return whether it was removed.

    Raises
    ------
    ValueError
        If the path is not a cache entry.
    """
    parent, gone = directory.parent, beside(directory)
    if (not cache_folder.is_entry(directory.name) or parent.name not in cache_folder.KINDS
            or cache_folder.present(parent.name) != parent or directory.is_symlink()):
        raise ValueError(f"Folder must be an entry of the cache, not {directory}")
    try:
        with entry_lock(parent, directory.name, wait=False), folder_lock(parent, shared=False):
            if directory.name in in_use(parent):
                return False
            directory.rename(gone)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    shutil.rmtree(gone, ignore_errors=True)
    return True


def remove_stale(parent: Path, *, held: str | None = None) -> None:
    """Remove temporary folders and lock files that killed builds have left. Builds in progress are not affected,
    since each holds the lock for its name.

    Parameters
    ----------
    parent : Path
    held : str or None
        Name for which the caller holds the lock.
    """
    for path in sorted(parent.iterdir()):
        match = _BESIDE.fullmatch(path.name)
        if match is None or not cache_folder.is_entry(match[1]) or path.is_symlink() or (
                not (path.is_file() if match[2] == ".lock" else path.is_dir())):
            continue
        with contextlib.ExitStack() as stack:
            if match[1] != held:
                try:
                    stack.enter_context(entry_lock(parent, match[1], wait=False))
                except BlockingIOError:
                    continue
            if match[2] != ".lock":
                shutil.rmtree(path, ignore_errors=True)
    with folder_lock(parent, shared=False):
        in_use(parent)


def beside(directory: Path) -> Path:
    """Name for a temporary folder next to an entry, in the form that :func:`remove_stale` recognizes."""
    return directory.with_name(f".{directory.name}-{secrets.token_hex(4)}")
