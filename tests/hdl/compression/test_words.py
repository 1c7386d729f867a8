# amaranth: UnusedElaboratable=no
"""Elements of every codec to the words of a link, and back: hdl/compression/words.py."""

import functools

import numpy as np
import pytest

from hdl.compression.registry import CODECS, RAW, WEIGHT_CODECS
from hdl.compression.words import WordDecoder, WordEncoder
from hdl.streams.stream import beat_layout, word_layout
from sim.golden import codecs as model
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression.packets import beats as rows
from tests.hdl.compression.packets import words
from tests.traces import taken

NAMES = tuple(name for name in WEIGHT_CODECS if name != RAW)
#: Each codec with the lanes of a node as it comes, and codecs of each kind with the others.
CASES = [*((name, 4) for name in NAMES),
         *((name, lanes) for name in ("bf16", "mx9", "mxfp4_e2m1") for lanes in (1, 8)), ("bf16", 2),
         ("mxfp8_e4m3", 8), ("table32", 1), ("table32", 8), ("centroid16", 2), ("centroid64", 8)]
SPECIAL = np.array([0, 0x8000_0000, 0x7F80_0000, 0xFFC0_0001, 1, 0x7F7F_FFFF, 0x3F80_8000], np.uint32)


@functools.cache
def unit(kind, name, lanes):
    return Unit(kind(codec=CODECS[name], lanes=lanes))


def elements(generator, count):
    """Weights, and now and then a number of any kind, of which one is enough to make a block NaN."""
    values = (0.1 * generator.standard_normal(count)).astype(np.float32).view(np.uint32)
    return np.where(generator.random(count) < 0.01, generator.choice(SPECIAL, count), values).astype(np.uint32)


def packets(generator):
    """Segments of every kind: whole, of one element, of an odd number of groups, and partial."""
    counts = [256, 1, 31, 32, 33, 256, 2, 160, *generator.integers(1, 257, 8).tolist()]
    return [elements(generator, count) for count in counts]


@pytest.mark.parametrize("kind", [WordEncoder, WordDecoder])
def test_lanes(kind):
    with pytest.raises(ValueError, match=r"^Lane count must be 1, 2, 4 or 8, not 3$"):
        kind(lanes=3, codec=CODECS["mx9"])



def ready(kind, name, lanes):
    """A unit after a reset, loaded with a codebook if it has one; and the codec with it."""
    found, codec = unit(kind, name, lanes), model.CODECS[name]
    found.reset()
    size = CODECS[name].codebook_words // 2
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
    """Words and elements equal the model's, packet by packet, under stalls."""
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
    total = 4 * codec.most_words(256)
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
