"""The command line."""

import sys
from typing import Annotated

import typer

from host.commands import usage
from host.commands.old_spellings import translated
from host.commands.registry import CommandGroup

__all__ = ["app", "main"]

app = typer.Typer(cls=CommandGroup, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  rich_markup_mode=None)


def _show_version(asked: bool) -> None:
    """Print versions and end, if that is asked for."""
    if asked:
        from host.versions import version_lines

        print(*version_lines(), sep="\n")
        raise typer.Exit


@app.callback()
def options(version: Annotated[bool, typer.Option(
        "--version", help="Show the version of the program and of all that results depend on, and exit.",
        callback=_show_version, is_eager=True)] = False) -> None:
    """Train neural networks on a ring of FPGA nodes, simulated cycle by cycle."""


def main() -> None:
    """Entry point: messages in place of tracebacks, for errors that are not the program's own."""
    sys.argv[1:] = translated(sys.argv[1:])
    usage.run(app)


if __name__ == "__main__":
    main()
