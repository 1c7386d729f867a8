"""The command `gradring quantize`."""

import contextlib
import time
from pathlib import Path
from typing import Annotated

import typer

from hdl.config import Memories, NodeConfig, Quantization
from hdl.config.forms import as_dict
from host.commands.console import (
    HostPort,
    Nodes,
    Progress,
    Threads,
    given_options,
    make_console,
    shown,
    thread_count,
)
from host.models.digits import digits
from host.options import command
from host.output import claim, prepare
from host.training import weight_files as weights_files
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.training.workloads import Classifier, WorkloadName
from host.transports.session import open_session
from sim.verilated import toolchain

__all__ = ["quantize_command"]

_FILES = ("report.json", "report.png", "model.npz", "model.onnx", "weights.npz")


@command
def quantize_command(
    context: typer.Context,
    weights: Annotated[Path | None, typer.Option(
        help="Weights, written by `gradring train`, of a perceptron that classifies digits. [default: "
             "build/sim/weights.npz; where there is none, one is trained]", show_default=False)] = None,
    retrain: Annotated[bool, typer.Option("--train", help="Train, whatever there is.")] = False,
    nodes: Nodes = 4,
    seed: Annotated[int, typer.Option(help="Seed of training.")] = TrainingConfig.seed,
    threads: Threads = None,
    host_port: HostPort = False,
    calibration: Annotated[str, typer.Option(
        help="Range of activations that is represented: all, minmax, or up to a percentile of their magnitudes.")
    ] = "minmax",
    percentile: Annotated[float, typer.Option(help="Percentile of that calibration.")] = 99.9,
    scheme: Annotated[str, typer.Option(
        help="Scheme of the model that is written: symmetric, float-offset, iaq-min or iaq-max.")] = "iaq-min",
    bits: Annotated[int, typer.Option(help="Bits of its weights: 4 or 8.")] = 8,
    rounding: Annotated[str, typer.Option(help="Rounding of weights and offsets: nearest or truncate.")] = "nearest",
    extrema: Annotated[str, typer.Option(
        help="Extrema of its scales and offsets: weights; zero, which counts as one of them; or aligned, such "
             "that zero is a level.")] = "zero",
    per_output: Annotated[bool, typer.Option(
        "--per-output/--per-layer", help="Whether each of its outputs has a scale and an offset.")] = False,
    onnx: Annotated[bool, typer.Option(
        help="Write it as an ONNX graph as well, and compare onnxruntime's answers; needs gradring[onnx].")] = False,
    synth: Annotated[bool, typer.Option(
        help="Synthesise, meanwhile, the units for integers and for a float offset, to count LUTs.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of report.json, report.png, model.npz and model.onnx. "
                                          "[default: build/quantize]", show_default=False)
                      ] = toolchain.BUILD / "quantize",
) -> None:
    """Quantise a trained perceptron by every scheme, and measure it on the nodes."""
    from host.quantization import experiment as quantize
    from host.quantization.candidates import UNITS, candidates, configuration
    from host.quantization.cells import CellCount
    from host.quantization.summary import advice, table, verdict

    config = configuration(scheme=scheme, bits=bits, rounding=rounding, per_channel=per_output,
                           extrema=extrema, calibration=calibration, percentile=percentile)
    given = given_options(context)
    for name, wrong, reason in (
            ("percentile", calibration != "percentile", f"is for calibration percentile, not {calibration}"),
            ("weights", retrain, "is for weights that are there, not with --train")):
        if wrong and given(name):
            raise ValueError(f"Option --{name} {reason}: leave it out")
    training = TrainingConfig(seed=seed)
    console, node = make_console(), NodeConfig(
        memories=Memories(planes=training.optimizer.planes), features=(Quantization(),))
    node.check_ring(nodes)
    count = thread_count(threads, nodes)
    prepare(output, files=_FILES)
    with Progress(console) as progress, contextlib.ExitStack() as stack:
        progress.stage("data")
        data = digits()
        path, trained = (output / "weights.npz", None) if retrain else quantize.find_weights(weights, output)
        if trained is not None and given("seed"):
            raise ValueError(f"Option --seed is for training, and {shown(path)} has trained weights: add --train, or "
                             f"leave it out")
        if onnx:
            quantize.check_onnx()  # before anything is built
        layers = None
        if trained is not None:
            layers = quantize.layers_of(trained, data)
            chosen = candidates(len(layers), calibration=config.calibration, percentile=percentile)
            quantize.check_layers(layers, data, chosen)
        claim(output, files=_FILES, keep=() if trained is None else ("weights.npz",))
        cells = CellCount(UNITS if synth else ())
        stack.callback(cells.close)

        def lut4(unit: str) -> int | None:
            if not cells.known(unit):
                progress.stage(f"synthesis of {unit}")
            return cells(unit)

        with open_session(node, nodes=nodes, threads=count, host_port=host_port,
                          announce=progress.stage) as session:
            seconds = dict(session.build_seconds)
            if trained is None:
                begun = time.perf_counter()
                task = Classifier(data, training.hidden)
                progress.stage("train", training.steps(task.examples), task)
                train(session.ring, task, training, on_step=progress.step)
                trained = weights_files.TrainedWeights(workload=WorkloadName.DIGITS, hidden=training.hidden,
                                                       seed=seed, parameters=task.parameters)
                weights_files.save(trained, path)
                seconds["train"] = time.perf_counter() - begun
            begun = time.perf_counter()
            if layers is None:
                layers = quantize.layers_of(trained, data)
                chosen = candidates(len(layers), calibration=config.calibration, percentile=percentile)
            exported, agreement = quantize.export(layers, data, config, output, onnx=onnx)
            progress.stage("quantize", len(chosen))
            result = quantize.collect(
                layers, data, session.ring, chosen, lut4=lut4 if synth else lambda unit: None,
                on_row=lambda row: progress.advance(f"{row['label']}, {row['bits']} bits: {row['accuracy']:.2%}"))
            seconds["quantize"] = time.perf_counter() - begun
    result |= {"trained_weights": shown(path), "stage_seconds": seconds, "configuration": as_dict(node),
               "onnx": None if agreement is None else {"equal": agreement.equal, "tied": agreement.tied,
                                                       "within": agreement.within}}
    written, picture = quantize.write(result, output)
    console.print(table(result))
    console.print(verdict(result), soft_wrap=True)
    if (missing := advice(result)) is not None:
        console.print(missing, soft_wrap=True)
    if agreement is not None:
        console.print(f"Answers of onnxruntime to {len(data.test_x)} test images: {agreement}.", soft_wrap=True)
    console.print(" · ".join(map(shown, (written, picture, *exported))), soft_wrap=True)
