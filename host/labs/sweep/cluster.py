"""Run a sweep's jobs on the workers of a Dask cluster, on any number of machines.

Prerequisites of a job are passed as futures, so the scheduler runs them first. If a worker dies, its nanny restarts
it and another worker repeats the job, unless this or an earlier run has already saved its result.

All workers need the same sources and the same path to the results folder. A library that was built on another machine
is rebuilt by the first run that needs it.
"""

import asyncio
import contextlib
import importlib.util
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from host.labs.sweep.jobs import Ended, Engine, Job, Running, SweepError, load
from host.labs.sweep.worker import QUIET, attempt, job_of, order_of
from host.printable import one_line

__all__ = ["ClusterEngine", "needed"]

_ANSWERS = 10  # time limit in seconds for a scheduler's answer


def needed() -> None:
    """Raise ValueError if Dask is not installed."""
    if importlib.util.find_spec("distributed") is None:
        raise ValueError("Dask must be installed for sweeps on many machines: pip install gradring[cluster], or make "
                         ".venv/.cluster in a clone")


async def _identity(scheduler: str) -> Any:
    """Send an identity request, which every Dask server answers, and return the response."""
    from distributed.comm import connect

    connection = await connect(scheduler, timeout=_ANSWERS)
    try:
        await connection.write({"op": "identity"})
        return await connection.read()
    finally:
        connection.abort()


def _check(scheduler: str) -> None:
    """Raise :class:`SweepError` unless a scheduler answers; a client would wait forever and print tracebacks."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        answer = asyncio.run(asyncio.wait_for(_identity(scheduler), _ANSWERS))
        kind = answer.get("type") if isinstance(answer, dict) else "program without a name"
        reason = "" if kind == "Scheduler" else f"it is a {kind}"
    except TimeoutError:
        reason = f"it has not done so within {_ANSWERS} seconds"
    except Exception as error:  # any type: the server may not be Dask
        reason = one_line(error)
    finally:
        logging.disable(disabled)
    if reason:
        raise SweepError(f"Scheduler {scheduler} must be one of Dask that answers: {reason}")


def _task(order: dict[str, Any], folder: str, *needs: dict[str, Any]) -> dict[str, Any]:
    """Run a job on a worker after its prerequisites; return its name, duration in seconds and any error."""
    begun, error = time.monotonic(), None
    job = job_of(order)
    failed = next((need["name"] for need in needs if need["error"] is not None), None)
    if failed is not None:
        error = f"{failed} has failed"
    elif job.digest != order["digest"] or load(Path(folder), job) is None:
        error = attempt(order, Path(folder))
    return {"name": job.name, "seconds": time.monotonic() - begun, "error": error}


class ClusterEngine(Engine):
    """Engine that runs jobs as tasks of a Dask cluster with a results folder shared by all workers.

    Raises ``SweepError`` if the scheduler (such as ``tcp://host:8786``) does not answer or has no workers.
    """

    def __init__(self, scheduler: str, folder: Path):
        from distributed import Client

        self._folder = folder.resolve()
        _check(scheduler)
        try:
            self._client = Client(scheduler, timeout=_ANSWERS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise SweepError(f"Scheduler {scheduler} must be one of Dask that answers: {error}") from None
        self.cores = sum(self._client.nthreads().values())
        if not self.cores:
            self._client.close()
            raise SweepError(f"Scheduler {scheduler} must have workers, not none")
        self._jobs: dict[str, Job] = {}
        self._futures: dict[str, Any] = {}

    def submit(self, job: Job, needs: Sequence[str]) -> None:
        self._jobs[job.name] = job
        self._futures[job.name] = self._client.submit(
            _task, order_of(job), str(self._folder), *(self._futures[name] for name in needs),
            key=f"{job.name}-{job.digest}", pure=False)

    @contextlib.contextmanager
    def run(self) -> Iterator[Iterator[Ended | Running]]:
        try:
            yield self._steps()
        finally:
            self._client.cancel(list(self._futures.values()))
            self._client.close()

    def _steps(self) -> Iterator[Ended | Running]:
        from distributed import wait

        left, begun = dict(self._futures), {}
        while left:
            names = {key for keys in self._client.processing().values() for key in keys}
            running = [name for name, future in left.items() if future.key in names]
            begun.update({name: time.monotonic() for name in running if name not in begun})
            yield Running([(name, "", time.monotonic() - begun[name]) for name in running])
            with contextlib.suppress(TimeoutError), self._client.as_current():
                wait(list(left.values()), timeout=QUIET, return_when="FIRST_COMPLETED")
            for name in [name for name, future in left.items() if future.done()]:
                yield self._ended(name, left.pop(name))

    def _ended(self, name: str, future: Any) -> Ended:
        if future.status == "finished":
            result = future.result()
            return Ended(self._jobs[name], result["seconds"], result["error"])
        return Ended(self._jobs[name], 0.0, f"Its workers have died, or it was cancelled: {future.exception()!r}"
                     if future.status == "error" else "It was cancelled")
