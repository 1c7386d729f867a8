# amaranth: UnusedElaboratable=no
"""Decoder from groups without zeros to elements: hdl/compression/zero_value/decoder.py."""

import functools

import numpy as np
import pytest

from hdl.compression.zero_value.decoder import Decoder
from hdl.group import GROUP
from hdl.streams.stream import beat_layout
from sim.golden import zero_value as model
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed
from tests.hdl.compression.packets import as_beats, as_rows
from tests.hdl.compression.packets import words as as_words
from tests.hdl.compression.zero_value import cycles
from tests.hdl.compression.zero_value.streams import (
    DENSITIES,
    LANES,
    random_vectors,
    run_decoder,
    taken_of,
    unit_of,
    vectors_of,
)
from tests.hdl.unit_bench import Drive, UnitBench, Want


def _drive(generator, lanes, total=6_000):
    streams = [model.encode(vector) for vector in random_vectors(generator, total)]
    return Drive({"i": as_words(streams)}, streams)


def _model(unit, streams, willing, ready):
    trace = cycles.trace_decoder(np.concatenate(streams), lanes=unit.lanes, depth=unit.depth, willing=willing["i"],
                                 ready=ready["o"])
    rows = as_rows(map(model.decode, streams), unit.lanes, np.random.default_rng(1))
    want = Want.of(trace, as_beats(*rows))
    want.ports["error"] = np.zeros_like(trace.o_valid)
    return want


BENCH = UnitBench(lambda lanes: Decoder(lanes=lanes), _model, _drive)
test_lockstep = BENCH.lockstep([(lanes,) for lanes in LANES], count=6_000)
test_cocotb = BENCH.cocotb([(4,)], cut=50, drive=functools.partial(_drive, total=200))


@pytest.mark.parametrize("density", [*DENSITIES, "mixed"])
@pytest.mark.parametrize("lanes", LANES)
def test_decoder_throughput(lanes, density):
    vectors = vectors_of(density)
    streams = [model.encode(vector) for vector in vectors]
    elements, _, when = run_decoder(lanes, streams)
    np.testing.assert_array_equal(elements, np.concatenate(vectors))
    assert when[-1] < GROUP // lanes + Decoder.latency + 1 + model.code_cycles(np.concatenate(streams), lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_decoder_latency(lanes):
    _, _, when = run_decoder(lanes, [np.array([0], np.uint32)])
    assert when[0] == Decoder.latency + 1
    for values in range(1, GROUP + 1):
        words = model.encode(np.arange(1, values + 1))
        _, _, when = run_decoder(lanes, [words])
        # The first beat waits only for the values that it contains.
        first = min(values, lanes)
        assert when[0] == max(first + Decoder.latency, Decoder.latency + 1)


@pytest.mark.parametrize("lanes", LANES)
def test_decoder_short_streams(lanes):
    """A stream that is too short is padded with zeros from its partial beat on; the next one is correct."""
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
    """Return a stream's elements, with zeros from the first partial beat on, and whether it ends within a group."""
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
    """Streams may be cut at any point, even while the output stalls and a group waits as the next one is cut."""
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
