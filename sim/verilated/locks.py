"""Interprocess locks on a folder of entries, and notes that list the entries each process uses.

In addition to its entries, the folder contains

- ``.lock``, which is held briefly, shared to start using an entry and exclusively to remove one;
- ``.<name>.lock``, which is held while the entry with that name is built or removed, and deleted on release;
- ``.users/``, with one file per process that lists the entries it uses, one per line. A process keeps its file locked
  as long as it runs, so an unlocked file does not belong to a running process.

All locks end with the process that holds them, even if it is killed.
"""

import atexit
import contextlib
import errno
import fcntl
import os
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["entry_lock", "folder_lock", "in_use", "release_all", "use"]

_USERS = ".users"
#: Names of the files in ``.users/``: a process ID and a random number.
_NOTE = re.compile(r"[0-9]+-[0-9a-f]{8}")


def _acquire(path: Path, operation: int) -> int:
    """Lock a lock file and return its descriptor; retry if the file has lost its name meanwhile."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder of the lock has deleted the file


@contextlib.contextmanager
def entry_lock(parent: Path, name: str, *, wait: bool = True) -> Iterator[None]:
    """Lock the entry with this name; the entry need not exist.

    Raises
    ------
    BlockingIOError
        Another process or thread holds the lock, and ``wait`` is False.
    """
    path = parent / f".{name}.lock"
    descriptor = _acquire(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # delete before unlocking, so that no file without an owner remains
        os.close(descriptor)


@contextlib.contextmanager
def folder_lock(parent: Path, *, shared: bool) -> Iterator[None]:
    """Lock the folder: shared, to prevent removal of entries, or exclusively, to prevent new uses of entries."""
    descriptor = _acquire(parent / ".lock", fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


class _Note:
    """Return the path of this process's note file in a folder of entries."""

    def __init__(self, parent: Path) -> None:
        folder = parent / _USERS
        folder.mkdir(mode=0o755, exist_ok=True)
        if folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        self.names: set[str] = set()
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    @property
    def linked(self) -> bool:
        """Return whether the file still exists under its name, since a user may have deleted it."""
        return os.fstat(self._descriptor).st_nlink > 0

    def add(self, name: str) -> None:
        os.write(self._descriptor, f"{name}\n".encode())
        self.names.add(name)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


_notes: dict[Path, _Note] = {}
_guard = threading.Lock()


def _after_fork() -> None:
    """Start new notes in a child process; the parent keeps its own entries."""
    global _guard
    _guard = threading.Lock()
    _notes.clear()


os.register_at_fork(after_in_child=_after_fork)


def use(parent: Path, name: str) -> None:
    """Record that this process uses an entry, so that no other process removes the entry until this process ends.

    Raises
    ------
    OSError
        The folder cannot be written to.
    """
    with _guard:
        note = _notes.get(parent)
        if note is not None and name in note.names and note.linked:
            return
        with folder_lock(parent, shared=True):
            if note is None or not note.linked:
                names = set() if note is None else note.names
                note = _notes[parent] = _Note(parent)
                for earlier in sorted(names):
                    note.add(earlier)
            note.add(name)


def in_use(parent: Path) -> set[str]:
    """Return the names of the entries in use by running processes, including this one.

    Requires an exclusive :func:`folder_lock`. Removes files of processes that have ended.
    """
    names: set[str] = set()
    users = parent / _USERS
    for path in () if users.is_symlink() else users.glob("*"):
        if not _NOTE.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            continue
        try:
            file = path.open()
        except FileNotFoundError:
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                names.update(file.read().splitlines())
            else:
                path.unlink(missing_ok=True)
    return names


@atexit.register
def release_all() -> None:
    """Remove this process's notes when it exits."""
    with _guard:
        for note in _notes.values():
            note.close()
        _notes.clear()
