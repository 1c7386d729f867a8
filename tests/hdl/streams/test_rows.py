# amaranth: UnusedElaboratable=no
"""Words and beats: hdl/streams/rows.py."""

import itertools

import numpy as np
import pytest

from hdl.streams.rows import BlockBuffer, RowAssembler, RowSerializer, SegmentBuffer
from hdl.streams.stream import beat_layout, word_layout
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit, pack, unpack
from tests.traces import moved, taken

PATTERNS = ["none", "geometric", "freeze", "alternating"]


def packets(seed, lanes, count=40):
    """Random packets, short, row-sized and long: their lengths and their words."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 4 * lanes + 2, count)
    return lengths, generator.integers(0, 1 << 32, lengths.sum(), dtype=np.uint32)


def as_words(lengths, values):
    last = np.zeros(len(values), dtype=bool)
    last[np.cumsum(lengths) - 1] = True
    return {"data": values, "last": last}


def as_beats(lengths, values, lanes):
    elements, keep, last = [], [], []
    position = 0
    for length in lengths:
        for start in range(0, length, lanes):
            kept = min(lanes, length - start)
            row = np.zeros(lanes, dtype=np.uint32)
            row[:kept] = values[position : position + kept]
            position += kept
            elements.append(row)
            keep.append((1 << kept) - 1)
            last.append(start + lanes >= length)
    return {"elements": np.array(elements), "keep": np.array(keep), "last": np.array(last)}


def runs(unit, lanes, layout, offered, *, slack):
    """Run random packets through a unit under each pair of stall patterns.

    ``offered`` takes lengths and values, and gives the beats of the input, of ``layout``; ``slack`` is cycles per
    value, and more. Yields the seed, whether nothing stalls, lengths, values and the trace.
    """
    for seed, (give, take) in enumerate(itertools.product(PATTERNS, repeat=2)):
        lengths, values = packets(seed, lanes)
        cycles = slack[0] * len(values) + slack[1]
        unit.reset()
        trace = unit.lockstep(
            sources={"i": Feed(pack(layout, offered(lengths, values)),
                               willing=stall_array(give, cycles, seed=seed + 99))},
            sinks={"o": stall_array(take, cycles, seed=seed)},
        )
        yield seed, give == take == "none", lengths, values, trace


@pytest.mark.parametrize("unit", [RowSerializer, RowAssembler])
@pytest.mark.parametrize("lanes", [0, 3, 16, "4"])
def test_lanes_must_be_supported(unit, lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4 or 8, not {lanes!r}$"):
        unit(lanes=lanes)


def test_segment_buffer_must_hold_something():
    with pytest.raises(ValueError, match=r"^Segment buffer depth must be an integer of at least 4, not 3$"):
        SegmentBuffer(lanes=4, depth=3)


@pytest.mark.parametrize("beats", [0, 33, None])
def test_block_buffer_must_hold_something(beats):
    with pytest.raises(ValueError, match=rf"^Beats of a block must be an integer between 1 and 32, not {beats}$"):
        BlockBuffer(lanes=4, beats=beats)


@pytest.mark.parametrize("lanes", [1, 4])
def test_serializer(lanes):
    unit = Unit(RowSerializer(lanes=lanes))
    for seed, free, lengths, values, trace in runs(
            unit, lanes, beat_layout(lanes), lambda *given: as_beats(*given, lanes), slack=(8, 400)):
        done, words = taken(trace, "o", word_layout())
        expected = as_words(lengths, values)
        assert (words["data"] == expected["data"]).all(), f"seed {seed}"
        assert (words["last"] == expected["last"]).all(), f"seed {seed}"
        if free:
            assert done[0] == RowSerializer.latency
            assert done[-1] - done[0] == len(values) - 1  # one word in every cycle


@pytest.mark.parametrize("lanes", [1, 4])
def test_assembler(lanes):
    unit = Unit(RowAssembler(lanes=lanes))
    for seed, free, lengths, values, trace in runs(unit, lanes, word_layout(), as_words, slack=(8, 400)):
        done, beats = taken(trace, "o", beat_layout(lanes))
        expected = as_beats(lengths, values, lanes)
        kept = (expected["keep"][:, None] >> np.arange(lanes) & 1).astype(bool)
        assert (beats["keep"] == expected["keep"]).all(), f"seed {seed}"
        assert (beats["last"] == expected["last"]).all(), f"seed {seed}"
        assert (np.where(kept, beats["elements"], 0) == expected["elements"]).all(), f"seed {seed}"
        if free:
            first = min(lanes, lengths[0])
            assert done[0] == first - 1 + RowAssembler.latency
            assert done[-1] == len(values) - 1 + RowAssembler.latency


def buffered(unit, lanes):
    """Run a buffer, and compare its beats with those that it was given.

    Yields the seed, whether nothing stalls, the beats expected, the cycles in which beats came and went, and in which
    one was on offer.
    """
    for seed, free, lengths, values, trace in runs(
            unit, lanes, beat_layout(lanes), lambda *given: as_beats(*given, lanes), slack=(12, 800)):
        expected = as_beats(lengths, values, lanes)
        done, beats = taken(trace, "o", beat_layout(lanes))
        assert (beats["elements"] == expected["elements"]).all(), f"seed {seed}"
        assert (beats["last"] == expected["last"]).all(), f"seed {seed}"
        yield seed, free, expected, moved(trace, "i")[0], done, trace["o__valid"].astype(bool)


def test_segment_buffer_gives_whole_segments_only():
    lanes, depth = 2, 16
    unit = Unit(SegmentBuffer(lanes=lanes, depth=depth))
    for seed, free, expected, arrived, done, _ in buffered(unit, lanes):
        # No beat is offered before the last beat of its segment has come in.
        segment = np.concatenate([[0], np.cumsum(expected["last"])[:-1]]).astype(int)
        completed = arrived[np.flatnonzero(expected["last"])]
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
    """The block buffer offers whole blocks only, each without a pause, however late its beats come."""
    lanes = 2
    unit = Unit(BlockBuffer(lanes=lanes, beats=size))
    for seed, free, expected, arrived, done, offered in buffered(unit, lanes):
        place, ends = 0, []
        for last in expected["last"]:
            ends.append(bool(last) or place == size - 1)
            place = 0 if ends[-1] else place + 1
        block = np.concatenate([[0], np.cumsum(ends)[:-1]]).astype(int)
        completed = arrived[np.flatnonzero(ends)]
        assert (done > completed[block]).all(), f"seed {seed}"
        inside = np.flatnonzero(~np.array(ends))
        for first, following in zip(done[inside], done[inside + 1], strict=True):
            assert offered[first:following].all(), f"seed {seed}"
        if free:
            assert done[0] == completed[0] + BlockBuffer.latency
