"""The command ``gradring``, also as ``python -m gradring``."""

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point: a message in place of a traceback, also while modules are imported."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        from host.cli import main as command
    except (ImportError, MemoryError, OSError) as error:
        reason = " ".join(str(error).split()) or "memory ran out"
        print(f"error: Modules must be importable, not fail: {reason}; raise the limit of memory (ulimit -v), or "
              f"install gradring again", file=sys.stderr)
        sys.exit(1)
    finally:
        signal.signal(signal.SIGINT, before)
    command()


def _interrupted(number: int, frame: object) -> None:
    """End at once: modules that are imported in part have nothing to tidy up."""
    os.write(2, b"ended by SIGINT\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
