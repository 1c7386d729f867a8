"""The virtual environment of a clone, .venv: Python packages, by extras of pyproject.toml."""

import contextlib
import fcntl
import importlib.util
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["ENVIRONMENT", "InstallError", "call", "install"]

ENVIRONMENT = Path(".venv")
_PYTHON = ENVIRONMENT / "bin" / "python"
#: Files that list packages: where one is later than a stamp, its packages are installed again.
_LISTS = (Path("pyproject.toml"), Path("constraints.txt"))
_PIP = [str(_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
        "constraints.txt", "--editable"]


class InstallError(Exception):
    """Packages cannot be installed; ``code`` is the exit code."""

    def __init__(self, text: str, code: int = 1):
        super().__init__(text)
        self.code = code


def call(words: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a command to its end, and send on signals; return its exit code, or 128 and the number of a signal.

    Parameters
    ----------
    environment : mapping, optional
        Variables of the environment. [this process's]
    """
    received = []
    with subprocess.Popen(words, env=environment) as process:
        def on_signal(number: int, frame: object) -> None:
            received.append(number)
            if number != signal.SIGINT:  # which a terminal sends to both
                process.send_signal(number)

        before = {number: signal.signal(number, on_signal) for number in (
            signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN}
        code = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    return 128 + received[-1] if received else code if code >= 0 else 128 - code


def _stale(extra: str) -> bool:
    """Whether packages must be installed: there is no stamp, or something that it depends on is later."""
    stamp, base = ENVIRONMENT / f".{extra}", ENVIRONMENT / ".base"
    lists = _LISTS if extra == "base" else (*_LISTS, base)
    return not (_PYTHON.exists() and stamp.exists() and base.exists()) or any(
        path.stat().st_mtime_ns > stamp.stat().st_mtime_ns for path in lists)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """A lock that one make at a time holds."""
    with _LISTS[0].open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another make installs packages into {ENVIRONMENT}: waiting for its end", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(extras: Sequence[str], *, dry: bool, show: bool) -> None:
    """Install the packages of gradring and of extras, unless they are there and up to date.

    Parameters
    ----------
    dry, show : bool
        Whether commands are not run, and whether they are printed.

    Raises
    ------
    InstallError
        A command failed or was interrupted, or Python has no module venv.
    """
    wanted = list(dict.fromkeys(["base", *extras]))
    if not any(map(_stale, wanted)):
        return
    if _stale("base") and importlib.util.find_spec("ensurepip") is None:
        raise InstallError(f"Python must have its module venv, not lack it: install it (Debian: apt-get install "
                           f"python{sys.version_info[0]}.{sys.version_info[1]}-venv), or name another Python, as in "
                           f"PYTHON=python3.12")
    with contextlib.nullcontext() if dry else _locked():
        for extra in wanted:
            if not _stale(extra):
                continue
            base = extra == "base"
            if show or not dry:
                print(f"Installing Python packages into {ENVIRONMENT}{'' if base else f', for {extra}'}: up to 3 "
                      f"minutes")
            broken = ["--clear"] * (_PYTHON.is_symlink() and not _PYTHON.exists())
            for words in ([[sys.executable, "-m", "venv", *broken, str(ENVIRONMENT)], [*_PIP, "."]] if base else
                          [[*_PIP, f".[{extra}]"]]):
                if show:
                    print(shlex.join(words), flush=True)
                code = 0 if dry else call(words)
                if code:
                    raise InstallError(f"Python packages must be installed, not end with exit code {code}: the same "
                                       f"command tries again, after 'make clean ALL=1' from the start", code)
            if not dry:
                (ENVIRONMENT / f".{extra}").touch()
