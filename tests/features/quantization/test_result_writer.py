# amaranth: UnusedElaboratable=no
"""Writer that packs results into memory rows: hdl/features/quantization/result_writer.py."""

import numpy as np
import pytest

from hdl.features.quantization.requantizer import result_layout
from hdl.features.quantization.result_writer import ResultWriter, target_layout
from sim.golden.stream import Feed, Output
from sim.payload import pack
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refuses

ROWS = 64
LANES = (1, 4)
lanes_ = pytest.mark.parametrize("lanes", LANES)


def test_parameters():
    for lanes in (0, 3, 16, "4", None):
        refuses(f"Lane count must be 1, 2, 4 or 8, not {lanes!r}", ResultWriter, rows=ROWS, lanes=lanes)
    writer = ResultWriter(rows=ROWS, lanes=2)
    assert writer.layer.payload.shape() == target_layout(ROWS)
    assert writer.port.row.shape().width == 6
    assert len(writer.port.keep) == 2


# --- layers and their rows


def _layer(generator, samples, lanes, *, final):
    """Draw a layer that fits the memory: first row, final flag, raw flag, and results by sample."""
    raw = bool(generator.random() < 0.4)
    per_row = lanes if raw else 4 * lanes
    outputs = int(generator.integers(1, 1 + min(40, ROWS // samples * per_row)))
    rows = samples * -(-outputs // per_row)
    return {"row": int(generator.integers(ROWS - rows + 1)), "final": final, "raw": raw,
            "results": generator.integers(-1 << 31, 1 << 31, (samples, outputs)).tolist()}


def _rows(layer, lanes):
    """Expected rows of a layer: row number, bytes, and whether the row ends a sample, layer or command."""
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


def _results(layers, lanes):
    """Return each layer's results, with flags for the end of a row, of its sample and of the layer."""
    for layer in layers:
        per_row = lanes if layer["raw"] else 4 * lanes
        yield [(value, last or (index + 1) % per_row == 0, last, last and sample is layer["results"][-1])
               for sample in layer["results"] for index, value in enumerate(sample)
               for last in [index == len(sample) - 1]]


def _given(layers, lanes, **options):
    targets = pack(target_layout(ROWS), {
        name: np.array([layer[name] for layer in layers]) for name in ("row", "final")})
    flat = [(value & 0xFFFF_FFFF, layer["raw"], last) for layer, results in zip(
        layers, _results(layers, lanes), strict=True) for value, _, last, _ in results]
    values, raw, last = (np.array(column) for column in zip(*flat, strict=True))
    return Drive({"layer": targets, "i": pack(result_layout(), {"value": values, "raw": raw, "last": last})},
                 (layers, lanes), {"samples": len(layers[0]["results"])}, **options)


def _drive(generator, lanes, samples, count=200):
    """Draw layers of all sizes, raw and requantized."""
    layers = [_layer(generator, samples, lanes, final=int(generator.random() < 0.3)) for _ in range(count)]
    return _given(layers, lanes)


def _model(unit, drawn, willing, ready):
    layers, lanes = drawn
    results = list(_results(layers, lanes))
    targets, feed = Feed(len(layers), willing["layer"]), Feed(sum(map(len, results)), willing["i"])
    output, busy = Output(ready["port"]), np.zeros(feed.end, bool)
    rows = [row for layer in layers for row in _rows(layer, lanes)]
    marks = {name: np.zeros(feed.end + 1, bool) for name in ("written", "ended", "done")}
    closed, places = 0, iter(rows)
    for batch in results:
        taken = begun = targets.accept(closed)
        for _, completes, *_ in batch:
            taken = feed.accept(max(taken + 1, output.departed if completes else 0))
            if completes and taken < feed.end:
                output.load(taken)
                for mark, value in zip(marks.values(), next(places)[2:], strict=True):
                    mark[output.departed] |= value
        closed = taken
        busy[begun + 1:closed + 1] = True
    targets.accept(closed)
    shown = output.offered >= 0
    elements = np.frombuffer(b"".join(parts for _, parts, *_ in rows), np.uint32).reshape(-1, lanes)
    at = output.offered[shown]
    ports = {"layer__valid": targets.valid, "layer__ready": targets.ready, "i__valid": feed.valid,
             "i__ready": (feed.ready, feed.valid | ~busy), "port__valid": shown,
             "port__keep": (np.full(feed.end, (1 << lanes) - 1), shown)}
    for name, values in (("row", np.array([row for row, *_ in rows])), ("elements", elements.squeeze(axis=1)
                                                                       if lanes == 1 else elements)):
        column = np.zeros((feed.end, *values.shape[1:]), values.dtype)
        column[shown] = values[at]
        ports[f"port__{name}"] = column, shown
    return Want(ports | {name: mark[:-1] for name, mark in marks.items()}, {})


BENCH = UnitBench(lambda lanes, samples: ResultWriter(rows=ROWS, lanes=lanes), _model, _drive, rate=0.4)
CASES = [(lanes, samples) for lanes in LANES for samples in (1, 5)]
test_lockstep = BENCH.lockstep(CASES, count=3_000)
test_reset_in_a_sample = BENCH.resets(CASES, (2, 3, 5, 9, 17), count=1_000)


# --- known and full-rate cases


def test_known():
    """Known layers: two samples of five results, packed four per element, and two of one raw result."""
    layers = [{"row": 9, "final": 0, "raw": False, "results": [[1, -1, 127, 256, 5], [6, 7, 8, 9, -128]]},
              {"row": 3, "final": 1, "raw": True, "results": [[-2], [0x1234_5678]]}]
    trace = BENCH.check((1, 2), drive=_given(layers, 1, cycles=20)).trace
    when = np.flatnonzero(trace["port__valid"])
    got = list(zip(trace["port__row"][when].tolist(), trace["port__elements"][when].tolist(), strict=True))
    assert got == [(9, 0x00_7F_FF_01), (10, 0x05), (11, 0x09_08_07_06), (12, 0x80),
                   (3, 0xFFFF_FFFE), (4, 0x1234_5678)]
    # The layer is accepted in the first cycle, then one result per cycle.
    assert np.flatnonzero(trace["i__valid"] & trace["i__ready"]).tolist() == list(range(1, 13))
    assert when.tolist() == [cycle + ResultWriter.latency for cycle in (4, 5, 9, 10, 11, 12)]
    assert [np.flatnonzero(trace[name]).tolist() for name in ("written", "ended", "done")] == [
        [6, 11, 12, 13], [11, 13], [13]]
    assert np.flatnonzero(trace["layer__valid"] & trace["layer__ready"]).tolist() == [0, 10]


@lanes_
def test_throughput(lanes):
    """One result is accepted per cycle, with no bubbles between samples or layers."""
    generator = np.random.default_rng(lanes)
    layers = [_layer(generator, 3, lanes, final=0) for _ in range(20)]
    count = sum(len(sample) for layer in layers for sample in layer["results"])
    run = BENCH.check((lanes, 3), drive=_given(layers, lanes, cycles=count + 2))
    assert run.moves("i").tolist() == list(range(1, count + 1))
    assert run.trace["ended"].sum() == 20
