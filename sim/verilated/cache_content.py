"""Cache entries and their removal: least recently used first, but never while in use."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from sim.verilated import cache_folder
from sim.verilated.cache_entries import remove, remove_stale

__all__ = ["Entry", "Removed", "entries", "prune"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """Entry of the cache, which is a folder.

    Members
    -------
    kind : str
        One of :data:`~sim.verilated.cache_folder.KINDS`.
    path : Path
    size : int
        Size on disk in bytes.
    used : float
        Time of the last use, in seconds since the epoch.
    """

    kind: str
    path: Path
    size: int
    used: float


@dataclasses.dataclass(frozen=True)
class Removed:
    """Cache entries that were removed, and entries that were kept because they were in use."""

    gone: tuple[Entry, ...]
    kept: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Number of bytes freed by the removal."""
        return sum(entry.size for entry in self.gone)


def _size(folder: Path) -> int:
    """Size of a folder on disk in bytes."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as items:
        for item in items:
            with contextlib.suppress(FileNotFoundError):
                total += (_size(Path(item)) if item.is_dir(follow_symlinks=False)
                          else item.stat(follow_symlinks=False).st_blocks * 512)
    return total


def entries() -> list[Entry]:
    """List all entries, least recently used first.

    Raises
    ------
    ToolError
        The folder does not belong to the cache (:func:`sim.verilated.cache_folder.checked`).
    """
    return sorted(_entries(), key=lambda entry: (entry.used, entry.path))


def _entries() -> Iterator[Entry]:
    for kind in cache_folder.KINDS:
        folder = cache_folder.present(kind)
        for path in () if folder is None else folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process may remove the folder
                if cache_folder.is_entry(path.name) and path.is_dir() and not path.is_symlink():
                    yield Entry(kind, path, _size(path), path.stat().st_mtime)


def prune(*, most: int, least: int | None = None, before: float | None = None) -> Removed:
    """Remove cache entries and the remains of killed builds.

    Parameters
    ----------
    most : int
        Maximum total size of the entries in bytes; while it is exceeded, the least recently used entry is removed.
    least : int or None
        Total size in bytes to reach once ``most`` is exceeded; by default ``most``.
    before : float or None
        Entries that were last used before this time are removed in any case.

    Raises
    ------
    ToolError
        The folder does not belong to the cache (:func:`sim.verilated.cache_folder.checked`).
    """
    for kind in cache_folder.KINDS:
        folder = cache_folder.present(kind)
        if folder is not None:
            remove_stale(folder)
    candidates = entries()
    total = sum(entry.size for entry in candidates)
    target = most if total <= most or least is None else least
    gone, kept = [], []
    for entry in candidates:
        if total <= target and (before is None or entry.used >= before):
            continue
        if remove(entry.path):
            gone.append(entry)
            total -= entry.size
        else:
            kept.append(entry)
    return Removed(tuple(gone), tuple(kept))
