"""Two training runs on one ring, on alternate nodes that send in slots."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from hdl.config import NodeConfig
from hdl.config.forms import as_dict
from hdl.features.slots.feature import JobSlots
from hdl.features.slots.job_table import JOBS, JobFrame
from host.console import Progress, make_console, shown, thread_count
from host.driver.device import Device
from host.driver.devices import TIMEOUT
from host.driver.memory import fitted
from host.driver.ring import Ring
from host.driver.transport import NodeTransport
from host.features.slots.rings import rings_of_jobs
from host.models.digits import digits
from host.models.layers import widths
from host.options import COUNT, check_range
from host.output import claim, write_bytes
from host.reports import report, summary
from host.run.files import FILES
from host.run.preparation import with_links
from host.run.repeat import described
from host.run.sections import SLOTS
from host.run.spec import RunSpec, to_toml
from host.schema import write_report
from host.signals import Signals, handle_signals
from host.training.experiment import Checkpointer, Experiment
from host.training.optimizers import OptimizerName, create
from host.training.record import Training, TrainingConfig
from host.training.workloads import Classifier
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.session import LATENCY, Session, TransportName
from host.transports.side_by_side import SharedTime
from host.transports.verilated import OpenRing, open_ring

__all__ = ["check_jobs", "train"]


def _configs(spec: RunSpec) -> list[TrainingConfig]:
    """Build each job's training configuration from a description with all defaults set."""
    workload, optimizer = spec.workload, spec.optimizer
    length: dict[str, Any] = {} if workload.epochs is None else {"epochs": workload.epochs}
    check_range("Learning rate", optimizer.learning_rate, 0, COUNT)
    config = TrainingConfig(
        **length, batch=spec.known("workload.batch"), max_steps=workload.steps, check=True,
        hidden=TrainingConfig.hidden if spec.model.hidden is None else widths(spec.model.hidden),
        optimizer=create(OptimizerName.MOMENTUM, momentum=spec.known("optimizer.momentum"),
                         learning_rate=optimizer.learning_rate))
    return [dataclasses.replace(config, seed=workload.seed + job) for job in range(JOBS)]


def check_jobs(spec: RunSpec) -> int:
    """Number of nodes of the run; raises ``ValueError`` unless the jobs can share them equally."""
    nodes = spec.ring.nodes
    check_range("Nodes (--nodes) of a run with --jobs", nodes, 2 * JOBS, 16)
    assert nodes is not None
    if nodes % JOBS:
        raise ValueError(f"Nodes (--nodes) of a run with --jobs must be a multiple of {JOBS}, not {nodes}")
    return nodes


def _sessions(opened: OpenRing, node: NodeConfig, time: SharedTime) -> list[Session]:
    """Open a session on each job's ring, once all rings are ready."""
    simulation = opened.simulation
    for link in simulation.links:
        link.set_latency(data=LATENCY, credit=LATENCY)
    timeout = TIMEOUT + 4 * LATENCY + 2 * JobFrame.of(node).cycles
    first = [Device(transport, node, name=f"node {rank}") for rank, transport in enumerate(opened.transports)]
    settled, sessions = rings_of_jobs(first, timeout=timeout), []
    for job, ring in enumerate(settled):
        port_time = PortTime(lambda: simulation.cycle, LATENCY)
        own = Ring([Device(BackdoorTransport(NodeTransport(time, rank), simulation, rank, node, port_time), node,
                           name=f"node {rank}") for rank in range(job, len(first), JOBS)], timeout=timeout)
        own.commands.resume_from(*ring.commands.numbers)
        sessions.append(Session(own, node, opened.seconds, lambda: simulation.cycle, port_time))
    return sessions


def _run_both(experiments: list[Experiment], time: SharedTime, signals: Signals,
              on_step: Callable[[Training], None]) -> None:
    """Run each experiment in its own thread; only the first reports its steps. Raises the first error, which does not
    stop the other experiment."""
    errors: list[BaseException] = []

    def run(experiment: Experiment) -> None:
        try:
            if experiment is experiments[0]:
                experiment.run(signals, on_step=on_step)
            else:
                experiment.run(signals)
        except BaseException as error:
            errors.append(error)
        finally:
            time.leave()

    threads = [threading.Thread(target=run, args=(entry,)) for entry in experiments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def train(spec: RunSpec) -> list[dict[str, Any]]:
    """Run both jobs side by side and return their reports; raises ``ValueError`` if a run is impossible."""
    nodes, configs, output = check_jobs(spec), _configs(spec), spec.known("output.folder")
    folders = [output / f"job-{job}" for job in range(JOBS)]
    console = make_console()
    with Progress(console) as progress:
        progress.stage("data")
        tasks = [Classifier(digits(), run.hidden, align=run.align, operands=run.compute_format) for run in configs]
        node = with_links(SLOTS, NodeConfig())
        node = node.replace(link=JobSlots(ingress=node.link.ingress))
        node = fitted(node, [run.allocation(task.parameters.size) for run, task in zip(configs, tasks, strict=True)],
                      nodes=nodes // JOBS, planes=None)
        checkpointers = [Checkpointer(folder / "checkpoint.tar", {}, steps=0) for folder in folders]
        claim(output, files=FILES, space=JOBS << 20)
        threads = thread_count(spec.backend.threads, nodes)
        with open_ring(node, nodes=nodes, threads=threads, arithmetic=spec.known("backend.arithmetic"),
                       announce=progress.stage) as opened, handle_signals() as signals:
            time = SharedTime(opened.simulation, JOBS)
            experiments = [Experiment(session, task, [config], checkpointer=checkpointer)
                           for session, task, config, checkpointer in
                           zip(_sessions(opened, node, time), tasks, configs, checkpointers, strict=True)]
            progress.stage("train", configs[0].steps(tasks[0].examples), tasks[0])
            _run_both(experiments, time, signals, progress.step)
            write_bytes(output / "run.toml", to_toml(spec).encode())
            results = []
            for config, task, run, folder in zip(configs, tasks, experiments, folders, strict=True):
                simulation = report.Simulation(
                    transport=TransportName.VERILATED.value, threads=threads,
                    arithmetic=spec.known("backend.arithmetic").value, link_latency=LATENCY,
                    configuration=as_dict(node), configuration_hash=node.hash, host_port=False,
                    elapsed=run.elapsed, seconds=opened.seconds | {"run": run.seconds[0]},
                    simulation_seconds=run.seconds[0])
                results.append(described(report.build_report(config, run.trainings[0], simulation), spec,
                                         None if run.parameters is None else task.compact(run.parameters),
                                         cut=task.in_groups))
                write_report(results[-1], folder)
    for job, result in enumerate(results):
        console.print(f"job {job}, seed {configs[job].seed}", soft_wrap=True)
        console.print(summary.figures(result))
    console.print(" · ".join(shown(folder / "report.json") for folder in folders), soft_wrap=True)
    return results
