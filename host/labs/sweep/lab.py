"""The lab `gradring lab sweep`, which compares number formats."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn
from rich.progress import Progress as Bars

from host.console import duration, shown
from host.labs.kit import BUILD, Results, end, names, numbers
from host.labs.sweep import cluster, execution
from host.labs.sweep import plan as sweep
from host.labs.sweep.execution import LocalEngine
from host.labs.sweep.jobs import Ended, Engine
from host.labs.sweep.page import tables
from host.options import COUNT, Option, Section, command, option
from host.output import prepare
from host.plain_text import PlainColumn
from host.training.workloads import WorkloadName
from sim.verilated.processes import EndedError

__all__ = ["sweep_lab"]


class _SweepProgress:
    """Progress of a sweep: a line for each completed job, and bars on a terminal."""

    def __init__(self, console: Console, jobs: int):
        self._console = console
        self._done = 0
        self._jobs = jobs
        self._begun: set[str] = set()
        self._bars = Bars(
            SpinnerColumn(), PlainColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(),
            PlainColumn("{task.fields[note]}"), console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bars.add_task("sweep", total=jobs, note="")

    def __enter__(self) -> "_SweepProgress":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def tick(self, state: execution.State) -> None:
        """Show the state of the sweep; without a terminal, print a line when a job starts."""
        running = " · ".join(f"{name} {stage}".strip() for name, stage in state.running)
        for name, _ in state.running:
            if name not in self._begun:
                self._begun.add(name)
                if not self._console.is_terminal:
                    self._console.print(f"begins: {name}, {duration(state.left)} to go in all", soft_wrap=True)
        self._bars.update(self._task, completed=state.done,
                          note=f"{duration(state.spent)}, {duration(state.left)} to go: {running}")

    def ended(self, done: Ended) -> None:
        """Print the line for a completed job."""
        self._done += 1
        how = "" if done.error is None else "   failed"
        self._console.print(f"{self._done:3} of {self._jobs}   {done.job.name}   {done.seconds:.1f} s{how}",
                            soft_wrap=True)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(filter(None, names(text)))


@dataclasses.dataclass(frozen=True)
class PointOptions(Section):
    """Options that select the points of a sweep: formats, rings and workloads."""

    formats: str | None = option(
        None, help="Comma-separated formats to compare with raw weights and zero-value gradients.",
        shown_default="all; on text the main formats")
    nodes: str | None = option(None, help="Comma-separated ring sizes.",
                               shown_default="2,4,8 on digits, 4 on text")
    workload: WorkloadName | None = option(None, help="Workload to run.", shown_default="both")

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Requested ring sizes, or None for the default."""
        return None if self.nodes is None else tuple(numbers("Ring sizes", self.nodes))

    @property
    def workloads(self) -> tuple[WorkloadName, ...]:
        """Workloads that are requested."""
        return tuple(WorkloadName) if self.workload is None else (self.workload,)

    def refuse(self, name: str, value: object, workload: WorkloadName) -> None:
        """Raise ``ValueError`` if an option is given that does not apply to this workload."""
        if value is not None and workload not in self.workloads:
            raise ValueError(f"Option --{name} is for workload {workload.value}, not {self.workloads[0].value}: "
                             f"leave it out")


@dataclasses.dataclass(frozen=True)
class LengthOptions(Section):
    """Options that set the length of each run."""

    full: bool = option(False, "--full", help="Train as long as `gradring train`, and with all formats on text.")
    epochs: int | None = option(None, help="Number of epochs on digits.", minimum=1, maximum=COUNT,
                                shown_default=f"{sweep.EPOCHS[0]}, full {sweep.EPOCHS[1]}")
    steps: int | None = option(None, help="Number of steps on text.", minimum=1, maximum=COUNT,
                               shown_default=f"{sweep.STEPS[0]}, full {sweep.STEPS[1]}")


@command
def sweep_lab(
    *,
    points: PointOptions,
    jobs: Annotated[int | None, Option("Number of concurrent jobs.", label="Jobs at a time", minimum=1, maximum=1024,
                                       shown_default="one per core")] = None,
    length: LengthOptions,
    compute_formats: Annotated[str | None, Option(
        "Comma-separated formats of matrix products to compare, on digits with nodes that compute.",
        shown_default="all, or none if --formats is set")] = None,
    scheduler: Annotated[str | None, Option(
        "Scheduler of a Dask cluster that runs the jobs, such as tcp://host:8786. Needs gradring[cluster].",
        shown_default="processes on this machine")] = None,
    synth: Annotated[bool, Option("Place and route codecs and arrays, to find their area and speed.")] = True,
    output: Annotated[Path, Option("Folder for sweep.json, sweep.png, sweep.html and jobs.",
                                   shown_default="build/sweep")] = BUILD / "sweep",
) -> None:
    """Compare formats by loss, traffic, cycles, LUTs and Fmax."""
    points.refuse("epochs", length.epochs, WorkloadName.DIGITS)
    points.refuse("steps", length.steps, WorkloadName.TEXT)
    points.refuse("compute-formats", compute_formats, WorkloadName.DIGITS)
    if scheduler is not None:
        cluster.needed()
        if jobs is not None:
            raise ValueError("Option --jobs is for processes of this machine, not for a cluster: leave it out")
    planned = sweep.plan(sweep.SweepConfig(
        formats=_names(points.formats), nodes=points.sizes, workloads=points.workloads, full=length.full,
        epochs=length.epochs, steps=length.steps, compute_formats=_names(compute_formats), synth=synth))
    results = Results(output, "sweep.json", "sweep.png", "sweep.html")
    folder = prepare(output / "jobs")
    failures = _execute(planned, folder, results.console, engine=(
        LocalEngine(folder, (os.cpu_count() or 1) if jobs is None else jobs) if scheduler is None
        else cluster.ClusterEngine(scheduler, folder)))
    rows, products = sweep.collect(planned, folder), sweep.products(planned, folder)
    if rows or products:
        results.show(*tables(rows, products), " · ".join(map(shown, sweep.write(rows, output, products=products))))
    results.show(*(f"failed: {failure.job.name}: {failure.error}" for failure in failures))
    end(failures)


def _execute(planned: sweep.Plan, folder: Path, console: Console, *, engine: Engine) -> list[Ended]:
    """Execute the remaining jobs of a sweep; exit the program if the sweep is interrupted."""
    left = execution.pending(planned.jobs, folder)
    seconds = execution.estimate(left, folder, engine.cores)
    console.print(f"rows: {len(planned.points) + len(planned.products)}; jobs to do: {len(left)}"
                  + (f", {duration(seconds)} or so on {engine.cores} at a time" if left else ""), soft_wrap=True)
    try:
        with _SweepProgress(console, len(left)) as progress:
            return execution.execute(planned.jobs, folder, engine=engine, ended=progress.ended, tick=progress.tick)
    except (KeyboardInterrupt, EndedError) as ended:
        console.print("interrupted; jobs that are done are kept, and the same command goes on from there",
                      soft_wrap=True)
        raise typer.Exit(128 + (ended.signal if isinstance(ended, EndedError) else signal.SIGINT)) from None
