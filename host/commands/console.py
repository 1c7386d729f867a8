"""Options, progress and printing of results, for all commands."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars

from host.plain_text import PlainConsole
from host.session import TransportName
from host.trainer import Training
from host.workloads import CharacterModel, Workload

__all__ = ["HostPort", "Link", "Nodes", "Progress", "Threads", "TransportOption", "given_options", "make_console",
           "shown", "thread_count"]

Nodes = Annotated[int, typer.Option(help="Nodes in the ring, 1 to 16.")]
Threads = Annotated[int | None, typer.Option(
    help="Threads of the simulation; they change its speed alone. [default: 2, where there are as many cores]",
    show_default=False)]
HostPort = Annotated[bool, typer.Option(
    "--host-port", help="Simulate what passes the nodes' host ports, word by word; else memories are read and "
                        "written directly, and what that would have taken is computed.")]
Link = Annotated[int, typer.Option(help="Cycles from one node to the next.")]
TransportOption = Annotated[TransportName, typer.Option(help="What the nodes run on.")]


class Progress:
    """Stages of a build and steps of a training run, as bars on a terminal and as lines elsewhere."""

    def __init__(self, console: Console):
        self._console = console
        self._bars = Bars(
            SpinnerColumn(), TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[note]}"), console=console, transient=True,
            disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._measures = 0
        self._workload: Workload | None = None

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int | None = None, workload: Workload | None = None) -> None:
        """What was going on has ended, and something else begins: with a workload, training of so many steps."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(name, total=total, note="")
        self._measures = 0
        self._workload = workload

    def advance(self, note: str) -> None:
        """One more of what the stage consists of has ended."""
        if self._task is not None:
            self._bars.update(self._task, advance=1, note=note)

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text, soft_wrap=True, markup=False)

    def step(self, training: Training) -> None:
        """A step of training has ended, or a measurement."""
        if self._task is not None:
            self._bars.update(self._task, completed=len(training.steps), note=f"loss {training.steps[-1].loss:.4f}")
        if len(training.losses) > self._measures:
            self._measures = len(training.losses)
            loss, measure = training.losses[-1], training.measures[-1]
            if isinstance(self._workload, CharacterModel):
                bigram = self._workload.bigram_loss
                step = training.measured[-1]
                self._console.print(f"step {step:4}   loss {loss:.4f}   held-out loss {measure:.4f}   bigram model "
                                    f"{bigram:.4f}", soft_wrap=True)
            else:
                self._console.print(f"epoch {self._measures:3}   loss {loss:.4f}   test accuracy {measure:.2%}")


def given_options(context: typer.Context) -> Callable[[str], bool]:
    """Whether the user has given an option, by its name in the code, as opposed to its default."""
    def given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    return given


def make_console() -> Console:
    """A console for standard output."""
    return PlainConsole(highlight=False)


def thread_count(given: int | None, nodes: int) -> int:
    """Threads of the simulation: those that were asked for, or the default."""
    if given is not None and given < 1:
        raise ValueError(f"Threads must be at least 1, not {given!r}")
    return min(2, os.cpu_count() or 1, nodes) if given is None else given


def shown(path: Path) -> str:
    """A path as short as it can be."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
