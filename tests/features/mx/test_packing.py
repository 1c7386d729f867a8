# amaranth: UnusedElaboratable=no
"""Packing of blocks into words, and unpacking: hdl/features/mx/packing.py."""

import functools

import numpy as np
import pytest

from hdl.features.mx.format import block_layout
from hdl.features.mx.microscaling import MXINT8
from hdl.features.mx.packing import Packer, Unpacker, check_words, min_words, positions
from hdl.features.mx.shared_exponent import MX4, MX9, SharedExponent
from hdl.streams.stream import beat_layout
from sim.golden import stream
from sim.payload import pack, unpack
from tests.features.mx.cycles import join, split
from tests.hdl.compression.packets import kept
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refuses

#: Format with blocks of exactly one word.
WORD = SharedExponent(block=8, difference_bits=0, mantissa_bits=2)
#: Format with 76-bit blocks; with two lanes, the first beat has 28 bits.
ODD = SharedExponent(block=8, mantissa_bits=7)
#: Codec, number of lanes and number of words of each unit. They cover blocks of one and of more beats, beats that
#: complete zero or more words, and unused words.
UNITS = [(WORD, 8, None), (ODD, 2, None), (MX4, 16, None), (ODD, 4, 3)]
PACKERS, UNPACKERS = ([(kind, *unit) for unit in UNITS] for kind in (Packer, Unpacker))


# --- construction


@pytest.mark.parametrize("unit", [Packer, Unpacker])
def test_parameters(unit):
    for lanes in (0, 3, 32, 4.0, "4", None):
        refuses(f"Lane count must be a power of two between 1 and 16, not {lanes!r}", unit, codec=MX9, lanes=lanes)
    refuses("Codec must be a BlockCodec, not 'MX9'", unit, error=TypeError, codec="MX9", lanes=4)
    for words in (1, 0, 2.0, "3"):
        refuses(f"Word count must be an integer of at least 3, not {words!r}",
                unit, codec=MXINT8, lanes=8, words=words)


def test_positions():
    assert positions(WORD, 8) == ([0], [32], 1)
    # Blocks end after 28, 40, 52 and 64 bits.
    assert positions(MX4, 4) == ([0, 8, 20, 28], [28, 12, 12, 12], 1)
    places, sizes, words = positions(ODD, 2)
    assert (places, sizes, words) == (list(range(0, 32, 4)), [28, 16, 16, 16], 2)  # the last beat completes two words
    assert positions(ODD, 4)[1:] == ([44, 32], 2)
    assert [min_words(codec, lanes) for codec, lanes in ((WORD, 8), (MX9, 8), (MX4, 1))] == [1, 3, 1]
    assert (check_words(None, 3), check_words(3, 3), check_words(4, 3)) == (3, 3, 4)
    refuses("Word count must be an integer of at least 3, not 2", check_words, 2, 3)


# --- expected packets, computed from the description of the format


def _blocks(generator, codec, count):
    """Draw packets of blocks, with each block given as (exponent, differences, codes)."""
    def some(length, bits):
        return generator.integers(0, 1 << bits, length).tolist()

    return [[(*some(1, codec.exponent_bits), some(codec.subsets, codec.difference_bits),
              some(codec.block, codec.code_bits)) for _ in range(int(generator.integers(1, 10)))]
            for _ in range(count)]


def _words(codec, packet):
    bits = offset = 0
    for exponent, differences, codes in packet:
        for values, width in (([exponent], codec.exponent_bits), (differences, codec.difference_bits),
                              (codes, codec.code_bits)):
            for value in values:
                bits |= value << offset
                offset += width
    return [bits >> 32 * word & 0xFFFF_FFFF for word in range(codec.words(len(packet) * codec.block))]


def _block_rows(codec, lanes, packets):
    rows = [(exponent, differences, codes[begin:begin + lanes], begin == 0,
             number == len(packet) - 1 and begin + lanes == codec.block)
            for packet in packets for number, (exponent, differences, codes) in enumerate(packet)
            for begin in range(0, codec.block, lanes)]
    fields = dict(zip(("exponent", "differences", "codes", "first", "last"), map(np.array, zip(*rows, strict=True)),
                      strict=True))
    return pack(block_layout(codec, lanes), {name: fields[name] for name in block_layout(codec, lanes).members})


def _word_rows(parts, words, generator):
    """Return the payloads of beats given as (words, last); word positions without ``keep`` are random."""
    elements = generator.integers(0, 1 << 32, (len(parts), words))
    for row, (part, _) in zip(elements, parts, strict=True):
        row[:len(part)] = part
    return pack(beat_layout(words), {"elements": elements, "keep": [(1 << len(part)) - 1 for part, _ in parts],
                                     "last": [last for _, last in parts]})


def _parts(packet, words):
    return [(packet[begin:begin + words], begin + words >= len(packet)) for begin in range(0, len(packet), words)]


def _opened(codec, lanes, packets, beats):
    """Return an unpacker's expected beats and comparison masks; codes of missing words are ignored."""
    rows, bits, layout = [], [], block_layout(codec, lanes)
    for packet, marks in zip(packets, beats, strict=True):
        whole = sum(word << 32 * position for position, word in enumerate(packet))

        def fields(position, width, count=1, whole=whole):
            return [whole >> position + n * width & (1 << width) - 1 for n in range(count)]

        for number, (_, lacks, last) in enumerate(marks):
            block, beat = divmod(number, codec.block // lanes)
            position = block * codec.block_bits
            codes = position + codec.header_bits + beat * lanes * codec.code_bits
            rows.append({
                "exponent": codec.nan if lacks else fields(position, codec.exponent_bits)[0], "first": beat == 0,
                "differences": fields(position + codec.exponent_bits, codec.difference_bits, codec.subsets),
                "codes": fields(codes, codec.code_bits, lanes), "last": last})
            bits.append({"exponent": -1, "first": 1, "last": 1, "differences": [-(not lacks)] * codec.subsets,
                         "codes": [-(not lacks)] * lanes})
    widths = {"exponent": codec.exponent_bits, "differences": codec.difference_bits, "codes": codec.code_bits,
              "first": 1, "last": 1}
    return [pack(layout, {name: np.array([row[name] for row in entries]) & (1 << widths[name]) - 1
                          for name in layout.members}) for entries in (rows, bits)]


# --- every cycle


def _make(kind, codec, lanes, words):
    return kind(codec=codec, lanes=lanes, words=words)


def _fixed(case, packets, generator):
    """Drive the given packets of blocks into a packer, or the given packets of words into an unpacker."""
    kind, codec, lanes, _ = case
    words, counts = _make(*case).words, list(map(len, packets))
    if kind is Packer:
        beats = join(codec, counts, lanes)
        parts = [(packet[start:stop], last) for packet, marks in zip(
            [_words(codec, packet) for packet in packets], beats, strict=True) for start, stop, last in marks]
        rows = _word_rows([part for part in parts if part[0]], words, generator)
        blocks = _block_rows(codec, lanes, packets)
        return Drive({"i": blocks}, (len(blocks), beats, (rows, kept(rows, words))))
    beats = split(codec, counts, lanes, words)
    rows = _word_rows([part for packet in packets for part in _parts(packet, words)], words, generator)
    return Drive({"i": rows}, (len(rows), beats, _opened(codec, lanes, packets, beats)))


def _drive(generator, kind, codec, lanes, words, count=250, cut=0.3):
    """Draw packets of blocks or of words; some word packets have a random length."""
    packets = _blocks(generator, codec, count)
    if kind is Unpacker:
        packets = [generator.integers(0, 1 << 32, int(generator.integers(1, 24))).tolist()
                   if generator.random() < cut else _words(codec, packet) for packet in packets]
    return _fixed((kind, codec, lanes, words), packets, generator)


def _model(unit, drawn, willing, ready):
    """Return the expected words or beats; each one is offered a cycle after the last input that it needs."""
    count, packets, wanted = drawn
    feed, output = stream.Feed(count, willing["i"]), stream.Output(ready["o"])
    errors, now = np.zeros(output.end + 2, bool), -1
    for beats in packets:
        told = False
        for first, second, _ in beats:
            if isinstance(unit, Packer):
                now = feed.accept(output.departed)
                loads = second > first
            else:
                takes, lacks, loads = first, second, True
                now = feed.accept(output.departed) if takes else max(now + 1, output.departed)
                errors[min(now, output.end) + 1] |= lacks and not told
                told |= lacks
            if loads:
                output.load(now)
    feed.accept(output.departed)
    ports = {"i__valid": feed.valid, "i__ready": feed.ready, "o__valid": output.offered >= 0}
    if isinstance(unit, Unpacker):
        ports["error"] = errors[:output.end]
    return Want(ports, {"o": tuple(wanted)}, {"o": output.offered})


BENCH = UnitBench(_make, _model, _drive, name=lambda kind, *_: f"Blocks{kind.__name__}")
test_lockstep = BENCH.lockstep([*PACKERS, *UNPACKERS], count=2_000, least=100)
test_reset_in_a_packet = BENCH.resets([*PACKERS, *UNPACKERS], (1, 2, 5, 6, 9), count=200,
                                      drive=functools.partial(_drive, count=8))


# --- known packets, full rate, and truncated packets


def test_known():
    """Known one-word blocks, with an exponent and three-bit codes, are packed and unpacked."""
    contents = [[(0x81, [], [1, 2, 3, 4, 5, 6, 7, 0])], [(0xFF, [], [0] * 8), (0, [], [7] * 8)]]
    expected = [[0x1F58_D181], [0x0000_00FF, 0xFFFF_FF00]]
    words = {"elements": [[word] for packet in expected for word in packet], "keep": [1, 1, 1], "last": [1, 0, 1]}
    blocks = {"exponent": [0x81, 0xFF, 0], "codes": [[1, 2, 3, 4, 5, 6, 7, 0], [0] * 8, [7] * 8],
              "first": [1, 1, 1], "last": [1, 0, 1]}
    for kind, packets, layout, fields in ((Packer, contents, beat_layout(1), words),
                                          (Unpacker, expected, block_layout(WORD, 8), blocks)):
        case = kind, WORD, 8, None
        run = BENCH.check(case, drive=_fixed(case, packets, np.random.default_rng(1)), count=6)
        assert run.moves().tolist() == [1, 2, 3]
        outputs = unpack(layout, run.trace["o__payload"][1:4])
        assert {name: values.tolist() for name, values in outputs.items()} == fields


@pytest.mark.parametrize("case", [*PACKERS, *UNPACKERS], ids=str)
def test_throughput(case):
    """Blocks are transferred at one beat per cycle, with no bubble between packets."""
    run = BENCH.check(case, drive=_drive(np.random.default_rng(1), *case, count=20, cut=0))
    count = sum(map(len, run.drive.drawn[1]))
    side, latency = ("i", 0) if case[0] is Packer else ("o", Unpacker.latency)
    assert run.moves(side).tolist() == list(range(latency, latency + count))


@pytest.mark.parametrize("case", UNPACKERS, ids=str)
def test_cut_packets(case):
    """Truncated packets give NaNs for missing elements and one error; the next packet is correct."""
    _, codec, lanes, _ = case
    generator = np.random.default_rng(2)
    whole = _words(codec, _blocks(generator, codec, 1)[0][:4] * 2)
    for length in range(1, len(whole)):
        run = BENCH.check(case, drive=_fixed(case, [whole[:length], whole[:length], whole], generator))
        blocks, rest = divmod(32 * length, codec.block_bits)
        last = unpack(block_layout(codec, lanes), run.trace["o__payload"][run.moves()])["last"]
        assert (last.sum(), run.trace["error"].sum()) == (3, 2 * (rest >= 32 or not blocks)), f"{length=}"
