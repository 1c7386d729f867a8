# amaranth: UnusedElaboratable=no
"""Numbers to packets of blocks and back: hdl/features/mx/coding.py.

test_shared_exponent.py and test_microscaling.py have every cycle and every value of the formats.
"""

import functools
import re

import numpy as np
import pytest

from hdl.features.mx.coding import Decoder, Encoder
from hdl.features.mx.dequantizer import Dequantizer
from hdl.features.mx.microscaling import MXINT8
from hdl.features.mx.packing import Packer, Unpacker
from hdl.features.mx.quantizer import Quantizer
from hdl.features.mx.shared_exponent import MX9, SharedExponent
from hdl.floating.format import BF16, FP16
from hdl.streams.stream import beat_layout
from sim.golden.features.mx import shared_exponent as model
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets
from tests.refusals import refuses

#: A block is an exponent, and eight magnitudes of three bits with their signs: 40 bits.
PARAMETERS = {"block": 8, "difference_bits": 0, "mantissa_bits": 3}
CODEC = SharedExponent(**PARAMETERS)
GOLDEN = model.SharedExponent(**PARAMETERS)
LANES = 4
BEATS = CODEC.block // LANES


@functools.cache
def _component(kind):
    return kind(codec=CODEC, lanes=LANES)


@functools.cache
def _unit(kind):
    return Unit(_component(kind), name=f"Block{kind.__name__}")


def _run(kind, vectors, *, cycles, willing=None, ready=True, reset=True, seed=1):
    """Packets that come of packets, what there is of one more, when its beats moved, and all of the run."""
    component = _component(kind)
    inside, outside = (LANES, component.words) if kind is Encoder else (component.words, LANES)
    unit = _unit(kind)
    if reset:
        unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.beats(vectors, inside, seed=seed), willing)},
                          sinks={"o": ready}, cycles=cycles, seed=seed)
    return *packets.taken(trace, outside), trace


def _vectors(generator, count):
    """Packets of numbers near one another, some of them of any kind."""
    vectors = []
    for _ in range(count):
        length = int(generator.integers(1, 5 * CODEC.block))
        bits = (generator.standard_normal(length) * 2.0 ** generator.integers(-20, 20)).astype(np.float32)
        noise = generator.integers(0, 1 << 32, length, dtype=np.uint32)
        vectors.append(np.where(generator.random(length) < 0.1, noise, bits.view(np.uint32)))
    return vectors


# --- construction


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_parameters(unit):
    for lanes in (0, 3, 32, 4.0, "4", None):
        refuses(f"Lane count must be a power of two between 1 and 16, not {lanes!r}", unit, codec=MX9, lanes=lanes)
    refuses("Codec must be a BlockCodec, not 'MX9'", unit, error=TypeError, codec="MX9", lanes=4)
    with pytest.raises(ValueError, match=f"^{re.escape(f'Format must be FP32 or BF16, not {FP16!r}')}$"):
        unit(codec=MX9, lanes=4, format=FP16)
    with pytest.raises(ValueError, match=r"^Magnitudes must be of at most 8 bits, not 9$"):
        unit(codec=SharedExponent(mantissa_bits=9), lanes=4, format=BF16)
    for words in (1, 0, 2.0, "3"):
        with pytest.raises(ValueError, match=rf"^Word count must be an integer of at least 3, not {words!r}$"):
            unit(codec=MXINT8, lanes=8, words=words)


def test_ports():
    encoder, decoder = Encoder(codec=MX9, lanes=8), Decoder(codec=MX9, lanes=8, words=4)
    assert (type(encoder), type(decoder)) == (Encoder, Decoder)
    assert encoder.i.payload.shape() == decoder.o.payload.shape() == beat_layout(8)
    assert (encoder.words, decoder.words, Encoder(codec=MX9, lanes=1).words) == (3, 4, 1)
    assert encoder.o.payload.shape() == beat_layout(3)
    assert decoder.i.payload.shape() == beat_layout(4)
    assert Encoder(codec=MX9, lanes=4, format=BF16).i.payload.shape() == beat_layout(4, 16)


@pytest.mark.parametrize("lanes", [1, 4, 8])
@pytest.mark.parametrize("codec", [MX9, MXINT8, CODEC], ids=["MX9", "MXINT8", "flat"])
def test_latency_of_parts(codec, lanes):
    parts = {"codec": codec, "lanes": lanes}
    assert Encoder(**parts).latency == Quantizer(**parts).latency + Packer.latency
    assert Decoder(**parts).latency == Unpacker.latency + Dequantizer(**parts).latency


# --- values and cycles


def test_known():
    """One block by the rules: ties to even, magnitudes that saturate, small numbers that keep their sign."""
    numbers = np.array([1, -1.5, .25, 1.9375, -.75, .125, -2.0 ** -20, 0], np.float32).view(np.uint32)
    codes = [4, 8 + 6, 1, 7, 8 + 3, 0, 8, 0]
    bits = 127 | sum(code << 8 + 4 * place for place, code in enumerate(codes))
    words = [bits & 0xFFFF_FFFF, bits >> 32]
    (got,), rest, _, _ = _run(Encoder, [numbers], cycles=40)
    assert (got.tolist(), len(rest)) == (words, 0)
    (got,), rest, _, trace = _run(Decoder, [np.array(words, np.uint32)], cycles=20)
    assert got.view(np.float32).tolist() == [1, -1.5, .25, 1.75, -.75, 0, 0, 0]
    assert (got[6], len(rest), trace["error"].sum()) == (0x8000_0000, 0, 0)


def test_latency_and_throughput():
    """A beat per cycle in and out, from packet to packet too. The first beat of the second block completes a word."""
    vectors = [np.full(blocks * CODEC.block, 0x3F80_0000, np.uint32) for blocks in (2, 4, 1, 5)]
    beats = 12 * BEATS
    got, _, when, trace = _run(Encoder, vectors, cycles=beats + 20)
    words = [GOLDEN.encode(vector) for vector in vectors]
    assert [part.tolist() for part in got] == [part.tolist() for part in words]
    assert np.flatnonzero(trace["i__valid"]).tolist() == list(range(beats))
    encoder, decoder = _component(Encoder), _component(Decoder)
    # Words 0 and 1 of the packet: with the last beat of its first block, and with the first one of its second block.
    assert when[:2].tolist() == [BEATS - 1 + encoder.latency + 1, 2 * BEATS - 1 + encoder.latency]
    got, _, when, trace = _run(Decoder, words, cycles=beats + 20)
    assert [part.tolist() for part in got] == [GOLDEN.decode(part).tolist() for part in words]
    assert when.tolist() == list(range(decoder.latency, decoder.latency + beats))


def test_partial_blocks():
    """A partial last block takes as many cycles as a whole one, and its rest is zero."""
    vectors = [np.full(count, 0xBF80_0000, np.uint32) for count in range(1, 2 * CODEC.block + 1)]
    got, _, _, trace = _run(Encoder, vectors, cycles=120)
    assert [part.tolist() for part in got] == [GOLDEN.encode(vector).tolist() for vector in vectors]
    assert [len(part) for part in got] == [CODEC.words(len(vector)) for vector in vectors]
    accepted = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    lengths = [-(-len(vector) // LANES) for vector in vectors]
    starts = np.cumsum([0, *(-(-len(vector) // CODEC.block) * BEATS for vector in vectors)])
    assert accepted.tolist() == [start + beat for start, length in zip(starts.tolist(), lengths, strict=False)
                                 for beat in range(length)]


@pytest.mark.parametrize(("source", "sink"), [*zip(STALLS, STALLS[::-1], strict=True), ("geometric", "geometric")])
def test_random(source, sink):
    seed = STALLS.index(source) + 4 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    cycles = 2_000
    willing, ready = (stall_array(kind, cycles, seed=seed + n) for n, kind in enumerate((source, sink)))
    vectors = _vectors(generator, 400)
    words = [GOLDEN.encode(vector) for vector in vectors]
    words[::7] = [generator.integers(0, 1 << 32, len(part), dtype=np.uint32) for part in words[::7]]
    for kind, given, convert in ((Encoder, vectors, GOLDEN.encode), (Decoder, words, GOLDEN.decode)):
        got, rest, _, trace = _run(kind, given, cycles=cycles, willing=willing, ready=ready, seed=seed)
        assert len(got) > 15, f"{seed=}"
        for number, part in enumerate(got):
            np.testing.assert_array_equal(part, convert(given[number]), f"{kind.__name__}, {number=}, {seed=}")
        np.testing.assert_array_equal(rest, convert(given[len(got)])[:len(rest)], f"{kind.__name__}, {seed=}")
        assert kind is Encoder or not trace["error"].any(), f"{seed=}"


def test_cut_packets():
    """Words that end in a block: what is missing is NaN, which is told once; the next packet is sound."""
    vector = np.arange(1, 4 * CODEC.block + 1).astype(np.float32).view(np.uint32)
    whole = GOLDEN.encode(vector)
    for length in range(1, len(whole)):
        got, rest, _, trace = _run(Decoder, [whole[:length], whole], cycles=60)
        blocks, left = divmod(32 * length, CODEC.block_bits)
        cut = left >= 32 or not blocks
        assert [len(part) // CODEC.block for part in got] == [blocks + cut, 4], f"{length=}"
        sound = 32 * length - CODEC.header_bits * (blocks + 1) >> 2  # codes that are there
        sound = sound // LANES * LANES if cut else blocks * CODEC.block
        assert got[0][:sound].tolist() == GOLDEN.decode(whole)[:sound].tolist(), f"{length=}"
        assert got[0][sound:].tolist() == [0x7FC0_0000] * (len(got[0]) - sound), f"{length=}"
        assert got[1].tolist() == GOLDEN.decode(whole).tolist(), f"{length=}"
        assert (trace["error"].sum(), len(rest)) == (cut, 0), f"{length=}"


@pytest.mark.parametrize("given", [1, 2, 6, 9, 14])
def test_reset_in_a_packet(given):
    """A reset forgets the packet that is inside."""
    vectors = _vectors(np.random.default_rng(given), 6)
    words = [GOLDEN.encode(vector) for vector in vectors]
    for kind, vector, expected in ((Encoder, vectors, words), (Decoder, words, map(GOLDEN.decode, words))):
        _run(kind, vector, cycles=given)
        _unit(kind).reset()
        got, rest, _, _ = _run(kind, vector, cycles=150, reset=False)
        assert [part.tolist() for part in got] == [part.tolist() for part in expected], kind.__name__
        assert len(rest) == 0
