"""Times that stages took when they were last done, in ``stages.json`` of the cache folder.

They are a convenience: where the file cannot be read or written, no time is known.
"""

import contextlib
import math
from pathlib import Path

from host.output import OutputError, write_json
from sim import json_files
from sim.verilated import cache_folder
from sim.verilated.processes import ToolError

__all__ = ["LEAST", "known", "note"]

#: Minimum seconds of a stage that is noted; a faster one was cached or is not worth a line.
LEAST = 2.0
#: Number of the latest stages that are kept.
_MOST = 100


def _path() -> Path | None:
    """The file in the cache folder, or None without such a folder, or if it is not the cache's."""
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
    """Seconds that a stage took when it last took :data:`LEAST` or more; None if it never did."""
    return _read().get(stage)


def note(stage: str, seconds: float) -> None:
    """Keep the seconds that a stage has taken, unless they are fewer than :data:`LEAST`."""
    path = _path()
    if seconds < LEAST or path is None:
        return
    times = _read()
    times.pop(stage, None)
    times[stage] = round(float(seconds), 1)
    with contextlib.suppress(OutputError):
        write_json(path, dict(list(times.items())[-_MOST:]))
