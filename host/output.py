"""Output folder of a run: it is checked before work begins, and its files are either complete or absent.

A folder contains the results of one run. The run locks it and moves the results of the previous run to ``previous/``.

Example
-------
::

    claim(folder, files=("report.json", "report.png"), space=1_000_000)
    ...
    write_json(folder / "report.json", report)
"""

import atexit
import contextlib
import errno
import fcntl
import glob
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from sim import json_files

__all__ = ["PREVIOUS", "OutputError", "claim", "json_bytes", "prepare", "release", "replacing", "write_bytes",
           "write_json"]

#: Subfolder of a run's folder that holds the results of the previous run.
PREVIOUS = "previous"


class OutputError(OSError):
    """Raised if a result cannot be written; the message names the path, the reason and a remedy."""

    def __str__(self) -> str:
        return str(self.args[-1])


#: Age in seconds from which an unlocked temporary file counts as left behind by a killed process.
_YOUNG = 60

#: File in a run's folder that the run locks; it contains the process ID.
_LOCK = ".run.lock"

#: File descriptors of the locks that this process holds, keyed by the real path of the folder.
_claimed: dict[Path, int] = {}

_ADVICE = {
    errno.ENOSPC: "make room, or choose another folder with --output",
    errno.EDQUOT: "make room, or choose another folder with --output",
    errno.EFBIG: "raise the limit on the size of files, or choose another folder with --output",
}


def _refusal(path: Path, error: OSError) -> OutputError:
    """Create the error for a path that this process is not permitted to write."""
    code = error.errno or errno.EIO
    reason = os.strerror(code)
    advice = _ADVICE.get(code, "choose another folder with --output")
    return OutputError(code, f"{path} cannot be written: {reason[:1].lower()}{reason[1:]}; {advice}")


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Create a private temporary file that can later replace the file at ``path``."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with beside.open("wb") as file:
        with contextlib.suppress(OSError):  # this file system has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield beside, file


def _remove_stale(path: Path) -> None:
    """Remove temporary files that killed processes left next to a file. Running processes lock their files."""
    for beside in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError), beside.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A newly created file may not be locked yet.
            if time.time() - os.fstat(file.fileno()).st_mtime > _YOUNG:
                beside.unlink(missing_ok=True)


def prepare(folder: Path, *, files: Sequence[str] = (), space: int = 0) -> Path:
    """Create a folder with its parents, check that results can be written to it, and return it.

    Each name in ``files`` must be unused or belong to a file that can be replaced, and ``space`` bytes must be free
    on the disk; otherwise, an ``OutputError`` names the first path that cannot be written.
    """
    try:
        os.fsencode(folder)
    except UnicodeEncodeError:
        raise OutputError(errno.EILSEQ, f"Output folder must have a name that the system's encoding can spell, not "
                                        f"{str(folder)!r}") from None
    if "\0" in str(folder):
        raise OutputError(errno.EINVAL, f"Output folder must have a name without zero bytes, not {str(folder)!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputError(errno.ENOTDIR, f"Output must be a folder, not the file {folder}") from None
    except OSError as error:
        raise _refusal(folder, error) from None
    for name in files or ("results",):
        path = folder / name
        if path.is_dir():
            raise OutputError(errno.EISDIR, f"{path} must be a file or free, not a folder: remove it, or choose "
                                            f"another folder with --output")
        try:
            _remove_stale(path)
            with _beside(path) as (beside, file):
                try:
                    file.write(b"\0")
                    file.flush()
                finally:
                    beside.unlink()
        except OSError as error:
            raise _refusal(path, error) from None
    free = shutil.disk_usage(folder).free
    if free < space:
        raise OutputError(errno.ENOSPC, f"{folder} must have {space:,} bytes free, not {free:,}: make room, or "
                                        f"choose another folder with --output")
    return folder


def claim(folder: Path, *, files: Sequence[str], keep: Sequence[str] = (), space: int = 0) -> Path:
    """Begin a run in a folder: check and lock the folder, move old results to ``previous/``, and return the folder.

    The lock is released by :func:`release`, or when the process ends for any reason. ``files`` lists all files that
    runs of this kind write, relative to the folder; only these are moved, and replaced in an older ``previous/``.
    Files in ``keep`` stay, because the run continues from them. Raises ``OutputError`` if a run is active in the
    folder, or files cannot be written or moved.
    """
    prepare(folder, files=[name for name in files if "/" not in name], space=space)
    _lock(folder)
    _put_away(folder, files, keep)
    return folder


def _lock(folder: Path) -> None:
    """Lock a folder for this process, unless it already holds the lock."""
    real, path = folder.resolve(), folder / _LOCK
    while real not in _claimed:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _refusal(path, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise OutputError(errno.EBUSY, f"{folder} must have no run that is going, not that of process {process}: "
                                           f"wait for its end, or choose another folder with --output") from None
        except OSError:  # this file system has no locks
            pass
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                _claimed[real] = descriptor
                return
        os.close(descriptor)  # its previous owner has removed the lock file: try again


@atexit.register
def release() -> None:
    """Release the locks that this process holds on the folders of its runs."""
    while _claimed:
        folder, descriptor = _claimed.popitem()
        with contextlib.suppress(OSError):
            (folder / _LOCK).unlink(missing_ok=True)  # removed while still locked, so that no unowned file remains
        os.close(descriptor)


def _forget() -> None:
    """Close the locks that a forked process has inherited; the parent process keeps them."""
    while _claimed:
        os.close(_claimed.popitem()[1])


os.register_at_fork(after_in_child=_forget)


def _put_away(folder: Path, files: Sequence[str], keep: Sequence[str]) -> None:
    """Move results to ``previous/``, replacing files with the same names there."""
    previous = folder / PREVIOUS
    moved = [name for name in files if name not in keep and os.path.lexists(folder / name)]
    if not moved:
        return
    if previous.is_symlink() or (previous.exists() and not previous.is_dir()):
        raise OutputError(errno.ENOTDIR, f"{previous} must be a folder or free, not a file or a link: rename it, or "
                                         f"choose another folder with --output")
    for name in files:
        if (previous / name).is_dir():
            raise OutputError(errno.EISDIR, f"{previous / name} must be a file or free, not a folder: rename it, or "
                                            f"choose another folder with --output")
    for name in files:
        path = previous / name
        try:
            path.unlink(missing_ok=True)
            if name in moved:
                path.parent.mkdir(parents=True, exist_ok=True)
                (folder / name).replace(path)
        except OSError as error:
            raise _refusal(path, error) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` once it has been written to disk completely. If the block or the process
    ends early, ``path`` is unchanged. Raises ``OutputError`` if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _beside(path) as (beside, file):
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                beside.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    beside.unlink(missing_ok=True)
                raise
        _sync(path.parent)
    except BaseException as error:
        if isinstance(error, OSError) and not isinstance(error, OutputError):
            raise _refusal(path, error) from error
        raise


def _sync(folder: Path) -> None:
    """Flush a folder's directory entries to disk if the system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file completely or not at all; see :func:`replacing`."""
    with replacing(path) as file:
        file.write(data)


def json_bytes(value: Any, *, indent: int | None = 2) -> bytes:
    """Encode a value as JSON that ends with a newline; for non-finite numbers, see :func:`sim.json_files.finite`."""
    return (json.dumps(json_files.finite(value), indent=indent, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, indented by two spaces. See :func:`replacing` and :func:`json_bytes`."""
    write_bytes(path, json_bytes(value))
