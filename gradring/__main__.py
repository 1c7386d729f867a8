"""The ``gradring`` command, also available as ``python -m gradring``."""

import os
import resource
import sys

__all__ = ["main"]

#: Minimum address space in bytes for imports and a small simulation, and for each numpy or scipy thread: their
#: linear algebra library waits forever if it cannot allocate its buffers.
_LEAST, _EACH, _THREADS = 512 << 20, 96 << 20, 64


def main() -> None:
    """Entry point; prints a message instead of a traceback, even for errors while modules are imported."""
    _check_memory()
    try:
        from host.signals import ended_at_once

        with ended_at_once():
            from host.cli import main as command
        command()
    except (ImportError, MemoryError, OSError) as error:
        reason = " ".join(str(error).split()) or "memory ran out"
        print(f"error: Modules must be importable, not fail: {reason}; raise the limit of memory (ulimit -v), or "
              f"install gradring again", file=sys.stderr)
        sys.exit(1)


def _check_memory() -> None:
    """Exit with a message if the memory limit of this process is too low to import the modules."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    least = _LEAST + _EACH * min(os.cpu_count() or 1, _THREADS)
    if limit != resource.RLIM_INFINITY and limit < least:
        print(f"error: Limit of memory must be at least {least >> 10:,} KiB on this machine, not {limit >> 10:,}: "
              f"raise it (ulimit -v)", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
