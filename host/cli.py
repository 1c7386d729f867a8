"""Command line: one-line error messages, former spellings of commands, and closed output streams."""

import contextlib
import enum
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from hdl.choices import choice_error
from host.commands.registry import Commands
from host.errors import ExpectedError
from host.output import release
from host.plain_text import tolerate
from host.printable import printable_lines
from host.signals import Interrupted
from sim.verilated import cache_folder, toolchain
from sim.verilated.processes import EndedError, ended_by_signals

__all__ = ["EXPECTED", "app", "main", "translated"]

_SHARED = {"--sets": "--steps", "--rate": "--learning-rate"}
#: Current spelling of former commands and their options.
_COMMANDS = {
    ("relay-nodes",): (["train", "--schedule", "streaming"], _SHARED | {"--far": "--server-far"}),
    ("lab", "relay"): (["lab", "streaming"], {}),
    ("train",): (["train"], _SHARED | {"--late": "--stale-gradients", "--lambda": "--staleness-factor"}),
}
#: Former and current prefix of an option's values, keyed by the option's current name.
_VALUES = {"--stale-gradients": ("fold", "apply-late"), "--overlap": ("stale:", "delayed:")}


def translated(arguments: Sequence[str]) -> list[str]:
    """Translate command-line arguments to the current spelling."""
    former = next((names for names in _COMMANDS if tuple(arguments[:len(names)]) == names), None)
    if former is None:
        return list(arguments)
    words, options = _COMMANDS[former]
    last = ""
    for argument in arguments[len(former):]:
        name, equals, value = argument.partition("=")
        name = options.get(name, name)
        words = [*words, f"{name}={_translated(name, value)}" if equals else _translated(last, name)]
        last = name
    if words != list(arguments):
        print(f"warning: gradring {' '.join(arguments)} has old spellings: write gradring {' '.join(words)}",
              file=sys.stderr)
    return words


def _translated(option: str, value: str) -> str:
    """Translate an option's value to the current spelling."""
    old, new = _VALUES.get(option, ("", ""))
    return new + value[len(old):] if old and value.startswith(old) else value


#: Errors that the user can correct, which are shown as a message without a traceback.
EXPECTED = (ValueError, OSError, ExpectedError, toolchain.ToolError)

#: Maximum number of characters in a line of a message; the middle of longer lines is omitted.
_LENGTH = 1000
#: Exit code for an invalid command line.
_WRONG = 2


def _value(options: Sequence[str]) -> str | None:
    """Return the last value given for an option on the command line, under any of its names."""
    words = ((*word.partition("="), following) for word, following in itertools.pairwise([*sys.argv, ""]))
    values = [rest if equals else following for name, equals, rest, following in words if name in options]
    return values[-1] if values else None


def _shortened(text: str) -> str:
    """Escape control characters and shorten lines to about :data:`_LENGTH` characters."""
    return "\n".join(line if len(line) <= _LENGTH else f"{line[:_LENGTH // 2]} … {line[-_LENGTH // 2:]}"
                     for line in printable_lines(text).split("\n"))


def _report(error: typer.TyperException) -> int:
    """Print the message for an invalid command line, or the requested help, and return the exit code."""
    message = getattr(error, "format_message", lambda: str(error))()
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)
        return _WRONG
    parameter = getattr(error, "param", None)
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if parameter is not None and isinstance(kind, type) and issubclass(kind, enum.Enum) and (
            value := _value(parameter.opts)) is not None:
        message = choice_error(f"Option {parameter.opts[0]}", [str(member.value) for member in kind], value)
    context = getattr(error, "ctx", None)
    path = "gradring" if context is None else " ".join(["gradring", *context.command_path.split()[1:]])
    text = _shortened(" ".join(message.split()).rstrip("."))
    print(f"error: {text} ('{path} --help' shows what there is)", file=sys.stderr)
    return _WRONG


def _close_output() -> int:
    """Discard the remaining output after the stream's reader has closed it, and return the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # if a stream is not a file or is closed
            os.dup2(nowhere, stream.fileno())
    return 1


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  rich_markup_mode=None)


def _show_version(asked: bool) -> None:
    """Print the versions and exit, if requested."""
    if asked:
        from host.versions import version_lines

        print(*version_lines(), sep="\n")
        raise typer.Exit


@app.callback()
def options(version: Annotated[bool, typer.Option(
        "--version", help="Show the versions of the program and of everything that results depend on, and exit.",
        callback=_show_version, is_eager=True)] = False) -> None:
    """Train neural networks on a ring of FPGA nodes, simulated cycle by cycle."""


def main() -> None:
    """Run the command in ``sys.argv``, print errors as messages without tracebacks, and exit the process."""
    sys.argv[1:] = translated(sys.argv[1:])
    if sys.stdout is None:  # otherwise, the next opened file would become standard output
        print("error: Standard output must be open, not closed: send it to a file, or to /dev/null", file=sys.stderr)
        sys.exit(1)
    tolerate(sys.stdout, sys.stderr)
    try:
        cache_folder.root()  # relative paths are resolved here, before any program changes its working folder
        with ended_by_signals():
            try:
                code = app(standalone_mode=False) or 0
            finally:
                release()
                sys.stdout.flush()
            sys.exit(code)
    except typer.TyperException as error:
        sys.exit(_report(error))
    except BrokenPipeError:
        sys.exit(_close_output())
    except EXPECTED as error:
        print(f"error: {_shortened(str(error))}", file=sys.stderr)
        sys.exit(1)
    except MemoryError:
        print("error: Memory must suffice for the command, not run out: raise its limit (ulimit -v), or take a "
              "smaller model", file=sys.stderr)
        sys.exit(1)
    except Interrupted as error:
        print(f"ended by {error}", file=sys.stderr)
        sys.exit(128 + error.signal)
    except EndedError as error:
        print(f"ended by {error.signal.name}", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
