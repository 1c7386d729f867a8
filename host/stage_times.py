"""Durations of stages in previous runs, stored in ``stages.json`` of the cache folder.

The file is optional: if it cannot be read or written, durations are simply unknown.
"""

import contextlib
import math
from pathlib import Path

from host.output import OutputError, write_json
from sim import json_files
from sim.verilated import cache_folder
from sim.verilated.processes import ToolError

__all__ = ["LEAST", "known", "note"]

#: Minimum duration to record, in seconds. A faster stage was cached, or is too short to show.
LEAST = 2.0
#: Number of stages to keep. The oldest stages are removed.
_MOST = 100


def _path() -> Path | None:
    """Return the path of ``stages.json``, or None if the cache folder is missing or not owned by the cache."""
    try:
        folder = cache_folder.checked()
    except (OSError, ToolError):
        return None
    return None if folder is None else folder / "stages.json"


def _read() -> dict[str, float]:
    path, times = _path(), None
    with contextlib.suppress(OSError, ValueError):
        times = None if path is None else json_files.read(path)
    return {name: seconds for name, seconds in (times.items() if isinstance(times, dict) else ())
            if isinstance(seconds, float) and math.isfinite(seconds) and seconds >= LEAST}


def known(stage: str) -> float | None:
    """Return the latest recorded duration of a stage in seconds, at least :data:`LEAST`, or None."""
    return _read().get(stage)


def note(stage: str, seconds: float) -> None:
    """Record the duration of a stage in seconds, unless it is shorter than :data:`LEAST`."""
    path = _path()
    if seconds < LEAST or path is None:
        return
    times = _read()
    times.pop(stage, None)
    times[stage] = round(float(seconds), 1)
    with contextlib.suppress(OutputError):
        write_json(path, dict(list(times.items())[-_MOST:]))
