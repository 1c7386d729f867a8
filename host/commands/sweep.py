"""The command `gradring sweep`."""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn
from rich.progress import Progress as Bars

from host.commands.console import duration, make_console, shown
from host.options import COUNT, check_range
from host.output import claim, prepare
from host.plain_text import PlainColumn
from host.sweep import cluster, execution, page
from host.sweep import plan as sweep
from host.sweep.jobs import Job
from host.sweep.local import LocalEngine
from host.sweep.tables import tables
from host.training.workloads import WorkloadName
from sim.verilated import toolchain
from sim.verilated.processes import EndedError

__all__ = ["sweep_command"]


class _SweepProgress:
    """Progress of a sweep: bars on a terminal, and there as elsewhere a line for each job that has ended."""

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
        """Show the state of the sweep. Where no bar shows it, each job has a line as it begins."""
        running = " · ".join(f"{name} {stage}".strip() for name, stage in state.running)
        for name, _ in state.running:
            if name not in self._begun:
                self._begun.add(name)
                if not self._console.is_terminal:
                    self._console.print(f"begins: {name}, {duration(state.left)} to go in all", soft_wrap=True)
        self._bars.update(self._task, completed=state.done,
                          note=f"{duration(state.spent)}, {duration(state.left)} to go: {running}")

    def ended(self, job: Job, seconds: float, error: str | None) -> None:
        """Print the line of a job that has ended."""
        self._done += 1
        how = "" if error is None else "   failed"
        self._console.print(f"{self._done:3} of {self._jobs}   {job.name}   {seconds:.1f} s{how}", soft_wrap=True)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(filter(None, (part.strip() for part in text.split(","))))


def _sizes(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"Ring sizes must be numbers with commas between them, not {text!r}") from None


def sweep_command(
    formats: Annotated[str | None, typer.Option(
        help="Formats to compare with raw weights and zero-value gradients, with commas between them. [default: all, "
             "and on text the main ones]", show_default=False)] = None,
    nodes: Annotated[str | None, typer.Option(
        help="Ring sizes, with commas between them. [default: digits 2,4,8, text 4]", show_default=False)] = None,
    workload: Annotated[WorkloadName | None, typer.Option(
        help="The only workload. [default: both]", show_default=False)] = None,
    jobs: Annotated[int | None, typer.Option(
        help="Jobs at a time. [default: one per core]", show_default=False)] = None,
    full: Annotated[bool, typer.Option(
        "--full", help="Train for as long as train does, and on text with all formats.")] = False,
    epochs: Annotated[int | None, typer.Option(
        help=f"Epochs of digits. [default: {sweep.EPOCHS[0]}, full {sweep.EPOCHS[1]}]", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(
        help=f"Steps of text. [default: {sweep.STEPS[0]}, full {sweep.STEPS[1]}]", show_default=False)] = None,
    compute_formats: Annotated[str | None, typer.Option(
        help="Formats of products to compare on nodes that compute, on digits, with commas between them. [default: "
             "all, and none if --formats is given]", show_default=False)] = None,
    scheduler: Annotated[str | None, typer.Option(
        help="Scheduler of a Dask cluster whose workers do the jobs, as tcp://host:8786. Needs gradring[cluster]. "
             "[default: processes of this machine]", show_default=False)] = None,
    synth: Annotated[bool, typer.Option(help="Place codecs and arrays, for their area and speed.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of sweep.json, sweep.png, sweep.html and jobs. [default: "
                                               "build/sweep]",
                                          show_default=False)
                      ] = toolchain.BUILD / "sweep",
) -> None:
    """Compare formats by loss, traffic, cycles, LUTs and Fmax."""
    check_range("Jobs at a time", jobs, 1, 1024)
    check_range("Epochs", epochs, 1, COUNT)
    check_range("Steps", steps, 1, COUNT)
    if epochs is not None and workload is WorkloadName.TEXT:
        raise ValueError("Option --epochs is for workload digits, not text: leave it out")
    if steps is not None and workload is WorkloadName.DIGITS:
        raise ValueError("Option --steps is for workload text, not digits: leave it out")
    if compute_formats is not None and workload is WorkloadName.TEXT:
        raise ValueError("Option --compute-formats is for workload digits, not text: leave it out")
    if scheduler is not None:
        cluster.needed()
        if jobs is not None:
            raise ValueError("Option --jobs is for processes of this machine, not for a cluster: leave it out")
    config = sweep.SweepConfig(
        formats=_names(formats), nodes=_sizes(nodes),
        workloads=tuple(WorkloadName) if workload is None else (workload,), full=full, epochs=epochs, steps=steps,
        compute_formats=_names(compute_formats), synth=synth)
    console = make_console()
    planned = sweep.plan(config)
    claim(output, files=("sweep.json", "sweep.png", "sweep.html"))
    folder = prepare(output / "jobs")
    engine = (LocalEngine(folder, (os.cpu_count() or 1) if jobs is None else jobs) if scheduler is None
              else cluster.ClusterEngine(scheduler, folder))
    left, count = execution.pending(planned.jobs, folder), engine.cores
    seconds = execution.estimate(left, folder, count)
    console.print(f"rows: {len(planned.points) + len(planned.products)}; jobs to do: {len(left)}"
                  + (f", {duration(seconds)} or so on {count} at a time" if left else ""), soft_wrap=True)
    try:
        with _SweepProgress(console, len(left)) as progress:
            failures = execution.execute(planned.jobs, folder, engine=engine, ended=progress.ended,
                                         tick=progress.tick)
    except (KeyboardInterrupt, EndedError) as ended:
        console.print("interrupted; jobs that are done are kept, and the same command goes on from there",
                      soft_wrap=True)
        raise typer.Exit(128 + (ended.signal if isinstance(ended, EndedError) else signal.SIGINT)) from None
    rows, products = sweep.collect(planned, folder), sweep.products(planned, folder)
    if rows or products:
        for table in tables(rows, products):
            console.print(table)
        written, picture = sweep.write(rows, output, products=products)
        paths = (written, picture, page.write(rows, picture, products=products))
        console.print(" · ".join(map(shown, paths)), soft_wrap=True)
    for failure in failures:
        console.print(f"failed: {failure.job.name}: {failure.message}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)
