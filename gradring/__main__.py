"""The command ``gradring``, also as ``python -m gradring``."""

from host.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
