# amaranth: UnusedElaboratable=no
"""Encoders and decoders that choose the format at run time: hdl/features/mx/coding.py with ``among``."""

import functools
import re

import numpy as np
import pytest

from hdl.compression.registry import FETCH_FORMATS, fetch_blocks
from hdl.features.mx.coding import Decoder, Encoder, flags_layout
from hdl.features.mx.format import Rounding
from hdl.features.mx.microscaling import MXINT8
from hdl.features.mx.shared_exponent import BFP8, MX4, MX6, MX9, SharedExponent
from sim.golden.codecs import WEIGHT_CODECS
from sim.golden.features.streaming.streaming import counts
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets

AMONG = fetch_blocks()
NAMES = FETCH_FORMATS[1:]
GOLDEN = [WEIGHT_CODECS[name] for name in NAMES]
LANES = 4


def component(kind, lanes=LANES):
    return kind(codec=MX9, lanes=lanes, among=AMONG)


@functools.cache
def unit_of(kind, lanes=LANES):
    return Unit(component(kind, lanes), name=f"Chosen{kind.__name__}{lanes}")


def run(kind, choice, vectors, *, cycles, lanes=LANES, willing=None, ready=True, reset=False, seed=1):
    """Run packets through a unit; return its output packets, any incomplete one, and the trace."""
    words, unit = component(kind, lanes).words, unit_of(kind, lanes)
    inside, outside = (lanes, words) if kind is Encoder else (words, lanes)
    if reset:
        unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.beats(vectors, inside, seed=seed), willing)},
                          sinks={"o": ready}, inputs={"choice": choice}, cycles=cycles, seed=seed)
    got, rest, _ = packets.taken(trace, outside)
    return got, rest, trace


def random_vectors(generator, count):
    """Draw packets of numbers with nearby exponents and a few random bit patterns."""
    vectors = []
    for _ in range(count):
        length = int(generator.integers(1, 80))
        bits = generator.integers(0, 1 << 32, length, dtype=np.uint32)
        exponents = np.clip(generator.choice([0, 1, 4, 8, 127, 250, 254]) - generator.integers(0, 10, length), 0, 254)
        near = bits & 0x807F_FFFF | exponents.astype(np.uint32) << np.uint32(23)
        near = np.where(generator.random(length) < 0.3, near & np.uint32(0xFFFC_0000), near)
        near = np.where(generator.random(length) < 0.1, near & np.uint32(0x8000_0000), near)
        vectors.append(np.where(generator.random(length) < 0.02, bits, near).astype(np.uint32))
    return vectors


def found(trace, vectors, lanes=LANES):
    """Count the zeros and saturations in each packet, without padding, from the unit's flags."""
    flags = unpack(flags_layout(lanes), trace["flags"])
    when = np.flatnonzero(flags["valid"])
    totals, start = [], 0
    for vector in vectors:
        beats = -(-len(vector) // 16) * 16 // lanes
        span = when[start:start + beats]
        assert flags["last"][span].tolist() == [0] * (beats - 1) + [1]
        totals.append(tuple(int((flags[name][span][:, np.newaxis] >> np.arange(lanes) & 1).ravel()
                                [:len(vector)].sum()) for name in ("zeros", "saturations")))
        start += beats
    return totals


def test_errors():
    for codec, among, message in [
        (MXINT8, [MXINT8], "Codec must have integers, a bit per difference and rounding to nearest, not "),
        (BFP8, [BFP8], "Codec must have integers, a bit per difference and rounding to nearest, not "),
        (SharedExponent(rounding=Rounding.STOCHASTIC), [MX9], "Codec must have integers, a bit per difference and "),
        (MX6, [MX6, MX9], "Formats must be as the codec, which is one of them, but for narrower mantissas, not "),
        (MX9, [MX4, MX6], "Formats must be as the codec, which is one of them, but for narrower mantissas, not "),
        (MX9, [MX9, SharedExponent(block=32, mantissa_bits=4)], "Formats must be as the codec, which is "),
    ]:
        for kind in (Encoder, Decoder):
            with pytest.raises(ValueError, match="^" + re.escape(message)):
                kind(codec=codec, lanes=4, among=among)


@pytest.mark.parametrize(("source", "sink"), [*zip(STALLS, STALLS[::-1], strict=True), ("geometric", "geometric")])
def test_random(source, sink):
    """With changing formats and arbitrary stalls, words, elements and flags match the golden codecs."""
    seed = STALLS.index(source) + 4 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    cycles, note = 1_500, f"{seed=}"
    for kind in (Encoder, Decoder):
        unit_of(kind).reset()
        for step in range(6):
            choice = int(generator.integers(0, 3))
            golden = GOLDEN[choice]
            vectors = random_vectors(generator, 12)
            words = [golden.encode(vector) for vector in vectors]
            willing, ready = (stall_array(item, cycles, seed=seed + n) for n, item in enumerate((source, sink)))
            sent, wanted = (vectors, words) if kind is Encoder else (words, list(map(golden.decode, words)))
            willing[cycles - 300:] = ready[cycles - 300:] = True  # drain the unit before the format changes
            got, rest, trace = run(kind, choice, sent, cycles=cycles, willing=willing, ready=ready, seed=seed + step)
            assert [part.tolist() for part in got] == [part.tolist() for part in wanted], note
            assert len(rest) == 0, note
            if kind is Encoder:
                expected = [counts(vector, NAMES[choice]) for vector in vectors]
                assert found(trace, vectors) == [(item.zeros, item.saturations) for item in expected], note
            else:
                assert not trace["error"].any(), note


@pytest.mark.parametrize("choice", range(3), ids=NAMES)
@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_every_exponent(choice, lanes):
    """Blocks with exponent differences of 0 to 16 and fractions near thresholds are coded correctly."""
    golden = GOLDEN[choice]
    exponents = np.repeat(np.arange(256), 16)
    fractions = np.array([0, 1, 0x40_0000, 0x40_0001, 0x3F_FFFF, 0x60_0000, 0x7F_FFFF, 0x7C_0000, 0x7B_FFFF,
                          0x78_0000, 0x77_FFFF, 0x70_0000, 0x10_0000, 0x08_0000, 0x04_0000, 0x02_0000])
    generator = np.random.default_rng(choice)
    packet = []
    for fraction in fractions:
        less = np.where(np.arange(len(exponents)) % 16 == 0, 0, generator.integers(0, 17, len(exponents)))
        field = np.where(exponents == 255, np.where(less, 254, 255), np.maximum(exponents - less, 0))
        packet.append(field << 23 | generator.choice([fraction, *fractions[:4]], len(field))
                      | generator.integers(0, 2, len(field)) << 31)
    packet = np.concatenate(packet).astype(np.uint32)
    words = golden.encode(packet)
    beats = len(packet) // lanes
    (got,), rest, trace = run(Encoder, choice, [packet], lanes=lanes, cycles=beats + 60, reset=True)
    assert got.tolist() == words.tolist()
    assert len(rest) == 0
    wanted = counts(packet, NAMES[choice])
    assert found(trace, [packet], lanes) == [(wanted.zeros, wanted.saturations)]
    decoded = golden.decode(words)
    (got,), rest, _ = run(Decoder, choice, [words], lanes=lanes, cycles=beats + 60, reset=True)
    np.testing.assert_array_equal(got, decoded)
    assert len(rest) == 0


@pytest.mark.parametrize("choice", range(3), ids=NAMES)
def test_latency_and_throughput(choice):
    """Each format has the same latency as in a unit for that format only, and a throughput of one beat per cycle."""
    vectors = [np.full(16 * blocks, 0x3F80_0000, np.uint32) for blocks in (2, 4, 1, 5)]
    beats = 12 * 16 // LANES
    got, _, trace = run(Encoder, choice, vectors, cycles=beats + 30, reset=True)
    words = [GOLDEN[choice].encode(vector) for vector in vectors]
    assert [part.tolist() for part in got] == [part.tolist() for part in words]
    assert np.flatnonzero(trace["i__valid"] & trace["i__ready"]).tolist() == list(range(beats))
    encoder, decoder = component(Encoder), component(Decoder)
    assert (encoder.latency, decoder.latency) == tuple(kind(codec=MX9, lanes=LANES).latency
                                                       for kind in (Encoder, Decoder))
    got, _, trace = run(Decoder, choice, words, cycles=beats + 30, reset=True)
    assert [part.tolist() for part in got] == [GOLDEN[choice].decode(part).tolist() for part in words]
    assert np.flatnonzero(trace["o__valid"]).tolist() == list(range(decoder.latency, decoder.latency + beats))
