"""Interface of what does the jobs of a sweep: processes of this machine, or workers of a cluster."""

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from host.sweep.jobs import Job

__all__ = ["Ended", "Engine", "Running"]


@dataclasses.dataclass(frozen=True)
class Ended:
    """A job that has ended, the seconds it took, and its error if it failed. Its result is in the folder if not."""

    job: Job
    seconds: float
    error: str | None


@dataclasses.dataclass(frozen=True)
class Running:
    """Jobs that are being done now: the name of each, its stage, and the seconds since it began."""

    jobs: list[tuple[str, str, float]]


class Engine(abc.ABC):
    """Does jobs, each after those that it needs."""

    @property
    @abc.abstractmethod
    def cores(self) -> int:
        """Jobs that are done at a time."""

    @abc.abstractmethod
    def submit(self, job: Job, needs: Sequence[str]) -> None:
        """Have a job done once jobs that were submitted before it, named by ``needs``, have ended well.

        If one of them fails, so does the job: with the error ``… has failed``.
        """

    @abc.abstractmethod
    def run(self) -> contextlib.AbstractContextManager[Iterator[Ended | Running]]:
        """Do the jobs that were submitted: each as it ends, and now and then those that are being done.

        When the context is left, nothing goes on that was begun.
        """
