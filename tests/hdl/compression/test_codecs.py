# amaranth: UnusedElaboratable=no
"""Codecs of weights by name, and the units between them and the link's words: hdl/compression/codecs.py."""

import functools

import numpy as np
import pytest
from amaranth.hdl import Const, Module, Signal
from amaranth.sim import Simulator

from hdl.compression import codecs as gateware
from hdl.compression.codecs import WordDecoder, WordEncoder, codebook_words, count_words, most_words
from hdl.ring.packet import Codec
from hdl.streams.stream import beat_layout, word_layout
from sim.golden import codecs as model
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression.packets import beats as rows
from tests.hdl.compression.packets import words
from tests.traces import taken

NAMES = tuple(name for name in gateware.WEIGHT_CODECS if name != gateware.RAW)
#: Those whose packets have as many words as their length makes.
FIXED = tuple(name for name in NAMES if not name.startswith("table"))
#: Each codec with the lanes of a node as it comes, and codecs of each kind with the others.
CASES = [*((name, 4) for name in NAMES),
         *((name, lanes) for name in ("bf16", "mx9", "mxfp4_e2m1") for lanes in (1, 8)), ("bf16", 2),
         ("mxfp8_e4m3", 8), ("table32", 1), ("table32", 8), ("centroid16", 2), ("centroid64", 8)]
SPECIAL = np.array([0, 0x8000_0000, 0x7F80_0000, 0xFFC0_0001, 1, 0x7F7F_FFFF, 0x3F80_8000], np.uint32)


@functools.cache
def unit(kind, name, lanes):
    return Unit(kind(codec=gateware.WEIGHT_CODECS[name], lanes=lanes))


def elements(generator, count):
    """Weights, and now and then a number of any kind, of which one is enough to make a block NaN."""
    values = (0.1 * generator.standard_normal(count)).astype(np.float32).view(np.uint32)
    return np.where(generator.random(count) < 0.01, generator.choice(SPECIAL, count), values).astype(np.uint32)


def packets(generator):
    """Segments of every kind: whole, of one element, of an odd number of groups, and partial."""
    counts = [256, 1, 31, 32, 33, 256, 2, 160, *generator.integers(1, 257, 8).tolist()]
    return [elements(generator, count) for count in counts]


class TestTable:
    def test_same_names(self):
        assert list(gateware.WEIGHT_CODECS) == list(model.WEIGHT_CODECS)
        assert gateware.WEIGHT_CODECS["raw"] is model.WEIGHT_CODECS["raw"] is None

    def test_gradients(self):
        """Each codec of weights without a codebook, raw words as a codec too, and zero-value compression, which is
        none of these."""
        names = [name for name in NAMES if not codebook_words(gateware.WEIGHT_CODECS[name])]
        for table in (gateware, model):
            assert list(table.GRADIENT_CODECS) == ["zero_value", "raw", *names]
            assert table.GRADIENT_CODECS["zero_value"] is None
            assert {name: table.GRADIENT_CODECS[name] for name in names} == {
                name: table.WEIGHT_CODECS[name] for name in names}
            assert [name for name in ("raw", *names) if table.GRADIENT_CODECS[name].exact] == ["raw"]
        assert all(Codec[name.upper()] for name in gateware.GRADIENT_CODECS)

    def test_each_has_a_number(self):
        assert [Codec[name.upper()].value for name in NAMES] == list(range(2, 16))
        assert len(Codec) == 2 + len(NAMES)

    @pytest.mark.parametrize(("name", "count"), [
        ("bf16", 128), ("mx9", 72), ("mx6", 48), ("mx4", 32), ("bfp8", 68), ("mxint8", 66), ("mxfp8_e4m3", 66),
        ("mxfp8_e5m2", 66), ("mxfp6_e2m3", 50), ("mxfp6_e3m2", 50), ("mxfp4_e2m1", 34), ("centroid16", 32),
        ("centroid64", 48)])
    def test_words_of_a_segment(self, name, count):
        assert gateware.WEIGHT_CODECS[name].words(256) == count

    @pytest.mark.parametrize(("name", "count"), [
        ("mx9", 0), ("table32", 64), ("centroid16", 32), ("centroid64", 128)])
    def test_words_of_a_codebook(self, name, count):
        assert codebook_words(gateware.WEIGHT_CODECS[name]) == count

    def test_words_of_a_table(self):
        """A byte for each exponent, and one more; and the most that there can be."""
        codec = model.WEIGHT_CODECS["table32"]
        for count, exponents, most in [(1, 1, 7), (256, 1, 49), (256, 16, 85), (256, 17, 93), (2048, 256, 961)]:
            elements = (np.arange(count, dtype=np.uint32) % exponents) << 23
            assert len(codec.encode(elements)) == most
        for count in (0, 1, 31, 64, 256, 2048):
            elements = (np.arange(count, dtype=np.uint32) % 256) << 23
            assert most_words(gateware.WEIGHT_CODECS["table32"], count) == len(codec.encode(elements))
            assert len(codec.encode(elements)) <= count + -(-count // 32) + 7
        assert most_words(gateware.MX9, 256) == 72

    @pytest.mark.parametrize("name", FIXED)
    def test_words(self, name):
        """As many as the model makes, and as the node counts."""
        codec = model.WEIGHT_CODECS[name]
        counts = [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 2047, 2048]
        assert [len(codec.encode(np.ones(count, np.uint32))) for count in counts] == [
            codec.words(count) for count in counts]

        m = Module()
        given = Signal(12)
        found = Signal(12)
        m.d.comb += found.eq(count_words(gateware.WEIGHT_CODECS[name], given))
        result = []

        async def process(ctx):
            for count in range(2049):
                ctx.set(given, count)
                result.append(ctx.get(found))

        simulator = Simulator(m)
        simulator.add_testbench(process)
        simulator.run()
        assert result == [codec.words(count) for count in range(2049)]
        assert isinstance(count_words(gateware.WEIGHT_CODECS[name], Const(1, 12)).shape().width, int)

    @pytest.mark.parametrize("kind", [WordEncoder, WordDecoder, gateware.BFloat16Encoder, gateware.BFloat16Decoder])
    def test_lanes(self, kind):
        options = {"codec": gateware.MX9} if kind in (WordEncoder, WordDecoder) else {}
        with pytest.raises(ValueError, match=r"^Lane count must be 1, 2, 4 or 8, not 3$"):
            kind(lanes=3, **options)


def ready(kind, name, lanes):
    """A unit after a reset, loaded with a codebook if it has one; and the codec with it."""
    found, codec = unit(kind, name, lanes), model.WEIGHT_CODECS[name]
    found.reset()
    size = codebook_words(gateware.WEIGHT_CODECS[name]) // 2
    if size:
        generator = np.random.default_rng(lanes)
        if name.startswith("table"):
            centroids = np.sort(generator.choice(1 << 23, size, replace=False)).astype(np.uint32)
        else:
            centroids = np.sort(0.1 * generator.standard_normal(size)).astype(np.float32).view(np.uint32)
        codec = codec.bind(centroids)
        load = codec.table.bounds(centroids) if kind is WordEncoder else centroids
        found.lockstep(sources={"load": Feed(words([load]))}, sinks={"o": True}, cycles=size + 20)
    return found, codec


def encode(name, lanes, source, sink, *, seed):
    given = packets(np.random.default_rng(seed))
    encoder, codec = ready(WordEncoder, name, lanes)
    trace = encoder.lockstep(
        sources={"i": Feed(rows(given, lanes), stall_array(source, 20_000, seed=seed))},
        sinks={"o": stall_array(sink, 20_000, seed=seed + 1)}, seed=seed)
    _, found = taken(trace, "o", word_layout())
    expected = unpack(word_layout(), words([codec.encode(packet) for packet in given]))
    assert found["data"].tolist() == expected["data"].tolist(), f"{seed=}"
    assert found["last"].tolist() == expected["last"].tolist(), f"{seed=}"


def decode(name, lanes, source, sink, *, seed):
    given = packets(np.random.default_rng(seed))
    decoder, codec = ready(WordDecoder, name, lanes)
    encoded = [codec.encode(packet) for packet in given]
    trace = decoder.lockstep(
        sources={"i": Feed(words(encoded), stall_array(source, 20_000, seed=seed))},
        sinks={"o": stall_array(sink, 20_000, seed=seed + 1)}, seed=seed)
    _, found = taken(trace, "o", beat_layout(lanes))
    ends = np.flatnonzero(found["last"]) + 1
    assert len(ends) == len(given), f"{seed=}"
    assert ends[-1] == len(found["last"]), f"{seed=}"
    values, keep = found["elements"].reshape(-1, lanes), found["keep"]
    for packet, start, stop in zip(encoded, [0, *ends[:-1]], ends, strict=True):
        kept = (keep[start:stop, np.newaxis] >> np.arange(lanes) & 1).astype(bool)
        assert values[start:stop][kept].tolist() == codec.decode(packet).tolist(), f"{seed=}"


@pytest.mark.parametrize(("name", "lanes"), CASES)
def test_words_and_elements(name, lanes):
    """Those of the model, packet by packet, under stalls."""
    encode(name, lanes, "geometric", "geometric", seed=3)
    decode(name, lanes, "geometric", "geometric", seed=4)


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("name", ["bf16", "mx9", "table32", "centroid16"])
def test_stalls(name, sink):
    for place, source in enumerate(STALLS):
        encode(name, 4, source, sink, seed=10 + place)
        decode(name, 4, source, sink, seed=20 + place)


@pytest.mark.parametrize("name", ["mx9", "mxfp8_e4m3", "bf16"])
def test_a_word_per_cycle(name):
    """Out of the encoder and into the decoder, whole segments one after the other."""
    given = [elements(np.random.default_rng(seed), 256) for seed in range(4)]
    decoder, codec = ready(WordDecoder, name, 4)
    total = 4 * codec.words(256)
    encoded = words([codec.encode(packet) for packet in given])
    trace = decoder.lockstep(sources={"i": Feed(encoded)}, sinks={"o": True}, cycles=2 * total)
    when = np.flatnonzero(trace["i__valid"].astype(bool) & trace["i__ready"].astype(bool))
    assert len(when) == total
    assert when[-1] - when[0] <= total + 2
    encoder, _ = ready(WordEncoder, name, 4)
    trace = encoder.lockstep(sources={"i": Feed(rows(given, 4))}, sinks={"o": True}, cycles=2 * total + 100)
    when = np.flatnonzero(trace["o__valid"])
    assert len(when) == total
    assert when[-1] - when[0] <= total + 8
