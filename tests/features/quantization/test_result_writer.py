# amaranth: UnusedElaboratable=no
"""The writer of results into rows of memory: hdl/features/quantization/result_writer.py."""

import functools

import numpy as np
import pytest

from hdl.features.quantization.requantizer import result_layout
from hdl.features.quantization.result_writer import ResultWriter, target_layout
from sim.payload import pack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.refusals import refuses

ROWS = 64
LANES = (1, 4)
lanes_ = pytest.mark.parametrize("lanes", LANES)


@functools.cache
def _unit(lanes):
    return Unit(ResultWriter(rows=ROWS, lanes=lanes))


def test_parameters():
    for lanes in (0, 3, 16, "4", None):
        refuses(f"Lane count must be 1, 2, 4 or 8, not {lanes!r}", ResultWriter, rows=ROWS, lanes=lanes)
    writer = ResultWriter(rows=ROWS, lanes=2)
    assert writer.layer.payload.shape() == target_layout(ROWS)
    assert writer.port.row.shape().width == 6
    assert len(writer.port.keep) == 2


# --- layers and their rows


def _layer(generator, samples, lanes, *, final):
    """Random layer that fits into the memory: its first row, whether it is raw, and the results of each sample."""
    raw = bool(generator.random() < 0.4)
    per_row = lanes if raw else 4 * lanes
    outputs = int(generator.integers(1, 1 + min(40, ROWS // samples * per_row)))
    rows = samples * -(-outputs // per_row)
    return {"row": int(generator.integers(ROWS - rows + 1)), "final": final, "raw": raw,
            "results": generator.integers(-1 << 31, 1 << 31, (samples, outputs)).tolist()}


def _rows(layer, lanes):
    """Rows of a layer in order: number, bytes, and whether each ends a sample, the layer and the command."""
    rows = []
    for number, sample in enumerate(layer["results"]):
        width = 4 if layer["raw"] else 1
        parts = [part for value in sample for part in (value & 0xFFFF_FFFF).to_bytes(4, "little")[:width]]
        for begin in range(0, len(parts), 4 * lanes):
            row = bytes(parts[begin:begin + 4 * lanes]).ljust(4 * lanes, b"\0")
            written = begin + 4 * lanes >= len(parts)
            ended = written and number == len(layer["results"]) - 1
            rows.append((layer["row"] + len(rows), row, written, ended, bool(ended and layer["final"])))
    return rows


def _run(layers, lanes, *, ready, cycles=None, layer_willing=None, willing=None, seed=1):
    targets = pack(target_layout(ROWS), {
        name: np.array([layer[name] for layer in layers]) for name in ("row", "final")})
    flat = [(value & 0xFFFF_FFFF, layer["raw"], place == len(sample) - 1)
            for layer in layers for sample in layer["results"] for place, value in enumerate(sample)]
    values, raw, last = (np.array(column) for column in zip(*flat, strict=True))
    unit = _unit(lanes)
    unit.reset()
    return unit.lockstep(
        sources={"layer": Feed(targets, layer_willing),
                 "i": Feed(pack(result_layout(), {"value": values, "raw": raw, "last": last}), willing)},
        sinks={"port": ready}, cycles=cycles, inputs={"samples": len(layers[0]["results"])}, seed=seed)


def _check(layers, lanes, trace, note):
    """Check every cycle after a reset, and return the numbers of rows written and of layers ended."""
    rows = [row for layer in layers for row in _rows(layer, lanes)]
    # For each result: whether it completes a row, and a layer.
    results = []
    for layer in layers:
        per_row = lanes if layer["raw"] else 4 * lanes
        for number, sample in enumerate(layer["results"]):
            for place in range(len(sample)):
                last = place == len(sample) - 1
                results.append((last or (place + 1) % per_row == 0, last and number == len(layer["results"]) - 1))
    taken = made = written = ended = 0
    busy = held = False
    for cycle, (valid, layer_valid, ready) in enumerate(zip(
            trace["i__valid"].tolist(), trace["layer__valid"].tolist(), trace["port__ready"].tolist(), strict=True)):
        now = f"{cycle=}, {note}"
        assert trace["port__valid"][cycle] == held, now
        marks = (False,) * 3
        if held:
            place, parts, *marks = rows[made - 1]
            assert trace["port__row"][cycle] == place, now
            assert np.atleast_1d(trace["port__elements"][cycle]).tobytes() == parts, now
            assert trace["port__keep"][cycle] == (1 << lanes) - 1, now
        got = [bool(trace[name][cycle]) for name in ("written", "ended", "done")]
        assert got == [bool(mark and ready) for mark in marks], now
        if held and ready:
            held, written, ended = False, written + 1, ended + bool(marks[1])
        completes, closes = results[taken] if taken < len(results) else (True, False)
        free = busy and (not completes or not held)
        if valid:
            assert trace["i__ready"][cycle] == free, now
        moves = bool(valid and free)
        assert busy or not trace["i__ready"][cycle], now
        next_layer = not busy or (moves and closes)
        assert trace["layer__ready"][cycle] == next_layer, now
        if moves:
            taken += 1
            made += completes
            held = held or completes
            busy = not closes
        if next_layer and layer_valid:
            busy = True
    return written, ended


@pytest.mark.parametrize(("source", "sink"), [*zip(STALLS, STALLS[1:] + STALLS[:1], strict=True),
                                              ("geometric", "geometric"), ("none", "none")])
@lanes_
def test_lockstep(lanes, source, sink):
    """Layers of all sizes, raw and not, match the model in every cycle."""
    cycles, seed = 3_000, STALLS.index(source) + 4 * STALLS.index(sink)
    for samples in (1, 5):
        generator = np.random.default_rng(seed + 100 * samples)
        layers = [_layer(generator, samples, lanes, final=int(generator.random() < 0.3)) for _ in range(200)]
        trace = _run(layers, lanes, seed=seed, ready=stall_array(sink, cycles, seed=seed),
                     willing=stall_array(source, cycles, seed=seed + 1),
                     layer_willing=stall_array("geometric", cycles, seed=seed + 2, rate=0.2))
        written, ended = _check(layers, lanes, trace, f"{samples=}, {seed=}")
        assert written > 40
        assert ended > 2


# --- by hand, and at full speed


def test_known():
    """Known layers are written: two samples of five results, four to an element, and two of one raw result."""
    layers = [{"row": 9, "final": 0, "raw": False, "results": [[1, -1, 127, 256, 5], [6, 7, 8, 9, -128]]},
              {"row": 3, "final": 1, "raw": True, "results": [[-2], [0x1234_5678]]}]
    trace = _run(layers, 1, ready=True, cycles=20)
    when = np.flatnonzero(trace["port__valid"])
    got = list(zip(trace["port__row"][when].tolist(), trace["port__elements"][when].tolist(), strict=True))
    assert got == [(9, 0x00_7F_FF_01), (10, 0x05), (11, 0x09_08_07_06), (12, 0x80),
                   (3, 0xFFFF_FFFE), (4, 0x1234_5678)]
    # The layer is taken in the first cycle, and a result in each one from then on.
    assert np.flatnonzero(trace["i__valid"] & trace["i__ready"]).tolist() == list(range(1, 13))
    assert when.tolist() == [place + ResultWriter.latency for place in (4, 5, 9, 10, 11, 12)]
    assert [np.flatnonzero(trace[name]).tolist() for name in ("written", "ended", "done")] == [
        [6, 11, 12, 13], [11, 13], [13]]
    assert np.flatnonzero(trace["layer__valid"] & trace["layer__ready"]).tolist() == [0, 10]


@lanes_
def test_throughput(lanes):
    """A result is taken in every cycle, with no bubble between samples or layers."""
    generator = np.random.default_rng(lanes)
    layers = [_layer(generator, 3, lanes, final=0) for _ in range(20)]
    count = sum(len(sample) for layer in layers for sample in layer["results"])
    trace = _run(layers, lanes, ready=True, cycles=count + 2)
    assert np.flatnonzero(trace["i__valid"] & trace["i__ready"]).tolist() == list(range(1, count + 1))
    assert _check(layers, lanes, trace, "throughput")[1] == 20


@lanes_
def test_reset_in_a_sample(lanes):
    """A reset in a sample discards its row, and its results still to come."""
    generator = np.random.default_rng(lanes)
    layers = [_layer(generator, 2, lanes, final=1) for _ in range(6)]
    for given in (2, 3, 5, 9, 17):
        _run(layers, lanes, ready=np.arange(given) < 4)
        trace = _run(layers, lanes, ready=True, cycles=300)
        assert _check(layers, lanes, trace, f"{given=}")[1] == 6, f"{given=}"
