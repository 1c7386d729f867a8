"""Runs of quorum updates, from their description to their files."""

import dataclasses
from pathlib import Path
from typing import Any

import typer

from hdl.config import NodeConfig, Weights
from hdl.config.forms import as_dict
from host.console import Progress, make_console, shown, thread_count
from host.models.digits import digits
from host.models.layers import widths
from host.options import COUNT, SEEDS, check_range
from host.output import claim, prepare, write_bytes
from host.reports import late_run as report
from host.run.files import FILES
from host.run.preparation import random_faults
from host.run.repeat import described
from host.run.sections import Quorum
from host.run.spec import RunSpec, to_toml
from host.schema import write_report
from host.signals import GRACE, Interrupted, handle_signals
from host.training import checkpoint as checkpoints
from host.training.experiment import Keeper
from host.training.quorum import BLOCK, QuorumExecutor, Workers, make_quorum_trainer, node_for, patience_of
from host.training.quorum_config import LateConfig, stragglers
from host.transports.session import LONGEST_REPLAYED, Session, open_session

__all__ = ["config_of", "train"]


def config_of(spec: RunSpec) -> LateConfig:
    """Configuration of a run that has all defaults.

    Raises
    ------
    ValueError
        The run is impossible.
    """
    schedule = spec.schedule
    assert isinstance(schedule, Quorum)
    assert schedule.straggler is not None
    slow = stragglers(schedule.straggler)
    check_range("Nodes of a run with --straggler", spec.ring.nodes, 2, 16)
    check_range("Seed", spec.workload.seed, 0, SEEDS)
    check_range("Learning rate", spec.optimizer.learning_rate, 0, COUNT)
    check_range("Momentum", spec.optimizer.momentum, 0, 1)
    check_range("Link latency", spec.ring.link_latency, 1, LONGEST_REPLAYED)
    values: dict[str, Any] = {
        "factor": schedule.staleness_factor, "deadline": schedule.deadline, "skew": schedule.skew,
        "cycles": schedule.cycles, "batch": spec.workload.batch, "learning_rate": spec.optimizer.learning_rate,
        "momentum": spec.optimizer.momentum, "macs": spec.compute.macs, "seed": spec.workload.seed,
        "late": schedule.stale_gradients, "quorum": schedule.quorum,
        "hidden": None if spec.model.hidden is None else widths(spec.model.hidden)}
    if schedule.quorum is None:
        values["quorum"] = max(1, spec.known("ring.nodes") - len(slow))
    return LateConfig(workers=spec.known("ring.nodes"), slow=slow,
                      **{name: value for name, value in values.items() if value is not None})


class _QuorumRun:
    """A run of quorum updates that is under way; parameters are its description, with all defaults, and progress."""

    def __init__(self, spec: RunSpec, progress: Progress):
        self.spec, self.progress = spec, progress
        self.folder: Path = spec.known("output.folder")
        self.config = config = config_of(spec)
        self.faults = random_faults(spec)
        self.threads = thread_count(spec.backend.threads, config.workers)
        self.block = min(BLOCK, spec.output.checkpoint or BLOCK)
        self.switch_out: bool = spec.value("schedule.switch_out")
        self.data = digits()
        self.length = Workers(self.data, config).length
        self.node = node_for(self.length, nodes=config.workers, ports=2 if self.switch_out else 1,
                             node=NodeConfig(weights=Weights(codec=spec.formats.weights)))
        self.result: dict[str, Any] | None = None
        self.stopped = 0

    def open_files(self) -> dict[str, Any] | None:
        """Check that all results can be written; the content of the checkpoint to resume from, if there is one."""
        config, spec = self.config, self.spec
        self.identity = {
            "straggler": {**dataclasses.asdict(config), "late": config.late.value,
                          "slow": {str(rank): factor for rank, factor in config.slow.items()}},
            "block": self.block, "configuration": as_dict(self.node), "link_latency": spec.ring.link_latency,
            "host_port": spec.backend.host_port,
            "faults": None if self.faults is None else dataclasses.asdict(self.faults)}
        self.keeper = Keeper(self.folder / checkpoints.NAME, self.identity, steps=spec.output.checkpoint)
        self.keeper.check_key()
        prepare(self.folder, files=("report.json", "report.png", checkpoints.NAME),
                space=64 * self.length + (2 << 20))
        kept = self.keeper.load() if spec.output.resume else None
        claim(self.folder, files=FILES, keep=() if kept is None else (checkpoints.NAME,))
        if spec.output.resume:
            self.progress.say(f"{shown(self.keeper.path)}: " + (
                "there is none, so training begins at its first round" if kept is None else
                "training continues from there"))
        return kept

    def carry_out(self, kept: dict[str, Any] | None) -> None:
        """Do all rounds, until the cycles are over or a signal comes."""
        spec, config, progress = self.spec, self.config, self.progress
        with open_session(self.node, nodes=config.workers, threads=self.threads, faults=self.faults,
                          arithmetic=spec.known("backend.arithmetic"), host_port=spec.backend.host_port,
                          latency=spec.known("ring.link_latency"), timeout=patience_of(self.data, config),
                          grid=(1, config.workers) if self.switch_out else None, say=progress.say,
                          announce=progress.stage) as session, handle_signals(grace=GRACE) as signals:
            trainer = make_quorum_trainer(session.ring, self.data, config, block=self.block, grid=session.grid)
            run, before = trainer.executor, 0

            def block() -> None:
                nonlocal before
                signals.settle()
                self.result = self._report(run, session)
                progress.say(f"rounds {before + 1:3} to {trainer.number:3}   loss {run.outcome.losses[-1]:.4f}   "
                             f"test accuracy {run.outcome.accuracy:.2%}")
                before = trainer.number
                self.keeper.save(trainer.state())

            if kept is None:
                trainer.begin()
            else:
                trainer.resume(kept)
                before = trainer.number
            progress.stage("rounds", trainer.number + trainer.left)
            self.result = self._report(run, session) if run.fates else None
            try:
                trainer.train(signals, on_block=block)
            except Interrupted as interrupted:  # the report is of the blocks that have ended
                self.stopped = interrupted.signal

    def _report(self, run: QuorumExecutor, session: Session) -> dict[str, Any]:
        """Report of the blocks that have ended."""
        faults = None if self.faults is None else {**dataclasses.asdict(self.faults), "count": session.faults}
        result: dict[str, Any] = report.build(
            self.config, run, threads=self.threads, link_latency=self.spec.ring.link_latency, faults=faults,
            configuration=as_dict(self.node), configuration_hash=self.node.hash,
            simulated_cycles=session.elapsed.simulated)
        return described(result, self.spec, run.reference.master)


def train(spec: RunSpec) -> dict[str, Any]:
    """Carry a run out, and return its report.

    Raises
    ------
    ValueError
        The run is impossible.
    typer.Exit
        A signal has come.
    """
    config_of(spec)
    console = make_console()
    with Progress(console) as progress:
        progress.stage("data")
        run = _QuorumRun(spec, progress)
        run.carry_out(run.open_files())
        result, stopped = run.result, run.stopped
        if result is None:
            if stopped:
                console.print("interrupted; no block of rounds has ended, so that the next run begins at the first "
                              "round", soft_wrap=True)
                raise typer.Exit(128 + stopped)
            raise ValueError(f"Cycles must be enough for a round, not {run.config.cycles:,}")
        result["interrupted"] = bool(stopped)
        progress.stage("report")
        write_bytes(run.folder / "run.toml", to_toml(spec).encode())
        written = write_report(result, run.folder)
        report.draw(result, run.folder / "report.png")
    report.show(result, console)
    console.print(" · ".join(map(shown, (written, run.folder / "report.png"))), soft_wrap=True)
    if stopped:
        console.print("interrupted; " + (
            "there is no checkpoint, so that the next run begins at the first round" if run.keeper.steps == 0 else
            "the same command with --resume (make: RESUME=1) continues from there"), soft_wrap=True)
        raise typer.Exit(128 + stopped)
    return result
