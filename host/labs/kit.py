"""Common parts of labs: an output folder, progress, printed and written results, and an exit code."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from hdl.choices import choice_error
from host.columns import Table, show
from host.console import Progress, make_console, shown
from host.output import claim
from host.schema import write_report
from sim.verilated import toolchain

__all__ = ["BUILD", "Results", "chosen_names", "end", "names", "numbers"]

BUILD = toolchain.BUILD


class Results:
    """Results of a lab, in a folder that its run has claimed; the first of the ``files`` is the report. An
    earlier run may have left the files in ``keep``."""

    def __init__(self, folder: Path, *files: str, keep: Sequence[str] = ()):
        claim(folder, files=files, keep=keep)
        self.paths = [folder / name for name in files]
        self.console = make_console()

    def progress(self) -> Progress:
        """Progress of the run, on its console."""
        return Progress(self.console)

    def show(self, *parts: Table | str) -> None:
        """Print tables, and lines of text."""
        show(*parts, console=self.console)

    def write(self, report: Mapping[str, Any], *draw: Callable[[Path], None]) -> None:
        """Write the report, and pictures in the order of the other files."""
        write_report(report, self.paths[0].parent, self.paths[0].name)
        for path, function in zip(self.paths[1:], draw, strict=True):
            function(path)

    def show_paths(self) -> None:
        """Print where the files are."""
        self.show(" · ".join(map(shown, self.paths)))

    def end(self, failures: Iterable[str]) -> None:
        """Print failures; with any, the exit code is 1."""
        failed = list(failures)
        for failure in failed:
            self.console.print(failure, style="bold red", soft_wrap=True)
        end(failed)


def end(failed: object) -> None:
    """End the program with exit code 1 if anything has ``failed``."""
    if failed:
        raise typer.Exit(1)


def names(text: str, separator: str = ",") -> list[str]:
    """Items of a list in a text."""
    return [name.strip() for name in text.split(separator)]


def chosen_names(what: str, text: str | None, possible: Collection[str], separator: str = ",") -> list[str]:
    """Items of a list in a text, all possible ones by default; ``ValueError`` for one that is not possible."""
    chosen = list(possible) if text is None else names(text, separator)
    for name in chosen:
        if name not in possible:
            raise ValueError(choice_error(what, possible, name, separator=f"{separator} "))
    return chosen


def numbers(what: str, text: str, kind: type[float] = int) -> list[Any]:
    """Numbers of a list with commas in a text; ``ValueError`` names ``what``."""
    try:
        return [kind(name) for name in text.split(",")]
    except ValueError:
        raise ValueError(f"{what} must be numbers with commas between them, not {text!r}") from None
