# amaranth: UnusedElaboratable=no
"""Groups without zeros to elements: hdl/compression/zero_value/decoder.py."""

import numpy as np
import pytest

from hdl.compression.zero_value.decoder import Decoder
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, word_layout
from sim.golden import zero_value as model
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed
from tests.hdl.compression.zero_value.streams import (
    DENSITIES,
    LANES,
    VECTORS,
    as_words,
    check_passes,
    check_same,
    random_elements,
    random_vectors,
    row_beats,
    run_decoder,
    taken_of,
    unit_of,
    word_beats,
)


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("lanes", LANES)
def test_decoder_lockstep(lanes, source, sink):
    count = 6_000
    unit = unit_of(Decoder, lanes)
    seed = STALLS.index(source) + 4 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    streams = [model.encode(vector) for vector in random_vectors(generator, count)]
    willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 1)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(as_words(streams), willing)}, sinks={"o": ready}, seed=seed)
    words = unpack(word_layout(), as_words(streams))
    expected = model.trace_decoder(words["data"], words["last"], lanes=lanes, depth=Decoder(lanes=lanes).depth,
                                   willing=willing, ready=ready)
    payload = unpack(beat_layout(lanes), trace["o__payload"])
    check_same(trace, expected, payload["elements"].reshape(-1, lanes), payload["last"], seed)
    assert (payload["keep"] == (1 << lanes) - 1).all()
    assert not trace["error"].any()


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("lanes", LANES)
def test_decoder_throughput(lanes, density):
    vectors = [random_elements(np.random.default_rng(seed), 320, density) for seed in range(20)]
    streams = [model.encode(vector) for vector in vectors]
    elements, _, when = run_decoder(lanes, streams)
    np.testing.assert_array_equal(elements, np.concatenate(vectors))
    ends = when[GROUP // lanes - 1::GROUP // lanes]
    assert ends[-1] < GROUP // lanes + Decoder.latency + 1 + model.code_cycles(np.concatenate(streams), lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_decoder_throughput_of_mixed_groups(lanes):
    for seed in range(20):
        generator = np.random.default_rng(seed)
        vector = np.concatenate([random_elements(generator, GROUP, generator.choice(DENSITIES)) for _ in range(100)])
        words = model.encode(vector)
        elements, _, when = run_decoder(lanes, [words])
        np.testing.assert_array_equal(elements, vector, f"{seed=}")
        assert when[-1] < GROUP // lanes + Decoder.latency + 1 + model.code_cycles(words, lanes), f"{seed=}"


@pytest.mark.parametrize("lanes", LANES)
def test_decoder_latency(lanes):
    _, _, when = run_decoder(lanes, [np.array([0], np.uint32)])
    assert when[0] == Decoder.latency + 1
    for values in range(1, GROUP + 1):
        words = model.encode(np.arange(1, values + 1))
        _, _, when = run_decoder(lanes, [words])
        # The first beat needs its own values only.
        first = min(values, lanes)
        assert when[0] == max(first + Decoder.latency, Decoder.latency + 1)


@pytest.mark.parametrize("lanes", LANES)
def test_decoder_short_streams(lanes):
    """A short stream is filled with zeros, from the partial beat on, and the next stream is sound."""
    vector = np.arange(1, GROUP + 1, dtype=np.uint32)
    words = model.encode(vector)
    unit = unit_of(Decoder, lanes)
    for length in range(1, len(words)):
        unit.reset()
        streams = as_words([words, words[:length], words])
        trace = unit.lockstep(sources={"i": Feed(streams)}, sinks={"o": True}, cycles=150)
        payload, _ = taken_of(trace, beat_layout(lanes))
        short = np.where(np.arange(GROUP) < (length - 1) // lanes * lanes, vector, 0)
        np.testing.assert_array_equal(payload["elements"].reshape(-1), np.concatenate([vector, short, vector]))
        beats = GROUP // lanes
        assert np.flatnonzero(payload["last"]).tolist() == [beats - 1, 2 * beats - 1, 3 * beats - 1]
        assert trace["error"].sum() == 1


def _whole_beats(words, lanes):
    """Elements of a stream that may end inside a group, and whether it does: zeros from the first beat on of which
    a value is missing."""
    groups, at, short = [], 0, False
    while at < len(words):
        places = np.flatnonzero(int(words[at]) >> np.arange(GROUP) & 1)
        values = words[at + 1:at + 1 + len(places)]
        group = np.zeros(GROUP, np.uint32)
        group[places[:len(values)]] = values
        if short := len(values) < len(places):
            group[places[len(values)] // lanes * lanes:] = 0
        groups.append(group)
        at += 1 + len(places)
    return np.concatenate(groups), short


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("lanes", LANES)
def test_decoder_cut_streams(lanes, sink):
    """Streams that are cut anywhere, into a sink that stalls: one group may wait while that behind it is cut."""
    for seed in range(3):
        generator = np.random.default_rng([seed, lanes])
        streams = [model.encode(vector) for vector in random_vectors(generator, 3_000)]
        streams += [words[:generator.integers(1, len(words) + 1)] for words in streams]
        streams = [streams[number] for number in generator.permutation(len(streams))]
        expected, shorts = zip(*(_whole_beats(words, lanes) for words in streams), strict=True)
        count = 40_000
        unit = unit_of(Decoder, lanes)
        unit.reset()
        source = Feed(as_words(streams), stall_array("geometric", count, seed=seed, rate=0.9))
        trace = unit.lockstep(sources={"i": source}, sinks={"o": stall_array(sink, count, seed=seed)})
        payload, _ = taken_of(trace, beat_layout(lanes))
        np.testing.assert_array_equal(payload["elements"].reshape(-1), np.concatenate(expected), f"{seed=}")
        ends = np.cumsum([len(elements) // lanes for elements in expected]) - 1
        np.testing.assert_array_equal(np.flatnonzero(payload["last"]), ends, f"{seed=}")
        assert trace["error"].sum() == sum(shorts) > 10, f"{seed=}"


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb_decoder(kind):
    lanes = 4
    whole = [model.decode(model.encode(vector)) for vector in VECTORS]
    check_passes(Decoder(lanes=lanes), kind, lanes=lanes, i=("words", word_beats(VECTORS)),
            o=("beats", row_beats(whole, lanes)))
