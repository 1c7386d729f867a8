"""A rank of a launched script, without PyTorch."""

import sys

from host.pytorch.script import run_script

if __name__ == "__main__":
    sys.exit(run_script(sys.argv[1:], lambda: None))
