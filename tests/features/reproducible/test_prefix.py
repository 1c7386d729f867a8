# amaranth: UnusedElaboratable=no
"""Units that cut packets into a prefix and a rest, and join them: hdl/features/reproducible/prefix.py."""

import itertools

import numpy as np
import pytest

from hdl.features.reproducible.prefix import MAX_WORDS, PrefixCutter, PrefixJoiner, prefix_layout
from sim.payload import pack
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers

#: All kinds of packets: any number of prefix words, with or without words after the prefix.
KINDS = [(words, rest) for words, rest in itertools.product(range(MAX_WORDS + 1), (0, 1)) if words or rest]
UNITS = (PrefixCutter, PrefixJoiner)


def words_of(vectors):
    """Stream payloads for packets; there may be no packets."""
    return packets.words(vectors) if vectors else packets.words([np.zeros(1, np.uint32)])[:0]


def _drawn(generator, kinds):
    """Draw a prefix and a rest, which may be empty, for each kind of packet."""
    prefixes = [generator.integers(0, 1 << 32, words, dtype=np.uint32) for words, _ in kinds]
    lengths = generator.choice([1, 1, 2, 3, 4, 5, 40], len(kinds))
    rests = [generator.integers(0, 1 << 32, length * rest, dtype=np.uint32)
             for length, (_, rest) in zip(lengths, kinds, strict=True)]
    return kinds, prefixes, rests


def _streams(drawn):
    """Payloads of all streams: descriptions, prefixes, words after the prefixes, and joined packets."""
    kinds, prefixes, rests = drawn
    words, rest = np.transpose(kinds)
    joined = [np.concatenate(pair) for pair in zip(prefixes, rests, strict=True)]
    return (pack(prefix_layout(), {"words": words, "rest": rest}),
            *(words_of([vector for vector in vectors if len(vector)]) for vectors in (prefixes, rests, joined)))


def _drive(generator, unit, kinds=None):
    if kinds is None:
        kinds = KINDS + [KINDS[index] for index in generator.integers(0, len(KINDS), 100)]
    drawn = _drawn(generator, kinds)
    records, prefix, rest, joined = _streams(drawn)
    beats = {"cut": records, "i": joined} if unit is PrefixCutter else {
        "join": records, "prefix": prefix, "rest": rest}
    # If the streams stall independently, they rarely transfer in the same cycle.
    return Drive(beats, (unit, drawn), cycles=40 * sum(map(len, beats.values())) + 1500)


def _model(_, drawn, willing, ready):
    unit, drawn = drawn
    _, prefix, rest, joined = _streams(drawn)
    return Want({}, {"prefix": prefix, "rest": rest} if unit is PrefixCutter else {"o": joined})


BENCH = UnitBench(lambda unit: unit(), _model, _drive)
CASES = [(unit,) for unit in UNITS]
test_packets = BENCH.lockstep(CASES)
test_resets = BENCH.resets(CASES, (1, 2, 3, 4, 7, 50))


def test_layout():
    assert prefix_layout().size == 4
    assert [name for name, _ in prefix_layout()] == ["words", "rest"]


def test_cutter_vectors():
    beats = {"cut": pack(prefix_layout(), {"words": [2, 0, 1], "rest": [1, 1, 0]}),
             "i": packets.words([[1, 2, 3, 4], [5], [6]])}
    expected = {"prefix": packets.words([[1, 2], [6]]), "rest": packets.words([[3, 4], [5]])}
    bench = UnitBench(PrefixCutter, lambda *_: Want({}, expected), None)
    bench.check(drive=Drive(beats, cycles=20))


def test_joiner_vectors():
    beats = {"join": pack(prefix_layout(), {"words": [2, 0, 1], "rest": [1, 1, 0]}),
             "prefix": packets.words([[1, 2], [6]]), "rest": packets.words([[3, 4], [5]])}
    expected = {"o": packets.words([[1, 2, 3, 4], [5], [6]])}
    bench = UnitBench(PrefixJoiner, lambda *_: Want({}, expected), None)
    bench.check(drive=Drive(beats, cycles=20))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", UNITS)
def test_one_kind(unit, kind):
    """Packets of the same kind follow each other without gaps, starting in the first cycle."""
    run = BENCH.check((unit,), drive=_drive(np.random.default_rng(1), unit, [kind] * 8))
    check_rate(run, unit)


@pytest.mark.parametrize("unit", UNITS)
def test_latency_and_rate(unit):
    """Packets of all kinds follow each other without gaps."""
    for seed in range(3):
        run = BENCH.check((unit,), drive=_drive(np.random.default_rng(seed), unit))
        check_rate(run, unit)


def check_rate(run, unit):
    """Check that one word is transferred per cycle, and offered `latency` cycles after it was accepted."""
    outputs = ("prefix", "rest") if unit is PrefixCutter else ("o",)
    inputs = ("i",) if unit is PrefixCutter else ("prefix", "rest")
    total = sum(len(run.drive.beats[name]) for name in inputs)
    arrived, left = (sorted(np.concatenate([run.moves(name) for name in names]).tolist())
                     for names in (inputs, outputs))
    assert arrived == list(range(total))
    assert left == [cycle + unit.latency for cycle in arrived]


@pytest.mark.parametrize("unit", UNITS)
def test_offers(unit):
    """Every offered word stays valid until it is accepted."""
    offers(unit, depth=4)()
