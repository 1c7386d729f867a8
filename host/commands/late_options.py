"""Options of a training run with a straggler, whose gradients are late: their check, and the run."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hdl.config import NodeConfig, Weights
from hdl.config.forms import as_dict
from host.commands.console import Progress, make_console, shown, thread_count
from host.commands.run_files import FILES
from host.models.digits import digits
from host.models.widths import widths
from host.options import COUNT, SEEDS, check_range
from host.output import claim, prepare, write_json
from host.reports import late_run as report
from host.signals import GRACE, Interrupted, handle_signals
from host.training import checkpoint as checkpoints
from host.training.experiment import Keeper
from host.training.late_learning import Late, LateConfig, Model, stragglers
from host.training.late_nodes import node_for, patience_of
from host.training.late_run import BLOCK, LateRun
from host.transports.session import LONGEST_REPLAYED, open_session
from sim.link_faults import RandomFaults
from sim.verilated.native import Arithmetic

__all__ = ["Cycles", "Deadline", "Factor", "LateOption", "Quorum", "Skew", "Straggler", "SwitchOut", "asked",
           "train"]

Straggler = Annotated[str | None, typer.Option(
    help="Slow workers and the factors of their computations, as in 3:4.5,1:2. Updates are then rounds, which a "
         "quorum closes; computing is modelled.", metavar="WORKER:FACTOR,...", show_default=False)]
Quorum = Annotated[int | None, typer.Option(
    help="Gradients in time that close a round. [default: those of workers that are no stragglers]",
    show_default=False)]
LateOption = Annotated[Late | None, typer.Option(
    help="Late gradients: fold them into a later round, wait for them, or drop them. [default: fold]",
    show_default=False)]
Factor = Annotated[float | None, typer.Option(
    "--lambda", help=f"Factor of a gradient for each round that it is late. [default: {LateConfig.factor:g}]",
    show_default=False)]
Deadline = Annotated[int | None, typer.Option(
    help="Cycles after which a round is closed that has a gradient. [default: none]", show_default=False)]
Skew = Annotated[float | None, typer.Option(
    help=f"Part of each worker's examples that comes from classes of its own. [default: {LateConfig.skew:g}]",
    show_default=False)]
Cycles = Annotated[int | None, typer.Option(
    help=f"Cycles of a run with --straggler. [default: {LateConfig.cycles:,}]", show_default=False)]

SwitchOut = Annotated[bool, typer.Option(
    "--switch-out", help="Go on without a worker that was never in time in a block of rounds, and whose gradients "
                         "were dropped: its node is switched out of the ring, of nodes with two ports.")]

#: Options that only such a run has, and what else it takes, by their names in the code.
_OWN = ("quorum", "late", "factor", "deadline", "skew", "cycles", "switch_out")
_SHARED = ("straggler", "nodes", "seed", "threads", "learning_rate", "momentum", "weights", "batch", "hidden", "macs",
           "arithmetic", "host_port", "link_latency", "faults", "fault_seed", "checkpoint", "resume", "output")

#: Options without effect on late gradients that are waited for, or dropped.
_WITHOUT_EFFECT = {Late.WAIT: ("quorum", "factor", "deadline"), Late.DROP: ("factor",)}


def asked(options: Mapping[str, Any], given: Callable[[str], bool]) -> bool:
    """Whether a run with a straggler is asked for.

    Raises
    ------
    ValueError
        An option was given that has no effect on the run.
    """
    late = options["straggler"] is not None
    refused = [name for name in options if name not in (*_OWN, *_SHARED)] if late else _OWN
    reason = f"is for a run {'without' if late else 'with'} --straggler"
    for name in filter(given, refused):
        option = "lambda" if name == "factor" else name.replace("_", "-")
        raise ValueError(f"Option --{option} {reason}: leave it out")
    if given("fault_seed") and options["faults"] is None:
        raise ValueError("Option --fault-seed is for a run with --faults: leave it out")
    way = options["late"] or Late.FOLD
    for name in filter(given, _WITHOUT_EFFECT.get(way, ()) if late else ()):
        option = "lambda" if name == "factor" else name
        raise ValueError(f"Option --{option} has no effect with --late {way.value}: leave it out")
    return late


def _config_of(options: Mapping[str, Any]) -> LateConfig:
    """Configuration of a run by its options."""
    slow = stragglers(options["straggler"])
    workers = LateConfig.workers if options["nodes"] is None else options["nodes"]
    check_range("Nodes of a run with --straggler", workers, 2, 16)
    check_range("Examples of a worker", options["batch"], 1, COUNT)
    check_range("Seed", options["seed"], 0, SEEDS)
    check_range("Learning rate", options["learning_rate"], 0, COUNT)
    check_range("Momentum", options["momentum"], 0, 1)
    check_range("Cycles", options["cycles"], 1, COUNT)
    check_range("Multiply-adds per cycle", options["macs"], 1, COUNT)
    check_range("Deadline", options["deadline"], 0, (1 << 32) - 1)
    check_range("Skew", options["skew"], 0, 1)
    check_range("Lambda", options["factor"], 0, 1)
    known = {name: options[name] for name in ("factor", "deadline", "skew", "cycles", "batch", "learning_rate",
                                              "momentum", "macs", "seed") if options[name] is not None}
    if options["hidden"] is not None:
        known["hidden"] = widths(options["hidden"])
    return LateConfig(
        late=Late(options["late"] or Late.FOLD), workers=workers, slow=slow,
        quorum=max(1, workers - len(slow)) if options["quorum"] is None else options["quorum"], **known)


def train(options: Mapping[str, Any]) -> None:
    """Train with a straggler, by the options of the command."""
    config, output = _config_of(options), Path(options["output"])
    damage = None if options["faults"] is None else RandomFaults(rate=options["faults"], seed=options["fault_seed"])
    check_range("Link latency", options["link_latency"], 1, LONGEST_REPLAYED)
    check_range("Rounds between checkpoints", options["checkpoint"], 0, COUNT)
    threads = thread_count(options["threads"], config.workers)
    block = min(BLOCK, options["checkpoint"] or BLOCK)
    console = make_console()
    stopped = 0
    with Progress(console) as progress:
        progress.stage("data")
        data = digits()
        length, patience = Model(data, config).length, patience_of(data, config)
        node = node_for(length, nodes=config.workers, node=NodeConfig(weights=Weights(codec=options["weights"])),
                        ports=2 if options["switch_out"] else 1)
        identity = {"straggler": {**dataclasses.asdict(config), "late": config.late.value,
                                  "slow": {str(rank): factor for rank, factor in config.slow.items()}},
                    "block": block, "configuration": as_dict(node),
                    "link_latency": options["link_latency"], "host_port": options["host_port"],
                    "faults": None if damage is None else dataclasses.asdict(damage)}
        keeper = Keeper(output / checkpoints.NAME, identity, steps=options["checkpoint"])
        keeper.check_key()
        prepare(output, files=("report.json", "report.png", checkpoints.NAME), space=64 * length + (2 << 20))
        kept = keeper.load() if options["resume"] else None
        claim(output, files=FILES, keep=() if kept is None else (checkpoints.NAME,))
        if options["resume"]:
            progress.say(f"{shown(keeper.path)}: " + ("there is none, so training begins at its first round"
                                                       if kept is None else "training goes on from there"))
        with open_session(node, nodes=config.workers, threads=threads, arithmetic=Arithmetic(options["arithmetic"]),
                          host_port=options["host_port"], latency=options["link_latency"], faults=damage,
                          timeout=patience, grid=(1, config.workers) if options["switch_out"] else None,
                          say=progress.say, announce=progress.stage) as session, \
                handle_signals(grace=GRACE) as signals:
            run = LateRun(session.ring, data, config, block=block, grid=session.grid)
            if kept is None:
                run.begin()
            else:
                run.resume(kept)
            progress.stage("rounds", run.expected)

            def report_so_far() -> dict[str, Any]:
                faults = None if damage is None else {**identity["faults"], "count": session.faults}
                return report.build(
                    config, run, threads=threads, link_latency=options["link_latency"], faults=faults,
                    configuration=as_dict(node), configuration_hash=node.hash,
                    simulated_cycles=session.elapsed.simulated)

            result = report_so_far() if run.fates else None
            try:
                while not run.complete:
                    before = len(run.fates)
                    signals.check()
                    run.advance()
                    signals.settle()
                    result = report_so_far()
                    progress.say(f"rounds {before + 1:3} to {len(run.fates):3}   loss {run.outcome.losses[-1]:.4f}   "
                                 f"test accuracy {run.outcome.accuracy:.2%}")
                    keeper.save(run.state())
            except Interrupted as interrupted:  # the report is of the blocks that have ended
                stopped = interrupted.signal
        if result is None:
            if stopped:
                console.print("interrupted; no block of rounds has ended, so that the next run begins at the first "
                              "round", soft_wrap=True)
                raise typer.Exit(128 + stopped)
            raise ValueError(f"Cycles must be enough for a round, not {config.cycles:,}")
        result["interrupted"] = bool(stopped)
        progress.stage("report")
        write_json(output / "report.json", result)
        report.draw(result, output / "report.png")
    for line in report.lines(result):
        console.print(line, soft_wrap=True)
    console.print(" · ".join(map(shown, (output / "report.json", output / "report.png"))), soft_wrap=True)
    if stopped:
        console.print("interrupted; " + (
            "there is no checkpoint, so that the next run begins at the first round" if keeper.steps == 0 else
            "the same command with --resume (make: RESUME=1) goes on from there"), soft_wrap=True)
        raise typer.Exit(128 + stopped)
