"""Signal handlers of the host: a signal requests the end of a run, which then stops between steps.

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
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["ENDING", "GRACE", "Interrupted", "Signals", "ended_at_once", "handle_signals", "handled", "overlook",
           "restore_default"]

Handler = Callable[[int, FrameType | None], object]
#: Signals that end a program.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Number of seconds that a training step may still take after a signal.
GRACE = 6.0


class Interrupted(BaseException):
    """Raised if the user or the system has asked the program to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Signals:
    """Handler of signals that ask the program to end. After a signal, the current step has ``grace`` seconds to end;
    then the signal is sent again, which interrupts the step. 0 means no limit."""

    #: The first signal that asked the program to end, or None.
    asked: int | None = None

    def __init__(self, *, grace: float = 0):
        self._grace = grace
        self._timer: threading.Timer | None = None

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first signal waits for the end of the step, and the second interrupts the step."""
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
        """Remove the time limit of a step that has ended or has been abandoned."""
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """Raise :class:`Interrupted` if a signal has been received."""
        if self.asked is not None:
            raise Interrupted(self.asked)


def handled(handler: Handler, *numbers: signal.Signals) -> contextlib.AbstractContextManager[None]:
    """Call a function on these signals during the block, unless they are ignored. Only works in the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return _replaced(handler, *(number for number in numbers if is_main and signal.getsignal(number) not in (
        signal.SIG_IGN, None)))  # None means that the handler was not installed from Python


@contextlib.contextmanager
def _replaced(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals with ``handler`` within the context, then restore the previous handlers."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def handle_signals(*, grace: float = 0) -> Iterator[Signals]:
    """Handle SIGINT and SIGTERM during the block, only in the main thread. For ``grace``, see :class:`Signals`."""
    from sim.verilated.processes import heard

    signals = Signals(grace=grace)
    with _replaced(signals.take, signal.SIGINT, signal.SIGTERM):
        try:
            with heard(Interrupted):
                yield signals
        finally:
            signals.settle()


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"ended by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


def ended_at_once() -> contextlib.AbstractContextManager[None]:
    """Make signals end the process immediately with a message, unless they are ignored. Used during imports, since
    partly loaded modules have nothing to clean up."""
    return handled(_end, *ENDING)


def restore_default(*numbers: signal.Signals) -> None:
    """Restore the default action of signals, for this process and for a program that replaces it."""
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def overlook(number: signal.Signals) -> None:
    """Make a signal have no effect in this process, but not in programs that it starts."""
    signal.signal(number, lambda number, frame: None)
