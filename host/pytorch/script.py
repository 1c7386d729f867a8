"""Run a script as the main program of a rank, and report its errors.

Only the script needs PyTorch; this module does not.
"""

import contextlib
import ctypes
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from host.driver.diagnosis import RingError
from host.pytorch.client import GONE, client, launcher, wait_for_reason
from host.pytorch.messages import ADDRESS, Failed

__all__ = ["run_script"]

#: Seconds for the script to end on its own when the ranks cannot continue; less than the launcher's limit.
_OWN = 0.5

#: Value of PR_SET_PDEATHSIG in Linux.
_PARENT_DEATH_SIGNAL = 1

#: Event that is set when the script is about to end with an error.
_ending = threading.Event()


def _listen() -> None:
    """End this process when the ranks cannot continue, unless the script ends on its own. The script may be
    computing, or waiting in gloo for a failed rank. The launcher prints the reason unless it has exited as well."""
    reason = wait_for_reason(os.environ[ADDRESS])
    if not _ending.wait(_OWN):
        if reason is None and os.environ["RANK"] == "0":
            print(f"error: {GONE}", file=sys.stderr, flush=True)
        os._exit(1)


def _end_with_launcher() -> None:
    """Ask the system to kill this process when the launcher dies, since a stopped rank cannot receive messages."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _failed(error: Exception) -> bool:
    """Report the error that ends this rank; return whether it is the first error and not from the ring."""
    text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    # gloo raises RuntimeErrors
    failure = Failed(rank=int(os.environ["RANK"]), error=text, own=not isinstance(error, RuntimeError))
    return launcher().fail(failure) is None and not isinstance(error, RingError)


def run_script(arguments: list[str], prepare: Callable[[], object]) -> int:
    """Run a script, or a module after ``-m``, as the main program; return the exit code.

    ``prepare`` is called before the script starts, and its result is kept until the script has ended. A rank that
    ends with an error does not announce that it leaves, so the other ranks end too. The launcher prints the reason;
    only the rank with the first error raised by the script itself prints a traceback.
    """
    _end_with_launcher()
    threading.Thread(target=_listen, daemon=True).start()
    try:
        kept = prepare()
        _run(arguments)
    except SystemExit as end:
        if end.code not in (None, 0):
            _ending.set()
            raise
    except KeyboardInterrupt:
        _ending.set()
        return 128 + signal.SIGINT
    except Exception as error:
        _ending.set()
        if _failed(error):
            raise
        return 1
    try:
        client().finish()
        launcher().leave()
    except RingError:
        return 1
    finally:
        _ending.set()
    del kept
    return 0
