"""A rank: a script, run with the backend ``gradring`` known to PyTorch.

The launcher starts ``python -P -m host.pytorch.rank`` once for each rank, with the script and its arguments, or with
``-m`` and a module.
"""

import os
import runpy
import signal
import sys
import threading
from pathlib import Path

from torch.distributed import TCPStore

from host.driver.diagnosis import RingError
from host.pytorch import hooks, process_group
from host.pytorch.client import GONE, client, wait_for_reason
from host.pytorch.messages import ADDRESS, KEEPS, STORE, Failed

__all__ = ["main"]

#: Seconds that the script has to end by itself when the ranks cannot go on; less than the launcher gives it.
_OWN = 0.5

#: Set when the script is about to end by an error.
_ending = threading.Event()


def _listen() -> None:
    """End this process when the ranks cannot go on, unless the script does so itself: it may be computing, or wait in
    gloo for a rank that has failed but not ended yet. The launcher prints the reason, if it has not ended itself."""
    reason = wait_for_reason(os.environ[ADDRESS])
    if not _ending.wait(_OWN):
        if reason is None and os.environ["RANK"] == "0":
            print(f"error: {GONE}", file=sys.stderr, flush=True)
        os._exit(1)


def _store() -> TCPStore | None:
    """PyTorch's store, on rank 0: on the socket that the launcher listens at, so that nobody else takes its port."""
    if os.environ["RANK"] != "0":
        return None
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False,
                    master_listen_fd=int(os.environ[STORE]))


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
    """Report the error by which this rank ends; whether it is the first one, and not the ring's."""
    text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    # gloo's errors are of the class RuntimeError.
    failure = Failed(rank=int(os.environ["RANK"]), error=text, own=not isinstance(error, RuntimeError))
    return client().fail(failure) is None and not isinstance(error, RingError)


def main(arguments: list[str]) -> int:
    """Run a script, or a module following ``-m``, as the main program; returns the exit code.

    A rank that ends by an error does not take its leave, so that the other ranks end as well. The launcher prints the
    reason; a traceback is printed by the rank with the first error that the script itself has raised, and by no
    other rank.
    """
    threading.Thread(target=_listen, daemon=True).start()
    store = _store()
    process_group.register(default=True)
    hooks.install(keeps=os.environ.get(KEEPS) == "1")
    try:
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
        client().leave()
    except RingError:
        return 1
    finally:
        _ending.set()
    del store  # not before: other ranks need it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
