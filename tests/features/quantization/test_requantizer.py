# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.features.quantization.requantizer import Requantizer, result_layout, scaled_layout
from sim.golden.features.quantization import quantization as model
from sim.payload import pack, unpack
from tests.hdl.pipelines import together
from tests.hdl.unit_bench import Drive, UnitBench, Want


def _random(count, generator):
    """Draw sums of all sizes, and shifts that bring most results near the limits."""
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


def _expected(fields):
    """Expected results, computed with Python integers."""
    results = []
    for acc, multiplier, shift, relu, raw in zip(*(fields[name].tolist() for name in (
            "sum", "multiplier", "shift", "relu", "raw")), strict=True):
        scaled = (acc * multiplier + ((1 << shift) >> 1)) >> shift
        low, high = (0, 255) if relu else (-128, 127)
        results.append(acc if raw else min(max(scaled, low), high))
    return np.array(results)


def _rows(fields):
    return pack(scaled_layout(), fields | {"sum": fields["sum"] & 0xFFFF_FFFF})


def _drive(generator, count=1_000):
    drawn = _random(count, generator)
    return Drive({"i": _rows(drawn)}, drawn)


def _model(unit, drawn, willing, ready):
    ports, offered = together(drawn["sum"] == drawn["sum"], latency=unit.latency, willing=willing, ready=ready["o"])
    results = {"value": _expected(drawn) & 0xFFFF_FFFF, "raw": drawn["raw"], "last": drawn["last"]}
    return Want(ports, {"o": pack(result_layout(), results)}, {"o": offered})


BENCH = UnitBench(Requantizer, _model, _drive)
test_lockstep = BENCH.lockstep(count=2_500)
test_cocotb = BENCH.cocotb(cut=4)


def _run(fields):
    """Run the unit at full rate and return all results."""
    run, count = BENCH.check(drive=Drive({"i": _rows(fields)}, fields)), len(fields["sum"])
    assert run.moves().tolist() == list(range(Requantizer.latency, count + Requantizer.latency))
    return unpack(result_layout(), run.trace["o__payload"][run.moves()])["value"].astype(np.uint32).astype(np.int32)


def test_many():
    fields = _random(300_000, np.random.default_rng(2))
    got = _run(fields)
    limits = [np.where(fields["relu"], *pair) for pair in ((0, -128), (255, 127))]
    scaled = model.requantize(fields["sum"], fields["multiplier"], fields["shift"], *limits)
    np.testing.assert_array_equal(got, np.where(fields["raw"], fields["sum"], scaled))


@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize("shift", [0, 1, 7, 8, 20, 46, 47, 63])
def test_every_result_at_its_edges(shift, relu):
    """Products at and next to each rounding threshold, up to and beyond the limits, are rounded correctly."""
    edges = (np.arange(-140, 270) << shift) - ((1 << shift) >> 1)
    products = (edges[:, None] + np.arange(-2, 3)).ravel()
    # Choose sums whose products are these values, or as close to them as possible.
    multipliers = [1 << max(shift - 16, 0) if shift < 32 else 0xFFFF, 1, 3]
    for multiplier in multipliers:
        if multiplier > 0xFFFF:
            continue
        sums = np.clip(products // multiplier, -1 << 31, (1 << 31) - 1)
        count = len(sums)
        fields = {"sum": sums, "multiplier": np.full(count, multiplier), "shift": np.full(count, shift),
                  "relu": np.full(count, relu), "raw": np.zeros(count, int), "last": np.zeros(count, int)}
        _run(fields)
