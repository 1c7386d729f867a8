"""Times that stages took when they were last done, to be shown when they are done again.

The times stand in ``stages.json`` of the cache folder. They are a convenience: where the file cannot be read or
written, nothing is known.
"""

import contextlib
import json
import math
from pathlib import Path

from host.output import OutputError, write_json
from sim.verilated import cache_folder

__all__ = ["LEAST", "known", "note"]

#: Seconds below which a stage was not done but found, or is not worth a word.
LEAST = 2.0
#: Stages that are kept, the latest ones.
_MOST = 100


def _path() -> Path:
    return cache_folder.root() / "stages.json"


def _read() -> dict[str, float]:
    try:
        found = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: seconds for name, seconds in found.items()
            if isinstance(seconds, float) and math.isfinite(seconds) and seconds >= LEAST}


def known(stage: str) -> float | None:
    """Seconds that a stage has taken when it last took :data:`LEAST` or more; None where it never has."""
    return _read().get(stage)


def note(stage: str, seconds: float) -> None:
    """Keep the seconds that a stage has taken, unless they are fewer than :data:`LEAST`."""
    if seconds < LEAST or not _path().parent.is_dir():
        return
    times = _read()
    times.pop(stage, None)
    times[stage] = round(float(seconds), 1)
    with contextlib.suppress(OutputError):
        write_json(_path(), dict(list(times.items())[-_MOST:]))
