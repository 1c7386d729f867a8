"""Read and write quantized networks as npz files.

A file contains the arrays listed in :data:`_HEADER` and, for each layer, the arrays listed in :func:`_fields`, with
names prefixed by the layer's number (from 0) and a dot. See the table in docs/quantization/schemes.md.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.features.quantization.arithmetic import MULTIPLIER_BITS, SHIFT_MAX, Variant
from host.archives import Kind, read_arrays
from host.features.quantization.network import QuantizedLayer, QuantizedNetwork, check_sums
from host.features.quantization.schemes import BITS, Activation, QuantizedWeights, Requantization, Rounding, Scheme

__all__ = ["SCHEMA", "VERSION", "load", "save"]

SCHEMA = "gradring.quantized"
VERSION = 1

#: Size limit in bytes of a file and of its arrays. Codes take eight times as much memory in computations.
LARGEST = 1 << 24

Arrays = dict[str, npt.NDArray[Any]]

#: Types of the scalars in a file's header, keyed by array name.
_HEADER = {"schema": np.str_, "version": np.int64, "scheme": np.str_, "rounding": np.str_, "layers": np.int64}


def save(network: QuantizedNetwork, path: Path) -> None:
    """Save a network to a file, creating its folder if necessary."""
    arrays: dict[str, Any] = {
        "schema": SCHEMA, "version": np.int64(VERSION), "scheme": network.scheme.value,
        "rounding": network.rounding.value, "layers": np.int64(len(network.layers))}
    for number, layer in enumerate(network.layers):
        weights, factors = layer.weights, layer.requantization
        values: dict[str, Any] = {
            "bits": weights.bits, "variant": weights.variant.value, "codes": weights.codes,
            "offsets": weights.offsets, "scales": weights.scales, "minima": weights.minima, "bias": layer.bias,
            "relu": layer.relu, "input_scale": layer.input.scale, "input_signed": layer.input.signed}
        if layer.output is not None:
            values |= {"output_scale": layer.output.scale, "output_signed": layer.output.signed}
        if factors is not None:
            values |= {"multipliers": factors.multipliers, "shifts": factors.shifts}
        fields = _fields(network.scheme, last=layer.last)
        arrays |= {f"{number}.{name}": np.asarray(values[name], kind) for name, (kind, _) in fields.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _fields(scheme: Scheme, *, last: bool) -> dict[str, tuple[npt.DTypeLike, str]]:
    """Type of each array of a layer, and the names of its dimensions; a scalar has none."""
    fields: dict[str, tuple[npt.DTypeLike, str]] = {
        "bits": (np.int64, ""), "variant": (np.str_, ""), "codes": (np.uint8, "outputs, inputs"),
        "offsets": (np.int16, "outputs"), "scales": (np.float32, "outputs"), "relu": (np.bool_, ""),
        "input_scale": (np.float32, ""), "input_signed": (np.bool_, ""), "bias": (np.int32, "outputs")}
    if not scheme.integer:
        fields["minima"] = np.float32, "outputs"
    if not last:
        fields |= {"output_scale": (np.float32, ""), "output_signed": (np.bool_, "")}
    if scheme.integer and not last:
        fields |= {"multipliers": (np.uint16, "outputs"), "shifts": (np.uint8, "outputs")}
    return fields


def load(path: Path) -> QuantizedNetwork:
    """Load a network from a file. Raises ``ValueError`` naming the first problem if :func:`save` could not have
    written the file, and ``OSError`` if it cannot be read."""
    fields = {name: (kind, shape) for scheme in Scheme for last in (False, True)
              for name, (kind, shape) in _fields(scheme, last=last).items()}
    dimensions = {"": 0, "outputs": 1, "outputs, inputs": 2}
    arrays = read_arrays(path, {
        **{name: Kind(kind) for name, kind in _HEADER.items()},
        **{rf"(0|[1-9][0-9]{{0,3}})\.{name}": Kind(kind, dimensions[shape])
           for name, (kind, shape) in fields.items()}}, largest=LARGEST)
    try:
        return _network(arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _network(arrays: Arrays) -> QuantizedNetwork:
    """Build a network from arrays that have the expected types and numbers of dimensions."""
    if (schema := _array(arrays, "schema").item()) != SCHEMA:
        raise ValueError(f"Schema must be {SCHEMA!r}, not {schema!r}")
    if (version := _array(arrays, "version").item()) != VERSION:
        raise ValueError(f"Version must be {VERSION}, not {version}: the file is of another version of gradring")
    scheme, rounding = _choice(arrays, "scheme", Scheme), _choice(arrays, "rounding", Rounding)
    if (count := _array(arrays, "layers").item()) < 1:
        raise ValueError(f"Layers must be at least 1, not {count}")
    layers: list[QuantizedLayer] = []
    known = set(_HEADER)
    for number in range(count):
        fields = _fields(scheme, last=number == count - 1)
        known |= {f"{number}.{name}" for name in fields}
        layer = _layer(arrays, number, scheme, fields)
        if layers and (layers[-1].output != layer.input or layers[-1].outputs != layer.inputs):
            raise ValueError(
                f"Input of layer {number} must be what layer {number - 1} puts out, {layers[-1].outputs} with "
                f"{layers[-1].output}, not {layer.inputs} with {layer.input}")
        layers.append(layer)
    if unknown := sorted(arrays.keys() - known):
        raise ValueError(f"Arrays must be those of version {VERSION}, without {', '.join(unknown)}")
    return QuantizedNetwork(scheme=scheme, rounding=rounding, layers=tuple(layers))


def _array(arrays: Arrays, name: str) -> npt.NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"Array {name} is missing")
    return arrays[name]


def _choice(arrays: Arrays, name: str, kind: type[Any]) -> Any:
    value, choices = _array(arrays, name).item(), [choice.value for choice in kind]
    if value not in choices:
        raise ValueError(f"Array {name} must be one of {', '.join(choices)}, not {value!r}")
    return kind(value)


def _layer(arrays: Arrays, number: int, scheme: Scheme,
           fields: dict[str, tuple[npt.DTypeLike, str]]) -> QuantizedLayer:
    codes = _array(arrays, f"{number}.codes")
    if 0 in codes.shape:
        raise ValueError(f"Array {number}.codes must be of shape (outputs, inputs), each at least 1, not "
                         f"{codes.shape!r}")
    shapes: dict[str, tuple[int, ...]] = {"": (), "outputs": codes.shape[:1], "outputs, inputs": codes.shape}
    values: dict[str, npt.NDArray[Any]] = {}
    for name, (_, shape) in fields.items():
        values[name] = _array(arrays, f"{number}.{name}")
        if values[name].shape != shapes[shape]:
            raise ValueError(f"Array {number}.{name} must be of shape {shapes[shape]!r}, not {values[name].shape!r}")
    bits = int(values["bits"])
    if bits not in BITS:
        raise ValueError(f"Array {number}.bits must be 4 or 8, not {bits}")
    variant = _choice(arrays, f"{number}.variant", Variant)
    limits = {"codes": (0, 2**bits - 1), "offsets": (-2**bits, 2**bits - 1),
              "multipliers": (1, (1 << MULTIPLIER_BITS) - 1), "shifts": (1, SHIFT_MAX)}
    for name, (low, high) in limits.items():
        if name in values and not ((values[name] >= low) & (values[name] <= high)).all():
            raise ValueError(f"Array {number}.{name} must be between {low} and {high}, not between "
                             f"{values[name].min()} and {values[name].max()}")
    for name, lowest in (("scales", 0.0), ("minima", -np.inf)):
        if name in values and not (np.isfinite(values[name]) & (values[name] > lowest)).all():
            raise ValueError(f"Array {number}.{name} must be finite{', and above 0' if lowest == 0 else ''}")
    weights = QuantizedWeights(
        bits=bits, variant=variant, codes=codes.astype(np.int64), offsets=values["offsets"].astype(np.int64),
        scales=values["scales"].astype(np.float64),
        minima=values["minima"].astype(np.float64) if "minima" in values else None)
    adjusted = weights.adjusted
    if scheme.integer and not -2**bits <= adjusted.min() <= adjusted.max() < 2**bits:
        raise ValueError(f"Adjusted weights of layer {number} must be between {-2**bits} and {2**bits - 1}, not "
                         f"between {adjusted.min()} and {adjusted.max()}")
    ends = {end: Activation(scale=float(values[f"{end}_scale"]), signed=bool(values[f"{end}_signed"]))
            for end in ("input", "output") if f"{end}_scale" in values}
    bias = values["bias"].astype(np.int64)
    factors = None
    if "multipliers" in values:
        multipliers, shifts = (values[name].astype(np.int64) for name in ("multipliers", "shifts"))
        exact = weights.scales * ends["input"].scale / ends["output"].scale
        factors = Requantization(multipliers=multipliers, shifts=shifts,
                                 error=float(np.abs(np.ldexp(multipliers, -shifts) / exact - 1).max()))
    check_sums(weights, bias, ends["input"])
    return QuantizedLayer(weights=weights, bias=bias, input=ends["input"], output=ends.get("output"),
                          relu=bool(values["relu"]), requantization=factors)
