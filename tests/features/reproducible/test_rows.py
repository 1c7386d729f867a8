# amaranth: UnusedElaboratable=no
"""Units that convert between memory rows and slices of them: hdl/features/reproducible/rows.py."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from hdl.features.reproducible.rows import RowNarrower, RowWidener
from hdl.streams.stream import connect_stream
from sim.verilated.vectors import Feed
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused, refused_values

UNITS = (RowNarrower, RowWidener)
#: All combinations of lanes per row and lanes per slice.
SIZES = [(lanes, slices) for lanes in (1, 2, 4, 8) for slices in (1, 2) if slices <= lanes]


class Bench(wiring.Component):
    """Independent units of all sizes, with streams ``i_<lanes>_<slice lanes>`` and ``o_<lanes>_<slice lanes>``."""

    def __init__(self, kind):
        self._units = {f"{lanes}_{slices}": kind(lanes=lanes, slice_lanes=slices) for lanes, slices in SIZES}
        super().__init__({f"{name}_{size}": unit.signature.members[name]
                          for size, unit in self._units.items() for name in ("i", "o")})

    def elaborate(self, platform):
        m = Module()
        for size, unit in self._units.items():
            m.submodules[f"unit_{size}"] = unit
            connect_stream(m, getattr(self, f"i_{size}"), unit.i)
            connect_stream(m, unit.o, getattr(self, f"o_{size}"))
        return m


def _counts(kind, lanes, slices):
    """Number of lanes at the input, and number of lanes at the output."""
    return (lanes, slices) if kind is RowNarrower else (slices, lanes)


def _drive(generator, kind):
    """Packets for each size in random order: all lengths up to three rows and one element, and random lengths."""
    vectors = {}
    for lanes, slices in SIZES:
        lengths = generator.permutation([*range(1, 3 * lanes + 2), *generator.integers(1, 5 * lanes, 10)])
        vectors[lanes, slices] = [generator.integers(0, 1 << 32, length, dtype=np.uint32) for length in lengths]
    beats = {f"i_{lanes}_{slices}": packets.beats(drawn, _counts(kind, lanes, slices)[0],
                                                  seed=int(generator.integers(1000)))
             for (lanes, slices), drawn in vectors.items()}
    # If the input and the output stall independently, beats rarely move.
    elements = max(sum(map(len, drawn)) for drawn in vectors.values())
    return Drive(beats, (kind, vectors), cycles=20 * elements + 1500)


def _model(_, drawn, willing, ready):
    kind, vectors = drawn
    beats = {}
    for (lanes, slices), packet in vectors.items():
        count = _counts(kind, lanes, slices)[1]
        rows = packets.beats(packet, count)
        beats[f"o_{lanes}_{slices}"] = (rows, packets.kept(rows, count))
    return Want({}, beats)


BENCH = UnitBench(Bench, _model, _drive, name=lambda kind: f"{kind.__name__}Bench")
CASES = [(unit,) for unit in UNITS]
test_packets = BENCH.lockstep(CASES)
test_resets = BENCH.resets(CASES, (1, 2, 3, 4, 5, 6, 7, 50))
test_lanes, test_lanes_of_widener = (refused_values(
    unit, {"slice_lanes": 1}, "lanes", [0, 3, 16, "4"], "Lane count must be 1, 2, 4 or 8") for unit in UNITS)
test_slice_lanes, test_slice_lanes_of_widener = (refused(unit, {"lanes": 4}, [
    ({"slice_lanes": count}, f"Slice lane count must be 1 or 2 and at most 4, not {count!r}")
    for count in (0, 3, 4, "1", None)] + [
    ({"lanes": 1, "slice_lanes": 2}, "Slice lane count must be 1 or 2 and at most 1, not 2")]) for unit in UNITS)


def _slices(vectors, lanes, slices):
    """Index of the row that each slice belongs to."""
    rows, first = [], 0
    for vector in vectors:
        rows.append(first + np.arange(-(-len(vector) // slices)) * slices // lanes)
        first = rows[-1][-1] + 1
    return np.concatenate(rows)


@pytest.mark.parametrize("kind", UNITS)
def test_latency_and_rate(kind):
    """One slice is transferred per cycle, without gaps between rows or packets."""
    for seed in range(3):
        run = BENCH.check((kind,), seed=seed)
        for (lanes, slices), vectors in run.drive.drawn[1].items():
            rows = _slices(vectors, lanes, slices)
            taken, given = run.moves(f"i_{lanes}_{slices}"), run.moves(f"o_{lanes}_{slices}")
            every, last = np.arange(len(rows)), np.flatnonzero(np.diff(rows, append=-1))
            if kind is RowNarrower:
                # The next row is accepted together with the last slice of the previous row.
                assert given.tolist() == (every + kind.latency).tolist(), (lanes, slices)
                assert taken.tolist() == [0, *(last[:-1] + kind.latency)], (lanes, slices)
            else:
                assert taken.tolist() == every.tolist(), (lanes, slices)
                assert given.tolist() == (last + kind.latency).tolist(), (lanes, slices)


@pytest.mark.parametrize("kind", UNITS)
def test_held(kind):
    """While an output row waits, all slices of the next row but the last are accepted.

    A unit that narrows rows accepts one row.
    """
    unit, ones = BENCH.unit(kind), np.ones(64, np.uint32)
    unit.reset()
    trace = unit.lockstep(
        sources={f"i_{lanes}_{slices}": Feed(packets.beats([ones], _counts(kind, lanes, slices)[0]))
                 for lanes, slices in SIZES},
        sinks={f"o_{lanes}_{slices}": False for lanes, slices in SIZES}, cycles=30)
    for lanes, slices in SIZES:
        taken = np.count_nonzero(trace[f"i_{lanes}_{slices}__valid"] & trace[f"i_{lanes}_{slices}__ready"])
        assert taken == (1 if kind is RowNarrower else 2 * lanes // slices - 1), (lanes, slices)


@pytest.mark.parametrize("kind", UNITS)
def test_offers(kind):
    """Every offered row or slice stays valid until it is accepted."""
    offers(lambda: kind(lanes=4, slice_lanes=1), depth=4)()
