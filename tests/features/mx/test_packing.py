# amaranth: UnusedElaboratable=no
"""Blocks to words and back: hdl/features/mx/packing.py."""

import functools

import numpy as np
import pytest

from hdl.features.mx.format import block_layout
from hdl.features.mx.microscaling import MXINT8
from hdl.features.mx.packing import Packer, Unpacker, check_words, least_words, positions
from hdl.features.mx.shared_exponent import MX4, MX9, SharedExponent
from hdl.streams.stream import beat_layout
from sim.payload import pack, unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.refusals import refuses

#: A block is one word.
WORD = SharedExponent(block=8, difference_bits=0, mantissa_bits=2)
#: A block is 76 bits, of which the first beat has 28.
ODD = SharedExponent(block=8, mantissa_bits=7)
#: Blocks of one beat and of several; words that a beat completes: none, one or several; more words than need be.
UNITS = [(WORD, 8, None), (ODD, 2, None), (MX4, 16, None), (ODD, 4, 3)]
units = pytest.mark.parametrize(("codec", "lanes", "words"), UNITS, ids=["word", "odd", "mx4", "odd-3"])


@functools.cache
def _unit(kind, codec, lanes, words=None):
    return Unit(kind(codec=codec, lanes=lanes, words=words), name=f"Blocks{kind.__name__}")


# --- construction


@pytest.mark.parametrize("unit", [Packer, Unpacker])
def test_parameters(unit):
    for lanes in (0, 3, 32, 4.0, "4", None):
        refuses(f"Lane count must be a power of two between 1 and 16, not {lanes!r}", unit, codec=MX9, lanes=lanes)
    refuses("Codec must be a BlockCodec, not 'MX9'", unit, error=TypeError, codec="MX9", lanes=4)
    for words in (1, 0, 2.0, "3"):
        with pytest.raises(ValueError, match=rf"^Word count must be an integer of at least 3, not {words!r}$"):
            unit(codec=MXINT8, lanes=8, words=words)


def test_ports():
    packer, unpacker = Packer(codec=MX9, lanes=8), Unpacker(codec=MX9, lanes=8, words=4)
    assert packer.i.payload.shape() == unpacker.o.payload.shape() == block_layout(MX9, 8)
    assert (packer.words, unpacker.words, Packer(codec=MX9, lanes=8, words=5).words) == (3, 4, 5)
    assert (packer.o.payload.shape(), unpacker.i.payload.shape()) == (beat_layout(3), beat_layout(4))
    assert (Packer.latency, Unpacker.latency) == (1, 1)


def test_positions():
    assert positions(WORD, 8) == ([0], [32], 1)
    # 28, 40, 52 and 64 bits.
    assert positions(MX4, 4) == ([0, 8, 20, 28], [28, 12, 12, 12], 1)
    places, sizes, words = positions(ODD, 2)
    assert (places, sizes, words) == (list(range(0, 32, 4)), [28, 16, 16, 16], 2)  # 28 and 28 bits are no two words,
    assert positions(ODD, 4)[1:] == ([44, 32], 2)
    assert [least_words(codec, lanes) for codec, lanes in ((WORD, 8), (MX9, 8), (MX4, 1))] == [1, 3, 1]
    assert (check_words(None, 3), check_words(3, 3), check_words(4, 3)) == (3, 3, 4)
    refuses("Word count must be an integer of at least 3, not 2", check_words, 2, 3)


# --- blocks, as in the description of the format


def _blocks(generator, codec, count):
    """Packets of blocks: exponent, differences and codes of each."""
    def some(length, bits):
        return generator.integers(0, 1 << bits, length).tolist()

    return [[(*some(1, codec.exponent_bits), some(codec.subsets, codec.difference_bits),
              some(codec.block, codec.code_bits)) for _ in range(int(generator.integers(1, 10)))]
            for _ in range(count)]


def _sizes(codec, lanes):
    """Bits of the beats of a block."""
    beats = codec.block // lanes
    return [lanes * codec.code_bits + codec.header_bits * (beat == 0) for beat in range(beats)]


def _bits(codec, packet):
    """A packet as one number."""
    bits = place = 0
    for exponent, differences, codes in packet:
        for values, width in (([exponent], codec.exponent_bits), (differences, codec.difference_bits),
                              (codes, codec.code_bits)):
            for value in values:
                bits |= value << place
                place += width
    return bits


def _words(codec, packet):
    bits = _bits(codec, packet)
    return [bits >> 32 * word & 0xFFFF_FFFF for word in range(codec.words(len(packet) * codec.block))]


def _beats(codec, lanes, given):
    """Packets of blocks as rows of a port."""
    rows = []
    for packet in given:
        for number, (exponent, differences, codes) in enumerate(packet):
            for begin in range(0, codec.block, lanes):
                last = number == len(packet) - 1 and begin + lanes == codec.block
                rows.append((exponent, differences, codes[begin:begin + lanes], begin == 0, last))
    exponents, differences, codes, first, last = map(np.array, zip(*rows, strict=True))
    return pack(block_layout(codec, lanes), {"exponent": exponents, "codes": codes, "first": first, "last": last,
                                             **({"differences": differences} if codec.subsets else {})})


def _word_beats(packets, words, generator):
    """Packets of words as rows of a port; what is not kept is noise."""
    rows = []
    for packet in packets:
        for begin in range(0, len(packet), words):
            part = packet[begin:begin + words]
            noise = generator.integers(0, 1 << 32, words - len(part)).tolist()
            rows.append((part + noise, (1 << len(part)) - 1, begin + words >= len(packet)))
    elements, keep, last = map(np.array, zip(*rows, strict=True))
    return pack(beat_layout(words), {"elements": elements, "keep": keep, "last": last})


# --- every cycle


def _check_packer(codec, lanes, words, given, trace, note):
    """Every cycle of a packer, after a reset: words are offered a cycle after the beat that completes them."""
    words = Packer(codec=codec, lanes=lanes, words=words).words
    out = unpack(beat_layout(words), trace["o__payload"])
    elements = out["elements"].reshape(-1, words)
    beats = [(packet, beat, size) for packet in given for beat, size in enumerate(_sizes(codec, lanes) * len(packet))]
    held, taken, packets = None, 0, 0
    done = bits = 0  # words and bits of the packet so far
    for cycle in range(len(elements)):
        now = f"{cycle=}, {note}"
        assert trace["o__valid"][cycle] == (held is not None), now
        ready = bool(trace["o__ready"][cycle]) or held is None
        assert trace["i__ready"][cycle] == ready, now
        if held is not None:
            part, last = held
            assert out["keep"][cycle] == (1 << len(part)) - 1, now
            assert elements[cycle][:len(part)].tolist() == part, now
            assert out["last"][cycle] == last, now
        if ready:
            held = None
            if trace["i__valid"][cycle]:
                packet, beat, size = beats[taken]
                taken += 1
                last = beat == len(packet) * codec.block // lanes - 1
                bits += size
                whole = -(-bits // 32) if last else bits // 32
                part = _words(codec, packet)[done:whole]
                held = (part, last) if part else None
                done, bits = (0, 0) if last else (whole, bits)
                packets += last
    return packets


def _check_unpacker(codec, lanes, words, packets, trace, note):
    """Every cycle of an unpacker, after a reset: words are taken when a beat needs bits of them, and the beat is
    offered a cycle later. The last beat of a packet leaves fewer than 32 bits."""
    words, sizes = Unpacker(codec=codec, lanes=lanes, words=words).words, _sizes(codec, lanes)
    layout = block_layout(codec, lanes)
    out = unpack(layout, trace["o__payload"])
    codes = out["codes"].reshape(-1, lanes)
    code_mask = (1 << codec.code_bits) - 1
    held, error, index, number = None, False, 0, 0
    taken = used = 0  # words and bits of the packet so far
    told = False
    counts = {"packets": 0, "errors": 0, "lacking": 0}
    for cycle in range(len(codes)):
        now = f"{cycle=}, {note}"
        assert trace["o__valid"][cycle] == (held is not None), now
        assert trace["error"][cycle] == error, now
        if held is not None:
            for name, value in held.items():
                got = codes[cycle] if name == "codes" else out[name][cycle]
                assert np.atleast_1d(got).tolist() == value, f"{name}, {now}"
        free = bool(trace["o__ready"][cycle]) or held is None
        packet = packets[number] if number < len(packets) else []
        taking = 32 * taken < used + sizes[index] and (taken < len(packet) or not packet)
        assert trace["i__ready"][cycle] == (free and taking), now
        error = False
        if not free:
            continue
        held = None
        if taking and not trace["i__valid"][cycle]:
            continue
        taken = min(taken + words * taking, len(packet))
        start, used = used, used + sizes[index]
        ended = taken == len(packet)
        lacks = ended and used > 32 * taken
        final = index == len(sizes) - 1
        last = final and ended and 32 * taken - used < 32
        held = {"first": [index == 0], "last": [last]}
        if lacks:
            held["exponent"] = [codec.nan]
            error, told = not told, True
        else:
            whole = sum(word << 32 * place for place, word in enumerate(packet))
            block = start - sum(sizes[:index])
            held["exponent"] = [whole >> block & ((1 << codec.exponent_bits) - 1)]
            if codec.subsets:
                held["differences"] = [whole >> block + codec.exponent_bits + n * codec.difference_bits
                                       & ((1 << codec.difference_bits) - 1) for n in range(codec.subsets)]
            body = whole >> start + (codec.header_bits if index == 0 else 0)
            held["codes"] = [body >> n * codec.code_bits & code_mask for n in range(lanes)]
        counts["errors"] += error
        counts["lacking"] += lacks
        index = 0 if final else index + 1
        if last:
            counts["packets"] += 1
            number, taken, used, told = number + 1, 0, 0, False
    return counts


@pytest.mark.parametrize(("source", "sink"), [*zip(STALLS, STALLS[1:] + STALLS[:1], strict=True),
                                              ("geometric", "geometric")])
@units
def test_packer_lockstep(codec, lanes, words, source, sink):
    cycles, seed = 4_000, STALLS.index(source) + 4 * STALLS.index(sink)
    given = _blocks(np.random.default_rng(seed), codec, 400)
    unit = _unit(Packer, codec, lanes, words)
    unit.reset()
    trace = unit.lockstep(
        sources={"i": Feed(_beats(codec, lanes, given), stall_array(source, cycles, seed=seed))},
        sinks={"o": stall_array(sink, cycles, seed=seed + 1)}, seed=seed)
    assert _check_packer(codec, lanes, words, given, trace, f"{seed=}") > 12


@pytest.mark.parametrize(("source", "sink"), [*zip(STALLS, STALLS[1:] + STALLS[:1], strict=True),
                                              ("geometric", "geometric")])
@units
def test_unpacker_lockstep(codec, lanes, words, source, sink):
    """Whole packets, and some that are cut anywhere or have up to a block more than there should be."""
    cycles, seed = 4_000, STALLS.index(source) + 4 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    packets = [_words(codec, packet) for packet in _blocks(generator, codec, 400)]
    for number in np.flatnonzero(generator.random(len(packets)) < 0.3).tolist():
        packets[number] = generator.integers(0, 1 << 32, int(generator.integers(1, 24))).tolist()
    per_beat = Unpacker(codec=codec, lanes=lanes, words=words).words
    unit = _unit(Unpacker, codec, lanes, words)
    unit.reset()
    trace = unit.lockstep(
        sources={"i": Feed(_word_beats(packets, per_beat, generator), stall_array(source, cycles, seed=seed))},
        sinks={"o": stall_array(sink, cycles, seed=seed + 1)}, seed=seed)
    counts = _check_unpacker(codec, lanes, words, packets, trace, f"{seed=}")
    assert counts["packets"] > 12
    assert counts["errors"] > 3 or codec is WORD  # of which every number of words is a number of blocks


# --- by hand, at full speed, and cut short


def test_known():
    """A block that is one word: exponent, and codes of three bits."""
    given = [[(0x81, [], [1, 2, 3, 4, 5, 6, 7, 0])], [(0xFF, [], [0] * 8), (0, [], [7] * 8)]]
    expected = [[0x1F58_D181], [0x0000_00FF, 0xFFFF_FF00]]
    packer, unpacker = _unit(Packer, WORD, 8), _unit(Unpacker, WORD, 8)
    packer.reset()
    trace = packer.lockstep(sources={"i": Feed(_beats(WORD, 8, given))}, sinks={"o": True}, cycles=6)
    out = unpack(beat_layout(1), trace["o__payload"])
    assert trace["o__valid"].tolist() == [0, 1, 1, 1, 0, 0]
    assert out["elements"].reshape(-1)[1:4].tolist() == [word for packet in expected for word in packet]
    assert (out["keep"][1:4].tolist(), out["last"][1:4].tolist()) == ([1, 1, 1], [1, 0, 1])
    unpacker.reset()
    beats = _word_beats(expected, 1, np.random.default_rng(1))
    trace = unpacker.lockstep(sources={"i": Feed(beats)}, sinks={"o": True}, cycles=6)
    out = unpack(block_layout(WORD, 8), trace["o__payload"])
    assert trace["o__valid"].tolist() == [0, 1, 1, 1, 0, 0]
    assert out["exponent"][1:4].tolist() == [0x81, 0xFF, 0]
    assert out["codes"][1:4].tolist() == [[1, 2, 3, 4, 5, 6, 7, 0], [0] * 8, [7] * 8]
    assert (out["first"][1:4].tolist(), out["last"][1:4].tolist()) == ([1, 1, 1], [1, 0, 1])
    assert not trace["error"].any()


@units
def test_throughput(codec, lanes, words):
    """One beat per cycle on the side of blocks, without a bubble between packets."""
    generator = np.random.default_rng(1)
    given = _blocks(generator, codec, 20)
    count = sum(map(len, given)) * codec.block // lanes
    packer, unpacker = _unit(Packer, codec, lanes, words), _unit(Unpacker, codec, lanes, words)
    packer.reset()
    trace = packer.lockstep(sources={"i": Feed(_beats(codec, lanes, given))}, sinks={"o": True}, cycles=count + 2)
    assert trace["i__ready"].all()
    assert _check_packer(codec, lanes, words, given, trace, "throughput") == len(given)
    packets = [_words(codec, packet) for packet in given]
    per_beat = Unpacker(codec=codec, lanes=lanes, words=words).words
    unpacker.reset()
    trace = unpacker.lockstep(sources={"i": Feed(_word_beats(packets, per_beat, generator))}, sinks={"o": True},
                              cycles=count + 2)
    assert np.flatnonzero(trace["o__valid"]).tolist() == list(range(Unpacker.latency, Unpacker.latency + count))
    assert _check_unpacker(codec, lanes, words, packets, trace, "throughput") == {
        "packets": len(given), "errors": 0, "lacking": 0}


@units
def test_cut_packets(codec, lanes, words):
    """Missing elements become NaN, an error is reported once, and the next packet is sound."""
    generator = np.random.default_rng(2)
    whole = _words(codec, _blocks(generator, codec, 1)[0][:4] * 2)
    per_beat = Unpacker(codec=codec, lanes=lanes, words=words).words
    unit = _unit(Unpacker, codec, lanes, words)
    for length in range(1, len(whole)):
        packets = [whole[:length], whole[:length], whole]
        unit.reset()
        trace = unit.lockstep(sources={"i": Feed(_word_beats(packets, per_beat, generator))}, sinks={"o": True},
                              cycles=60 * codec.block // lanes)
        counts = _check_unpacker(codec, lanes, words, packets, trace, f"{length=}")
        blocks, rest = divmod(32 * length, codec.block_bits)
        cut = rest >= 32 or not blocks
        assert (counts["packets"], counts["errors"]) == (3, 2 * cut), f"{length=}"


@units
def test_reset_in_a_packet(codec, lanes, words):
    """A reset forgets the packet that is inside."""
    generator = np.random.default_rng(3)
    given = _blocks(generator, codec, 8)
    packets = [_words(codec, packet) for packet in given]
    beats = _word_beats(packets, Unpacker(codec=codec, lanes=lanes, words=words).words, generator)
    for cycles in (1, 2, 5, 6, 9):
        for kind, rows, values, check in ((Packer, _beats(codec, lanes, given), given, _check_packer),
                                          (Unpacker, beats, packets, _check_unpacker)):
            unit = _unit(kind, codec, lanes, words)
            unit.reset()
            unit.lockstep(sources={"i": Feed(rows)}, sinks={"o": np.arange(cycles) < 4})
            unit.reset()
            trace = unit.lockstep(sources={"i": Feed(rows)}, sinks={"o": True}, cycles=200)
            assert check(codec, lanes, words, values, trace, f"{cycles=}")
