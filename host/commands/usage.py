"""Errors of command lines in one line, and an output that nobody reads any longer."""

import enum
import os
import sys
from collections.abc import Sequence

import typer

from hdl.choices import choice_error

__all__ = ["close_output", "report"]

#: Exit code of a command line that is wrong.
_WRONG = 2


def _value(options: Sequence[str]) -> str | None:
    """The last value that the command line has for an option."""
    value = None
    for word, following in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        name, separator, rest = word.partition("=")
        if name in options:
            value = rest if separator else following
    return value


def report(error: typer.TyperException) -> int:
    """Print a line about a command line that is wrong, or the help that it asks for; return the exit code."""
    message = getattr(error, "format_message", lambda: str(error))()
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)
        return _WRONG
    parameter = getattr(error, "param", None)
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if parameter is not None and isinstance(kind, type) and issubclass(kind, enum.Enum):
        value = _value(parameter.opts)
        if value is not None:
            message = choice_error(f"Option {parameter.opts[0]}", [str(one.value) for one in kind], value)
    context = getattr(error, "ctx", None)
    path = "gradring" if context is None else " ".join(["gradring", *context.command_path.split()[1:]])
    text = " ".join(message.split()).rstrip(".")
    print(f"error: {text} ('{path} --help' shows what there is)", file=sys.stderr)
    return _WRONG


def close_output() -> int:
    """Have what is left to print go nowhere, since the reader has ended; return the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError, AttributeError):  # not a file, or closed
            continue
    return 1
