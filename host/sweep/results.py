"""Results of a sweep's jobs, kept in a file each: the digest of all that a result depends on is in its name.

So a job that has been done is done for good, and a result that has become stale is not found.
"""

import contextlib
from pathlib import Path
from typing import Any

from host.output import write_json
from host.sweep.jobs import Job, JobKind
from sim import json_files
from sim.verilated import toolchain

__all__ = ["CELLS", "history", "load", "store"]

#: Cells that are counted of a unit, as :func:`boards.synth.measure` has them.
CELLS = ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram")


def store(folder: Path, job: Job, result: dict[str, Any], seconds: float) -> None:
    """Keep the result of a job, and the seconds for which it has kept a core busy."""
    record = {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest,
              "core_seconds": seconds, "result": result}
    write_json(folder / job.file, json_files.sealed(record))


def load(folder: Path, job: Job) -> dict[str, Any] | None:
    """The result of an earlier run of a job, if it still holds and its file is as it was written."""
    try:
        record = json_files.read_sealed(folder / job.file)
    except (OSError, ValueError):
        return None
    if (record["digest"], record["parameters"]) != (job.digest, job.parameters):
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
        with contextlib.suppress(OSError, ValueError):
            record, changed = json_files.read_sealed(path), path.stat().st_mtime
            # A result from a cache has no time of its own.
            if record["name"] == job.name and changed > latest and record["core_seconds"] > job.estimate / 4:
                latest, seconds = changed, float(record["core_seconds"])
    return seconds
