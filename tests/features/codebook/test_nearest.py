# amaranth: UnusedElaboratable=no
"""The search for the nearest centroid: hdl/features/codebook/nearest.py."""

import functools
from fractions import Fraction

import numpy as np
import pytest

from hdl.features.codebook.nearest import NearestCentroid
from sim.golden.features.codebook.centroid import CentroidTable
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets
from tests.refusals import refuses

UNITS = [(4, 1), (16, 4), (64, 2)]
units = pytest.mark.parametrize(("centroids", "lanes"), UNITS)


@functools.cache
def _unit(centroids, lanes):
    return Unit(NearestCentroid(centroids=centroids, lanes=lanes))


def _loaded(centroids, lanes, bounds):
    unit = _unit(centroids, lanes)
    unit.reset()
    trace = unit.lockstep(sources={"load": Feed(packets.words([bounds]))}, sinks={"o": True}, cycles=centroids + 5)
    assert not trace["error"].any()
    return unit


def _numbers(generator, table):
    """Numbers of any kind, and those next to the middles of centroids."""
    bounds = table.view(np.float32).astype(np.float64)
    middles = ((bounds[:-1] + bounds[1:]) / 2).astype(np.float32)
    near = [middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))]
    special = np.array([0, 1, 0x7F7F_FFFF, 0x7F80_0000, 0x7FC0_0000], np.uint32)
    return np.concatenate([np.concatenate(near).view(np.uint32), special, special | np.uint32(0x8000_0000),
                           generator.integers(0, 1 << 32, 200, dtype=np.uint32)])


def test_parameters():
    for centroids in (2, 12, "16", None):
        message = rf"^Centroid count must be a power of two, at least 4, not {centroids!r}$"
        with pytest.raises(ValueError, match=message):
            NearestCentroid(centroids=centroids, lanes=4)
    refuses("Lane count must be 1, 2, 4 or 8, not 3", NearestCentroid, centroids=16, lanes=3)


@units
def test_nearest(centroids, lanes):
    """Nearest centroid of all numbers, ties to the lower one; one beat per cycle."""
    generator = np.random.default_rng(centroids)
    parameters = CentroidTable(centroids=centroids, loaded=True)
    tables = [np.sort(generator.standard_normal(centroids)).astype(np.float32),
              np.linspace(-1, 1, centroids, dtype=np.float32),
              np.sort(generator.standard_normal(centroids) * 1e-43).astype(np.float32),
              np.repeat(np.sort(generator.standard_normal(centroids // 4)), 4).astype(np.float32),
              np.sort(generator.standard_normal(centroids) * 10.0 ** generator.integers(-40, 38, centroids)).astype(
                  np.float32)]
    for number, values in enumerate(tables):
        table = values.view(np.uint32)
        given = _numbers(generator, table)
        unit = _loaded(centroids, lanes, parameters.bounds(table))
        trace = unit.lockstep(sources={"i": Feed(packets.beats([given], lanes))}, sinks={"o": True}, cycles=2_000)
        width = centroids.bit_length() - 1
        (got,), _, when = packets.taken(trace, lanes, width=width)
        assert when[0] == width
        assert when[-1] - when[0] == -(-len(given) // lanes) - 1
        assert got.tolist() == parameters.nearest(given, parameters.bounds(table)).tolist(), number
        exact = [Fraction(value) for value in values.tolist()]
        for bits, index in zip(given.tolist(), got.tolist(), strict=True):
            value = np.uint32(bits).view(np.float32)
            if np.isfinite(value):
                distances = [abs(Fraction(float(value)) - one) for one in exact]
                best = distances.index(min(distances))
                # Of equal centroids any may be taken.
                assert exact[index] == exact[best], (number, hex(bits))
            else:
                assert index == (0 if bits >> 31 else centroids - 1)


@pytest.mark.parametrize("sink", STALLS)
def test_stalls(sink):
    generator = np.random.default_rng(2)
    table = np.sort(generator.standard_normal(16)).astype(np.float32).view(np.uint32)
    parameters = CentroidTable(centroids=16, loaded=True)
    bounds = parameters.bounds(table)
    given = [_numbers(generator, table)[:count] for count in (1, 33, 200, 7)]
    for seed, source in enumerate(STALLS):
        unit = _loaded(16, 4, bounds)
        trace = unit.lockstep(
            sources={"i": Feed(packets.beats(given, 4), stall_array(source, 2_000, seed=seed))},
            sinks={"o": stall_array(sink, 2_000, seed=seed + 9)})
        got, _, _ = packets.taken(trace, 4, width=4)
        assert [one.tolist() for one in got] == [
            parameters.nearest(one, bounds).tolist() for one in given], f"{seed=}"


@pytest.mark.parametrize("length", [1, 14, 16, 40])
def test_wrong_loads(length):
    """Too few words or too many are reported; the next ones are taken."""
    unit = _unit(16, 4)
    unit.reset()
    bounds = np.arange(1, 16, dtype=np.float32).view(np.uint32)
    trace = unit.lockstep(sources={"load": Feed(packets.words([np.resize(bounds[::-1], length), bounds]))},
                          sinks={"o": True}, cycles=80)
    assert trace["error"].sum() == 1
    given = np.arange(0, 20, dtype=np.float32).view(np.uint32)
    trace = unit.lockstep(sources={"i": Feed(packets.beats([given], 4))}, sinks={"o": True}, cycles=40)
    (got,), _, _ = packets.taken(trace, 4, width=4)
    assert got.tolist() == np.minimum(np.arange(20), 15).tolist()


def test_reset():
    """A reset forgets all contents, and a load begins anew."""
    unit = _unit(16, 4)
    unit.reset()
    bounds = np.arange(1, 16, dtype=np.float32).view(np.uint32)
    unit.lockstep(sources={"load": Feed(packets.words([bounds])), "i": Feed(packets.beats([bounds], 4))},
                  sinks={"o": False}, cycles=5)
    unit = _loaded(16, 4, bounds)
    trace = unit.lockstep(sources={"i": Feed(packets.beats([bounds], 4))}, sinks={"o": True}, cycles=40)
    (got,), rest, _ = packets.taken(trace, 4, width=4)
    assert len(rest) == 0
    assert got.tolist() == list(range(1, 16))
