"""Main program of each rank, which registers the ``gradring`` backend with PyTorch and runs a script.

The launcher starts ``python -P -m host.pytorch.rank`` once per rank, followed by either the script and its arguments
or ``-m`` and a module.
"""

import os
import sys

from torch.distributed import TCPStore

from host.pytorch import hooks, process_group
from host.pytorch.client import client
from host.pytorch.messages import REPLACE, STORE
from host.pytorch.script import run_script

__all__ = ["main"]


def _prepare() -> TCPStore | None:
    """Register the ring with PyTorch. Return rank 0's store, which must outlive the scripts of all ranks."""
    # The store uses the launcher's socket, so that no other process can take the port.
    store = None if os.environ["RANK"] != "0" else TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False,
        master_listen_fd=int(os.environ[STORE]))
    process_group.install(replace=os.environ.get(REPLACE) == "1")
    hooks.install(keeps=client().keeps)
    return store


def main(arguments: list[str]) -> int:
    """Run a script, or a module given after ``-m``, as the main program; return its exit code."""
    return run_script(arguments, _prepare)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
