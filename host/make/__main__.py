"""Entry point ``python -m host.make TARGET [GOAL ...]`` for the Makefile. It also starts on old Python versions."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.stderr.write("error: Python must be 3.11 or later, not " + ".".join(map(str, sys.version_info[:2]))
                     + ": name another one, as in PYTHON=python3.12\n")
    sys.exit(2)

from host.make.run import main

sys.exit(main(sys.argv[1:]))
