"""Runs of the command `gradring launch` in a separate process."""

import subprocess
import sys
from pathlib import Path

__all__ = ["SCRIPTS", "launch"]

SCRIPTS = Path(__file__).parent / "scripts"


def launch(*arguments, expect=0, **options):
    """Run the command, check its exit code, and return what it prints."""
    ended = subprocess.run([sys.executable, "-m", "gradring", "launch", *map(str, arguments)], capture_output=True,
                           text=True, timeout=300, check=False, **options)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == expect
    return ended.stdout, ended.stderr
