"""Options, progress display and console that all commands share."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich import progress as bars
from rich.console import Console

from host import stage_times
from host.options import Option
from host.plain_text import PlainColumn, PlainConsole
from host.printable import printable
from host.training.record import Training
from host.training.workloads import CharacterModel, Workload
from host.transports.session import TransportName
from sim.verilated.native import Arithmetic

__all__ = ["ArithmeticOption", "HostPort", "Link", "Nodes", "Progress", "Threads", "TransportOption", "duration",
           "given_options", "make_console", "shown", "thread_count"]

Nodes = Annotated[int, Option("Number of nodes in the ring, 1 to 16.")]
Threads = Annotated[int | None, Option("Number of threads of the simulation, which affects only its speed.",
                                       shown_default="2, or 1 on a single core")]
ArithmeticOption = Annotated[Arithmetic, Option(
    "Simulate nodes' floating-point units as gateware, or as native instructions with the same bits and cycles.")]
HostPort = Annotated[bool, Option(
    "Simulate the nodes' host ports word by word. Otherwise, memories are accessed directly, and the time of the "
    "ports is computed.", ("--host-port",))]
Link = Annotated[int, Option("Latency of a link in cycles.")]
TransportOption = Annotated[TransportName, Option("Transport to the nodes.")]


class Progress:
    """Progress of build stages and training steps: bars on a terminal, lines elsewhere.

    In a pipe or file, each stage prints a line when it starts, and a stage with a known number of steps prints
    further lines at least ``interval`` seconds apart.
    """

    def __init__(self, console: Console, *, interval: float = 10.0):
        self._console, self._interval = console, interval
        self._bars = bars.Progress(
            bars.SpinnerColumn(), PlainColumn("{task.description:<9}"), bars.BarColumn(), bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(), PlainColumn("{task.fields[note]}"), console=console, transient=True,
            disable=not console.is_terminal)
        self._task: bars.TaskID | None = None
        self._workload: Workload | None = None
        self._stage = ""
        self._total: int | None = None
        self._done = self._measures = self._changes = 0
        self._begun = self._said = 0.0

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()
        if exception[0] is None:
            self._end()

    def _end(self) -> None:
        """End the stage; record the duration of a stage without steps, for the next run's estimate."""
        if self._stage and self._total is None:
            stage_times.note(self._stage, time.monotonic() - self._begun)
        self._stage = ""

    def stage(self, name: str, total: int | None = None, workload: Workload | None = None) -> None:
        """End the current stage and begin a new one, with ``total`` steps if their number is known."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._end()
        self._task = self._bars.add_task(name, total=total, note="")
        self._stage, self._total, self._workload = name, total, workload
        self._done = self._measures = self._changes = 0
        self._begun = self._said = time.monotonic()
        if not self._console.is_terminal:
            seconds = stage_times.known(name)
            steps = "" if total is None else f" ({total:,} steps)"
            self.say(f"{name}{steps} …" + ("" if seconds is None else f" up to {duration(seconds)}"))

    def _line(self, note: str) -> None:
        """Print the progress of a stage that consists of steps, unless a bar is shown or a line was printed recently.
        """
        now = time.monotonic()
        if self._console.is_terminal or self._total is None or now < self._said + self._interval:
            return
        self._said = now
        left = (now - self._begun) / max(self._done, 1) * (self._total - self._done)
        self.say(f"{self._stage}: {self._done:,} of {self._total:,}, {note}, {duration(left)} to go")

    def advance(self, note: str) -> None:
        """Mark one more step of the stage as completed."""
        if self._task is not None:
            self._bars.update(self._task, advance=1, note=note)
            self._done += 1
            self._line(note)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True)

    def step(self, training: Training) -> None:
        """Show a completed training step or measurement."""
        note = f"loss {training.steps[-1].loss:.4f}"
        if self._task is not None:
            self._bars.update(self._task, completed=len(training.steps), note=note)
        self._done = len(training.steps)
        for change in training.changes[self._changes:]:
            if change.step == self._done - 1:  # earlier changes were shown before the checkpoint was written
                self.say(change.line)
        self._changes = len(training.changes)
        if len(training.losses) == self._measures:
            self._line(note)
        else:
            self._measures, self._said = len(training.losses), time.monotonic()
            loss, measure = training.losses[-1], training.measures[-1]
            if isinstance(self._workload, CharacterModel):
                self.say(f"step {training.measured[-1]:4}   loss {loss:.4f}   held-out loss {measure:.4f}   bigram "
                         f"model {self._workload.bigram_loss:.4f}")
            else:
                self._console.print(f"epoch {self._measures:3}   loss {loss:.4f}   test accuracy {measure:.2%}")


def duration(seconds: float) -> str:
    """Format a duration briefly, rounded to seconds or minutes."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def given_options(context: typer.Context) -> Callable[[str], bool]:
    """Return a function that reports whether the user has set an option, given its parameter name."""
    def given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    return given


def make_console() -> Console:
    """Create a console for standard output."""
    return PlainConsole()


def thread_count(threads: int | None, nodes: int) -> int:
    """Number of threads for the simulation: the requested number or the default."""
    if threads is not None and threads < 1:
        raise ValueError(f"Threads must be at least 1, not {threads!r}")
    return min(2, os.cpu_count() or 1, nodes) if threads is None else threads


def shown(path: Path) -> str:
    """Format a path on one line, relative to the working directory if it is inside."""
    return printable(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
