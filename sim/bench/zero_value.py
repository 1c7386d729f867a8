"""Cycles that zero-value compression takes on Verilated gateware without stalls, compared with bounds.

The time is measured from the first cycle to the cycle that accepts the last output word or beat, so the ratio of
time to bound includes the latencies. The bound of the encoder and the decoder is a sum over groups. If some groups
are limited by words and others by elements, the buffers let them overlap, and the ratio falls below 1.
``python -m sim.bench.zero_value`` prints the figures.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.zero_value.adder import Adder
from hdl.compression.zero_value.decoder import Decoder
from hdl.compression.zero_value.encoder import Encoder
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, word_layout
from sim.golden import floating
from sim.golden import zero_value as model
from sim.payload import pack
from sim.verilated.vectors import Feed, Unit

__all__ = ["DENSITIES", "LANES", "LENGTH", "rows"]

LENGTH = 16384
LANES = (1, 2, 4, 8)
DENSITIES = (0.0, 0.01, 0.1, 0.5, 1.0)

Bits = npt.NDArray[np.uint32]


def _elements(generator: np.random.Generator, density: float) -> Bits:
    values = generator.standard_normal(LENGTH).astype(np.float32).view(np.uint32)
    return np.where(generator.random(LENGTH) < density, values, np.uint32(0))


def _words(words: Bits) -> npt.NDArray[Any]:
    beats: npt.NDArray[Any] = pack(word_layout(), {"data": words, "last": np.arange(len(words)) == len(words) - 1})
    return beats


def _cycles(unit: Unit, bound: int, outputs: int, **sources: npt.NDArray[Any]) -> int:
    """Number of cycles until the last output is accepted."""
    unit.reset()
    trace = unit.lockstep(sources={name: Feed(beats) for name, beats in sources.items()}, sinks={"o": True},
                          cycles=bound + 4 * GROUP)
    taken = np.flatnonzero(trace["o__valid"])
    if len(taken) != outputs:
        raise RuntimeError(f"Outputs must be {outputs}, not {len(taken)!r}")
    return int(taken[-1]) + 1


def rows() -> list[dict[str, Any]]:
    """Rows for build/bench/bench.json, one per measurement."""
    generator = np.random.default_rng(1)
    vectors = {density: _elements(generator, density) for density in DENSITIES}
    result = []

    def note(unit: str, config: str, measured: int, bound: int) -> None:
        result.append({"name": f"compression.zero_value.{unit}", "config": f"{LENGTH} elements, {config}",
                       "measured": measured, "bound": bound, "ratio": measured / bound, "unit": "cycles"})

    for lanes in LANES:
        encoder, decoder = Unit(Encoder(lanes=lanes)), Unit(Decoder(lanes=lanes))
        for density, elements in vectors.items():
            words, beats = model.encode(elements), LENGTH // lanes
            bound = model.code_cycles(words, lanes)
            config = f"{lanes} lanes, {density:.0%}" if lanes > 1 else f"1 lane, {density:.0%}"
            packed = pack(beat_layout(lanes), {
                "elements": elements.reshape(beats, lanes), "keep": np.full(beats, (1 << lanes) - 1),
                "last": np.arange(beats) == beats - 1})
            note("encoder", config, _cycles(encoder, bound, len(words), i=packed), bound)
            note("decoder", config, _cycles(decoder, bound, beats, i=_words(words)), bound)

    adder = Unit(Adder())
    for density, elements in vectors.items():
        other = _elements(generator, density)
        equal = np.where(elements != 0, floating.multiply(elements, np.float32(0.5).view(np.uint32)), np.uint32(0))
        for kind, second in (("independent positions", other), ("equal positions", equal)):
            a, b = model.encode(elements), model.encode(second)
            bound = model.add_cycles(a, b)
            measured = _cycles(adder, bound, len(model.add(a, b)), a=_words(a), b=_words(b))
            note("adder", f"{density:.0%}, {kind}", measured, bound)
    return result


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
