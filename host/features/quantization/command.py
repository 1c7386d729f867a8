"""The command `gradring quantize`."""

import contextlib
import dataclasses
import enum
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from hdl.config import Memories, NodeConfig
from hdl.config.forms import as_dict
from hdl.features.quantization.feature import Quantization
from host.console import HostPort, Nodes, Progress, Threads, given_options, make_console, shown, thread_count
from host.driver.protocols import TrainingRing
from host.features.quantization import experiment as quantize
from host.features.quantization.experiment import UNITS, candidates
from host.features.quantization.network import FloatLayer, QuantizationConfig
from host.features.quantization.report import advice, table, verdict
from host.features.quantization.schemes import Calibration, Extrema, Rounding, Scheme
from host.models.digits import Dataset, digits
from host.options import Option, Section, command, option
from host.output import claim, prepare
from host.training import weight_files
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.training.workloads import Classifier, WorkloadName
from host.transports.session import open_session
from sim import json_files
from sim.verilated import toolchain

__all__ = ["CellCount", "SchemeOptions", "quantize_command"]

_FILES = ("report.json", "report.png", "model.npz", "model.onnx", "weights.npz")


@dataclasses.dataclass(frozen=True)
class WeightOptions(Section):
    """Options of the weights to quantise."""

    weights: Path | None = option(
        None, help="Weights of a perceptron that classifies digits, written by `gradring train`.",
        shown_default="build/sim/weights.npz; a perceptron is trained if the file is missing")
    retrain: bool = option(False, "--train", help="Train a new perceptron, even if the file exists.")


def _names(kind: type[enum.Enum]) -> list[str]:
    return [choice.value for choice in kind]


@dataclasses.dataclass(frozen=True)
class SchemeOptions(Section):
    """Options for the scheme of the quantised model, and for the calibration of all schemes."""

    calibration: str = option(
        "minmax", help="Range of activations that is represented: minmax for all values, or percentile for values up "
                       "to a percentile of the magnitudes.", choices=_names(Calibration))
    percentile: float = option(99.9, help="Percentile for --calibration percentile.")
    scheme: str = option(
        "iaq-min", help="Scheme of the model to write: symmetric, float-offset, iaq-min or iaq-max.",
        choices=_names(Scheme))
    bits: int = option(8, help="Bits of the model's weights: 4 or 8.")
    rounding: str = option("nearest", help="Rounding of weights and offsets: nearest or truncate.",
                           choices=_names(Rounding))
    extrema: str = option(
        "zero", help="Extrema that determine scales and offsets: weights; zero, to include zero; or aligned, to make "
                     "zero an exact level.", choices=_names(Extrema))
    per_output: bool = option(False, "--per-output/--per-layer",
                              help="Use a scale and an offset for each output, or for each layer.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config()

    def config(self) -> QuantizationConfig:
        """Configuration of the model written to a file."""
        return QuantizationConfig(
            scheme=Scheme(self.scheme), rounding=Rounding(self.rounding), extrema=Extrema(self.extrema),
            bits=self.bits, per_channel=self.per_output, percentile=self.percentile,
            calibration=Calibration(self.calibration))


@dataclasses.dataclass(frozen=True)
class SimulationOptions(Section):
    """Options of the simulated ring."""

    threads: Threads = None
    host_port: HostPort = False


@dataclasses.dataclass(frozen=True)
class ExtraOptions(Section):
    """Options for outputs other than the report."""

    onnx: bool = option(False, help="Also write the model as an ONNX graph, and compare the answers of onnxruntime; "
                                    "needs gradring[onnx].")
    synth: bool = option(True, help="Synthesise the units for integers and for a float offset in the background, to "
                                    "count LUTs.")


class CellCount:
    """Background synthesis of the candidates' units, one after another."""

    def __init__(self, units: Iterable[str]):
        self._executor = ThreadPoolExecutor(1)
        self._lock, self._ended = threading.Lock(), False
        self._process: subprocess.Popen[str] | None = None
        self._counts = {unit: self._executor.submit(self._synthesise, unit) for unit in sorted(set(units))}

    def __call__(self, unit: str) -> int | None:
        """Return a unit's LUT4 count once known; None if not counted or if synthesis failed."""
        return self._counts[unit].result() if unit in self._counts else None

    def known(self, unit: str) -> bool:
        """Return whether the result for a unit is available without waiting."""
        return unit not in self._counts or self._counts[unit].done()

    def close(self) -> None:
        """Cancel all pending synthesis runs, and terminate the current one."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.terminate()

    def _synthesise(self, unit: str) -> int | None:
        # Synthesis runs in a separate process so that it can be terminated.
        name, _, option = unit.partition("-")
        options = ["--set", option] if option else []
        command = [sys.executable, "-m", "boards.synth", "--count", "--unit", name, *options]
        with self._lock:
            if self._ended:
                return None
            self._process = subprocess.Popen(command, cwd=toolchain.ROOT, stdout=subprocess.PIPE,
                                             stderr=subprocess.DEVNULL, text=True)
        printed, _ = self._process.communicate()
        return int(json_files.parse_product(printed)["lut4"]) if self._process.returncode == 0 else None


@command
def quantize_command(
    *,
    context: typer.Context, source: WeightOptions, nodes: Nodes = 4,
    seed: Annotated[int, Option("Seed of the training run.")] = TrainingConfig.seed,
    simulation: SimulationOptions, scheme: SchemeOptions, extra: ExtraOptions,
    output: Annotated[Path, Option("Folder for report.json, report.png, model.npz and model.onnx.",
                                   shown_default="build/quantize")] = toolchain.BUILD / "quantize",
) -> None:
    """Quantise a trained perceptron by every scheme, and measure it on the nodes."""
    is_given, training = given_options(context), TrainingConfig(seed=seed)
    _refuse(is_given, source, scheme)
    console, node = make_console(), NodeConfig(
        memories=Memories(planes=training.optimizer.planes), features=(Quantization(),))
    node.check_ring(nodes)
    count = thread_count(simulation.threads, nodes)
    prepare(output, files=_FILES)
    with Progress(console) as progress, contextlib.ExitStack() as stack:
        progress.stage("data")
        data = digits()
        path, trained = ((output / "weights.npz", None) if source.retrain
                         else quantize.find_weights(source.weights, output))
        if trained is not None and is_given("seed"):
            raise ValueError(f"Option --seed is for training, and {shown(path)} has trained weights: add --train, or "
                             f"leave it out")
        if extra.onnx:
            quantize.check_onnx()  # this check comes before anything is built
        if trained is not None:
            layers = quantize.layers_of(trained, data)
            quantize.check_layers(layers, data, candidates(len(layers), scheme.config()))
        claim(output, files=_FILES, keep=() if trained is None else ("weights.npz",))
        cells = CellCount(UNITS if extra.synth else ())
        stack.callback(cells.close)
        with open_session(node, nodes=nodes, threads=count, host_port=simulation.host_port,
                          announce=progress.stage) as session:
            seconds = dict(session.build_seconds)
            if trained is None:
                begun = time.perf_counter()
                trained = _trained(session.ring, data, training, path, progress)
                seconds["train"] = time.perf_counter() - begun
            begun = time.perf_counter()
            layers = quantize.layers_of(trained, data)
            exported, agreement = quantize.export(layers, data, scheme.config(), output, onnx=extra.onnx)
            result = _measured(layers, data, session.ring, scheme, progress=progress, cells=cells)
            seconds["quantize"] = time.perf_counter() - begun
    result |= {"trained_weights": shown(path), "stage_seconds": seconds, "configuration": as_dict(node),
               "onnx": None if agreement is None else {"equal": agreement.equal, "tied": agreement.tied,
                                                       "within": agreement.within}}
    result, paths = quantize.write(result, output)
    console.print(table(result))
    for line in (verdict(result), advice(result), None if agreement is None else
                 f"Answers of onnxruntime to {len(data.test_x)} test images: {agreement}.",
                 " · ".join(map(shown, (*paths, *exported)))):
        if line is not None:
            console.print(line, soft_wrap=True)


def _refuse(is_given: Callable[[str], bool], source: WeightOptions, scheme: SchemeOptions) -> None:
    """Raise ``ValueError`` for an option that is given but has no effect."""
    if scheme.calibration != "percentile" and is_given("percentile"):
        raise ValueError(f"Option --percentile is for calibration percentile, not {scheme.calibration}: leave it out")
    if source.retrain and is_given("weights"):
        raise ValueError("Option --weights is for weights that are there, not with --train: leave it out")


def _trained(ring: TrainingRing, data: Dataset, config: TrainingConfig, path: Path,
             progress: Progress) -> weight_files.TrainedWeights:
    """Train on the ring and write the weights to a file."""
    task = Classifier(data, config.hidden)
    progress.stage("train", config.steps(task.examples), task)
    train(ring, task, config, on_step=progress.step)
    trained = weight_files.TrainedWeights(workload=WorkloadName.DIGITS, hidden=config.hidden, seed=config.seed,
                                          parameters=task.parameters)
    weight_files.save(trained, path)
    return trained


def _measured(layers: Sequence[FloatLayer], data: Dataset, ring: TrainingRing, scheme: SchemeOptions, *,
              progress: Progress, cells: CellCount) -> dict[str, Any]:
    """Build the report of all candidates on the ring, with LUT4 counts for the units given to ``cells``."""
    def lut4(unit: str) -> int | None:
        if not cells.known(unit):
            progress.stage(f"synthesis of {unit}")
        return cells(unit)

    chosen = candidates(len(layers), scheme.config())
    progress.stage("quantize", len(chosen))
    return quantize.collect(
        layers, data, ring, chosen, lut4=lut4,
        on_row=lambda row: progress.advance(f"{row['label']}, {row['bits']} bits: {row['accuracy']:.2%}"))
