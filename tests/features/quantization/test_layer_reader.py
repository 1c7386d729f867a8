# amaranth: UnusedElaboratable=no
"""Test the reader of layer lists: hdl/features/quantization/layer_reader.py."""

import functools

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from hdl.features.quantization.feature import Quantization
from hdl.features.quantization.layer_list import LAYER_WORDS, layer_layout
from hdl.features.quantization.layer_reader import INPUT_ROWS, LayerReader, checked_layer_layout, flags_layout
from sim.golden import stream
from sim.payload import from_int, to_int
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets

LANES = (1, 8)
MEMORIES = Memories(gradient=4096, weight=8192)
#: A valid layer with two outputs, each with one row of inputs and at most one row of codes.
SOUND = {"wide": 1, "subtract": 0, "signed": 0, "relu": 1, "raw": 0, "final": 0, "reserved": 0, "outputs": 2,
         "inputs": 3, "reserved_inputs": 0, "codes": 0, "source": 0, "parameters": 0, "target": 0, "reserved_end": 0}


@functools.cache
def _config(lanes):
    return NodeConfig(lanes=lanes, memories=MEMORIES, features=(Quantization(),))


@functools.cache
def _unit(lanes):
    return Unit(LayerReader(config=_config(lanes)))


def _parts(layer, samples, lanes):
    """Number of rows that each part of a layer occupies, and number of rows of the memory that holds it."""
    inputs = -(-layer["inputs"] // (4 * lanes))
    codes = inputs if layer["wide"] else -(-inputs // 2)
    outputs = -(-layer["outputs"] // (lanes if layer["raw"] else 4 * lanes))
    gradients, weights = MEMORIES.gradient // lanes, MEMORIES.weight // lanes
    return {"codes": (layer["outputs"] * codes, weights), "source": (samples * inputs, gradients),
            "parameters": (-(-2 * layer["outputs"] // lanes), gradients), "target": (samples * outputs, gradients)}


def _checked(layer, samples, lanes):
    """Expected output for a layer, or None if the layer is invalid."""
    parts = _parts(layer, samples, lanes)
    rows = -(-layer["inputs"] // (4 * lanes))
    if not (layer["inputs"] and layer["outputs"] and rows <= INPUT_ROWS and samples < 1 << 16):
        return None
    if any(layer[part] % lanes or layer[part] // lanes + count > limit for part, (count, limit) in parts.items()):
        return None
    tail = (layer["inputs"] - 1) % (4 * lanes) + 1
    return {
        "flags": {name: layer[name] for name in flags_layout().members}, "final": layer["final"],
        "outputs": layer["outputs"], "input_rows": rows, "tail": (1 << tail) - 1,
        "code_row": layer["codes"] // lanes, "code_elements": lanes * parts["codes"][0],
        "source_row": layer["source"] // lanes, "parameter_row": layer["parameters"] // lanes,
        "parameter_elements": 2 * layer["outputs"], "target_row": layer["target"] // lanes,
    }


def _layer(generator, samples, lanes, *, final):
    """Draw a layer with its data anywhere in memory, often at the end and sometimes one row beyond it."""
    def flip(share):
        return int(generator.random() < share)

    most = min(INPUT_ROWS, MEMORIES.gradient // lanes // samples)
    layer = {**SOUND, **{name: flip(0.5) for name in flags_layout().members}, "final": final,
             "inputs": int(generator.integers(1, 4 * lanes * generator.choice([1, 2, most]) + 1)),
             "reserved": int(generator.integers(1 << 10)), "reserved_inputs": int(generator.integers(1 << 16)),
             "reserved_end": int(generator.integers(1 << 63))}
    codes = _parts({**layer, "outputs": 1}, samples, lanes)["codes"]
    per_row = lanes if layer["raw"] else 4 * lanes
    limits = (codes[1] // codes[0], MEMORIES.gradient // 2,
              MEMORIES.gradient // lanes // samples * per_row)
    layer["outputs"] = int(generator.integers(1, min(limits) + 1))
    for part, (count, limit) in _parts(layer, samples, lanes).items():
        row = limit - count if flip(0.3) else int(generator.integers(limit - count + 1))
        layer[part] = lanes * (row + flip(0.02)) + (flip(0.02) if lanes > 1 else 0)
    if flip(0.03):
        layer[str(generator.choice(["inputs", "outputs"]))] = 0
    return layer


def _words(layer):
    bits = to_int(layer_layout(), layer)
    return [bits >> 32 * word & 0xFFFF_FFFF for word in range(LAYER_WORDS)]


def _run(layers, samples, lanes, *, start=0, empty=False, source="none", sink="none", seed=1, cycles=None):
    """Read a list and check every cycle; return the number of valid layers, and whether there was an error."""
    cycles = cycles or start + 60 + 4 * (LAYER_WORDS + 24) * len(layers)
    generator = np.random.default_rng(seed)
    willing, ready = stall_array(source, cycles, seed=seed), stall_array(sink, cycles, seed=seed + 1)
    words = np.array([word for layer in layers for word in _words(layer)], np.uint32)
    # Start pulses after the first one are ignored.
    starts = (np.arange(cycles) > start) & (generator.random(cycles) < 0.2)
    starts[start] = True
    unit = _unit(lanes)
    unit.reset()
    trace = unit.lockstep(
        sources={"i": Feed(packets.beats([words], lanes), willing)}, sinks={"o": ready}, seed=seed,
        inputs={"start": starts, "samples": samples, "empty": np.where(np.arange(cycles) == start, empty, ~starts)})

    beats = LAYER_WORDS // lanes
    feed, first_ready = stream.Feed(beats * len(layers), willing), stream.first_from(ready)
    offered, bad = np.full(cycles, -1), np.zeros(cycles, bool)
    cycle, right = start + 1, 0
    for number, layer in enumerate([] if empty else layers):
        first = None
        for _ in range(beats):
            cycle = feed.accept(cycle) + 1
            first = cycle - 1 if first is None else first
        offer = cycle + LayerReader.latency(lanes=lanes) - beats
        assert source != "none" or offer == first + LayerReader.latency(lanes=lanes)
        if _checked(layer, samples, lanes) is None:
            bad[offer:] = True
            break
        taken = first_ready[min(offer, cycles)]
        offered[offer:taken + 1] = number
        cycle = taken + 1
        right += taken < cycles
        if layer["final"]:
            break
    else:
        bad[cycle + 1:] = True
    note = f"{seed=}"
    for name, expected in (("i__valid", feed.valid), ("i__ready", feed.ready), ("o__valid", offered >= 0),
                           ("bad", bad)):
        np.testing.assert_array_equal(trace[name], expected, f"{name}, {note}")
    layout = checked_layer_layout(_config(lanes))
    for when in np.flatnonzero(offered >= 0).tolist():
        row = trace["o__payload"][when]
        bits = int.from_bytes(np.atleast_1d(row).tobytes(), "little")
        assert from_int(layout, bits) == _checked(layers[offered[when]], samples, lanes), f"{when=}, {note}"
    return right, bool(bad.any())


def test_latency():
    assert [LayerReader.latency(lanes=lanes) for lanes in (1, 2, 4, 8)] == [21, 17, 15, 14]


# --- hand-computed layer


def test_known():
    """Known layer with ten inputs in three rows and 4-bit codes, with one row of codes per two input rows."""
    layer = {**SOUND, "wide": 0, "signed": 1, "final": 1, "inputs": 10, "outputs": 3, "codes": 100, "source": 7,
             "parameters": 20, "target": 4095 - 1}
    assert _checked(layer, 2, 1) == {
        "flags": {"wide": 0, "subtract": 0, "signed": 1, "relu": 1, "raw": 0}, "final": 1, "outputs": 3,
        "input_rows": 3, "tail": 0b11, "code_row": 100, "code_elements": 6, "source_row": 7, "parameter_row": 20,
        "parameter_elements": 6, "target_row": 4094}
    assert _run([layer], 2, 1, start=3) == (1, False)
    assert _run([layer], 3, 1) == (0, True)  # the results of three samples exceed the memory


# --- every cycle


@pytest.mark.parametrize(("source", "sink"), [*zip(STALLS, STALLS[::-1], strict=True), ("geometric", "geometric")])
@pytest.mark.parametrize("lanes", LANES)
def test_lockstep(lanes, source, sink):
    """Lists with all kinds of layers match the model, including invalid layers and a missing final layer."""
    right = wrong = 0
    for seed in range(25):
        generator = np.random.default_rng(1_000 * lanes + 100 * STALLS.index(source) + seed)
        samples, count = int(generator.choice([1, 2, 7])), int(generator.integers(1, 6))
        final = count - 1 if generator.random() < 0.8 else int(generator.integers(count + 1))
        layers = [_layer(generator, samples, lanes, final=int(number == final)) for number in range(count)]
        good, bad = _run(layers, samples, lanes, start=int(generator.integers(4)), source=source, sink=sink,
                         seed=seed, cycles=800)
        right, wrong = right + good, wrong + bad
    assert right > 20
    assert wrong > 3


# --- invalid layers


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("change", [
    {"inputs": 0}, {"outputs": 0}, {"codes": 1}, {"source": 1}, {"parameters": 1}, {"target": 1},
    {"codes": 8192}, {"source": 4096}, {"parameters": 4096}, {"target": 4096},
    {"codes": -1}, {"source": -1}, {"parameters": -1}, {"target": -1},
    {"inputs": 0xFFFF}, {"outputs": 0xFFFF}, {"inputs": 0xFFFF, "outputs": 0xFFFF},
], ids=lambda change: "-".join(f"{name}={value}" for name, value in change.items()))
def test_wrong(lanes, change):
    """An invalid layer after a valid one ends the list.

    An address of -1 stands for the last addressable row; the next row would wrap around to the first.
    """
    wrong = {**SOUND, **{name: value % ((1 << 32) // lanes) * lanes if value < 0 else value
                         for name, value in change.items()}}
    aligned = lanes == 1 and list(change.values()) == [1]
    assert _run([SOUND, wrong, {**SOUND, "final": 1}], 1, lanes) == ((3, False) if aligned else (1, True))


@pytest.mark.parametrize("lanes", LANES)
def test_limits(lanes):
    """A layer may have the maximum number of inputs, and parts may end with their memory; one more is invalid."""
    most = {**SOUND, "inputs": 4 * lanes * INPUT_ROWS, "final": 1}
    assert _run([most], 1, lanes) == (1, False)
    assert _run([{**most, "inputs": most["inputs"] + 1}], 1, lanes) == (0, True)
    for part, (count, limit) in _parts(SOUND, 3, lanes).items():
        layer = {**SOUND, part: lanes * (limit - count), "final": 1}
        assert _run([layer], 3, lanes) == (1, False), part
        assert _run([{**layer, part: layer[part] + lanes}], 3, lanes) == (0, True), part


@pytest.mark.parametrize("lanes", LANES)
def test_lists(lanes):
    """Empty lists and lists without a final layer are invalid; layers after the final one are not read."""
    assert _run([SOUND], 1, lanes, empty=True) == (0, True)
    assert _run([SOUND] * 3, 1, lanes) == (3, True)
    assert _run([SOUND, {**SOUND, "final": 1}, SOUND], 1, lanes) == (2, False)


@pytest.mark.parametrize("samples", [1 << 16, (1 << 32) - 1])
def test_too_many_samples(samples):
    """Sample counts that exceed 16 bits are rejected."""
    assert _run([{**SOUND, "final": 1}], samples, 8) == (0, True)


@pytest.mark.parametrize("lanes", LANES)
def test_reset_in_a_list(lanes):
    """After a reset at any point in a list, the next list is read from its start."""
    words = np.array(_words(SOUND) * 3, np.uint32)
    for beats in (1, 2, 5, 12, 30):
        unit = _unit(lanes)
        unit.reset()
        unit.lockstep(sources={"i": Feed(packets.beats([words], lanes))}, sinks={"o": np.ones(beats, bool)},
                      inputs={"start": 1, "samples": 1})
        assert _run([SOUND, {**SOUND, "final": 1}], 1, lanes) == (2, False), f"given={beats!r}"
