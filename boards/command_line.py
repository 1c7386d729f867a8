"""Exit handling of the programs in boards/: one-line errors, signals and closed pipes."""

import os
import sys
from collections.abc import Callable

from boards.tools import SynthesisError
from sim.verilated.processes import EndedError, ToolError, ended_by_signals

__all__ = ["finish"]

#: Errors that the user can correct; a TypeError is caused by parameters that a unit does not have.
_EXPECTED = (SynthesisError, ToolError, TypeError, ValueError, OSError)


def finish(work: Callable[[], None]) -> int:
    """Run a program's main function and return the exit code; a signal also ends the processes that it has started.

    Parameters
    ----------
    work : callable

    Raises
    ------
    EndedError
        A signal has asked the program to end.
    """
    try:
        with ended_by_signals():
            work()
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except _EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except EndedError as error:
        print(f"ended by {error.signal.name}", file=sys.stderr)
        raise
    return 0
