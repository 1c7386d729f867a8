"""Layer-streaming runs, from the run description to the output files."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from hdl.config import NodeConfig
from host.columns import show
from host.console import Progress, make_console, shown, thread_count
from host.features.streaming import report
from host.features.streaming.edits import Kind, Structure
from host.features.streaming.node_run import (
    LATENCY,
    NodeRun,
    StreamingCheckpointer,
    check_structure,
    open_streaming,
    streaming_nodes,
)
from host.features.streaming.plan import cut, make_streaming_plan
from host.features.streaming.run import Assessor, Plateau, Together, Underflow, trained_weights
from host.features.streaming.schedule_section import Streaming
from host.features.streaming.timeline import Far, microbatches
from host.models.digits import digits
from host.models.layers import widths as hidden_widths
from host.options import COUNT, SEEDS, check_range
from host.run.files import end_interrupted, open_files, until_signal, write_results
from host.run.repeat import described
from host.run.spec import RunSpec
from host.training.checkpoint import NAME
from host.training.optimizers import SGD
from host.training.trainer import Trainer

__all__ = ["check", "train"]


class _StreamingRun:
    """A layer-streaming run with a complete description; raises ``ValueError`` if it is impossible."""

    def __init__(self, spec: RunSpec):
        schedule, optimizer = spec.schedule, spec.optimizer
        assert isinstance(schedule, Streaming)
        self.spec, self.schedule = spec, schedule
        self.folder: Path = spec.known("output.folder")
        check_range("Workers", spec.ring.nodes, 1, 15)
        check_range("Steps", spec.workload.steps, 1, 100_000)
        check_range("Steps between checkpoints", spec.output.checkpoint, 0, 100_000)
        check_range("Seed", spec.workload.seed, 0, SEEDS)
        check_range("Learning rate", optimizer.learning_rate, 0, COUNT)
        check_range("Momentum", optimizer.momentum, 0, 1)
        self.workers: int = spec.known("ring.nodes")
        self.rate: float = spec.known("optimizer.learning_rate")
        self.threads = thread_count(spec.backend.threads, self.workers + 1)
        self.speed = _speed("the server's far memory", schedule.server_far)
        self.worker_speed = _speed("the workers' far memories", schedule.worker_far)
        self.data, self.optimizer = digits(), SGD(self.rate, momentum=optimizer.momentum or 0.0)
        self.widths = (self.data.train_x.shape[1], *hidden_widths(spec.model.hidden or "64x4"), self.data.classes)
        self._lay_out()
        self.pace = Far(lanes=NodeConfig.lanes, rate=self.worker_speed, latency=LATENCY)
        self.rows: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None
        self.stopped = 0

    def _lay_out(self) -> None:
        """Divide layers into units, and choose the memories of the nodes and the microbatch size."""
        schedule, window = self.schedule, self.spec.known("schedule.window")
        units, windows = cut(self.widths, window=window, lanes=NodeConfig.lanes), 2
        if schedule.resident:  # one window per unit and per added layer, at least 3: two would mean streaming
            windows = max(3, len(units) + schedule.plateau)
        self.configs = streaming_nodes(words=sum(unit.length for unit in units), planes=self.optimizer.planes,
                                   window=window, windows=windows)
        self.plan = make_streaming_plan(
            self.widths, worker=self.configs.memories, count=self.spec.workload.microbatches or 1,
            microbatch=schedule.microbatch, most=len(self.data.train_y) // self.workers)
        formats = tuple((schedule.format or "raw").split(","))
        self.structure = Structure(self.widths, formats * (len(self.widths) - 1) if len(formats) == 1 else formats,
                                   self.spec.workload.microbatches or 1, self.rate, self.plan.microbatch,
                                   self.configs.memories)
        check_structure(self.structure, self.configs.worker, self.configs.server, planes=self.optimizer.planes)

    def open_files(self, console: Console) -> bool:
        """Check that all results can be written; return whether there is a checkpoint to resume from."""
        # Exactly these options affect the bits of a run.
        own = [name for name in self.schedule.options() if name not in ("server_far", "worker_far")]
        names = ["workload.seed", "workload.microbatches", "model.hidden", "ring.nodes", "optimizer.learning_rate",
                 "optimizer.momentum", *(f"schedule.{name}" for name in own)]
        self.checkpointer = StreamingCheckpointer(self.folder / NAME, {name: self.spec.value(name) for name in names},
                                  steps=self.spec.output.checkpoint)
        console.print(self.plan.line, soft_wrap=True)
        return open_files(self.spec, self.checkpointer, lambda line: console.print(line, soft_wrap=True)) is not None

    def carry_out(self, progress: Progress, *, kept: bool) -> None:
        """Run all steps until a signal arrives."""
        schedule, spec = self.schedule, self.spec
        rules: list[Assessor] = [*([Plateau()] if schedule.plateau else []),
                                 *([Underflow()] if schedule.underflow else [])]
        progress.stage("build", 1)
        with open_streaming(self.configs, workers=self.workers, rate=self.speed, worker_rate=self.worker_speed,
                        threads=self.threads, arithmetic=spec.known("backend.arithmetic")) as (ring, simulation):
            run = NodeRun(ring, self.data, self.structure, optimizer=self.optimizer, seed=spec.workload.seed,
                          traced=True, assessor=Together(*rules) if rules else None)
            trainer = Trainer(run, run.batches, total=spec.known("workload.steps"))
            if kept:
                self.rows = self.checkpointer.resume(ring, trainer)
                self.result = self._report(run)
            progress.stage("steps", trainer.left)
            before = simulation.cycle

            def block() -> None:
                nonlocal before
                latest = run.reports[-1]
                self.rows.append(_row(run, latest.number, simulation.cycle - before, speed=self.speed, far=self.pace))
                progress.advance(f"loss {latest.mean_loss:.4f}, stalled {self.rows[-1]['stall']:.1%}")
                if latest.number == 0 and spec.workload.microbatches is None:
                    run.propose(0, Kind.MICROBATCHES, self.rows[0]["chosen"])
                self.checkpointer.keep(ring, trainer, self.rows)
                self.result = self._report(run)
                before = simulation.cycle

            stopped = until_signal(lambda signals: trainer.train(signals, on_block=block))
            if stopped and not trainer.complete:  # the report then contains the steps completed so far
                self.stopped = stopped
                self.checkpointer.write()

    def _report(self, run: NodeRun) -> dict[str, Any]:
        """Report the steps so far; call only between steps, since golden nodes run ahead within a step."""
        accuracy, same = run.accuracy, run.same
        self.verdict = (f"{accuracy:.2%} of test examples · nodes have {'the' if same else 'OTHER'} bits "
                        f"{'of' if same else 'than'} golden ones · {' · '.join(edit.line for edit in run.log)}")
        return described(report.SCHEMA.report({
            **run.described(), "widths": self.widths, "microbatch": self.plan.microbatch, "peak": self.plan.peak,
            "interrupted": False, "bit_exact": same, "accuracy": accuracy, "per_step": list(self.rows)}),
            self.spec, *trained_weights(run.server), cut=True)  # every sum adds in rank order

    def write(self, console: Console) -> None:
        """Print the report and write it to a file."""
        assert self.result is not None
        rows = self.result["per_step"]
        show(report.table(rows), report.link_line(rows[-1]), self.verdict, console=console)
        show(shown(write_results(self.spec, {**self.result, "interrupted": bool(self.stopped)})), console=console)


def train(spec: RunSpec) -> dict[str, Any] | None:
    """Execute a run and return its report. Raises ``ValueError`` if the run is impossible, and ``typer.Exit`` after a
    signal or if the nodes' bits differ from the golden model's."""
    run, console = _StreamingRun(spec), make_console()
    kept = run.open_files(console)
    with Progress(console) as progress:
        run.carry_out(progress, kept=kept)
    if run.result is not None:
        run.write(console)
    if run.stopped:
        end_interrupted(run.stopped, run.checkpointer, console)
    if run.result is not None and not run.result["bit_exact"]:
        raise typer.Exit(1)
    return run.result


def check(spec: RunSpec) -> None:
    """Raise ``ValueError`` if a run, given by a description with all defaults filled in, is impossible."""
    _StreamingRun(spec)


def _speed(what: str, text: str | None) -> Fraction:
    """Parse a far-memory rate in words per cycle; ``what`` names the memory in error messages."""
    try:
        speed = Fraction(text or "")
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"Rate of {what} must be words per cycle, such as 4 or 1/2, not {text!r}") from None
    if not 0 < speed <= 4:
        raise ValueError(f"Rate of {what} must be above 0 and at most 4 words per cycle, not {text!r}")
    return speed


def _row(run: NodeRun, number: int, cycles: int, *, speed: Fraction, far: Far) -> dict[str, Any]:
    """Return the report entries for a step and its timeline."""
    times, result = run.times[number - len(run.reports)], run.reports[number]
    costs, units = run.costs(times, rate=speed), result.structure.plan.units
    model, packets = run.timeline(number, rate=speed, far=far)
    longest = max(range(len(units)), key=lambda unit: units[unit].words)
    link = {f"measured_{kind}": sorted(taken for (way, unit), taken in times.links.items() if way == kind and all(
        getattr(units[unit], name) == getattr(units[longest], name) for name in ("words", "format")))
            for kind in ("fetch", "push")}
    return {"set": number, "microbatches": result.structure.count, "loss": result.mean_loss, "cycles": times.cycles,
            "with_host": cycles, "stall": times.run.stall, "idle": times.run.idle, "modelled_stall": model.stall,
            "modelled_idle": model.idle, "forward": costs[longest].forward, "backward": costs[longest].backward,
            "words": units[longest].words, "fetch": costs[longest].fetch, "push": costs[longest].push,
            "packets_fetch": packets[longest].fetch, "packets_push": packets[longest].push, **link,
            "chosen": microbatches(costs)}
