# amaranth: UnusedElaboratable=no
"""Tests of packet sums and of codecs with error feedback: hdl/compression/feedback.py."""

import functools

import numpy as np
import pytest

from hdl.compression import registry as gateware
from hdl.compression.feedback import FeedbackEncoder, PacketAdder
from hdl.streams.rows import RowSerializer
from hdl.streams.stream import SkidBuffer, word_layout
from sim.golden import floating
from sim.golden.codecs import GRADIENT_CODECS
from sim.golden.ring import canonical
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import units
from tests.hdl.compression.packets import beats as rows
from tests.hdl.compression.packets import taken as taken_packets
from tests.refusals import refused, refuses
from tests.traces import taken

CYCLES = 20_000


@functools.cache
def adder(lanes, **options):
    return Unit(PacketAdder(lanes=lanes, **options))


@functools.cache
def encoder(name, lanes):
    return Unit(FeedbackEncoder(codec=gateware.GRADIENT_CODECS[name], lanes=lanes))


def elements(generator, count):
    """Draw random elements in canonical form, without -0.0."""
    return canonical(units.elements(generator, count))


def lengths(generator):
    return [256, 1, 31, 32, 33, 3, 2, 256, 1, 1, *generator.integers(1, 257, 6).tolist()]


def packets(trace, name, lanes):
    """Packets that an output stream transferred."""
    whole, rest, _ = taken_packets(trace, lanes, name=name)
    assert not len(rest)
    return [packet.tolist() for packet in whole]


def add(lanes, a, b, kinds, *, paired=None, sink, seed, **options):
    unit = adder(lanes, **options)
    unit.reset()
    sources = {"a": Feed(rows(a, lanes), stall_array(kinds[0], CYCLES, seed=seed)),
               "b": Feed(rows(b, lanes), stall_array(kinds[1], CYCLES, seed=seed + 1))}
    if paired is not None:
        sources["paired"] = Feed(np.array(paired, np.uint8), stall_array(kinds[0], CYCLES, seed=seed + 2))
    trace = unit.lockstep(sources=sources, sinks={"o": stall_array(sink, CYCLES, seed=seed + 3)}, seed=seed)
    return packets(trace, "o", lanes)


class TestPacketAdder:
    @pytest.mark.parametrize("lanes", [1, 4, 8])
    @pytest.mark.parametrize("sink", STALLS)
    def test_sums(self, lanes, sink):
        """If the second packet is longer, its excess elements are dropped, including whole blocks."""
        for number, kinds in enumerate([("none", "none"), ("geometric", "none"), ("freeze", "geometric")]):
            seed = 10 + number
            generator = np.random.default_rng(seed)
            counts = lengths(generator)
            a = [elements(generator, count) for count in counts]
            b = [elements(generator, -(-count // 32) * 32) for count in counts]
            b[1] = elements(generator, 128)
            sums = add(lanes, a, b, kinds, sink=sink, seed=seed)
            expected = [floating.add(x, y[:len(x)]).tolist() for x, y in zip(a, b, strict=True)]
            assert sums == expected, f"{seed=}"

    @pytest.mark.parametrize("sink", STALLS)
    def test_differences(self, sink):
        for seed in (3, 4):
            generator = np.random.default_rng(seed)
            a, b = ([elements(generator, count) for count in lengths(np.random.default_rng(0))] for _ in range(2))
            sums = add(4, a, b, ("geometric", "none"), sink=sink, seed=seed, subtract=True, finite=True)
            for x, y, values in zip(a, b, sums, strict=True):
                exact = floating.add(x, y ^ 0x8000_0000)
                assert values == np.where(np.isfinite(exact.view(np.float32)), exact, 0).tolist(), f"{seed=}"

    @pytest.mark.parametrize("sink", STALLS)
    def test_choice(self, sink):
        for seed in (5, 6):
            generator = np.random.default_rng(seed)
            counts = lengths(generator)
            a = [elements(generator, count) for count in counts]
            paired = generator.random(len(a)) < 0.6
            b = [elements(generator, count) for count, is_paired in zip(counts, paired, strict=True) if is_paired]
            sums = add(4, a, b, ("geometric", "geometric"), paired=paired, sink=sink, seed=seed, choice=True)
            addends = iter(b)
            assert sums == [floating.add(x, next(addends)).tolist() if is_paired else x.tolist()
                            for x, is_paired in zip(a, paired, strict=True)], f"{seed=}"

    def test_latency_and_rate(self):
        vectors = [elements(np.random.default_rng(seed), 256) for seed in range(4)]
        unit = adder(4)
        unit.reset()
        beats = rows(vectors, 4)
        trace = unit.lockstep(sources={"a": Feed(beats), "b": Feed(beats)}, sinks={"o": True}, cycles=300)
        first = np.flatnonzero(trace["a__valid"] & trace["a__ready"])[0]
        assert np.flatnonzero(trace["o__valid"]).tolist() == list(
            range(first + PacketAdder.latency, first + PacketAdder.latency + 256))

    test_refused = staticmethod(refused(PacketAdder, {"lanes": 1}, [
        ({"lanes": 3}, "Lane count must be 1, 2, 4 or 8, not 3"),
        ({"subtract": 1}, "Subtract must be True or False, not 1"),
        ({"finite": None}, "Finite must be True or False, not None"),
        ({"choice": 0}, "Choice must be True or False, not 0")]))


def errors(codec, vector):
    """Return the encoding errors of all elements of a packet."""
    decoded = codec.decode(codec.encode(vector), len(vector))
    lost = floating.add(vector, decoded ^ 0x8000_0000)
    return np.where(np.isfinite(lost.view(np.float32)), lost, 0)


def encode(name, lanes, source, sinks, *, seed):
    codec = GRADIENT_CODECS[name]
    generator = np.random.default_rng(seed)
    vectors = [elements(generator, count) for count in lengths(generator)]
    restore = generator.random(len(vectors)) < 0.5
    unit = encoder(name, lanes)
    unit.reset()
    outputs = ("o", "restored") if codec.exact else ("o", "restored", "error")
    trace = unit.lockstep(
        sources={"i": Feed(rows(vectors, lanes), stall_array(source, CYCLES, seed=seed)),
                 "restore": Feed(restore.astype(np.uint8), stall_array(source, CYCLES, seed=seed + 1))},
        sinks={name: stall_array(sink, CYCLES, seed=seed + 2 + number)
               for number, (name, sink) in enumerate(zip(outputs, sinks, strict=False))}, seed=seed)
    _, payload = taken(trace, "o", word_layout())
    ends = np.flatnonzero(payload["last"]) + 1
    encoded = [codec.encode(vector) for vector in vectors]
    assert payload["data"].tolist() == np.concatenate(encoded).tolist(), f"{seed=}"
    assert ends.tolist() == np.cumsum([len(words) for words in encoded]).tolist(), f"{seed=}"
    restored = packets(trace, "restored", lanes)
    wanted = [words for words, needed in zip(encoded, restore, strict=True) if needed]
    assert [values[:codec.block * len(values)] for values in restored] == [
        codec.decode(words).tolist() for words in wanted], f"{seed=}"
    if not codec.exact:
        assert packets(trace, "error", lanes) == [errors(codec, vector).tolist() for vector in vectors], f"{seed=}"


#: One codec of each kind; mx9 is tested with every number of lanes.
CASES = [("raw", 4), ("bf16", 4), ("mx9", 1), ("mx9", 4), ("mx9", 8), ("mx4", 4), ("mxfp8_e4m3", 8),
         ("mxfp4_e2m1", 1), ("nvfp4", 4)]


class TestFeedbackEncoder:
    @pytest.mark.parametrize(("name", "lanes"), CASES)
    def test_words_and_errors(self, name, lanes):
        for seed, (source, *sinks) in enumerate([
                ("none", "none", "none", "none"), ("geometric", "geometric", "freeze", "geometric"),
                ("none", "freeze", "geometric", "alternating"), ("alternating", "none", "geometric", "freeze")]):
            encode(name, lanes, source, sinks, seed=20 + seed)

    @pytest.mark.parametrize(("name", "lanes"), CASES)
    def test_rate(self, name, lanes):
        """A packet takes one cycle per beat or one cycle per word, whichever is longer."""
        codec = GRADIENT_CODECS[name]
        count = 8
        vectors = [elements(np.random.default_rng(seed), 256) for seed in range(count)]
        unit = encoder(name, lanes)
        unit.reset()
        total = count * max(codec.max_words(256), 256 // lanes)
        outputs = ("o", "restored") if codec.exact else ("o", "restored", "error")
        trace = unit.lockstep(
            sources={"i": Feed(rows(vectors, lanes)), "restore": Feed(np.zeros(count, np.uint8))},
            sinks=dict.fromkeys(outputs, True), cycles=total + 300)
        when = np.flatnonzero(trace["o__valid"])
        assert len(when) == count * codec.max_words(256)
        assert when[-1] <= total + 2 * codec.block // lanes + 22

    @pytest.mark.parametrize(("name", "lanes", "more"), [
        ("bf16", 4, 0), ("mx9", 1, 1), ("mx9", 4, 0), ("mx9", 8, 0), ("mx4", 4, 1), ("mxfp8_e4m3", 8, 0),
        ("mxfp4_e2m1", 1, 5), ("nvfp4", 4, 1)])
    def test_latency(self, name, lanes, more):
        """The latency from a block's last beat to its first word is exact; ``more`` counts extra beats needed."""
        codec = gateware.GRADIENT_CODECS[name]
        beats = max(codec.block // lanes, 1)
        unit = encoder(name, lanes)
        unit.reset()
        inputs = rows([elements(np.random.default_rng(9), beats * lanes)], lanes)
        trace = unit.lockstep(sources={"i": Feed(inputs), "restore": Feed(np.zeros(1, np.uint8))},
                              sinks=dict.fromkeys(("o", "restored", "error"), True), cycles=100)
        last = np.flatnonzero(trace["i__valid"] & trace["i__ready"])[-1]
        first = np.flatnonzero(trace["o__valid"])[0]
        alone = codec.encoder(**codec.parameters, lanes=lanes).latency + RowSerializer.latency + more
        assert first - last == alone + beats + SkidBuffer.latency

    def test_ends_by_itself(self):
        """The last block of a packet is sent even if the next packet has started with an incomplete block."""
        vector = elements(np.random.default_rng(1), 7)
        unit = encoder("mx9", 4)
        unit.reset()
        beats = rows([vector, np.ones(16, np.uint32)], 4)[:4]
        trace = unit.lockstep(sources={"i": Feed(beats), "restore": Feed(np.zeros(2, np.uint8))},
                              sinks=dict.fromkeys(("o", "restored", "error"), True), cycles=100)
        assert taken(trace, "o", word_layout())[1]["data"].tolist() == GRADIENT_CODECS["mx9"].encode(vector).tolist()
        assert packets(trace, "error", 4) == [errors(GRADIENT_CODECS["mx9"], vector).tolist()]

    def test_refused(self):
        refuses("Lane count must be 1, 2, 4 or 8, not 3", FeedbackEncoder, codec=gateware.CODECS["mx9"], lanes=3)
