"""Signals that ask a run to end, which it hears between two steps.

Example
-------
::

    with handle_signals(grace=GRACE) as signals:
        for step in steps:
            signals.check()
            step()
            signals.settle()
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from sim.verilated.processes import heard

__all__ = ["GRACE", "Interrupted", "Signals", "handle_signals"]

#: Seconds that a step has to end after a signal.
GRACE = 6.0


class Interrupted(BaseException):
    """The user, or the system, has asked the program to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Signals:
    """Requests that signals have made.

    Parameters
    ----------
    grace : float
        Seconds that a step has to end after the first signal, before another signal is sent; 0 for any time.
    """

    #: The signal that asked the program to end.
    asked: int | None = None

    def __init__(self, *, grace: float = 0):
        self._grace = grace
        self._timer: threading.Timer | None = None

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one waits for the end of the step, another one does not."""
        if self.asked is not None:
            raise Interrupted(number)
        self.asked = number
        if self._grace:
            main = threading.main_thread().ident
            assert main is not None
            self._timer = threading.Timer(self._grace, signal.pthread_kill, (main, number))
            self._timer.daemon = True
            self._timer.start()

    def settle(self) -> None:
        """Let the work that follows take as long as it takes: a step has ended, or was given up."""
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """Raise :class:`Interrupted` if a signal has come."""
        if self.asked is not None:
            raise Interrupted(self.asked)


@contextlib.contextmanager
def handle_signals(*, grace: float = 0) -> Iterator[Signals]:
    """Handle SIGINT and SIGTERM during the block; in the main thread only.

    Parameters
    ----------
    grace : float
        See :class:`Signals`.
    """
    signals = Signals(grace=grace)
    before = {number: signal.signal(number, signals.take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with heard(Interrupted):
            yield signals
    finally:
        signals.settle()
        for number, handler in before.items():
            signal.signal(number, handler)
