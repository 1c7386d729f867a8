# amaranth: UnusedElaboratable=no
"""Units for the exponent fields of groups: hdl/features/reproducible/exponents.py."""

import numpy as np
import pytest

from hdl.features.reproducible.exponents import MAX_GROUPS, ExponentScan, FieldMaximum, FieldReader
from hdl.group import GROUP
from sim.golden.features.reproducible.sums import exponent_fields, group_starts
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused_values

LANES = (1, 2, 4, 8)
#: Number of elements in the longest packet.
LONGEST = MAX_GROUPS * GROUP

ONE, TWO, INFINITY, NAN, SUBNORMAL, TINY, MAX = (
    0x3F80_0000, 0xC000_0000, 0x7F80_0000, 0xFFC0_0001, 0x807F_FFFF, 0x0080_0000, 0x7F7F_FFFF)


def cycles_for(beats, factor=12):
    """Number of cycles that suffices for any stall pattern."""
    return factor * sum(map(len, beats.values())) + 1500


def words_of(fields):
    """Pack one packet's exponent fields into words."""
    padded = np.zeros(-(-len(fields) // 4) * 4, np.uint8)
    padded[:len(fields)] = fields
    return padded.view("<u4")


def field_packets(generator, count):
    """Draw packets of 1 to 16 exponent fields."""
    fields = [generator.integers(1, 255, groups)
              for groups in (MAX_GROUPS, 1, 4, 5, 1, 1, *generator.integers(1, MAX_GROUPS + 1, count - 6))]
    for packet in fields[::3]:
        packet[...] = generator.choice([1, 2, 127, 128, 254], len(packet))
    return fields


# --- ExponentScan

def segment(generator, count):
    """Draw elements with groups of every kind: ordinary, tiny, all zeros, all special, and mixtures."""
    bits = generator.integers(0, 1 << 32, count, dtype=np.uint32)
    special = np.array([INFINITY, NAN, 0xFF80_0000, 0x7F80_0001], np.uint32)
    small = np.array([0, 0x8000_0000, 1, SUBNORMAL], np.uint32)
    kinds = np.repeat(generator.integers(0, 6, -(-count // GROUP)), GROUP)[:count]
    limit = np.repeat(generator.integers(2, 255, -(-count // GROUP)), GROUP)[:count].astype(np.uint32)
    scaled = bits & np.uint32(0x807F_FFFF) | (bits >> 23 & 255) % limit << 23
    mixed = np.where(bits & 3 == 0, generator.choice(special, count), scaled)
    options = [scaled, scaled & np.uint32(0x80FF_FFFF), generator.choice(small, count),
               generator.choice(special, count), mixed, generator.choice(np.concatenate([special, small]), count)]
    return np.choose(kinds, options).astype(np.uint32)


def _drive_scan(generator, lanes, counts=None):
    if counts is None:
        counts = [LONGEST, 1, 1, 2, 31, 32, 33, 127, 128, 129, 1, *generator.integers(1, LONGEST + 1, 5)]
    vectors = [segment(generator, count) for count in counts]
    beats = {"i": packets.beats(vectors, lanes, seed=int(generator.integers(1000)))}
    return Drive(beats, vectors, cycles=cycles_for(beats))


def _model_scan(_, vectors, willing, ready):
    return Want({}, {"o": packets.words(
        [words_of(exponent_fields(vector, group_starts([len(vector)]))) for vector in vectors])})


SCAN = UnitBench(lambda lanes: ExponentScan(lanes=lanes), _model_scan, _drive_scan)
test_scan_lanes = refused_values(ExponentScan, {}, "lanes", [0, 3, 16, "4"], "Lane count must be 1, 2, 4 or 8")
test_scan = SCAN.lockstep([(lanes,) for lanes in LANES])
test_scan_resets = SCAN.resets([(1,), (8,)], (3, 6, 7, 20, 85))


@pytest.mark.parametrize("lanes", LANES)
def test_scan_vectors(lanes):
    """Known exponent fields of groups, in a packet of two words and in packets of one element."""
    groups = [[ONE, TWO], [INFINITY, NAN], [0, SUBNORMAL], [TINY, INFINITY, SUBNORMAL], [MAX, ONE, NAN]]
    long = np.concatenate([np.array(group * 32, np.uint32)[:32] for group in groups])
    vectors = [long, *(np.array([value], np.uint32) for value in (TWO, NAN, 0, MAX))]
    beats = packets.beats(vectors, lanes)
    words = [0x0101_0180, 254, 128, 1, 1, 254]
    unit = SCAN.unit(lanes)
    run = SCAN.check((lanes,), drive=Drive({"i": beats}, vectors, cycles=len(beats) + 20))
    rows = run.trace["o__payload"][run.moves()]
    assert (rows & 0xFFFF_FFFF).tolist() == words
    assert (rows >> 32).tolist() == [0, 1, 1, 1, 1, 1]
    assert {port.name for port in unit.outputs} == {"i__ready", "o__valid", "o__payload"}


@pytest.mark.parametrize("lanes", LANES)
def test_scan_latency_and_rate(lanes):
    """A word of exponent fields is offered `latency` cycles after its last beat; a beat is accepted every cycle."""
    assert ExponentScan(lanes=lanes).latency == {1: 3, 2: 4, 4: 5, 8: 6}[lanes]
    counts = [LONGEST, 1, 1, 1, 128, 130, 2, 500, LONGEST]
    run = SCAN.check((lanes,), drive=_drive_scan(np.random.default_rng(lanes), lanes, counts))
    assert run.moves("i").tolist() == list(range(len(run.drive.beats["i"])))
    completing, first = [], 0
    for count in counts:
        rows = -(-count // lanes)
        completing += [first + min(end, rows) - 1 for end in range(128 // lanes, rows + 128 // lanes, 128 // lanes)]
        first += rows
    assert run.moves().tolist() == [cycle + ExponentScan(lanes=lanes).latency for cycle in completing]


# --- FieldMaximum

def _drive_maximum(generator):
    own = field_packets(generator, 80)
    received = [generator.integers(1, 255, len(fields)) for fields in own]
    for fields, others in zip(own[::2], received[::2], strict=True):  # received fields are close to the node's own
        others[...] = np.clip(fields + generator.integers(-1, 2, len(fields)), 1, 254)
    paired = generator.random(len(own)) < 0.6
    beats = {
        "a": packets.words(map(words_of, own)),
        "b": packets.words([words_of(fields) for fields, both in zip(received, paired, strict=True) if both]),
        "paired": paired.astype(np.uint8),
    }
    # If the streams stall independently, they rarely transfer in the same cycle.
    return Drive(beats, (own, received, paired), cycles=cycles_for(beats, 60))


def _model_maximum(_, drawn, willing, ready):
    return Want({}, {"o": packets.words([
        words_of(np.maximum(fields, others) if both else fields)
        for fields, others, both in zip(*drawn, strict=True)])})


MAXIMUM = UnitBench(FieldMaximum, _model_maximum, _drive_maximum)
test_maximum = MAXIMUM.lockstep()
test_maximum_resets = MAXIMUM.resets([()], (1, 2, 3, 17))


def test_maximum_vectors():
    """The four bytes of two words are compared independently; an unpaired packet passes, and `b` is not read."""
    beats = {"a": packets.words([[0x01FE_8005, 0x0000_0203], [0x0000_0001]]),
             "b": packets.words([[0xFE01_7F06, 0x0000_0302]]), "paired": np.array([1, 0], np.uint8)}
    expected = packets.words([[0xFEFE_8006, 0x0000_0303], [0x0000_0001]])
    bench = UnitBench(FieldMaximum, lambda *_: Want({}, {"o": expected}), None)
    run = bench.check(drive=Drive(beats, cycles=20))
    assert run.moves("b").tolist() == [0, 1]

    beats["paired"] = np.array([0, 0], np.uint8)
    bench = UnitBench(FieldMaximum, lambda *_: Want({}, {"o": beats["a"]}), None)
    run = bench.check(drive=Drive(beats, cycles=20))
    assert not run.trace["b__ready"].any()


def test_maximum_latency_and_rate():
    run = MAXIMUM.check()
    count = len(run.drive.beats["a"])
    assert run.moves("a").tolist() == list(range(count))
    assert run.moves().tolist() == list(range(FieldMaximum.latency, count + FieldMaximum.latency))


# --- FieldReader

def _drive_reader(generator):
    fields = field_packets(generator, 60)
    beats = {"i": packets.words(map(words_of, fields)), "groups": np.array(list(map(len, fields)), np.uint8)}
    return Drive(beats, fields, cycles=cycles_for(beats, 60))


def _model_reader(_, fields, willing, ready):
    return Want({}, {"o": np.concatenate(fields).astype(np.uint8)})


READER = UnitBench(FieldReader, _model_reader, _drive_reader)
test_reader = READER.lockstep()
test_reader_resets = READER.resets([()], (1, 2, 3, 17))


@pytest.mark.parametrize("groups", range(1, MAX_GROUPS + 1))
def test_reader_vectors(groups):
    """Packets with any number of fields are read correctly, even one directly after the other."""
    fields = [np.arange(1, groups + 1), np.arange(254, 254 - groups, -1)]
    beats = {"i": packets.words(map(words_of, fields)), "groups": np.array([groups, groups], np.uint8)}
    run = READER.check(drive=Drive(beats, fields, cycles=80))
    assert run.trace["o__payload"][run.moves()].tolist() == [
        *range(1, groups + 1), *range(254, 254 - groups, -1)]


def test_reader_latency_and_rate():
    run = READER.check()
    assert run.moves().tolist() == list(range(FieldReader.latency, FieldReader.latency + sum(
        map(len, run.drive.drawn))))


@pytest.mark.parametrize("make", [lambda: ExponentScan(lanes=2), FieldMaximum, FieldReader])
def test_offers(make):
    """Every offered word or field stays valid until it is accepted."""
    offers(make, depth=4)()
