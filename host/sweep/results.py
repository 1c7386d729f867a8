"""Results of a sweep's jobs, kept in a file each: the digest of all that a result depends on is in its name.

So a job that has been done is done for good, and a result that has become stale is not found.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from host.output import write_json
from host.sweep.jobs import Job, JobKind
from sim.verilated import toolchain

__all__ = ["CELLS", "history", "load", "store"]

#: Cells that are counted of a unit, as :func:`boards.synth.measure` has them.
CELLS = ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram")


def store(folder: Path, job: Job, result: dict[str, Any], seconds: float) -> None:
    """Keep the result of a job, and the seconds for which it has kept a core busy."""
    record = {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest,
              "core_seconds": seconds, "result": result}
    write_json(folder / job.file, record)


def load(folder: Path, job: Job) -> dict[str, Any] | None:
    """The result of an earlier run of a job, if it still holds."""
    try:
        record = json.loads((folder / job.file).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or (record.get("digest"), record.get("parameters")) != (
            job.digest, job.parameters):
        return None
    result: dict[str, Any] = record["result"]
    if job.kind is JobKind.BUILD and not toolchain.complete(Path(result["library"]).parent):
        return None
    return result


def history(folder: Path, job: Job) -> float:
    """Seconds for which an earlier run of a job kept a core busy, even with other sources; else its estimate."""
    latest = 0.0
    seconds = job.estimate
    for path in folder.glob(f"{job.name}-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record, changed = json.loads(path.read_text()), path.stat().st_mtime
            # What was found in a cache tells nothing.
            if record["name"] == job.name and changed > latest and record["core_seconds"] > job.estimate / 4:
                latest, seconds = changed, float(record["core_seconds"])
    return seconds
