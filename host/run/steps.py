"""Runs in which all workers step together, from the description to the output files."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console

from hdl.config.forms import as_dict
from host.console import Progress, make_console, shown
from host.driver.devices import TIMEOUT
from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.feature import feature
from host.output import prepare
from host.reports import events as event_files
from host.reports import report, summary
from host.run import preparation, slow_link
from host.run.files import advice, end_interrupted, identity_of, open_files, space, until_signal, write_results
from host.run.preparation import Preparation
from host.run.processes import other_processes, threads_of
from host.run.repeat import described
from host.run.spec import RunSpec
from host.training import checkpoint, weight_files
from host.training.experiment import Checkpointer, Experiment
from host.training.optimizers import moments_note
from host.training.record import Training
from host.training.workloads import CharacterModel, WorkloadName
from host.transports.session import LATENCY, Session, TransportName, open_session

__all__ = ["train"]


class _StepRun:
    """A run in progress, in which all workers step together."""

    def __init__(self, prepared: Preparation, progress: Progress):
        spec = self.spec = prepared.spec
        self.prepared, self.progress = prepared, progress
        self.folder: Path = spec.known("output.folder")
        self.processes = other_processes(spec.backend.processes, nodes=prepared.nodes)
        is_golden = spec.backend.transport is TransportName.GOLDEN
        self.threads = 1 if is_golden else threads_of(spec.backend.threads, prepared.nodes, self.processes)
        self.schedule = spec.known_schedule
        self.overlap = spec.value("schedule.overlap")
        self.host_port = spec.backend.host_port or spec.backend.transport is not TransportName.VERILATED
        self.partitioning: dict[str, Any] | None = None
        self.stopped = 0

    def open_files(self) -> None:
        """Check that all results can be written, and load the checkpoint to resume from."""
        spec, prepared, reconfiguration = self.spec, self.prepared, self.prepared.reconfiguration
        identity = identity_of(
            prepared.configs, prepared.node, workload=spec.workload.name.value, nodes=prepared.nodes,
            transport=spec.known("backend.transport").value,
            link_latency=spec.ring.link_latency, host_port=self.host_port, overlap=self.overlap,
            faults=None if prepared.faults is None else dataclasses.asdict(prepared.faults),
            topology=spec.ring.topology, shape=spec.ring.shape,
            **({} if spec.ring.slow_link is None else {"slow_link": spec.ring.slow_link}))
        checkpointer = self.checkpointer = Checkpointer(self.folder / checkpoint.NAME, identity,
                                                        steps=spec.output.checkpoint)
        if spec.output.chakra is not None:
            prepare(spec.output.chakra.parent)
        self.kept = open_files(
            spec, checkpointer, self.progress.say, space=space(prepared.task, prepared.config, prepared.nodes),
            check=lambda content: None if reconfiguration is None else reconfiguration.check_past(
                content, shown(checkpointer.path)))

    def events(self) -> Any:
        """Return a writer of TensorBoard events, if events are requested."""
        spec, prepared = self.spec, self.prepared
        if spec.output.tensorboard is None:
            return contextlib.nullcontext()
        measure = "loss/held_out" if spec.workload.name is WorkloadName.TEXT else "accuracy/test"
        return event_files.Events(spec.output.tensorboard, list(map(event_files.run_name, prepared.configs)),
                                  measure=measure, grid=prepared.reconfiguration is not None,
                                  replay=prepared.node.link.replay)

    def session(self) -> contextlib.AbstractContextManager[Session]:
        """Open a session with the nodes of the run."""
        spec, prepared, backend = self.spec, self.prepared, self.spec.backend
        config, reconfiguration = prepared.config, prepared.reconfiguration
        patience = 0 if config.overlap is None else feature("programs").patience(prepared.task, config,
                                                                                prepared.nodes)
        options: dict[str, Any] = {name: value for name, value in (
            ("arithmetic", backend.arithmetic), ("latency", spec.ring.link_latency),
            ("persistence", backend.reconnect)) if value is not None}
        return open_session(
            prepared.node, nodes=prepared.nodes, transport=spec.known("backend.transport"), threads=self.threads,
            host_port=self.host_port, faults=prepared.faults, processes=self.processes, device=backend.device,
            slow_link=prepared.slow, far_rate=None if config.far is None else config.far.rate,
            timeout=TIMEOUT + patience, baud=prepared.board.baud if backend.baud is None else backend.baud,
            frequency=prepared.board.clock, grid=None if reconfiguration is None else (
                reconfiguration.rows, reconfiguration.columns),
            say=self.progress.say, announce=self.progress.stage, **options)

    def carry_out(self, session: Session, events: Any) -> None:
        """Execute all runs until they end or a signal is received."""
        prepared, progress = self.prepared, self.progress
        if prepared.slow is not None:
            self.partitioning = slow_link.partition(
                session.ring, prepared.task.parameters.size, planes=prepared.config.optimizer.planes,
                latency=self.spec.known("ring.link_latency"), say=progress.say)
        experiment = self.experiment = Experiment(session, prepared.task, prepared.configs,
                                                  checkpointer=self.checkpointer,
                                                  content=self.kept, reconfiguration=prepared.reconfiguration)

        def begin(number: int) -> None:
            self._announce(number)
            if events is not None:
                events.begin(number, experiment.trainings)

        def step(training: Training) -> None:
            progress.step(training)
            if events is not None:
                events.step(training)

        try:
            self.stopped = until_signal(lambda signals: experiment.run(signals, on_run=begin, on_step=step,
                                                                       on_repeat=progress.say))
        except (DeviceError, RingError):
            progress.say(advice(self.checkpointer))
            raise
        self.simulation = self._simulation(session)

    def _announce(self, number: int) -> None:
        """Begin the progress display of one of the runs."""
        prepared, config = self.prepared, self.prepared.configs[number]
        if self.schedule.several:
            self.progress.say(f"overlap: {config.overlap}")
        elif number:
            name = config.optimizer.name if prepared.config.density is None else "dense"
            self.progress.say(f"{name}, for comparison")
        self.progress.stage("compare" if number and prepared.plain else "train", config.steps(prepared.task.examples),
                            prepared.task)

    def _simulation(self, session: Session) -> report.Simulation:
        """Return the simulation's figures for the report."""
        experiment, prepared, backend = self.experiment, self.prepared, self.spec.backend
        seconds = dict(zip(("run", "comparison"), experiment.seconds, strict=False))
        if self.schedule.several:
            seconds = {"run": sum(experiment.seconds)}
        return report.Simulation(
            transport=self.spec.known("backend.transport").value, threads=self.threads,
            arithmetic=backend.arithmetic.value if backend.arithmetic else "gateware",
            link_latency=self.spec.ring.link_latency or LATENCY, configuration=as_dict(prepared.node),
            configuration_hash=prepared.node.hash, host_port=self.host_port, elapsed=experiment.elapsed,
            seconds=session.build_seconds | seconds, simulation_seconds=experiment.simulation_seconds,
            faults=prepared.faults, reconfiguration=prepared.reconfiguration, partitioning=self.partitioning)

    def result(self) -> dict[str, Any] | None:
        """Build the report, or return None if a signal was received before the end of the first step."""
        prepared, experiment = self.prepared, self.experiment
        task = prepared.task
        begun = [(config, training) for config, training in zip(prepared.configs, experiment.trainings, strict=False)
                 if training.steps]
        if not begun:
            return None
        comparison = None if prepared.plain is None or self.stopped else (prepared.plain, experiment.trainings[1])
        result = report.build_report(
            prepared.config, experiment.trainings[0], self.simulation, comparison, interrupted=bool(self.stopped),
            bigram_loss=task.bigram_loss if isinstance(task, CharacterModel) else None,
            schedules=begun if self.overlap is not None else [])
        parameters = experiment.parameters
        return described(result, self.spec, None if self.stopped or parameters is None else task.compact(parameters),
                         cut=task.in_groups)

    def write(self, console: Console, result: dict[str, Any]) -> None:
        """Write and print the results of a finished run."""
        prepared, folder = self.prepared, self.folder
        with Progress(console) as progress:
            progress.stage("report")
            written, picture = write_results(self.spec, result), report.draw_report(result, folder)
            timelines = self.schedule.write(result, self.spec, prepared.task, folder)
            page = report.write_page(result, folder, timelines=timelines)
        weights, parameters = folder / "weights.npz", self.experiment.parameters
        assert parameters is not None
        weight_files.save(weight_files.TrainedWeights(
            workload=self.spec.workload.name, hidden=prepared.config.hidden, seed=prepared.config.seed,
            parameters=prepared.task.compact(parameters)), weights)
        summary.show(result, console)
        console.print(" · ".join(map(shown, (written, picture, page, weights, *timelines))), soft_wrap=True)


def train(spec: RunSpec) -> dict[str, Any]:
    """Execute a run and return its report; raises ``typer.Exit`` if a signal has been received."""
    if spec.output.tensorboard is not None:
        event_files.needed()
    spec.known_schedule.needed(spec)
    console = make_console()
    with Progress(console) as progress:
        progress.stage("data")
        prepared = preparation.prepare(spec, progress.say)
        run = _StepRun(prepared, progress)
        note = moments_note([prepared.config.optimizer], packed_state=prepared.config.packed_state)
        for line in [*([] if note is None else [note]), *(
                [] if prepared.reconfiguration is None else prepared.reconfiguration.lines)]:
            progress.say(line)
        run.open_files()
        with run.events() as events, run.session() as session:
            run.carry_out(session, events)
    result = run.result()
    if run.stopped:
        if result is not None:
            write_results(spec, result)
        end_interrupted(run.stopped, run.checkpointer, console)
    assert result is not None
    run.write(console, result)
    return result
