# amaranth: UnusedElaboratable=no
"""Test the search for the nearest centroid, hdl/features/codebook/nearest.py."""

from fractions import Fraction

import numpy as np
import pytest

from hdl.features.codebook.nearest import NearestCentroid
from sim.golden import stream
from sim.golden.features.codebook.centroid import CentroidTable
from sim.verilated.vectors import Feed
from tests.hdl.compression import packets, plane_cycles
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.loaded import Loaded
from tests.refusals import refused_values, refuses


def _numbers(generator, table):
    """Draw random and special numbers, and numbers close to the midpoints between centroids."""
    bounds = table.view(np.float32).astype(np.float64)
    middles = ((bounds[:-1] + bounds[1:]) / 2).astype(np.float32)
    near = [middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))]
    special = np.array([0, 1, 0x7F7F_FFFF, 0x7F80_0000, 0x7FC0_0000], np.uint32)
    return np.concatenate([np.concatenate(near).view(np.uint32), special, special | np.uint32(0x8000_0000),
                           generator.integers(0, 1 << 32, 200, dtype=np.uint32)])


test_parameters = refused_values(NearestCentroid, {"lanes": 4}, "centroids", (2, 12, "16", None),
                                 "Centroid count must be a power of two, at least 4")


def test_lanes():
    refuses("Lane count must be 1, 2, 4 or 8, not 3", NearestCentroid, centroids=16, lanes=3)


def _loaded(centroids, lanes, table, arrays):
    parameters, unit = CentroidTable(centroids=centroids, loaded=True), BENCH.unit(centroids, lanes)
    bounds = parameters.bounds(table)
    unit.load = packets.words([bounds])
    indices = [parameters.nearest(numbers, bounds) for numbers in arrays]
    return Drive({"i": packets.beats(arrays, lanes)} | unit.no_more(), indices)


def _drive(generator, centroids, lanes):
    table = np.sort(generator.standard_normal(centroids)).astype(np.float32).view(np.uint32)
    arrays = [_numbers(generator, table)[:count] for count in (1, 33, 200, 7)]
    return _loaded(centroids, lanes, table, arrays)


def _model(unit, indices, willing, ready):
    lanes, width = unit.o.payload.shape()["elements"].shape.length, unit.latency
    rows = packets.beats(indices, lanes, width=width)
    feed, output = stream.Feed(len(rows), willing["i"]), stream.Output(ready["o"])
    registers = plane_cycles.Registers(feed, unit.latency - 2)
    for _ in rows:
        registers.beat(0, output.load, real=True)
    feed.accept(registers.free)
    ports = {"i__valid": feed.valid, "i__ready": feed.ready, "error": np.zeros(feed.end, bool)}
    return Want(ports, {"o": (rows, packets.kept(rows, lanes, width=width))}, {"o": output.offered})


UNITS = [(4, 1), (16, 4), (64, 2)]
BENCH = UnitBench(lambda centroids, lanes: NearestCentroid(centroids=centroids, lanes=lanes), _model, _drive,
                  simulate=lambda component, *_: Loaded(component))
test_lockstep = BENCH.lockstep([(16, 4)], count=2_000)
test_reset = BENCH.resets([(16, 4)], (1, 3, 5))


@pytest.mark.parametrize(("centroids", "lanes"), UNITS)
def test_nearest(centroids, lanes):
    """Each number is mapped to its nearest centroid, or the lower of two equally near ones, at one beat per cycle."""
    generator = np.random.default_rng(centroids)
    tables = [np.sort(generator.standard_normal(centroids)).astype(np.float32),
              np.linspace(-1, 1, centroids, dtype=np.float32),
              np.sort(generator.standard_normal(centroids) * 1e-43).astype(np.float32),
              np.repeat(np.sort(generator.standard_normal(centroids // 4)), 4).astype(np.float32),
              np.sort(generator.standard_normal(centroids) * 10.0 ** generator.integers(-40, 38, centroids)).astype(
                  np.float32)]
    for number, values in enumerate(tables):
        numbers = _numbers(generator, values.view(np.uint32))
        run = BENCH.check((centroids, lanes), drive=_loaded(centroids, lanes, values.view(np.uint32), [numbers]))
        beats = -(-len(numbers) // lanes)
        assert run.moves().tolist() == list(range(centroids.bit_length() - 1, centroids.bit_length() - 1 + beats))
        exact = [Fraction(value) for value in values.tolist()]
        for bits, index in zip(numbers.tolist(), run.drive.drawn[0].tolist(), strict=True):
            value = np.uint32(bits).view(np.float32)
            if np.isfinite(value):
                distances = [abs(Fraction(float(value)) - centroid) for centroid in exact]
                best = distances.index(min(distances))
                # If several centroids are equal, any one of them may be chosen.
                assert exact[index] == exact[best], (number, hex(bits))
            else:
                assert index == (0 if bits >> 31 else centroids - 1)


@pytest.mark.parametrize("length", [1, 14, 16, 40])
def test_wrong_loads(length):
    """A table with too few or too many words is reported, and the next table is accepted."""
    unit = BENCH.unit(16, 4)
    unit.load = None
    unit.reset()
    bounds = np.arange(1, 16, dtype=np.float32).view(np.uint32)
    trace = unit.lockstep(sources={"load": Feed(packets.words([np.resize(bounds[::-1], length), bounds]))},
                          sinks={"o": True}, cycles=80)
    assert trace["error"].sum() == 1
    numbers = np.arange(0, 20, dtype=np.float32).view(np.uint32)
    trace = unit.lockstep(sources={"i": Feed(packets.beats([numbers], 4))}, sinks={"o": True}, cycles=40)
    (got,), _, _ = packets.taken(trace, 4, width=4)
    assert got.tolist() == np.minimum(np.arange(20), 15).tolist()
