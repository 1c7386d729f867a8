"""Folders of what was built, each found again as it was written or else built anew.

Beside the files of a folder stands ``manifest.json`` with the size and the SHA-256 digest of each. A file that a full
disk, a crash or a hand has cut short is never loaded: a truncated library would end this process by a signal.
"""

import contextlib
import fcntl
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from sim.verilated.processes import ToolError

__all__ = ["MANIFEST", "cached", "complete"]

MANIFEST = "manifest.json"

#: Sizes and times of files in folders that were found complete, so that nothing is read twice.
_seen: dict[Path, dict[str, tuple[int, int]]] = {}


def cached(directory: Path, build: Callable[[Path], None]) -> Path:
    """Make ``directory`` once, and again where a file in it is not as it was written.

    ``build`` fills a fresh folder next to it, which takes its name when complete: a failed or an interrupted build
    leaves nothing behind that could be taken for a result. Of two processes that want the same thing, one builds it
    and the other waits. What earlier builds have left because they were killed is removed.
    """
    if complete(directory):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(directory.parent, directory.name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete(directory):
            return directory
        _remove_stale(directory.parent, directory.name)
        fresh, replaced = (Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
                           for _ in range(2))
        try:
            build(fresh)
            _seal(fresh)
            if directory.exists():  # incomplete; no folder takes the name of one that has files
                directory.rename(replaced / directory.name)
            fresh.rename(directory)
        except OSError as error:  # such as a full disk, which names no file
            raise ToolError(f"{directory} could not be built: {error.strerror or error}") from error
        finally:
            for folder in (fresh, replaced):
                shutil.rmtree(folder, ignore_errors=True)
    return directory


def complete(directory: Path) -> bool:
    """Whether a folder has all files that were written into it, of the same size and with the same digest.

    Files in folders of that folder are not looked at: nothing is loaded from there.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        found = {name: _stamp(directory / name) for name in (*manifest, MANIFEST)}
        if _seen.get(directory) == found:
            return True
        for name, (size, digest) in manifest.items():
            if found[name][0] != size or _digest(directory / name) != digest:
                return False
    except (OSError, ValueError, TypeError, AttributeError):  # none, or none of ours
        return False
    _seen[directory] = found
    return True


def _seal(folder: Path) -> None:
    """Write the manifest of a folder."""
    manifest = {path.name: (path.stat().st_size, _digest(path)) for path in sorted(folder.iterdir())
                if path.is_file() and path.name != MANIFEST}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lock(parent: Path, name: str) -> Path:
    return parent / f".{name}.lock"


def _remove_stale(parent: Path, held: str) -> None:
    """Remove fresh folders whose builds have ended without them. A build that goes on holds the lock of its name.

    Parameters
    ----------
    parent : Path
    held : str
        Name whose lock the caller holds.
    """
    for path in parent.iterdir():
        match = re.fullmatch(r"\.(.+)-[a-z0-9_]{8}", path.name)
        if match is None or not path.is_dir():
            continue
        with contextlib.ExitStack() as stack:
            if match[1] != held:
                lock = stack.enter_context(_lock(parent, match[1]).open("w"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
            shutil.rmtree(path, ignore_errors=True)
