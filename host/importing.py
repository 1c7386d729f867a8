"""Imports that SIGINT and SIGTERM end at once, since modules that are loaded in part have nothing to tidy up."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

__all__ = ["ended_at_once"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end(number: int, frame: object) -> None:
    os.write(2, f"ended by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


@contextlib.contextmanager
def ended_at_once() -> Iterator[None]:
    """Make these signals end the process during the block, with a line, unless they are ignored.

    In another thread than the main one nothing changes.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    try:
        for number, handler in handlers.items():
            if handler not in (signal.SIG_IGN, None):  # None: a handler that Python has not set
                signal.signal(number, _end)
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
