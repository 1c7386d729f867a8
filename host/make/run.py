"""Run make targets: check variables, install packages in .venv, execute commands."""

import contextlib
import fcntl
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from host.make.targets import Target, check_known, find_target, manual, overview
from host.signals import ENDING, handled, restore_default

__all__ = ["ENVIRONMENT", "InstallError", "call", "install", "main", "read_flags"]

ENVIRONMENT = Path(".venv")
_PYTHON = ENVIRONMENT / "bin" / "python"
#: Files that list packages. If one of them is newer than the stamp of an installation, packages are installed again.
_LISTS = (Path("pyproject.toml"), Path("constraints.txt"))
_PIP = [str(_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
        "constraints.txt", "--editable"]


class InstallError(Exception):
    """Raised if packages cannot be installed; ``code`` is the exit code."""

    def __init__(self, text: str, code: int = 1):
        super().__init__(text)
        self.code = code


def call(words: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a command to completion, and forward signals to it. By default, it has the environment of this process.

    Returns its exit code, or 128 plus the signal number.
    """
    received = []
    with subprocess.Popen(words, env=environment) as process:
        def on_signal(number: int, frame: object) -> None:
            received.append(number)
            if number != signal.SIGINT:  # not forwarded: a terminal sends SIGINT to both processes
                process.send_signal(number)

        with handled(on_signal, *ENDING):
            code = process.wait()
    return 128 + received[-1] if received else code if code >= 0 else 128 - code


def _stale(extra: str) -> bool:
    """Return whether packages must be installed: the stamp is missing or older than a file it depends on."""
    stamp, base = ENVIRONMENT / f".{extra}", ENVIRONMENT / ".base"
    lists = _LISTS if extra == "base" else (*_LISTS, base)
    return not (_PYTHON.exists() and stamp.exists() and base.exists()) or any(
        path.stat().st_mtime_ns > stamp.stat().st_mtime_ns for path in lists)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Hold a lock that excludes other make processes."""
    with _LISTS[0].open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another make installs packages into {ENVIRONMENT}: waiting for its end", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(extras: Sequence[str], *, dry: bool, show: bool) -> None:
    """Install the packages of gradring and its extras, unless they are up to date.

    If ``dry``, commands are not run; if ``show``, they are printed. Raises ``InstallError`` if a command fails or is
    interrupted, or if Python lacks the venv module.
    """
    wanted = list(dict.fromkeys(["base", *extras]))
    if not any(map(_stale, wanted)):
        return
    if _stale("base") and importlib.util.find_spec("ensurepip") is None:
        raise InstallError(f"Python must have its module venv, not lack it: install it (Debian: apt-get install "
                           f"python{sys.version_info[0]}.{sys.version_info[1]}-venv), or name another Python, as in "
                           f"PYTHON=python3.12")
    with contextlib.nullcontext() if dry else _locked():
        for extra in filter(_stale, wanted):
            base = extra == "base"
            if show or not dry:
                print(f"Installing Python packages into {ENVIRONMENT}{'' if base else f', for {extra}'}: up to 3 "
                      f"minutes")
            broken = ["--clear"] * (_PYTHON.is_symlink() and not _PYTHON.exists())
            for words in ([[sys.executable, "-m", "venv", *broken, str(ENVIRONMENT)], [*_PIP, "."]] if base else
                          [[*_PIP, f".[{extra}]"]]):
                if show:
                    print(shlex.join(words), flush=True)
                if not dry and (code := call(words)):
                    raise InstallError(f"Python packages must be installed, not end with exit code {code}: the same "
                                       f"command tries again, after 'make clean ALL=1' from the start", code)
            if not dry:
                (ENVIRONMENT / f".{extra}").touch()


#: A word of MAKEFLAGS. A backslash escapes any character. Words end at blanks but not at line ends.
_WORD = re.compile(r"(?:\\.|[^\\ \t])+", re.DOTALL)


def read_flags(flags: str) -> tuple[str, dict[str, str]]:
    r"""Parse ``MAKEFLAGS``, such as ``n -j2 -- NODES=8 UNIT=a\ b``, into option letters and variables.

    After ``--``, blanks and backslashes are escaped with a backslash, and ``$`` is doubled.
    """
    words = [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL).replace("$$", "$") for word in _WORD.findall("-" + flags)]
    end = words.index("--") if "--" in words else len(words)
    letters = words[0][1:] if end and not words[0].startswith("--") else ""
    pairs = [re.split(r":*=", word, maxsplit=1) for word in words[end + 1:]]
    return letters, {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


#: Variable with the Makefile's copy of MAKEFLAGS. With -e, the original has variable names instead of values.
_FLAGS = "GRADRING_MAKEFLAGS"
#: Environment variables that are hidden from commands, which may run make themselves.
_OWN = (_FLAGS, "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")


def _run(target: Target, commands: Sequence[Sequence[str]], environment: dict[str, str], *, dry: bool,
         show: bool) -> int:
    """Run the commands of a target until one fails. The last command replaces this process."""
    if target.note and not dry:
        print(target.note, flush=True)
    for number, command in enumerate(commands, start=1):
        first = next(index for index, word in enumerate(command) if not word.partition("=")[0].isupper())
        words = [f"{ENVIRONMENT}/bin/{command[first]}" if target.install else command[first], *command[first + 1:]]
        if show:
            print(" ".join([*command[:first], shlex.join(words)]), flush=True)
        if dry:
            continue
        settings = environment | dict(setting.split("=", 1) for setting in command[:first])
        if number == len(commands):
            restore_default(signal.SIGPIPE, signal.SIGXFSZ)  # ignored in Python, which the command would inherit
            os.execvpe(words[0], words, settings)
        if code := call(words, settings):
            return code
    return 0


#: Current target names, keyed by their names in the previous release.
_OLD_TARGETS = {"relay": "streaming"}


def main(arguments: Sequence[str]) -> int:
    """Run a target with the variables in ``MAKEFLAGS``; return the exit code of its command.

    The arguments are the target, followed by all targets on make's command line.
    """
    goal, *goals = [_OLD_TARGETS.get(name, name) for name in arguments]
    if goal != arguments[0]:
        print(f"warning: make {arguments[0]} is an old spelling: write make {goal}", file=sys.stderr)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        restore_default(signal.SIGINT)
    letters, values = read_flags(os.environ.get(_FLAGS, ""))
    environment = {name: value for name, value in os.environ.items() if name not in (*_OWN, *values)}
    values.pop("PYTHON", None)  # PYTHON selected the interpreter of this program
    dry, show = bool(set(letters) & set("nqt")), not set(letters) & set("sqt")
    try:
        goals = list(dict.fromkeys([*goals, goal]))
        check_known(goals, values)
        chosen = {name: find_target(name).mode(values) for name in goals}
        commands = {name: target.commands(values) for name, target in chosen.items()}[goal]
        target = chosen[goal]
        if goal == "help" or goal.startswith("help-"):
            print(overview() if goal == "help" else manual(goal.removeprefix("help-")), flush=True)
            return 0
        if target.install:
            install(target.needed(values), dry=dry, show=show)
        return _run(target, commands, environment, dry=dry, show=show)
    except (ValueError, InstallError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code if isinstance(error, InstallError) else 2
    except OSError as error:
        print(f"error: {error}: 'make clean ALL=1' removes {ENVIRONMENT}, which is then made again", file=sys.stderr)
        return 1
