# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest

from hdl.features.table import prefix_code as hardware
from hdl.features.table.prefix_decoder import Decoder
from hdl.features.table.prefix_encoder import Encoder
from hdl.streams.stream import word_layout
from sim import formal
from sim.golden.features.table.prefix_code import Code, PrefixCode
from sim.payload import unpack
from sim.verilated.vectors import Feed
from tests.features.table import prefix_cycles as cycles
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want

FORMAT = PrefixCode()
FOUR = Code(tuple(range(120, 135)), (4,) * 16)
SOUND = FORMAT.encode([0x3F80, 0xBFC0], FOUR)


def _weights(generator, count):
    return (generator.standard_normal(count) * 0.02).astype(np.float32).view(np.uint32) >> 16


def _packets(generator, total):
    """Draw vectors of weights or random bits; the code for each vector may have been fitted to other weights."""
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
    unit = BENCH.unit(Decoder)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.words(streams))}, sinks={"o": True}, cycles=count)
    got, rest, _ = packets.taken(trace, 1, width=16)
    assert len(rest) == 0
    return [vector.tolist() for vector in got], int(trace["error"].sum())


def test_parameters():
    parameters = hardware.PrefixCode()
    assert (parameters.symbols, parameters.longest, parameters.table_words) == (16, 6, FORMAT.table_words)
    assert all(parameters.words(lengths) == FORMAT.words(lengths) for lengths in ([], [1], [6] * 9, [3, 14, 2]))


def _streams(vectors, codes):
    return packets.words([FORMAT.encode(vector, code) for vector, code in zip(vectors, codes, strict=True)])


def _drive(generator, kind, count=4_000):
    vectors, codes = _packets(generator, count)
    beats = {"i": _streams(vectors, codes)} if kind is Decoder else {
        "table": packets.words([code.words for code in codes]), "i": packets.beats(vectors, 1, width=16)}
    return Drive(beats, (vectors, codes))


def _model(unit, drawn, willing, ready):
    if isinstance(unit, Decoder):
        trace = cycles.trace_decoder(*drawn, willing=willing["i"], ready=ready["o"])
        return packets.want(trace, packets.beats(drawn[0], 1, width=16), 1, width=16)
    trace = cycles.trace_encoder(*drawn, table_willing=willing["table"], willing=willing["i"], ready=ready["o"])
    want = Want.of(trace, _streams(*drawn), without=("scan_valid", "scan_ready"))
    want.ports.update(table__valid=trace.scan_valid, table__ready=trace.scan_ready,
                      error=np.zeros_like(trace.o_valid))
    return want


UNITS = [(Encoder,), (Decoder,)]
BENCH = UnitBench(lambda kind: kind(), _model, _drive, name=lambda kind: f"Prefix{kind.__name__}")
test_lockstep = BENCH.lockstep(UNITS, count=4_000, seeds=3)
test_reset_in_a_packet = BENCH.resets(UNITS, (1, 8, 23, 30, 55), drive=functools.partial(_drive, count=300),
                                      count=5_000)
test_cocotb = BENCH.cocotb(UNITS[1:], cut=40, name="PrefixDecoder", drive=functools.partial(_drive, count=300))


def test_throughput():
    """Without escapes, throughput is one element per cycle in both units; word counts match the formula."""
    weights = np.clip(np.abs(_weights(np.random.default_rng(1), 4096)), 0x3800, 0x3E00).astype(np.uint32)
    code = Code.fitted(weights)
    unit = BENCH.unit(Encoder)
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
    unit = BENCH.unit(Decoder)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.words([words]))}, sinks={"o": True}, cycles=4_200)
    _, _, when = packets.taken(trace, 1, width=16)
    # The last element waits for the end symbol, which takes two more cycles to decode.
    assert when[-1] - when[0] == 4096
    assert (np.diff(when[:-1]) == 1).all()


# --- malformed packets


@pytest.mark.parametrize("length", range(1, len(SOUND)))
def test_short_packets(length):
    """A truncated packet is reported, and complete packets before and after it are decoded correctly."""
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
    """Code lengths that descend, are out of range or do not form a complete code are reported."""
    got, errors = _decode([[*SOUND[:4], *lengths, *SOUND[6:]], SOUND])
    assert got == [[0x3F80, 0xBFC0]]
    assert errors == 1
    unit = BENCH.unit(Encoder)
    unit.reset()
    trace = unit.lockstep(sources={"table": Feed(packets.words([[*SOUND[:4], *lengths], FOUR.words])),
                                   "i": Feed(packets.beats([[0x3F80]] * 2, 1, width=16))},
                          sinks={"o": True}, cycles=100)
    assert trace["error"].any()
    assert unpack(word_layout(), trace["o__payload"][trace["o__valid"] == 1])["last"].sum() == 2


def test_never_hangs():
    """Random packets are consumed without hanging, and the next valid packet is decoded correctly."""
    for seed in range(30):
        generator = np.random.default_rng(seed)
        noise = [generator.integers(0, 1 << 32, generator.integers(1, 60), dtype=np.uint32) for _ in range(20)]
        for packet in noise[::2]:
            packet[4:6] = 0x4444_4444
        got, _ = _decode([*noise, SOUND])
        assert got[-1] == [0x3F80, 0xBFC0], f"{seed=}"


# --- proofs of the handshakes


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_offers_stand_for_all_time(unit):
    formal.prove(formal.Offers(unit()), depth=2)
