"""Watch over the ranks' processes while the ring is busy with an operation, which may be a build of a minute."""

import _thread
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from host.pytorch.messages import Request, Save

__all__ = ["WatchedJobs"]


class WatchedJobs:
    """Jobs whose operations end early if a rank ends meanwhile.

    Another thread looks at the ranks. If one has ended, it ends the others, and has the operation end as by SIGTERM:
    under :func:`~sim.verilated.processes.ended_by_signals` the main thread raises
    :class:`~sim.verilated.processes.EndedError`, which ends the programs of a build as well. A simulation goes on
    until its library returns.

    Parameters
    ----------
    ended : callable
        Returns how a rank has ended by an error, in a sentence, or None.
    tell : callable
        Called with that sentence, in the other thread.
    end : callable
        Called then, in the same thread, to end the ranks that are left.
    look : float
        Seconds between looks.
    """

    def __init__(self, jobs: Any, *, ended: Callable[[], str | None], tell: Callable[[str], None],
                 end: Callable[[], None], look: float) -> None:
        self._jobs, self._ended, self._tell, self._end, self._look = jobs, ended, tell, end, look
        self.interrupted = False

    def answer(self, requests: Sequence[Request]) -> Any:
        """Do what all ranks ask for, see :meth:`host.pytorch.jobs.Jobs.answer`."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(self._look):
                reason = self._ended()
                if reason is not None:
                    self._tell(reason)
                    self.interrupted = True
                    _thread.interrupt_main(signal.SIGTERM)
                    self._end()
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            return self._jobs.answer(requests)
        finally:
            done.set()

    def save(self, request: Save) -> dict[str, Any]:
        """State of a job."""
        found: dict[str, Any] = self._jobs.save(request)
        return found
