"""Integer versions of a trained perceptron: quantised with every scheme, measured on nodes, reported.

Schemes with an integer offset run on the nodes' integer datapath, and every score is compared bit for bit with the
golden model. Schemes with a float offset cannot run there; the host computes their accuracy as a unit would.

A second network has a skewed last layer: the smallest weight is subtracted from all of its weights. All scores then
rise by the same amount, so predictions are unchanged, and no weight is negative. Only its last layer has 4 bits.
"""

import dataclasses
import functools
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.protocols import TrainingRing
from host.driver.results import known
from host.features.quantization import files
from host.features.quantization.network import (
    FloatLayer,
    QuantizationConfig,
    QuantizedNetwork,
    activations,
    float_layers,
    infer,
    node_layers,
    quantize,
)
from host.features.quantization.onnx import Agreement
from host.features.quantization.report import SCHEMA, SKEWED, TRAINED, verdict
from host.features.quantization.schemes import Extrema, Rounding, Scheme, quantize_weights
from host.models.digits import Dataset
from host.models.layers import perceptron
from host.schema import write_report
from host.training.record import DivergenceError
from host.training.weight_files import TrainedWeights, load
from host.training.workloads import WorkloadName
from sim.verilated.toolchain import BUILD

__all__ = ["INPUT_SCALE", "UNITS", "Candidate", "candidates", "check_layers", "check_onnx", "collect", "export",
           "find_weights", "layers_of", "measure", "on_ring", "skewed", "write"]

Row = dict[str, Any]

INPUT_SCALE = 1 / 16  # scale of the inputs: pixels are multiples of it

#: Unit names used by `make synth` for integer and float offsets, with 8 and 4 bits.
_UNITS = {True: "quantization.integer_offset", False: "quantization.float_offset"}
UNITS = tuple(f"{unit}{option}" for unit in _UNITS.values() for option in ("", "-bits=4"))

SCHEMES = [(Scheme.SYMMETRIC, Extrema.ZERO), (Scheme.FLOAT_OFFSET, Extrema.ZERO), (Scheme.IAQ_MIN, Extrema.ZERO),
            (Scheme.IAQ_MAX, Extrema.ZERO), (Scheme.IAQ_MIN, Extrema.ALIGNED)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A network with its quantisation."""

    #: Name of the network: either the trained one or the one with a skewed last layer.
    network: str
    config: QuantizationConfig

    @property
    def label(self) -> str:
        """Name of the scheme in reports."""
        aligned = ", aligned" if self.config.extrema is Extrema.ALIGNED else ""
        return f"{self.config.scheme.value}{aligned}"

    @property
    def bits(self) -> int:
        """Number of bits per code in the last layer."""
        return self.config.bits if isinstance(self.config.bits, int) else self.config.bits[-1]

    @property
    def scale(self) -> str:
        """Whether each scale applies to a whole layer or to a single output."""
        return "output" if self.config.per_channel else "layer"

    @property
    def unit(self) -> str:
        """Name of the unit that computes the network; the 8-bit unit if any layer has 8-bit codes."""
        return _UNITS[self.config.scheme.integer] + ("-bits=4" if self.config.bits == 4 else "")


def candidates(layers: int, base: QuantizationConfig | None = None) -> list[Candidate]:
    """Create all candidates for a network with ``layers`` layers, using the calibration of ``base``."""
    config = functools.partial(dataclasses.replace, base or QuantizationConfig())
    return [
        *(Candidate(network=TRAINED, config=config(
            scheme=scheme, bits=bits, rounding=rounding, per_channel=per_channel, extrema=extrema))
          for bits, per_channel, (scheme, extrema), rounding in itertools.product(
              (8, 4), (False, True), SCHEMES, Rounding)),
        *(Candidate(network=SKEWED, config=config(
            scheme=scheme, bits=(*[8] * (layers - 1), 4), rounding=Rounding.NEAREST, per_channel=per_channel,
            extrema=extrema)) for per_channel, (scheme, extrema) in itertools.product((False, True), SCHEMES[:4]))]


def skewed(layers: Sequence[FloatLayer]) -> list[FloatLayer]:
    """Return layers that give the same predictions but have no negative weights in the last layer."""
    last = layers[-1]
    return [*layers[:-1], FloatLayer(last.weights - last.weights.min(), last.biases)]


def find_weights(path: Path | None, output: Path) -> tuple[Path, TrainedWeights | None]:
    """Find a perceptron that classifies digits: in the file ``path`` if given, or else from an earlier run. Returns
    its path and weights, or the path for new weights and None. Raises ``ValueError`` for unsuitable weights."""
    if path is not None:
        weights = load(path)
        if weights.workload is not WorkloadName.DIGITS:
            raise ValueError(f"{path} must have weights of digits, not of {weights.workload.value}")
        return path, weights
    for kept in (BUILD / "sim" / "weights.npz", output / "weights.npz"):
        if kept.exists() and (weights := load(kept)).workload is WorkloadName.DIGITS:
            return kept, weights
    return output / "weights.npz", None


def layers_of(weights: TrainedWeights, data: Dataset) -> list[FloatLayer]:
    """Return the layers of a perceptron trained on this data."""
    widths = [data.train_x.shape[1], *weights.hidden, data.classes]
    size = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))
    if weights.parameters.shape != (size,):  # checked before memory is allocated for a model of this size
        raise ValueError(f"Parameters of a perceptron with hidden layers {weights.hidden!r} must be {size:,}, "
                         f"not {weights.parameters.size:,}")
    model = perceptron(data.train_x.shape[1], weights.hidden, data.classes)
    return float_layers(model, weights.parameters)


def check_layers(layers: Sequence[FloatLayer], data: Dataset, chosen: Sequence[Candidate]) -> None:
    """Raise ``ValueError`` before anything is built if the scores of an image exceed the binary32 range or a
    candidate cannot quantise a layer."""
    with np.errstate(over="ignore", invalid="ignore"):
        for network, images in itertools.product((layers, skewed(layers)), (data.train_x, data.test_x)):
            for number, values in enumerate(activations(network, images)):
                if not np.isfinite(values).all():
                    raise ValueError(f"Layer {number} of {len(layers)} must have finite outputs, not ones beyond the "
                                     f"range of binary32: take other weights, or train with --train")
        for candidate in chosen:
            _quantized(candidate, layers, data)


def _quantized(candidate: Candidate, layers: Sequence[FloatLayer],
               data: Dataset) -> tuple[Sequence[FloatLayer], QuantizedNetwork]:
    """Return the layers that a candidate quantises, with the resulting integer network."""
    if candidate.network == SKEWED:
        layers = skewed(layers)
    return layers, quantize(layers, data.train_x, candidate.config, input_scale=INPUT_SCALE)


def check_onnx() -> None:
    """Raise ``ValueError`` unless the ONNX packages are installed."""
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be installed for ONNX: run `make .venv/.onnx`")


def export(layers: Sequence[FloatLayer], data: Dataset, config: QuantizationConfig, directory: Path, *,
           onnx: bool = False) -> tuple[list[Path], Agreement | None]:
    """Write model.npz and, on request, model.onnx; return the paths, and how well onnxruntime's answers on the test
    images agree with the integer model. Raises ``DivergenceError`` if an answer's integer score is more than one
    adjusted weight below the largest score."""
    network = quantize(layers, data.train_x, config, input_scale=INPUT_SCALE)
    paths, agreement = [directory / "model.npz"], None
    files.save(network, paths[0])
    if onnx:
        from host.features.quantization.onnx import compare_answers, export_onnx, run_onnx

        paths.append(directory / "model.onnx")
        export_onnx(network, paths[1])
        agreement = compare_answers(network, infer(network, data.test_x), run_onnx(paths[1], data.test_x))
        if agreement.wrong.size:
            raise DivergenceError(
                f"{paths[1]}: the integer score of onnxruntime's answer must be the largest, or at most one adjusted "
                f"weight below it, and is not for {agreement.wrong.size} of {len(data.test_x)} test images, first "
                f"number {agreement.wrong[0]}")
    return paths, agreement


def on_ring(ring: TrainingRing, network: QuantizedNetwork,
            x: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.int64], int]:
    """Compute the last-layer sums of a batch, split across all nodes; also return the cycles of the slowest node.
    Raises ``DivergenceError`` if the nodes differ from the golden model."""
    outcome = ring.inference.infer(node_layers(network), network.input_codes(x))
    expected = infer(network, x)
    wrong = np.argwhere(outcome.outputs != expected)
    if len(wrong):
        example, output = wrong[0].tolist()
        raise DivergenceError(
            f"Inference: {len(wrong)} of {expected.size} sums differ from the golden model, first example {example}, "
            f"output {output}, which is {outcome.outputs[example, output]} and must be {expected[example, output]}")
    return expected, known(outcome.cycles)


def measure(candidate: Candidate, layers: Sequence[FloatLayer], data: Dataset, ring: TrainingRing) -> Row:
    """Quantise the trained layers for a candidate, and evaluate the network on the test set."""
    config = candidate.config
    layers, network = _quantized(candidate, layers, data)
    exact = activations(layers, data.test_x)[-1]
    cycles = None
    if config.scheme.integer:
        sums, taken = on_ring(ring, network, data.test_x)
        scores, cycles = network.scores(sums), taken / -(-len(data.test_x) // ring.nodes)
    else:
        scores = network.float_scores(data.test_x).astype(np.float64)
    errors = [made.weights.error(layer.weights) for made, layer in zip(network.layers, layers, strict=True)]
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
        **network.multiplications, "cycles": cycles, "on_nodes": cycles is not None,
        "bit_exact": None if cycles is None else True}


def _decibels(exact: npt.NDArray[np.floating], actual: npt.NDArray[np.floating]) -> float | None:
    """Ratio of signal power to error power in dB; None if there are no errors."""
    noise = float(np.square(np.asarray(actual, np.float64) - exact).sum())
    return 10 * float(np.log10(np.square(np.asarray(exact, np.float64)).sum() / noise)) if noise else None


def collect(layers: Sequence[FloatLayer], data: Dataset, ring: TrainingRing, chosen: Sequence[Candidate], *,
            lut4: Callable[[str], int | None] = lambda unit: None,
            on_row: Callable[[Row], None] = lambda row: None) -> dict[str, Any]:
    """Collect the contents of the report, calling ``on_row`` with each row.

    ``lut4`` returns the LUT4 count of the named unit, or None; it is called after all measurements.
    """
    rows = []
    for candidate in chosen:
        rows.append(measure(candidate, layers, data, ring))
        on_row(rows[-1])
    units = {candidate.unit: lut4(candidate.unit) for candidate in chosen}
    rows = [{**row, "lut4": units[candidate.unit]} for candidate, row in zip(chosen, rows, strict=True)]
    exact = activations(layers, data.test_x)[-1]
    return {
        "accuracy_float": float((exact.argmax(axis=1) == data.test_y).mean()), "examples": len(data.test_y),
        "layers": [list(layer.weights.shape[::-1]) for layer in layers],
        "nodes": ring.nodes, "rows": rows,
        "grids": [_grid("first layer, as trained", layers[0].weights),
                  _grid("last layer, skewed", skewed(layers)[-1].weights)],
        "units": units}


def _grid(name: str, weights: npt.NDArray[np.floating]) -> dict[str, Any]:
    """Return the histogram of weights, and the values that each scheme can represent with 4-bit codes."""
    counts, edges = np.histogram(weights, bins=60)
    levels = {}
    for scheme, extrema in SCHEMES:
        if extrema is Extrema.ZERO and scheme is not Scheme.FLOAT_OFFSET:
            made = quantize_weights(weights, bits=4, scheme=scheme, extrema=extrema)
            all_codes = dataclasses.replace(made, codes=np.arange(16)[None], offsets=made.offsets[:1],
                                            scales=made.scales[:1])
            levels[scheme.value] = all_codes.values[0].tolist()
    return {"name": name, "counts": counts.tolist(), "edges": edges.tolist(), "levels": levels}


def write(content: dict[str, Any], directory: Path) -> tuple[dict[str, Any], list[Path]]:
    """Write report.json and report.png; return the report and both paths."""
    from host.features.quantization.report import draw

    report = SCHEMA.report(content)
    written, picture = write_report(report, directory), directory / "report.png"
    draw(report, picture, note=verdict(report))
    return report, [written, picture]
