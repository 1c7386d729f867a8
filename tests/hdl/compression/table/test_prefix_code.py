# amaranth: UnusedElaboratable=no
import functools

import cocotb
import numpy as np
import pytest

from hdl.compression.table import prefix_code as hardware
from hdl.compression.table.prefix_code import Decoder, Encoder
from hdl.streams.stream import beat_layout, word_layout
from sim import formal, regression
from sim.golden import prefix_code as model
from sim.golden.prefix_code import Code, PrefixCode
from sim.payload import unpack
from sim.streams import STALLS, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets

FORMAT = PrefixCode()
FOUR = Code(tuple(range(120, 135)), (4,) * 16)
SOUND = FORMAT.encode([0x3F80, 0xBFC0], FOUR)


@functools.cache
def _unit(kind):
    return Unit(kind(), name=f"Prefix{kind.__name__}")


def _weights(generator, count):
    return (generator.standard_normal(count) * 0.02).astype(np.float32).view(np.uint32) >> 16


def _packets(generator, total):
    """Vectors of weights and of noise, and a code for each, not always its best."""
    vectors, codes = [], []
    while sum(map(len, vectors)) < total:
        count = int(generator.integers(1, 200))
        vector = _weights(generator, count)
        if generator.random() < 0.4:
            vector = generator.integers(0, 1 << 16, count, dtype=np.uint32)
        vectors.append(vector)
        fitted = vector if generator.random() < 0.6 else _weights(generator, 500)
        codes.append(Code.fitted(fitted, longest=int(generator.integers(4, 7))))
    return vectors, codes


def _decode(streams, count=5_000):
    unit = _unit(Decoder)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.words(streams))}, sinks={"o": True}, cycles=count)
    got, rest, _ = packets.taken(trace, 1, width=16)
    assert len(rest) == 0
    return [vector.tolist() for vector in got], int(trace["error"].sum())


def test_ports():
    encoder, decoder = Encoder(), Decoder()
    parameters = hardware.PrefixCode()
    assert (parameters.symbols, parameters.longest, parameters.table_words) == (16, 6, FORMAT.table_words)
    assert all(parameters.words(lengths) == FORMAT.words(lengths) for lengths in ([], [1], [6] * 9, [3, 14, 2]))
    assert encoder.i.payload.shape() == decoder.o.payload.shape() == beat_layout(1, 16)
    assert encoder.o.payload.shape() == decoder.i.payload.shape() == word_layout()


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
def test_encoder_lockstep(source, sink):
    count = 4_000
    for seed in range(3):
        vectors, codes = _packets(np.random.default_rng(seed), count)
        tables, willing = (stall_array(source, count, seed=seed + n) for n in (5, 6))
        ready = stall_array(sink, count, seed=seed + 1)
        unit = _unit(Encoder)
        unit.reset()
        trace = unit.lockstep(sources={
            "table": Feed(packets.words([code.words for code in codes]), tables),
            "i": Feed(packets.beats(vectors, 1, width=16), willing)}, sinks={"o": ready})
        expected = model.trace_encoder(vectors, codes, table_willing=tables, willing=willing, ready=ready)
        for name, port in (("scan_valid", "table__valid"), ("scan_ready", "table__ready"), ("i_valid", "i__valid"),
                           ("i_ready", "i__ready"), ("o_valid", "o__valid")):
            np.testing.assert_array_equal(trace[port], getattr(expected, name), f"{name}, {seed=}")
        rows = packets.words([FORMAT.encode(vector, code) for vector, code in zip(vectors, codes, strict=True)])
        np.testing.assert_array_equal(trace["o__payload"][expected.o_valid], rows[expected.offered[expected.o_valid]],
                                      f"payload, {seed=}")
        assert not trace["error"].any()


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
def test_decoder_lockstep(source, sink):
    count = 4_000
    for seed in range(3):
        vectors, codes = _packets(np.random.default_rng(seed), count)
        willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 1)
        unit = _unit(Decoder)
        unit.reset()
        streams = [FORMAT.encode(vector, code) for vector, code in zip(vectors, codes, strict=True)]
        trace = unit.lockstep(sources={"i": Feed(packets.words(streams), willing)}, sinks={"o": ready})
        expected = model.trace_decoder(vectors, codes, willing=willing, ready=ready)
        packets.same(trace, expected, packets.beats(vectors, 1, width=16), 1, width=16, note=f"{seed=}")
        assert not trace["error"].any()


def test_throughput():
    """One element per cycle in both directions, where none is escaped; and words as the formula says."""
    weights = np.clip(np.abs(_weights(np.random.default_rng(1), 4096)), 0x3800, 0x3E00).astype(np.uint32)
    code = Code.fitted(weights)
    unit = _unit(Encoder)
    unit.reset()
    trace = unit.lockstep(sources={"table": Feed(packets.words([code.words])),
                                   "i": Feed(packets.beats([weights], 1, width=16))}, sinks={"o": True}, cycles=4_200)
    accepted = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    assert accepted.tolist() == list(range(accepted[0], accepted[0] + 4096))
    assert accepted[0] == 5 + Encoder.table_cycles - 1
    words = unpack(word_layout(), trace["o__payload"][trace["o__valid"] == 1])["data"]
    assert words.tolist() == FORMAT.encode(weights, code).tolist()
    of = dict(zip(code.exponents, code.lengths, strict=False))
    assert len(words) == FORMAT.words([*(of[int(weight) >> 7] for weight in weights), code.lengths[-1] + 8])
    unit = _unit(Decoder)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.words([words]))}, sinks={"o": True}, cycles=4_200)
    _, _, when = packets.taken(trace, 1, width=16)
    # The last element waits for the end, which takes two cycles.
    assert when[-1] - when[0] == 4096
    assert (np.diff(when[:-1]) == 1).all()


# --- malformed packets


@pytest.mark.parametrize("length", range(1, len(SOUND)))
def test_short_packets(length):
    """Reported, and what is whole is given."""
    got, errors = _decode([SOUND, SOUND[:length], SOUND])
    assert errors == 1
    assert got[0] == got[-1] == [0x3F80, 0xBFC0]
    assert got[1:-1] == [[0x3F80, 0xBFC0]] * (length == 7)


def test_long_packets():
    got, errors = _decode([[*SOUND, 0, 0, 7], SOUND])
    assert (got, errors) == ([[0x3F80, 0xBFC0]] * 2, 1)


def test_empty_packets():
    empty = [*SOUND[:6], 120 << 12 | 0b1111 << 8]
    got, errors = _decode([empty, SOUND, empty])
    assert (got, errors) == ([[0x3F80, 0xBFC0]], 2)


@pytest.mark.parametrize("lengths", [
    [0x4444_4444, 0x3444_4444], [0x4444_4444, 0x5444_4444], [0x4444_4445, 0x4444_4444], [0x4444_4440, 0x4444_4444],
    [0x9999_9999, 0x9999_9999], [0x2222_2222, 0x2222_2222], [0x2222_1111, 0x8888_8888]])
def test_bad_tables(lengths):
    """Lengths that descend, are too small or too large, or leave codes over."""
    got, errors = _decode([[*SOUND[:4], *lengths, *SOUND[6:]], SOUND])
    assert got == [[0x3F80, 0xBFC0]]
    assert errors == 1
    unit = _unit(Encoder)
    unit.reset()
    trace = unit.lockstep(sources={"table": Feed(packets.words([[*SOUND[:4], *lengths], FOUR.words])),
                                   "i": Feed(packets.beats([[0x3F80]] * 2, 1, width=16))},
                          sinks={"o": True}, cycles=100)
    assert trace["error"].any()
    assert unpack(word_layout(), trace["o__payload"][trace["o__valid"] == 1])["last"].sum() == 2


def test_never_hangs():
    """Noise of any length: it is taken, and the packet behind it is sound."""
    for seed in range(30):
        generator = np.random.default_rng(seed)
        noise = [generator.integers(0, 1 << 32, generator.integers(1, 60), dtype=np.uint32) for _ in range(20)]
        for packet in noise[::2]:
            packet[4:6] = 0x4444_4444
        got, _ = _decode([*noise, SOUND])
        assert got[-1] == [0x3F80, 0xBFC0], f"{seed=}"


@pytest.mark.parametrize("given", [1, 8, 23, 30, 55])
def test_reset_in_a_packet(given):
    vectors, codes = _packets(np.random.default_rng(given), 300)
    streams = [FORMAT.encode(vector, code) for vector, code in zip(vectors, codes, strict=True)]
    for count in (given, 5_000):
        unit = _unit(Encoder)
        unit.reset()
        trace = unit.lockstep(sources={
            "table": Feed(packets.words([code.words for code in codes])),
            "i": Feed(packets.beats(vectors, 1, width=16))}, sinks={"o": True}, cycles=count)
    words = unpack(word_layout(), trace["o__payload"][trace["o__valid"] == 1])["data"]
    assert words.tolist() == np.concatenate(streams).tolist()
    unit = _unit(Decoder)
    unit.reset()
    unit.lockstep(sources={"i": Feed(packets.words(streams))}, sinks={"o": True}, cycles=given)
    assert _decode(streams) == ([vector.tolist() for vector in vectors], 0)


# --- handshakes, proven


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_offers_stand_for_all_time(unit):
    formal.prove(formal.Offers(unit()), depth=2)


# --- under cocotb, after a reset in the middle of a packet


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def expands(dut):
    parameters = regression.parameters()
    await start(dut)
    dut.i__payload.value = 0x4444_4444
    dut.i__valid.value = 1
    await cycles(dut, 40)
    dut.rst.value = 1
    dut.i__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    source = Source(dut, "i", word_layout(), stalls=stalls(parameters["stalls"], seed=1))
    sink = Sink(dut, "o", beat_layout(1, 16), stalls=stalls(parameters["stalls"], seed=2))
    cocotb.start_soon(source.send(parameters["words"]))
    assert await sink.receive(len(parameters["elements"])) == parameters["elements"]


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb(kind):
    vectors, codes = _packets(np.random.default_rng(1), 300)
    regression.run(Decoder(), module=__name__, name="PrefixDecoder", parameters={
        "stalls": kind,
        "words": [{"data": int(word), "last": int(place == len(words) - 1)}
                  for words in map(FORMAT.encode, vectors, codes) for place, word in enumerate(words)],
        "elements": [{"elements": [int(element)], "keep": 1, "last": int(place == len(vector) - 1)}
                     for vector in vectors for place, element in enumerate(vector)]})
