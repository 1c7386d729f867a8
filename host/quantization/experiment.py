"""A trained perceptron in integers: quantised by every scheme, measured on the nodes, and reported.

Schemes with an integer offset run on the nodes' integer datapath, and every score is compared with the golden model,
bit for bit. A float offset cannot; its accuracy is computed here, as a unit for it would.

Beside the network as it was trained there is one with a skewed last layer: its smallest weight is subtracted from all
of its weights. All scores then are higher by the same amount, so that predictions are what they were, and no weight
is negative. Its last layer alone has 4 bits.
"""

import dataclasses
import enum
import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from host.driver.ring import Ring
from host.models.digits import Dataset
from host.models.layers import perceptron
from host.output import write_json
from host.quantization import files
from host.quantization.calibration import Calibration
from host.quantization.network import (
    FloatLayer,
    QuantizationConfig,
    QuantizedNetwork,
    activations,
    float_layers,
    infer,
    node_layers,
    quantize,
)
from host.quantization.onnx import Agreement
from host.quantization.schemes import Extrema, Rounding, Scheme, quantize_weights
from host.training.trainer import DivergenceError
from host.training.weight_files import TrainedWeights, load
from host.training.workloads import WorkloadName
from host.versions import program
from sim.verilated.toolchain import BUILD, ROOT

__all__ = ["INPUT_SCALE", "Candidate", "advice", "candidates", "check_onnx", "collect", "configuration",
           "export", "find_weights", "layers_of", "measure", "on_ring", "skewed", "table", "verdict", "write"]

Row = dict[str, Any]
Choice = TypeVar("Choice", bound=enum.Enum)

#: Pixels are multiples of this.
INPUT_SCALE = 1 / 16

#: Of report.json; docs/quantization/schemes.md lists its fields.
SCHEMA, VERSION = "gradring.quantization", 1

TRAINED, SKEWED = "trained", "skewed"

#: By the names that `make synth` has: outputs by an integer offset, and by one that is a float; of 8 bits, and of 4.
_UNITS = {True: "quantization.integer_offset", False: "quantization.float_offset"}
UNITS = tuple(f"{unit}{option}" for unit in _UNITS.values() for option in ("", "-bits=4"))

_SCHEMES = [(Scheme.SYMMETRIC, Extrema.ZERO), (Scheme.FLOAT_OFFSET, Extrema.ZERO), (Scheme.IAQ_MIN, Extrema.ZERO),
            (Scheme.IAQ_MAX, Extrema.ZERO), (Scheme.IAQ_MIN, Extrema.ALIGNED)]


def configuration(*, scheme: str, rounding: str, extrema: str, calibration: str, bits: int, per_channel: bool,
                  percentile: float) -> QuantizationConfig:
    """A configuration whose choices are given by name."""
    return QuantizationConfig(
        scheme=_choice("Scheme", Scheme, scheme), rounding=_choice("Rounding", Rounding, rounding),
        extrema=_choice("Extrema", Extrema, extrema), bits=bits, per_channel=per_channel, percentile=percentile,
        calibration=_choice("Calibration", Calibration, calibration))


def _choice(what: str, kind: type[Choice], name: str) -> Choice:
    names = [choice.value for choice in kind]
    if name not in names:
        raise ValueError(f"{what} must be one of {', '.join(names)}, not {name!r}")
    return kind(name)


def find_weights(given: Path | None, output: Path) -> tuple[Path, TrainedWeights | None]:
    """Weights of a perceptron that classifies digits: those given, or else what training or an earlier run has left,
    if it has; and where they are, or would be.

    Raises
    ------
    ValueError
        The file that was given has others.
    """
    if given is not None:
        weights = load(given)
        if weights.workload is not WorkloadName.DIGITS:
            raise ValueError(f"{given} must have weights of {WorkloadName.DIGITS.value}, not of "
                             f"{weights.workload.value}")
        return given, weights
    for path in (BUILD / "sim" / "weights.npz", output / "weights.npz"):
        if path.exists() and (weights := load(path)).workload is WorkloadName.DIGITS:
            return path, weights
    return output / "weights.npz", None


def layers_of(weights: TrainedWeights, data: Dataset) -> list[FloatLayer]:
    """The layers of a perceptron that was trained on this data."""
    model = perceptron(data.train_x.shape[1], weights.hidden, data.classes)
    if weights.parameters.shape != (model.size,):
        raise ValueError(f"Parameters of a perceptron with hidden layers {weights.hidden!r} must be {model.size:,}, "
                         f"not {weights.parameters.size:,}")
    return float_layers(model, weights.parameters)


def check_onnx() -> None:
    """Check that the packages for ONNX are there, and raise ``ValueError`` if not."""
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be installed for ONNX: run `make .venv/.onnx`")


def export(layers: Sequence[FloatLayer], data: Dataset, config: QuantizationConfig, directory: Path, *,
           onnx: bool = False) -> tuple[list[Path], Agreement | None]:
    """Write model.npz and, if asked for, model.onnx; their paths, and how onnxruntime's answers to the test images
    compare with those of the integer model.

    Raises
    ------
    DivergenceError
        On some of the test images, onnxruntime's answer is an output whose integer score is more than one adjusted
        weight below the largest.
    """
    network = quantize(layers, data.train_x, config, input_scale=INPUT_SCALE)
    paths, agreement = [directory / "model.npz"], None
    files.save(network, paths[0])
    if onnx:
        from host.quantization.onnx import compare_answers, export_onnx, run_onnx

        paths.append(directory / "model.onnx")
        export_onnx(network, paths[1])
        agreement = compare_answers(network, infer(network, data.test_x), run_onnx(paths[1], data.test_x))
        if agreement.wrong.size:
            raise DivergenceError(
                f"{paths[1]}: the integer score of onnxruntime's answer must be the largest, or at most one adjusted "
                f"weight below it, and is not for {agreement.wrong.size} of {len(data.test_x)} test images, first "
                f"number {agreement.wrong[0]}")
    return paths, agreement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A network, and how it is quantised.

    Parameters
    ----------
    network : str
        The one that was trained, or the one with a skewed last layer.
    config : QuantizationConfig
    """

    network: str
    config: QuantizationConfig

    @property
    def label(self) -> str:
        """Name of the scheme."""
        aligned = ", aligned" if self.config.extrema is Extrema.ALIGNED else ""
        return f"{self.config.scheme.value}{aligned}"

    @property
    def bits(self) -> int:
        """Of the codes of the last layer."""
        return self.config.bits if isinstance(self.config.bits, int) else self.config.bits[-1]

    @property
    def scale(self) -> str:
        """What has a scale of its own."""
        return "output" if self.config.per_channel else "layer"

    @property
    def unit(self) -> str:
        """What computes it, for codes of 8 bits if some layer has such."""
        return _UNITS[self.config.scheme.integer] + ("-bits=4" if self.config.bits == 4 else "")


def candidates(layers: int, *, calibration: Calibration = Calibration.MINMAX,
               percentile: float = 99.9) -> list[Candidate]:
    """All that are measured, of a network of so many layers."""
    found = []
    for bits, per_channel, (scheme, extrema), rounding in itertools.product(
            (8, 4), (False, True), _SCHEMES, Rounding):
        found.append(Candidate(network=TRAINED, config=QuantizationConfig(
            scheme=scheme, bits=bits, rounding=rounding, per_channel=per_channel, extrema=extrema,
            calibration=calibration, percentile=percentile)))
    for per_channel, (scheme, extrema) in itertools.product((False, True), _SCHEMES[:4]):
        found.append(Candidate(network=SKEWED, config=QuantizationConfig(
            scheme=scheme, bits=(*[8] * (layers - 1), 4), per_channel=per_channel, extrema=extrema,
            calibration=calibration, percentile=percentile)))
    return found


def skewed(layers: Sequence[FloatLayer]) -> list[FloatLayer]:
    """The same predictions, with a last layer that has no negative weight."""
    last = layers[-1]
    return [*layers[:-1], FloatLayer(last.weights - last.weights.min(), last.biases)]


def on_ring(ring: Ring, network: QuantizedNetwork, x: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.int64], int]:
    """Sums of the last layer for a batch that is dealt to all nodes, and cycles of the one that took longest.

    Raises
    ------
    DivergenceError
        The nodes do not agree with the golden model.
    """
    outcome = ring.infer(node_layers(network), network.input_codes(x))
    expected = infer(network, x)
    wrong = np.argwhere(outcome.outputs != expected)
    if len(wrong):
        example, output = wrong[0].tolist()
        raise DivergenceError(
            f"Inference: {len(wrong)} of {expected.size} sums differ from the golden model, first example {example}, "
            f"output {output}, which is {outcome.outputs[example, output]} and must be {expected[example, output]}")
    return expected, outcome.cycles


def measure(candidate: Candidate, layers: Sequence[FloatLayer], data: Dataset, ring: Ring | None = None) -> Row:
    """Quantise a network, and measure it on the test set.

    Parameters
    ----------
    candidate : Candidate
    layers : sequence of FloatLayer
        As they were trained.
    data : Dataset
    ring : Ring, optional
        With nodes that can infer; without one, scores are the golden model's.
    """
    config = candidate.config
    if candidate.network == SKEWED:
        layers = skewed(layers)
    network = quantize(layers, data.train_x, config, input_scale=INPUT_SCALE)
    exact = activations(layers, data.test_x)[-1]
    cycles = None
    if not config.scheme.integer:
        scores = network.float_scores(data.test_x).astype(np.float64)
    elif ring is None:
        scores = network.scores(infer(network, data.test_x))
    else:
        sums, taken = on_ring(ring, network, data.test_x)
        scores, cycles = network.scores(sums), taken / -(-len(data.test_x) // ring.nodes)
    errors = [made.weights.error(layer.weights) for made, layer in zip(network.layers, layers, strict=True)]
    counts = network.multiplications
    return {
        "network": candidate.network, "scheme": config.scheme.value, "extrema": config.extrema.value,
        "label": candidate.label, "bits": candidate.bits,
        "bits_per_layer": [layer.weights.bits for layer in network.layers], "rounding": config.rounding.value,
        "scale": candidate.scale, "accuracy": float((scores.argmax(axis=1) == data.test_y).mean()),
        "accuracy_float": float((exact.argmax(axis=1) == data.test_y).mean()),
        "agreement": float((scores.argmax(axis=1) == exact.argmax(axis=1)).mean()),
        "error_in_steps": max(errors), "bound_met": max(errors) < 1,
        "weights_db": [_decibels(layer.weights, made.weights.values)
                       for made, layer in zip(network.layers, layers, strict=True)],
        "scores_db": _decibels(*(part - part.mean(axis=1, keepdims=True) for part in (exact, scores))),
        "requantization_error": max((layer.requantization.error for layer in network.layers
                                     if layer.requantization is not None), default=None),
        "products": counts.products, "requantizations": counts.requantizations,
        "float_multiplications": counts.floats, "cycles": cycles,
        "on_nodes": cycles is not None, "bit_exact": True if cycles is not None else None}


def _decibels(exact: npt.NDArray[np.floating], found: npt.NDArray[np.floating]) -> float | None:
    """Power of the exact values over that of the difference; None if there is no difference."""
    noise = float(np.square(np.asarray(found, np.float64) - exact).sum())
    return 10 * float(np.log10(np.square(np.asarray(exact, np.float64)).sum() / noise)) if noise else None


class CellCount:
    """Synthesises units, one after the other, while something else goes on.

    Parameters
    ----------
    units : iterable of str
        As :attr:`Candidate.unit` names them.
    """

    def __init__(self, units: Iterable[str]):
        self._executor = ThreadPoolExecutor(1)
        self._found = {unit: self._executor.submit(_synthesise, unit) for unit in sorted(set(units))}

    def __call__(self, unit: str) -> int | None:
        """LUT4 of a unit, when they are known; None where it could not be synthesised."""
        return self._found[unit].result()

    def known(self, unit: str) -> bool:
        """Whether a unit has been synthesised, so that nobody waits for it."""
        return self._found[unit].done()

    def close(self) -> None:
        """Begin no other."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _synthesise(unit: str) -> int | None:
    # In a process of its own, so that several run at a time.
    name, _, option = unit.partition("-")
    options = ["--set", option] if option else []
    command = [sys.executable, "-m", "boards.synth", "--count", "--unit", name, *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(json.loads(ended.stdout)["lut4"]) if ended.returncode == 0 else None


def collect(layers: Sequence[FloatLayer], data: Dataset, ring: Ring | None, chosen: Sequence[Candidate], *,
            lut4: Callable[[str], int | None] = lambda unit: None,
            on_row: Callable[[Row], None] = lambda row: None) -> dict[str, Any]:
    """The report, ready to be written as JSON; ``on_row`` is called with each of its rows.

    Parameters
    ----------
    layers : sequence of FloatLayer
    data : Dataset
    ring : Ring or None
    chosen : sequence of Candidate
    lut4 : callable
        Of a unit by its name, once all is measured, where that is known.
    on_row : callable
    """
    rows = []
    for candidate in chosen:
        row = measure(candidate, layers, data, ring)
        rows.append(row)
        on_row(row)
    units = {candidate.unit: lut4(candidate.unit) for candidate in chosen}
    for candidate, row in zip(chosen, rows, strict=True):
        row["lut4"] = units[candidate.unit]
    exact = activations(layers, data.test_x)[-1]
    return {
        "schema": {"name": SCHEMA, "version": VERSION}, "program": program(),
        "accuracy_float": float((exact.argmax(axis=1) == data.test_y).mean()), "examples": len(data.test_y),
        "layers": [list(layer.weights.shape[::-1]) for layer in layers],
        "nodes": None if ring is None else ring.nodes, "rows": rows,
        "grids": [_grid("first layer, as trained", layers[0].weights),
                  _grid("last layer, skewed", skewed(layers)[-1].weights)],
        "units": units}


def _grid(name: str, weights: npt.NDArray[np.floating]) -> dict[str, Any]:
    """How weights are distributed, and which values codes of 4 bits can stand for."""
    counts, edges = np.histogram(weights, bins=60)
    made = {scheme: quantize_weights(weights, bits=4, scheme=scheme, extrema=extrema) for scheme, extrema in _SCHEMES
            if extrema is Extrema.ZERO and scheme is not Scheme.FLOAT_OFFSET}
    # All codes in place of those of the weights.
    levels = {scheme.value: dataclasses.replace(one, codes=np.arange(16)[None], offsets=one.offsets[:1],
                                                scales=one.scales[:1]).values[0].tolist()
              for scheme, one in made.items()}
    return {"name": name, "counts": counts.tolist(), "edges": edges.tolist(), "levels": levels}


def write(report: dict[str, Any], directory: Path) -> tuple[Path, Path]:
    """Write report.json and report.png; their paths."""
    from host.quantization.picture import draw

    text, picture = directory / "report.json", directory / "report.png"
    write_json(text, report)
    draw(report, picture, note=verdict(report))
    return text, picture


def _find(report: dict[str, Any], network: str, bits: int, scheme: Scheme, scale: str) -> Row:
    """The row that is rounded to nearest, with plain extrema."""
    return next(row for row in report["rows"] if (
        row["network"], row["bits"], row["scheme"], row["scale"], row["rounding"], row["extrema"]) == (
        network, bits, scheme.value, scale, Rounding.NEAREST.value, Extrema.ZERO.value))


def verdict(report: dict[str, Any]) -> str:
    """What was shown, in two or three sentences."""
    sentences = []
    if compared := sum(row["bit_exact"] is True for row in report["rows"]):
        sentences.append(f"Scores of all {compared * report['examples']:,} inferences on {report['nodes']} nodes "
                         f"identical to the golden model, bit for bit.")
    gained: dict[int, list[float]] = {8: [], 4: []}
    gains = []
    for scale in ("layer", "output"):
        for bits, found in gained.items():
            found.append(_find(report, TRAINED, bits, Scheme.IAQ_MIN, scale)["accuracy"] - report["accuracy_float"])
        symmetric, iaq = (_find(report, SKEWED, 4, scheme, scale) for scheme in (Scheme.SYMMETRIC, Scheme.IAQ_MIN))
        gains.append(f"{_difference(iaq, symmetric, 'scores_db'):+.1f} dB and "
                     f"{100 * _difference(iaq, symmetric, 'accuracy'):+.2f} points per {scale}")
    sentences.append("IAQ to float: " + ", ".join(
        f"{100 * min(found):+.2f} points with {bits} bits" for bits, found in gained.items()) + ".")
    sentences.append(f"Skewed layer with 4 bits, IAQ to symmetric: {', '.join(gains)}.")
    return " ".join(sentences)


def _difference(one: Row, other: Row, name: str) -> float:
    return float((one[name] or 0.0) - (other[name] or 0.0))


_CAPTION = ("trunc.: weights truncated, else rounded to nearest. error: largest of a weight, in steps, of both. "
            "integer, float, cycles: multiplications and cycles of one inference. skewed: last layer "
            "without negative weights.")


def table(report: dict[str, Any]) -> Table:
    """The rows, to be printed: those rounded to nearest, with what truncation makes of them beside."""
    result = Table(title=f"test accuracy in floats {report['accuracy_float']:.2%}", title_justify="left",
                   caption=_CAPTION,
                   caption_justify="left", border_style="dim", box=box.SIMPLE_HEAD, padding=0,
                   show_edge=False)
    result.add_column("bits, scale; scheme", no_wrap=True)
    for heading in ("test", "trunc.", "error < 1", "integer", "float", "cycles", "LUT4"):
        result.add_column(heading, justify="right", no_wrap=True)
    keys = ("network", "bits", "scale", "label")
    truncated = {tuple(row[key] for key in keys): row for row in report["rows"]
                 if row["rounding"] == Rounding.TRUNCATE.value}
    before = None
    for row in report["rows"]:
        if row["rounding"] != Rounding.NEAREST.value:
            continue
        if before != (place := tuple(row[key] for key in keys[:3])):
            result.add_section()
            result.add_row(_heading(row))
        twin = truncated.get(tuple(row[key] for key in keys))
        both = [row, *([twin] if twin is not None else [])]
        result.add_row(
            f"  {row['label']}", f"{row['accuracy']:.2%}",
            "-" if twin is None else f"{twin['accuracy']:.2%}",
            " · ".join(_steps(one) for one in both), f"{row['products'] + row['requantizations']:,}",
            f"{row['float_multiplications']}",
            *("-" if row[name] is None else f"{row[name]:,.0f}" for name in ("cycles", "lut4")))
        before = place
    return result


def _steps(row: Row) -> str:
    """An error, which is not rounded up to 1."""
    return f"{min(row['error_in_steps'], 0.999):.3f}" if row["bound_met"] else f"{row['error_in_steps']:.3f}!"


def _heading(row: Row) -> str:
    """What rows of a section have in common."""
    bits = "+".join(map(str, row["bits_per_layer"])) if row["network"] == SKEWED else f"{row['bits']}"
    return f"{bits}, {row['scale']}{', skewed' if row['network'] == SKEWED else ''}"


def advice(report: dict[str, Any]) -> str | None:
    """How to find out why something is missing in the table."""
    missing = [unit.partition("-") for unit, lut4 in report["units"].items() if lut4 is None]
    commands = [f"python -m boards.synth --count --unit {unit}{f' --set {option}' if option else ''}"
                for unit, _, option in missing]
    return f"For LUT4: {'; '.join(commands)}" if missing else None
