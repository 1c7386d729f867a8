"""Entries of the cache on disk: their manifest, the names of files beside them, and their removal."""

import contextlib
import re
import secrets
import shutil
from pathlib import Path

from sim.verilated.locks import entry_lock, folder_lock, in_use

__all__ = ["MANIFEST", "beside", "remove", "remove_stale"]

MANIFEST = "manifest.json"


def remove(directory: Path) -> bool:
    """Remove a folder unless a living process uses or builds it, and return whether it is gone."""
    parent, gone = directory.parent, beside(directory)
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
    """Remove the remains of killed builds: fresh folders, locks and notes. A build that goes on holds the lock of
    its name.

    Parameters
    ----------
    parent : Path
    held : str or None
        Name whose lock the caller holds.
    """
    for path in sorted(parent.iterdir()):
        match = re.fullmatch(r"\.(.+)(-[a-z0-9_]{8}|\.lock)", path.name)
        if match is None or (match[2] == ".lock") != path.is_file():
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
    """Name of a folder next to another one that :func:`remove_stale` knows."""
    return directory.with_name(f".{directory.name}-{secrets.token_hex(4)}")
