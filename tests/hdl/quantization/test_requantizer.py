# amaranth: UnusedElaboratable=no
import functools

import cocotb
import numpy as np
import pytest

from hdl.quantization.requantizer import Requantizer, result_layout, scaled_layout
from sim import regression
from sim.golden import quantization as model
from sim.payload import pack, unpack
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit


@functools.cache
def _unit():
    return Unit(Requantizer())


def _random(count, seed):
    """Draw sums of all sizes, and shifts that bring most of them near the limits."""
    generator = np.random.default_rng(seed)
    sums = generator.integers(-1 << 31, 1 << 31, count) >> generator.integers(0, 31, count)
    sums[generator.random(count) < 0.05] = -1 << 31
    sums[generator.random(count) < 0.05] = (1 << 31) - 1
    multiplier = generator.integers(0, 1 << 16, count) >> generator.integers(0, 16, count)
    multiplier[generator.random(count) < 0.05] = 0xFFFF
    size = np.frexp(np.abs(sums * multiplier).astype(float))[1]
    shift = np.where(generator.random(count) < 0.2, generator.integers(0, 64, count),
                     np.clip(size - generator.integers(0, 11, count), 0, 63))
    flags = {name: generator.random(count) < share for name, share in (("relu", 0.5), ("raw", 0.1), ("last", 0.3))}
    return {"sum": sums, "multiplier": multiplier, "shift": shift, **flags}


def _expected(given):
    """Expected results, in Python's integers."""
    results = []
    for acc, multiplier, shift, relu, raw in zip(*(given[name].tolist() for name in (
            "sum", "multiplier", "shift", "relu", "raw")), strict=True):
        scaled = (acc * multiplier + ((1 << shift) >> 1)) >> shift
        low, high = (0, 255) if relu else (-128, 127)
        results.append(acc if raw else min(max(scaled, low), high))
    return np.array(results)


def _rows(given):
    return pack(scaled_layout(), given | {"sum": given["sum"] & 0xFFFF_FFFF})


def _values(rows):
    fields = unpack(result_layout(), rows)
    return fields["value"].astype(np.uint32).astype(np.int32), fields["raw"], fields["last"]


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
def test_lockstep(source, sink):
    seed = 1 + STALLS.index(source) + 4 * STALLS.index(sink)
    given = _random(1_000, seed)
    willing, ready = (stall_array(kind, 2_500, seed=seed + n) for n, kind in enumerate((source, sink)))
    unit = _unit()
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(_rows(given), willing)}, sinks={"o": ready}, seed=seed)
    cycle = model.trace(np.ones(1_000, bool), latency=Requantizer.latency, willing=willing, ready=ready)
    for port in ("i_valid", "i_ready", "o_valid"):
        np.testing.assert_array_equal(trace[port.replace("_", "__")], getattr(cycle, port), f"{port}, {seed=}")
    valid = np.flatnonzero(cycle.o_valid)
    offered = cycle.offered[valid]
    value, raw, last = _values(trace["o__payload"][valid])
    np.testing.assert_array_equal(value, _expected(given)[offered], f"{seed=}")
    np.testing.assert_array_equal(raw, given["raw"][offered], f"{seed=}")
    np.testing.assert_array_equal(last, given["last"][offered], f"{seed=}")


def _run(given):
    """Run the unit and return all results, one per cycle."""
    count = len(given["sum"])
    unit = _unit()
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(_rows(given))}, sinks={"o": True}, cycles=count + Requantizer.latency)
    assert np.flatnonzero(trace["o__valid"]).tolist() == list(range(Requantizer.latency, count + Requantizer.latency))
    return _values(trace["o__payload"][Requantizer.latency:])[0]


def test_many():
    given = _random(300_000, 2)
    got = _run(given)
    np.testing.assert_array_equal(got, _expected(given))
    limits = [np.where(given["relu"], *pair) for pair in ((0, -128), (255, 127))]
    scaled = model.requantize(given["sum"], given["multiplier"], given["shift"], *limits)
    np.testing.assert_array_equal(got, np.where(given["raw"], given["sum"], scaled))


@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize("shift", [0, 1, 7, 8, 20, 46, 47, 63])
def test_every_result_at_its_edges(shift, relu):
    """Products just below, at and just above each rounding threshold in and around the limits round correctly."""
    edges = (np.arange(-140, 270) << shift) - ((1 << shift) >> 1)
    products = (edges[:, None] + np.arange(-2, 3)).ravel()
    # Sums whose products with a multiplier are the wanted ones, or as near as possible.
    multipliers = [1 << max(shift - 16, 0) if shift < 32 else 0xFFFF, 1, 3]
    for multiplier in multipliers:
        if multiplier > 0xFFFF:
            continue
        sums = np.clip(products // multiplier, -1 << 31, (1 << 31) - 1)
        count = len(sums)
        given = {"sum": sums, "multiplier": np.full(count, multiplier), "shift": np.full(count, shift),
                 "relu": np.full(count, relu), "raw": np.zeros(count, int), "last": np.zeros(count, int)}
        np.testing.assert_array_equal(_run(given), _expected(given), f"{multiplier=}")


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def requantizes(dut):
    parameters = regression.parameters()
    await start(dut)
    dut.i__valid.value = dut.o__ready.value = 1
    await cycles(dut, 4)
    dut.rst.value = 1
    dut.i__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    source = Source(dut, "i", scaled_layout(), stalls=stalls(parameters["stalls"], seed=1))
    sink = Sink(dut, "o", result_layout(), stalls=stalls(parameters["stalls"], seed=2))
    monitor = Monitor(dut, "o", result_layout())
    cocotb.start_soon(source.send(parameters["i"]))
    assert await sink.receive(len(parameters["o"])) == parameters["o"]
    assert len(monitor.beats) == len(parameters["o"])


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb(kind):
    """Results are right after a reset with sums in flight."""
    given = _random(60, 3)
    fields = [dict(zip(given, map(int, row), strict=True)) for row in zip(*given.values(), strict=True)]
    regression.run(Requantizer(), module=__name__, parameters={
        "stalls": kind, "i": [{**row, "sum": row["sum"] & 0xFFFF_FFFF} for row in fields],
        "o": [{"value": int(value) & 0xFFFF_FFFF, "raw": row["raw"], "last": row["last"]}
              for value, row in zip(_expected(given), fields, strict=True)]})
