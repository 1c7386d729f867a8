"""Networks of the quantization report, each with the scheme that quantises it, and the cells of its unit."""

import dataclasses
import enum
import functools
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from host.features.quantization.network import FloatLayer, QuantizationConfig
from host.features.quantization.schemes import Calibration, Extrema, Rounding, Scheme
from host.options import Section, option
from sim import json_files
from sim.verilated.toolchain import ROOT

__all__ = ["SCHEMES", "SKEWED", "TRAINED", "UNITS", "Candidate", "CellCount", "SchemeOptions", "candidates", "skewed"]

TRAINED, SKEWED = "trained", "skewed"

#: Units for an integer offset and for a float one, by the names that `make synth` has; each for 8 bits and for 4.
_UNITS = {True: "quantization.integer_offset", False: "quantization.float_offset"}
UNITS = tuple(f"{unit}{option}" for unit in _UNITS.values() for option in ("", "-bits=4"))

SCHEMES = [(Scheme.SYMMETRIC, Extrema.ZERO), (Scheme.FLOAT_OFFSET, Extrema.ZERO), (Scheme.IAQ_MIN, Extrema.ZERO),
            (Scheme.IAQ_MAX, Extrema.ZERO), (Scheme.IAQ_MIN, Extrema.ALIGNED)]


def _names(kind: type[enum.Enum]) -> list[str]:
    return [choice.value for choice in kind]


@dataclasses.dataclass(frozen=True)
class SchemeOptions(Section):
    """Scheme of a quantised model, and the calibration of all."""

    calibration: str = option(
        "minmax", help="Range of activations that is represented: all, minmax, or up to a percentile of their "
                       "magnitudes.", choices=_names(Calibration))
    percentile: float = option(99.9, help="Percentile of that calibration.")
    scheme: str = option(
        "iaq-min", help="Scheme of the model that is written: symmetric, float-offset, iaq-min or iaq-max.",
        choices=_names(Scheme))
    bits: int = option(8, help="Bits of its weights: 4 or 8.")
    rounding: str = option("nearest", help="Rounding of weights and offsets: nearest or truncate.",
                           choices=_names(Rounding))
    extrema: str = option(
        "zero", help="Extrema of its scales and offsets: weights; zero, which counts as one of them; or aligned, "
                     "such that zero is a level.", choices=_names(Extrema))
    per_output: bool = option(False, "--per-output/--per-layer",
                              help="Whether each of its outputs has a scale and an offset.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config()

    def config(self) -> QuantizationConfig:
        """Configuration of the model that is written."""
        return QuantizationConfig(
            scheme=Scheme(self.scheme), rounding=Rounding(self.rounding), extrema=Extrema(self.extrema),
            bits=self.bits, per_channel=self.per_output, percentile=self.percentile,
            calibration=Calibration(self.calibration))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A network and the way in which it is quantised."""

    #: The one that was trained, or the one with a skewed last layer.
    network: str
    config: QuantizationConfig

    @property
    def label(self) -> str:
        """Name of the scheme."""
        aligned = ", aligned" if self.config.extrema is Extrema.ALIGNED else ""
        return f"{self.config.scheme.value}{aligned}"

    @property
    def bits(self) -> int:
        """Bits of the codes of the last layer."""
        return self.config.bits if isinstance(self.config.bits, int) else self.config.bits[-1]

    @property
    def scale(self) -> str:
        """The part that has a scale of its own: a layer or an output."""
        return "output" if self.config.per_channel else "layer"

    @property
    def unit(self) -> str:
        """The unit that computes it, for codes of 8 bits if some layer has such."""
        return _UNITS[self.config.scheme.integer] + ("-bits=4" if self.config.bits == 4 else "")


def candidates(layers: int, base: QuantizationConfig | None = None) -> list[Candidate]:
    """All candidates of a network with ``layers`` layers, with the calibration of ``base``."""
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
    """The same predictions, with a last layer that has no negative weight."""
    last = layers[-1]
    return [*layers[:-1], FloatLayer(last.weights - last.weights.min(), last.biases)]


class CellCount:
    """Synthesis of units of candidates, one after the other, while other work runs."""

    def __init__(self, units: Iterable[str]):
        self._executor = ThreadPoolExecutor(1)
        self._lock, self._ended = threading.Lock(), False
        self._process: subprocess.Popen[str] | None = None
        self._counts = {unit: self._executor.submit(self._synthesise, unit) for unit in sorted(set(units))}

    def __call__(self, unit: str) -> int | None:
        """Wait for the LUT4 of a unit; None if it is not counted, or could not be synthesised."""
        return self._counts[unit].result() if unit in self._counts else None

    def known(self, unit: str) -> bool:
        """Whether nobody has to wait for a unit."""
        return unit not in self._counts or self._counts[unit].done()

    def close(self) -> None:
        """Begin no other synthesis, and end the one that runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.terminate()

    def _synthesise(self, unit: str) -> int | None:
        # In a process of its own, so that several run at a time.
        name, _, option = unit.partition("-")
        options = ["--set", option] if option else []
        command = [sys.executable, "-m", "boards.synth", "--count", "--unit", name, *options]
        with self._lock:
            if self._ended:
                return None
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                             text=True)
        printed, _ = self._process.communicate()
        return int(json_files.parse_product(printed)["lut4"]) if self._process.returncode == 0 else None
