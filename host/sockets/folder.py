"""Folder for sockets in the system's temporary folder, or in a folder with a shorter path.

The process that uses a folder holds a lock in it. At each start, folders of this user with unlocked locks are
removed, since their processes were killed. Links are not followed, and only sockets and locks are removed.
"""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from host.sockets.connections import MAX_PATH

__all__ = ["socket_folder"]

_PREFIX, _LOCK = "gradring-sockets-", "lock"

_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # alternatives if the path of the temporary folder is too long


@contextlib.contextmanager
def socket_folder(names: Sequence[str] = ("ring",)) -> Iterator[Path]:
    """Create a folder for sockets with these names; it is removed when the block ends.

    Raises ``OSError`` if there is no writable folder with a short enough path.
    """
    parents = list(dict.fromkeys([tempfile.gettempdir(), *_SHORT]))
    for parent in parents:
        _remove_abandoned(parent, names)
    folder, lock = _make(parents, names)
    try:
        yield folder
    finally:
        for name in (*names, _LOCK):
            (folder / name).unlink(missing_ok=True)
        os.close(lock)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _make(parents: Sequence[str], names: Sequence[str]) -> tuple[Path, int]:
    """Create a folder, with a lock in it, in the first possible parent; return both, with the lock held."""
    longest = MAX_PATH - len(os.fsencode(os.path.join("/", f"{_PREFIX}12345678", max(names, key=len))))
    for parent in parents:
        if len(os.fsencode(parent)) > longest:
            continue
        try:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError:
            continue
        # The file is locked before it gets its final name, since other processes ignore folders without that name.
        lock = os.open(folder / f"{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / f"{_LOCK}.new").rename(folder / _LOCK)
        return folder, lock
    raise OSError(errno.ENAMETOOLONG, f"Temporary folder must be one that can be written to, with a path of at most "
                                      f"{longest} bytes, for a socket, not {parents[0]}: set TMPDIR to another one")


def _remove_abandoned(parent: str, names: Sequence[str]) -> None:
    """Remove this user's folders that no running process uses."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            if name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove(os.path.join(parent, name), names)


def _remove(path: str, names: Sequence[str]) -> None:
    """Remove a folder; raises ``OSError`` if its lock is held, or if it contains anything unexpected."""
    with contextlib.ExitStack() as opened:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        opened.callback(os.close, folder)
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened.callback(os.close, lock)
        if os.fstat(folder).st_uid != os.geteuid() or not stat.S_ISREG(os.fstat(lock).st_mode):
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=folder)
        if os.listdir(folder) == [_LOCK]:
            os.unlink(_LOCK, dir_fd=folder)
            os.rmdir(path)
