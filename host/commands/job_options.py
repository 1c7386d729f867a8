"""Option `--jobs` of `gradring train`: two training runs side by side, on a ring whose nodes take turns in slots."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hdl.config import JobSlots, NodeConfig
from hdl.config.forms import as_dict
from hdl.ring.slots.job_table import JOBS, JobFrame
from host.commands.console import Progress, make_console, shown, thread_count
from host.commands.run_files import FILES
from host.commands.slot_links import SLOTS, with_links
from host.driver.device import Device
from host.driver.devices import TIMEOUT
from host.driver.memory import fitted
from host.driver.ring import Ring
from host.driver.slot_jobs import rings_of_jobs
from host.models.digits import digits
from host.models.widths import widths
from host.options import COUNT, check_range
from host.output import claim, write_json
from host.reports import report
from host.signals import Signals, handle_signals
from host.training.experiment import Experiment, Keeper
from host.training.optimizers import LEARNING_RATES, OptimizerName, create
from host.training.record import Training, TrainingConfig
from host.training.workloads import Classifier
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.session import LATENCY, Session, TransportName
from host.transports.side_by_side import SharedTime, SharedTransport
from host.transports.verilated import OpenRing, open_ring
from sim.verilated.native import Arithmetic

__all__ = ["JobsOption", "asked", "train"]

JobsOption = Annotated[int | None, typer.Option(
    help="Training runs side by side on one ring with --links slots, of every other node each, with --seed and the "
         "next one: 2. [default: one, on all nodes]", show_default=False)]

#: Options that such a run takes, by their names in the code.
_SHARED = ("jobs", "links", "nodes", "seed", "steps", "epochs", "batch", "hidden", "threads", "learning_rate",
           "momentum", "arithmetic", "compare", "output")


def asked(options: Mapping[str, Any], given: Callable[[str], bool]) -> bool:
    """Whether two jobs are asked for.

    Raises
    ------
    ValueError
        Another number is, or an option was given that has no effect on them.
    """
    if options["jobs"] in (None, 1):
        return False
    if options["jobs"] != JOBS or options["links"] != SLOTS:
        raise ValueError(f"Jobs must be 1, or {JOBS} with --links {SLOTS}, not {options['jobs']!r} with --links "
                         f"{options['links']}")
    for name in filter(given, [name for name in options if name not in _SHARED]):
        raise ValueError(f"Option --{name.replace('_', '-')} is for a run without --jobs: leave it out")
    if options["compare"]:
        raise ValueError("Option --compare is for a run without --jobs: leave it out")
    if options["epochs"] is not None and options["steps"] is not None:
        raise ValueError(f"Epochs or steps must be given, not both: {options['epochs']!r} and {options['steps']!r}")
    return True


def _configs(options: Mapping[str, Any]) -> list[TrainingConfig]:
    """Training of each job."""
    check_range("Learning rate", options["learning_rate"], 0, COUNT)
    rate = options["learning_rate"]
    config = TrainingConfig(
        **{name: options[name] for name in ("epochs", "batch") if options[name] is not None},
        max_steps=options["steps"], check=True,
        hidden=TrainingConfig.hidden if options["hidden"] is None else widths(options["hidden"]),
        optimizer=create(OptimizerName.MOMENTUM, momentum=options["momentum"],
                         learning_rate=LEARNING_RATES[OptimizerName.MOMENTUM] if rate is None else rate))
    return [dataclasses.replace(config, seed=options["seed"] + job) for job in range(JOBS)]


def _sessions(opened: OpenRing, node: NodeConfig, time: SharedTime) -> list[Session]:
    """The ring of each job, which is in order."""
    simulation = opened.simulation
    for link in simulation.links:
        link.set_latency(data=LATENCY, credit=LATENCY)
    timeout = TIMEOUT + 4 * LATENCY + 2 * JobFrame.of(node).cycles
    first = [Device(transport, node, name=f"node {rank}") for rank, transport in enumerate(opened.transports)]
    settled, sessions = rings_of_jobs(first, timeout=timeout), []
    for job, ring in enumerate(settled):
        port_time = PortTime(lambda: simulation.cycle, LATENCY)
        own = Ring([Device(BackdoorTransport(SharedTransport(time, rank), simulation, rank, node, port_time), node,
                           name=f"node {rank}") for rank in range(job, len(first), JOBS)], timeout=timeout)
        own.commands.resume_from(*ring.commands.numbers)
        sessions.append(Session(own, node, opened.seconds, lambda: simulation.cycle, port_time, []))
    return sessions


def _run_both(experiments: list[Experiment], time: SharedTime, signals: Signals,
              on_step: Callable[[Training], None]) -> None:
    """Run experiments, each in a thread, of which the first one tells of its steps; raises the first error of one,
    which does not stop the other."""
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

    threads = [threading.Thread(target=run, args=(one,)) for one in experiments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def train(options: Mapping[str, Any]) -> None:
    """Train twice, side by side, by the options of the command."""
    nodes = 2 * 4 if options["nodes"] is None else options["nodes"]
    check_range("Nodes of a run with --jobs", nodes, 2 * JOBS, 16)
    if nodes % JOBS:
        raise ValueError(f"Nodes of a run with --jobs must be a multiple of {JOBS}, not {nodes}")
    configs, output = _configs(options), Path(options["output"])
    folders = [output / f"job-{job}" for job in range(JOBS)]
    console = make_console()
    with Progress(console) as progress:
        progress.stage("data")
        tasks = [Classifier(digits(), one.hidden, align=one.align, operands=one.compute_format) for one in configs]
        node = with_links(SLOTS, NodeConfig(), transport=TransportName.VERILATED)
        node = node.replace(link=JobSlots(ingress=node.link.ingress))
        node = fitted(node, [one.allocation(task.parameters.size) for one, task in zip(configs, tasks, strict=True)],
                      nodes=nodes // JOBS, planes=None)
        keepers = [Keeper(folder / "checkpoint.tar", {}, steps=0) for folder in folders]
        claim(output, files=FILES, space=JOBS << 20)
        threads = thread_count(options["threads"], nodes)
        with open_ring(node, nodes=nodes, threads=threads, arithmetic=Arithmetic(options["arithmetic"]),
                       announce=progress.stage) as opened, handle_signals() as signals:
            time = SharedTime(opened.simulation, JOBS)
            experiments = [Experiment(session, task, [config], keeper=keeper) for session, task, config, keeper in
                           zip(_sessions(opened, node, time), tasks, configs, keepers, strict=True)]
            progress.stage("train", configs[0].steps(tasks[0].examples), tasks[0])
            _run_both(experiments, time, signals, progress.step)
            results = []
            for config, one, folder in zip(configs, experiments, folders, strict=True):
                simulation = report.Simulation(
                    transport=TransportName.VERILATED.value, threads=threads,
                    arithmetic=Arithmetic(options["arithmetic"]).value, link_latency=LATENCY,
                    configuration=as_dict(node), configuration_hash=node.hash, host_port=False,
                    elapsed=one.elapsed, seconds=opened.seconds | {"run": one.seconds[0]},
                    simulation_seconds=one.seconds[0])
                results.append(report.build_report(config, one.trainings[0], simulation))
                write_json(folder / "report.json", results[-1])
    for job, result in enumerate(results):
        console.print(f"job {job}, seed {configs[job].seed}", soft_wrap=True)
        console.print(report.table(result))
    console.print(" · ".join(shown(folder / "report.json") for folder in folders), soft_wrap=True)
