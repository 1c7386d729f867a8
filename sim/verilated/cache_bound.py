"""Bound on the cache size: a build that exceeds it removes the least recently used entries."""

import contextlib
import os
import time

from sim.verilated import cache_folder
from sim.verilated.cache_content import prune

__all__ = ["built"]

#: Fraction of the limit that remains after pruning, so that not every build prunes.
_LEFT = 0.9
#: When a process checks the cache size: after it has added this fraction of the limit, or on its first build if the
#: last check was this many seconds ago.
_UNSEEN, _INTERVAL = 0.01, 600
_TIDIED = "tidied"

#: Bytes built by this process since the last size check; None until the time of that check is known.
_added: int | None = None


def built(added: int, most: int) -> None:
    """Record a build, and prune the cache if it has probably exceeded its limit.

    Parameters
    ----------
    added, most : int
        Size of the build and maximum size of all entries, in bytes.
    """
    global _added
    stamp = cache_folder.root() / _TIDIED
    if _added is None:
        try:
            recent = 0 <= time.time() - stamp.lstat().st_mtime < _INTERVAL
        except OSError:
            recent = False
        _added = 0 if recent else most
    _added += added
    if _added <= _UNSEEN * most:
        return
    _added = 0
    with contextlib.suppress(OSError):  # the build has succeeded, even if pruning fails
        descriptor = os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.utime(descriptor)
        finally:
            os.close(descriptor)
        prune(most=most, least=int(_LEFT * most))
