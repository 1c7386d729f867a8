# amaranth: UnusedElaboratable=no
"""Block codecs and checks of their units, shared by the tests of all formats with shared exponents."""

import dataclasses
import functools

import numpy as np

from hdl.features.mx import microscaling as mx_gateware
from hdl.features.mx.coding import Decoder, Encoder
from hdl.features.mx.dequantizer import Dequantizer
from hdl.features.mx.format import Rounding
from hdl.features.mx.quantizer import Quantizer
from hdl.features.mx.shared_exponent import SharedExponent
from hdl.features.nvfp4 import coding as nvfp4_coding
from hdl.features.nvfp4.format import NVFP4
from hdl.floating.format import BF16, FP32
from hdl.streams.stream import beat_layout
from sim.golden.features.mx import block_format
from sim.golden.features.mx import microscaling as mx
from sim.golden.features.mx import shared_exponent as model
from sim.golden.features.nvfp4 import nvfp4 as nvfp4_model
from sim.payload import pack
from sim.verilated.vectors import Feed
from tests.features.mx import cycles as block_cycles
from tests.hdl.compression.packets import as_beats as beats_of
from tests.hdl.compression.packets import as_rows, beats, kept, taken
from tests.hdl.unit_bench import Drive, UnitBench, Want

STOCHASTIC = {"rounding": Rounding.STOCHASTIC, "seed": 7}
PARAMETERS = {
    "MX9": {"mantissa_bits": 7}, "MX6": {"mantissa_bits": 4}, "MX4": {"mantissa_bits": 2},
    "flat": {"difference_bits": 0, "mantissa_bits": 7},
    "deep": {"block": 32, "subset": 4, "difference_bits": 2, "mantissa_bits": 5},
    "narrow": {"exponent_bits": 4, "mantissa_bits": 3},
    "small": {"block": 8, "mantissa_bits": 7},
    "long": {"block": 8, "subset": 8, "exponent_bits": 5, "difference_bits": 3, "mantissa_bits": 8},
    "single": {"block": 32, "subset": 1, "mantissa_bits": 1},
    "MX9 stochastic": {"mantissa_bits": 7, **STOCHASTIC},
    "single stochastic": {"block": 32, "subset": 1, "mantissa_bits": 1, **STOCHASTIC},
}
#: Tensor scales for NVFP4, at both ends of the range and in between.
TENSOR_SCALES = {"NVFP4": 1.0, "NVFP4 small": 2.0 ** -8, "NVFP4 least": 2.0 ** -115, "NVFP4 most": 2.0 ** 116}


def codec(name, mirror=False):
    """Return the codec with the given name, as gateware or as golden model."""
    roundings = block_format.Rounding if mirror else Rounding
    stochastic = {**STOCHASTIC, "rounding": roundings.STOCHASTIC}
    if name in PARAMETERS:
        parameters = PARAMETERS[name] | (stochastic if "rounding" in PARAMETERS[name] else {})
        return (model.SharedExponent if mirror else SharedExponent)(**parameters)
    if name in TENSOR_SCALES:
        return (nvfp4_model.NVFP4 if mirror else NVFP4)(tensor_scale=TENSOR_SCALES[name])
    base, _, rounding = name.partition(" ")
    block_codec = getattr(mx if mirror else mx_gateware, base)
    return dataclasses.replace(block_codec, **stochastic) if rounding else block_codec


def build(kind, name, lanes, format=FP32):
    """Build a unit for the named codec, using the codec's own kind of unit if it has one."""
    block_codec = codec(name)
    if isinstance(block_codec, NVFP4):
        kind = {Encoder: nvfp4_coding.Encoder, Decoder: nvfp4_coding.Decoder}[kind]
    formats = {"format": format} if kind in (Quantizer, Dequantizer) or issubclass(kind, (Encoder, Decoder)) else {}
    return kind(codec=block_codec, lanes=lanes, **formats)


def _elements(generator, count):
    """Draw random bit patterns, and runs of similar exponents in the middle and at both ends of the range."""
    bits = generator.integers(0, 1 << 32, count, dtype=np.uint32)
    runs = np.arange(count) // int(generator.integers(1, 40))
    center = generator.choice([0, 1, 5, 15, 30, 120, 127, 133, 240, 254], runs[-1] + 1)[runs]
    exponent = np.clip(center - generator.integers(0, 12, count), 0, 254)
    near = generator.random(runs[-1] + 1)[runs] < 0.9
    bits = np.where(near, bits & 0x807F_FFFF | exponent.astype(np.uint32) << np.uint32(23), bits)
    # Use fractions near rounding boundaries and near one.
    low = generator.choice([0, 1, 0x8000, 0x7FFF, 0x8001, 0xFFFF], count).astype(np.uint32)
    ties = bits & ~np.uint32(0xFFFF) | low
    bits = np.where(generator.random(count) < 0.5, ties, bits)
    bits = np.where(generator.random(count) < 0.1, bits | np.uint32(0x7E_0000), bits)
    return np.where(generator.random(count) < 0.05, bits & np.uint32(0x8000_0000), bits).astype(np.uint32)


def _packets(generator, total, block):
    packets = []
    while sum(map(len, packets)) < total:
        packets.append(_elements(generator, int(generator.integers(1, 6 * block))))
    return packets


def as_beats(rows, keep, last, format=FP32):
    return beats_of(rows >> (32 - format.width), keep, last, width=format.width)


def _reference(name, packets):
    """Encode packets with the golden model; its random bits continue from one packet to the next."""
    golden = codec(name, mirror=True)
    random = golden.random()
    return [golden.encode(packet, random=random) for packet in packets]


# --- every cycle against the model


def _coded_beats(golden, packets, streams, lanes, words):
    """Return the expected beats of words for packets of elements, and a mask of the bits to compare."""
    counts = [-(-len(packet) // golden.block) for packet in packets]
    parts = [(stream[begin:end], ends) for stream, beats in zip(
        streams, block_cycles.join(golden, counts, lanes), strict=True) for begin, end, ends in beats if end > begin]
    rows = pack(beat_layout(words), {
        "elements": np.array([np.resize(part, words) for part, _ in parts]),
        "keep": [(1 << len(part)) - 1 for part, _ in parts], "last": [ends for _, ends in parts]})
    return rows, kept(rows, words)


def _drive(generator, kind, name, lanes, format=FP32, noise=False, total=None):
    """Draw packets for an encoder, or encoded words or (if ``noise``) random words for a decoder."""
    golden, words = codec(name, mirror=True), BENCH.make(kind, name, lanes, format).words
    encodes = kind is Encoder
    packets = _packets(generator, total or 2_500 * lanes // (1 + encodes), golden.block)
    if encodes:
        if format is BF16:
            packets = [packet & np.uint32(0xFFFF_0000) for packet in packets]
        rows, keep, last = as_rows(packets, lanes, generator)
        streams = _reference(name, packets)
        assert list(map(len, streams)) == [golden.words(len(packet)) for packet in packets]
        wanted = _coded_beats(golden, packets, streams, lanes, words)
        return Drive({"i": as_beats(rows, keep, last, format)}, (golden, last, None, lanes, wanted))
    streams = [golden.encode(packet) for packet in packets]
    if noise:
        streams = [generator.integers(0, 1 << 32, len(stream), dtype=np.uint32) for stream in streams]
    rows, keep, last = as_rows(streams, words, generator)
    elements = [golden.decode(stream, bf16=format is BF16) for stream in streams]
    wanted = beats_of(*as_rows(elements, lanes, generator), width=format.width)
    counts = [len(stream) for stream in streams]
    return Drive({"i": beats_of(rows, keep, last)}, (golden, last, counts, lanes, wanted))


def _model(unit, drawn, willing, ready):
    golden, last, counts, lanes, wanted = drawn
    stalls = {"lanes": lanes, "latency": unit.latency, "willing": willing["i"], "ready": ready["o"]}
    if counts is None:
        return Want.of(block_cycles.trace_encoder(golden, last, **stalls), wanted)
    want = Want.of(block_cycles.trace_decoder(golden, last, counts, words=unit.words, **stalls), wanted)
    want.ports["error"] = np.zeros(len(ready["o"]), bool)
    return want


def _make(kind, name, lanes, format=FP32, noise=False):
    return build(kind, name, lanes, format)


BENCH = UnitBench(_make, _model, _drive)


def cocotb_test(name, lanes):
    """Test encoder and decoder under cocotb; the run starts with a reset in the middle of a block."""
    total = 20 * codec(name, mirror=True).block
    return BENCH.cocotb([(kind, name, lanes) for kind in (Encoder, Decoder)], cut=23,
                        drive=functools.partial(_drive, total=total))


# --- values


def _run(kind, name, lanes, rows, cycles):
    """Run a unit without stalls; return packets, the incomplete last packet, the cycles of beats, and the trace."""
    unit, component = BENCH.unit(kind, name, lanes), BENCH.make(kind, name, lanes)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(rows)}, sinks={"o": True}, cycles=cycles + component.latency + 5)
    return *taken(trace, component.words if kind is Encoder else lanes), trace


def _encode(name, lanes, packets):
    """Check an encoder's words, and the cycle of the last beat, without stalls."""
    golden = codec(name, mirror=True)
    steps = golden.block // lanes
    count = sum(-(-len(packet) // golden.block) for packet in packets) * steps
    whole, _, when, _ = _run(Encoder, name, lanes, beats(packets, lanes), count + steps)
    words = _reference(name, packets)
    assert list(map(len, words)) == [golden.words(len(packet)) for packet in packets]
    assert list(map(np.ndarray.tolist, whole)) == list(map(np.ndarray.tolist, words))
    # The last beat completes the last block, so if it is on time, no beat was delayed.
    assert when[-1] == count - 1 + BENCH.make(Encoder, name, lanes).latency + steps - 1


def _decode(name, lanes, packets, wanted):
    """Check a decoder's elements, and that it outputs a beat in every cycle, without stalls."""
    latency, count = BENCH.make(Decoder, name, lanes).latency, len(wanted) // lanes
    rows = beats(packets, BENCH.make(Decoder, name, lanes).words)
    whole, _, when, _ = _run(Decoder, name, lanes, rows, count)
    np.testing.assert_array_equal(np.concatenate(whole), wanted)
    assert when.tolist() == list(range(latency, latency + count))


def every_fraction(name, lanes):
    """All upper halves of binary32 numbers are encoded correctly, for every shift amount."""
    golden = codec(name, mirror=True)
    halves = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    halves = halves[(halves >> 23 & 255) >= 100]
    halves = halves[(halves >> 23 & 255) <= 135]
    rows = halves.reshape(-1, golden.block // 2)
    packet = np.concatenate([rows, rows[np.random.default_rng(2).permutation(len(rows))]], axis=1).reshape(-1)
    _encode(name, lanes, [packet])


def every_code(name, lanes):
    """Every code is decoded correctly, for every exponent and every difference."""
    golden = codec(name, mirror=True)
    codes = np.tile(np.arange(1 << golden.code_bits), 32)[:max(1 << golden.code_bits, golden.block)]
    exponents = np.arange(1 << golden.exponent_bits)
    rows = np.tile(codes, len(exponents) * (1 << golden.difference_bits)).reshape(-1, golden.block)
    per_code = len(codes) // golden.block
    differences = np.arange(1 << golden.difference_bits).repeat(len(exponents) * per_code)
    blocks = block_format.Blocks(np.tile(exponents.repeat(per_code), 1 << golden.difference_bits),
                          np.tile(differences[:, np.newaxis], (1, golden.subsets)), rows)
    _decode(name, lanes, [golden.pack(blocks)], golden.dequantise(blocks).reshape(-1))


def special_blocks(name, special, lanes):
    """Zeros, subnormals, infinities and NaNs are coded correctly, in separate blocks and among ones."""
    golden = codec(name, mirror=True)
    normal = np.float32(1.5).view(np.uint32)
    block = np.full(golden.block, special, np.uint32)
    mixed = np.where(np.arange(golden.block) == 5, special, normal).astype(np.uint32)
    normal_block = np.full(golden.block, normal)
    _encode(name, lanes, [block, np.concatenate([normal_block, block, normal_block, mixed, normal_block]), mixed])


# --- latency, throughput and sizes


def _whole_blocks(golden):
    """Draw packets that consist of whole blocks."""
    return [_elements(np.random.default_rng(seed), blocks * golden.block) for seed, blocks in enumerate((5, 1, 2, 9))]


def encoder_throughput(name, lanes):
    """Throughput is one beat per cycle, across blocks and packets; word counts match the formula."""
    _encode(name, lanes, _whole_blocks(codec(name, mirror=True)))


def partial_blocks(name, lanes):
    """A packet with a partial last block takes as long as a packet of whole blocks."""
    _encode(name, lanes, [_elements(np.random.default_rng(count), count)
                          for count in range(1, 2 * codec(name, mirror=True).block + 2)])


def decoder_throughput(name, lanes):
    golden = codec(name, mirror=True)
    packets = [golden.encode(packet) for packet in _whole_blocks(golden)]
    _decode(name, lanes, packets, np.concatenate([golden.decode(packet) for packet in packets]))


# --- words that end inside a block


def cut_packets(name, lanes):
    """Missing elements become NaN, one error is reported, and the next packet is decoded correctly."""
    golden = codec(name, mirror=True)
    elements = _elements(np.random.default_rng(1), 3 * golden.block)
    whole = golden.encode(elements)
    words = BENCH.make(Decoder, name, lanes).words
    for length in range(1, len(whole)):
        packets = [whole[:length], whole, whole[:length]]
        decoded, _, _, trace = _run(Decoder, name, lanes, beats(packets, words), 14 * golden.block // lanes)
        parts = block_cycles.split(golden, [len(packet) for packet in packets], lanes, words)
        rows = golden.decode(whole).reshape(-1, lanes)
        expected = [[[0x7FC0_0000] * lanes if lacks else row.tolist() for row, (_, lacks, _) in zip(
            rows, part, strict=False)] for part in parts]
        assert [packet.reshape(-1, lanes).tolist() for packet in decoded] == expected, f"{length=}"
        cut = any(lacks for _, lacks, _ in parts[0])
        assert trace["error"].sum() == 2 * cut, f"{length=}"
