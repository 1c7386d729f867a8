"""Runs of quorum updates, from the run description to the output files."""

import dataclasses
from pathlib import Path
from typing import Any

from hdl.config import NodeConfig, Weights
from hdl.config.forms import as_dict
from host.console import Progress, make_console, shown, thread_count
from host.features.quorum import report
from host.features.quorum.config import LateConfig, stragglers
from host.features.quorum.schedule_section import Quorum
from host.features.quorum.updates import (
    BLOCK,
    COUNTERS,
    QuorumExecutor,
    Workers,
    make_quorum_trainer,
    node_for,
    patience_of,
)
from host.models.digits import digits
from host.models.layers import widths
from host.options import COUNT, SEEDS, check_range
from host.run.files import end_interrupted, open_files, until_signal, write_results
from host.run.preparation import random_faults
from host.run.repeat import described
from host.run.spec import RunSpec
from host.training import checkpoint as checkpoints
from host.training.experiment import Checkpointer
from host.transports.session import LONGEST_REPLAYED, Session, open_session

__all__ = ["config_of", "train"]


def config_of(spec: RunSpec) -> LateConfig:
    """Build the configuration for a complete run description; raises ``ValueError`` if impossible."""
    schedule = spec.schedule
    assert isinstance(schedule, Quorum)
    assert schedule.straggler is not None
    slow = stragglers(schedule.straggler)
    check_range("Nodes (--nodes) of a run with --straggler", spec.ring.nodes, 2, 16)
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
    """Run of quorum updates, given by a description with all defaults filled in."""

    def __init__(self, spec: RunSpec, progress: Progress):
        self.spec, self.progress = spec, progress
        self.folder: Path = spec.known("output.folder")
        self.config = config = config_of(spec)
        self.faults = random_faults(spec)
        self.threads = thread_count(spec.backend.threads, config.workers)
        self.block = min(BLOCK, spec.output.checkpoint or BLOCK)
        self.switch_out: bool = spec.value("schedule.switch_out")
        self.data = digits()
        workers = Workers(self.data, config)
        self.task, self.length = workers.task, workers.length
        self.node = node_for(self.length, nodes=config.workers, ports=2 if self.switch_out else 1,
                             node=NodeConfig(weights=Weights(codec=spec.formats.weights)))
        self.result: dict[str, Any] | None = None
        self.stopped = 0

    def open_files(self) -> dict[str, Any] | None:
        """Check that all results can be written; return the checkpoint to resume from, or None."""
        config, spec = self.config, self.spec
        identity = {
            "straggler": {**dataclasses.asdict(config), "late": config.late.value,
                          "slow": {str(rank): factor for rank, factor in config.slow.items()}},
            "block": self.block, "counters": list(COUNTERS),
            "configuration": as_dict(self.node), "link_latency": spec.ring.link_latency,
            "host_port": spec.backend.host_port,
            "faults": None if self.faults is None else dataclasses.asdict(self.faults)}
        self.checkpointer = Checkpointer(self.folder / checkpoints.NAME, identity, steps=spec.output.checkpoint)
        return open_files(spec, self.checkpointer, self.progress.say, space=64 * self.length + (2 << 20))

    def carry_out(self, kept: dict[str, Any] | None) -> None:
        """Run rounds until all cycles are used up or a signal arrives."""
        spec, config, progress = self.spec, self.config, self.progress
        with open_session(self.node, nodes=config.workers, threads=self.threads, faults=self.faults,
                          arithmetic=spec.known("backend.arithmetic"), host_port=spec.backend.host_port,
                          latency=spec.known("ring.link_latency"), timeout=patience_of(self.data, config),
                          grid=(1, config.workers) if self.switch_out else None, say=progress.say,
                          announce=progress.stage) as session:
            trainer = make_quorum_trainer(session.ring, self.data, config, block=self.block, grid=session.grid)
            run, before = trainer.executor, 0

            def block() -> None:
                nonlocal before
                self.result = self._report(run, session)
                progress.say(f"rounds {before + 1:3} to {trainer.number:3}   loss {run.outcome.losses[-1]:.4f}   "
                             f"test accuracy {run.outcome.accuracy:.2%}")
                before = trainer.number
                self.checkpointer.save(trainer.state(), trainer.number)

            if kept is None:
                trainer.begin()
            else:
                trainer.resume(kept)
                before = self.checkpointer.kept = trainer.number
            progress.stage("rounds", trainer.number + trainer.left)
            self.result = self._report(run, session) if run.statuses else None
            # The report covers the completed blocks.
            self.stopped = until_signal(lambda signals: trainer.train(signals, on_block=block))

    def _report(self, run: QuorumExecutor, session: Session) -> dict[str, Any]:
        """Build the report for all completed blocks."""
        faults = None if self.faults is None else {**dataclasses.asdict(self.faults), "count": session.faults}
        result: dict[str, Any] = report.build(
            self.config, run, threads=self.threads, link_latency=self.spec.ring.link_latency, faults=faults,
            configuration=as_dict(self.node), configuration_hash=self.node.hash,
            simulated_cycles=session.elapsed.simulated)
        return described(result, self.spec, self.task.compact(run.reference.master), cut=self.task.in_groups)


def train(spec: RunSpec) -> dict[str, Any]:
    """Execute a run and return its report; raises ``ValueError`` if impossible, ``Exit`` after a signal."""
    config_of(spec)
    console = make_console()
    with Progress(console) as progress:
        progress.stage("data")
        run = _QuorumRun(spec, progress)
        run.carry_out(run.open_files())
        if run.result is None:
            if run.stopped:
                end_interrupted(run.stopped, run.checkpointer, console)
            raise ValueError(f"Cycles must be enough for a round, not {run.config.cycles:,}")
        run.result["interrupted"] = bool(run.stopped)
        progress.stage("report")
        written, picture = write_results(spec, run.result), run.folder / "report.png"
        report.draw(run.result, picture)
    report.show(run.result, console)
    console.print(" · ".join(map(shown, (written, picture))), soft_wrap=True)
    if run.stopped:
        end_interrupted(run.stopped, run.checkpointer, console)
    return run.result
