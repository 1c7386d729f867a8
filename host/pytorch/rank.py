"""A rank: a script, run with the backend ``gradring`` known to PyTorch.

The launcher starts ``python -P -m host.pytorch.rank`` once for each rank, with the script and its arguments, or with
``-m`` and a module.
"""

import os
import runpy
import sys
from pathlib import Path

from torch.distributed import TCPStore

from host.driver.diagnosis import RingError
from host.pytorch import hooks, process_group
from host.pytorch.client import client
from host.pytorch.messages import KEEPS, STORE, Failed

__all__ = ["main"]


def _store() -> TCPStore | None:
    """PyTorch's store, on rank 0: on the socket that the launcher listens at, so that nobody else takes its port."""
    if STORE not in os.environ:
        return None
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False,
                    master_listen_fd=int(os.environ.pop(STORE)))


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def main(arguments: list[str]) -> None:
    """Run a script, or a module behind ``-m``, as the main program.

    A rank that ends by an error does not take its leave, so that the others are told.

    Raises
    ------
    RingError
        Another rank has failed, of which gloo told this one nothing but a connection that was lost.
    """
    store = _store()
    process_group.register(default=True)
    hooks.install(keeps=os.environ.get(KEEPS) == "1")
    try:
        _run(arguments)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except RingError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        # gloo's errors are of the class RuntimeError.
        reason = client().fail(Failed(rank=int(os.environ["RANK"]), error=text,
                                      own=not isinstance(error, RuntimeError)))
        if reason is not None:
            raise reason from error
        raise
    client().leave()
    del store  # not before: other ranks need it


if __name__ == "__main__":
    main(sys.argv[1:])
