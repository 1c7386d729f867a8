"""A target of make: its variables are checked, its packages are installed, its commands are run."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence

from host.make.install import ENVIRONMENT, InstallError, call, install
from host.make.targets import Target, check_known, find_target, manual, overview

__all__ = ["main", "read_flags"]

#: A word: characters, each of which may follow a backslash. Words end at blanks, but not at ends of lines.
_WORD = re.compile(r"(?:\\.|[^\\ \t])+", re.DOTALL)


def read_flags(flags: str) -> tuple[str, dict[str, str]]:
    r"""Letters of make's options, and values of variables.

    Parameters
    ----------
    flags : str
        Value of ``MAKEFLAGS``, such as ``n -j2 -- NODES=8 UNIT=a\ b``. After the word ``--`` blanks and backslashes
        follow a backslash, and ``$`` is doubled.
    """
    words = [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL).replace("$$", "$") for word in _WORD.findall("-" + flags)]
    end = words.index("--") if "--" in words else len(words)
    letters = words[0][1:] if end and not words[0].startswith("--") else ""
    pairs = [re.split(r":*=", word, maxsplit=1) for word in words[end + 1:]]
    return letters, {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


#: The Makefile's copy of MAKEFLAGS: with -e, make's own has the names of variables in place of their values.
_FLAGS = "GRADRING_MAKEFLAGS"
#: Variables that a command which runs make must not see.
_OWN = (_FLAGS, "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")


def _run(target: Target, commands: Sequence[Sequence[str]], environment: dict[str, str], *, dry: bool,
         show: bool) -> int:
    """Run commands up to the first that fails; the last one takes the place of this process."""
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
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by this process, and else by the command as well
                signal.signal(ignored, signal.SIG_DFL)
            os.execvpe(words[0], words, settings)
        if code := call(words, settings):
            return code
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run a target, with the variables of ``MAKEFLAGS``; return the exit code of its command.

    Parameters
    ----------
    arguments : sequence of str
        The target, and all targets of make's command line.
    """
    goal, *goals = arguments
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    letters, values = read_flags(os.environ.get(_FLAGS, ""))
    environment = {name: value for name, value in os.environ.items() if name not in (*_OWN, *values)}
    values.pop("PYTHON", None)  # the one that runs this
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
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: {error}: 'make clean ALL=1' removes {ENVIRONMENT}, which is then made again", file=sys.stderr)
        return 1
