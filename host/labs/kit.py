"""Functions shared by the labs, for the output folder, progress, results and exit code."""

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
    """Results of a lab, in an output folder that its run claims. The first of the ``files`` is the report. Files in
    ``keep`` may remain from an earlier run."""

    def __init__(self, folder: Path, *files: str, keep: Sequence[str] = ()):
        claim(folder, files=files, keep=keep)
        self.paths = [folder / name for name in files]
        self.console = make_console()

    def progress(self) -> Progress:
        """Create a progress display on the run's console."""
        return Progress(self.console)

    def show(self, *parts: Table | str) -> None:
        """Print tables and lines of text."""
        show(*parts, console=self.console)

    def write(self, report: Mapping[str, Any], *draw: Callable[[Path], None]) -> None:
        """Write the report, and draw a picture into each remaining file with one of the ``draw`` functions."""
        write_report(report, self.paths[0].parent, self.paths[0].name)
        for path, function in zip(self.paths[1:], draw, strict=True):
            function(path)

    def show_paths(self) -> None:
        """Print the paths of the result files."""
        self.show(" · ".join(map(shown, self.paths)))

    def end(self, failures: Iterable[str]) -> None:
        """Print the failures; if there are any, exit with code 1."""
        failed = list(failures)
        for failure in failed:
            self.console.print(failure, style="bold red", soft_wrap=True)
        end(failed)


def end(failed: object) -> None:
    """Exit the program with code 1 if anything has ``failed``."""
    if failed:
        raise typer.Exit(1)


def names(text: str, separator: str = ",") -> list[str]:
    """Split text into a list of stripped names."""
    return [name.strip() for name in text.split(separator)]


def chosen_names(what: str, text: str | None, possible: Collection[str], separator: str = ",") -> list[str]:
    """Return the names in a text, or all possible names if it is None; raises ``ValueError`` if one is unknown."""
    chosen = list(possible) if text is None else names(text, separator)
    for name in chosen:
        if name not in possible:
            raise ValueError(choice_error(what, possible, name, separator=f"{separator} "))
    return chosen


def numbers(what: str, text: str, kind: type[float] = int) -> list[Any]:
    """Parse comma-separated numbers; the message of a ``ValueError`` calls them ``what``."""
    try:
        return [kind(name) for name in text.split(",")]
    except ValueError:
        raise ValueError(f"{what} must be numbers with commas between them, not {text!r}") from None
