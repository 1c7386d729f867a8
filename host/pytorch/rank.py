"""A rank: a script, run with the backend ``gradring`` known to PyTorch.

The launcher starts ``python -P -m host.pytorch.rank`` once for each rank, with the script and its arguments, or with
``-m`` and a module.
"""

import os
import runpy
import sys
from pathlib import Path

from host.pytorch import hooks, process_group
from host.pytorch.client import client
from host.pytorch.messages import KEEPS

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Run a script, or a module behind ``-m``, as the main program.

    A rank that ends by an error does not take its leave, so that the others are told.
    """
    process_group.register(default=True)
    hooks.install(keeps=os.environ.get(KEEPS) == "1")
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    client().leave()


if __name__ == "__main__":
    main(sys.argv[1:])
