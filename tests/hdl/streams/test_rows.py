# amaranth: UnusedElaboratable=no
"""Units that convert between words and beats: hdl/streams/rows.py."""

import itertools

import numpy as np
import pytest

from hdl.streams.rows import BlockBuffer, RowAssembler, RowSerializer, SegmentBuffer
from hdl.streams.stream import beat_layout
from sim.streams import STALLS
from sim.verilated.vectors import Feed, Unit, pack, unpack
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused, refused_values


def _make(kind, lanes, size=None):
    if kind in (SegmentBuffer, BlockBuffer):
        return kind(lanes=lanes, **{"depth" if kind is SegmentBuffer else "beats": size})
    return kind(lanes=lanes)


def _drive(generator, kind, lanes, size=None):
    """Draw packets of random lengths, up to a few rows."""
    vectors = [generator.integers(0, 1 << 32, count, dtype=np.uint32)
               for count in generator.integers(1, 4 * lanes + 2, 40)]
    rows = packets.words(vectors) if kind is RowAssembler else packets.beats(vectors, lanes)
    return Drive({"i": rows}, (kind, lanes, vectors), cycles=12 * sum(map(len, vectors)) + 800)


def _model(_, drawn, willing, ready):
    kind, lanes, vectors = drawn
    if kind is RowSerializer:
        return Want({}, {"o": packets.words(vectors)})
    rows = packets.beats(vectors, lanes)
    return Want({}, {"o": (rows, packets.kept(rows, lanes))})


BENCH = UnitBench(_make, _model, _drive)
CASES = [(kind, lanes) for kind in (RowSerializer, RowAssembler) for lanes in (1, 4)]
test_packets = BENCH.lockstep(CASES)
test_lanes, test_lanes_of_assembler = (refused_values(
    unit, {}, "lanes", [0, 3, 16, "4"], "Lane count must be 1, 2, 4 or 8") for unit in (RowSerializer, RowAssembler))
test_depth = refused(SegmentBuffer, {"lanes": 4}, [
    ({"depth": 3}, "Segment buffer depth must be an integer of at least 4, not 3")])
test_beats = refused_values(BlockBuffer, {"lanes": 4}, "beats", [0, 33, None],
                            "Beats of a block must be an integer between 1 and 32")


@pytest.mark.parametrize("case", CASES)
def test_rate(case):
    """Beats and words are transferred without gaps."""
    kind, lanes = case
    run = BENCH.check(case)
    vectors, done = run.drive.drawn[-1], run.moves()
    first = 0 if kind is RowSerializer else min(lanes, len(vectors[0])) - 1
    assert done[0] == first + kind.latency
    assert done[-1] == sum(map(len, vectors)) - 1 + kind.latency


def _buffered(case):
    """Run a buffer with each pair of stall patterns; yield whether nothing stalls, packet ends, the cycles when beats
    arrived and left, the cycles with an offer, and the seed."""
    for seed, (source, sink) in enumerate(itertools.product(STALLS, repeat=2)):
        run = BENCH.check(case, seed=seed, kinds={"i": source, "o": sink})
        last = unpack(beat_layout(case[1]), run.drive.beats["i"])["last"]
        yield source == sink == "none", last, run.moves("i"), run.moves(), run.trace["o__valid"].astype(bool), seed


def test_segment_buffer_gives_whole_segments_only():
    for free, last, arrived, done, _, seed in _buffered((SegmentBuffer, 2, 16)):
        # The first beat of a segment is offered only after the segment's last beat has arrived.
        segment = np.concatenate([[0], np.cumsum(last)[:-1]]).astype(int)
        completed = arrived[np.flatnonzero(last)]
        assert (done > completed[segment]).all(), f"seed {seed}"
        if free:
            assert done[0] == completed[0] + max(1, SegmentBuffer.latency - completed[0] + arrived[0])


def test_segment_buffer_drops_a_part_on_reset():
    unit = Unit(SegmentBuffer(lanes=2, depth=16))
    half = {"elements": np.full((3, 2), 7, dtype=np.uint32), "keep": np.full(3, 3), "last": np.zeros(3, dtype=bool)}
    trace = unit.lockstep(sources={"i": Feed(pack(beat_layout(2), half))}, sinks={"o": np.ones(20, dtype=bool)})
    assert not trace["o__valid"].any()
    unit.reset()
    whole = {"elements": np.full((1, 2), 9, dtype=np.uint32), "keep": np.full(1, 1), "last": np.ones(1, dtype=bool)}
    trace = unit.lockstep(sources={"i": Feed(pack(beat_layout(2), whole))}, sinks={"o": np.ones(20, dtype=bool)})
    done = np.flatnonzero(trace["o__valid"])
    assert len(done) == 1
    assert (unpack(beat_layout(2), trace["o__payload"][done])["elements"] == 9).all()


@pytest.mark.parametrize("size", [1, 3, 32])
def test_block_buffer_gives_whole_blocks_only(size):
    """The block buffer offers only whole blocks, without gaps, even if beats of a block arrive late."""
    for free, lasts, arrived, done, offered, seed in _buffered((BlockBuffer, 2, size)):
        count, ends = 0, []
        for last in lasts:
            ends.append(bool(last) or count == size - 1)
            count = 0 if ends[-1] else count + 1
        block = np.concatenate([[0], np.cumsum(ends)[:-1]]).astype(int)
        completed = arrived[np.flatnonzero(ends)]
        assert (done > completed[block]).all(), f"seed {seed}"
        inside = np.flatnonzero(~np.array(ends))
        for first, following in zip(done[inside], done[inside + 1], strict=True):
            assert offered[first:following].all(), f"seed {seed}"
        if free:
            assert done[0] == completed[0] + BlockBuffer.latency
