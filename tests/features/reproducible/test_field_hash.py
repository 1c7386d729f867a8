# amaranth: UnusedElaboratable=no
"""Hashes of packets of exponent fields and of complete sums: hdl/features/reproducible/field_hash.py."""

import numpy as np
import pytest

from hdl.features.reproducible.exponents import MAX_GROUPS
from hdl.features.reproducible.field_hash import SUM_HASH, FieldHash, HashGate, SingleFieldHash, SumHash
from hdl.features.reproducible.layout import WIDTHS, integers_layout
from hdl.streams.stream import word_layout
from sim.golden.features.reproducible.packet import codes_of, field_hash, pack, pack_fields
from sim.golden.features.reproducible.sums import Addend
from sim.payload import pack as rows_of
from sim.streams import stall_array
from sim.verilated.vectors import Feed
from tests.features.reproducible.words import sum_hash
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused_values


def cycles_for(beats):
    """Number of cycles that suffices for any stall pattern."""
    return 60 * sum(map(len, beats.values())) + 1500


# --- FieldHash

def hashes_of(fields):
    return np.array([field_hash(packet) for packet in fields], np.uint32)


def _drive_hash(generator, depth, fields=None):
    if fields is None:
        fields = [generator.integers(1, 255, groups)
                  for groups in (MAX_GROUPS, 1, 4, 5, 1, 1, *generator.integers(1, MAX_GROUPS + 1, 50))]
    beats = {"i": packets.words(map(pack_fields, fields))}
    return Drive(beats, fields, cycles=cycles_for(beats))


def _model_hash(_, fields, willing, ready):
    return Want({}, {"o": packets.words(map(pack_fields, fields)), "hash": hashes_of(fields)})


HASH = UnitBench(lambda depth: FieldHash(depth=depth), _model_hash, _drive_hash)
test_depth = refused_values(FieldHash, {}, "depth", [1, 0, "2", None],
                            "Number of hashes must be an integer of at least 2")
test_hash = HASH.lockstep([(2,), (8,)])
test_hash_resets = HASH.resets([(2,), (8,)], (1, 2, 3, 17))


def test_each_bit_changes_the_hash():
    """For packets of each length, inverting any bit of a field changes the hash."""
    generator = np.random.default_rng(0)
    for groups in range(1, MAX_GROUPS + 1):
        fields = generator.integers(1, 255, groups)
        wrong = [fields ^ (np.arange(groups) == group) << bit for group in range(groups) for bit in range(8)]
        run = HASH.check((2,), drive=_drive_hash(generator, 2, [fields, *wrong]))
        hashed = run.trace["hash__payload"][run.moves("hash")]
        assert (hashed[1:] != hashed[0]).all()


@pytest.mark.parametrize("depth", [2, 8])
def test_latency_and_capacity(depth):
    """A packet's hash follows its last word by one cycle; words pass at once, but wait if hashes fill the queue."""
    run = HASH.check((depth,))
    count = len(run.drive.beats["i"])
    assert run.moves("i").tolist() == run.moves().tolist() == list(range(count))
    last = run.trace["o__payload"][run.moves()] >> 32
    assert run.moves("hash").tolist() == (np.flatnonzero(last) + FieldHash.latency).tolist()

    unit = HASH.unit(depth)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.words([np.array([1], np.uint32)] * 20))},
                          sinks={"o": True, "hash": False}, cycles=40)
    assert np.count_nonzero(trace["o__valid"]) == depth


# --- SingleFieldHash

def _drive_single(generator, depth, folds=False):
    fields = [generator.integers(1, 255, groups)
              for groups in (MAX_GROUPS, 1, 4, 5, 1, 1, *generator.integers(1, MAX_GROUPS + 1, 50))]
    beats = {"i": np.concatenate([packet | (np.arange(len(packet)) == len(packet) - 1) << 8 for packet in fields])}
    return Drive(beats, fields, cycles=cycles_for(beats))


def _model_single(unit, fields, willing, ready):
    hashes = hashes_of(fields)
    if len(unit.hash.payload) == SUM_HASH:
        high = hashes >> 16
        hashes = ((hashes ^ high << 1 ^ high >> 15) & 0xFFFF).astype(np.uint16)
    return Want({}, {"o": np.concatenate(fields), "hash": hashes})


SINGLE = UnitBench(lambda depth, folds=False: SingleFieldHash(depth=depth, folds=folds), _model_single, _drive_single)
test_single_depth = refused_values(SingleFieldHash, {}, "depth", [1, 0, "2", None],
                                   "Number of hashes must be an integer of at least 2")
test_single = SINGLE.lockstep([(2,), (8,), (2, True)])
test_single_resets = SINGLE.resets([(2,), (8,)], (1, 2, 3, 17))


def test_single_latency():
    """A packet's hash follows its last field by one cycle; fields pass without delay."""
    run = SINGLE.check((8,))
    fields = run.drive.beats["i"]
    assert run.moves("i").tolist() == run.moves().tolist() == list(range(len(fields)))
    assert run.moves("hash").tolist() == (np.flatnonzero(fields >> 8) + SingleFieldHash.latency).tolist()


# --- SumHash

def _sums(generator, width, count):
    """Draw the words of a packet of integers with flags; return them and the words of the integers' codes."""
    lanes = 32 // (width or 32)
    integers = generator.integers(-9999, 9999, count * lanes)
    flags = np.where(generator.random(count * lanes) < 0.3, generator.integers(1, 4, count * lanes), 0)
    if width is None:
        words = generator.integers(0, 1 << 32, count, dtype=np.uint32)
        return packets.words([words]), words
    integers[flags != 0] = 0
    codes = codes_of(Addend(integers, flags & 1 != 0, flags & 2 != 0), width)
    return rows_of(integers_layout(width), {
        "data": pack(integers, width), "special": flags.reshape(count, lanes),
        "last": np.arange(count) == count - 1}), pack(codes, width)


def _drive_sums(generator, depth, width, sums=None):
    if sums is None:
        sums = [_sums(generator, width, count) for count in (1, 2, 64, 1, 1, *generator.integers(1, 20, 40))]
    beats = {"i": np.concatenate([rows for rows, _ in sums])}
    return Drive(beats, [words for _, words in sums], cycles=cycles_for(beats))


def _model_sums(_, sums, willing, ready):
    hashes = np.array([sum_hash(words) for words in sums], np.uint16)
    return Want({}, {"hash": hashes})


SUMS = UnitBench(lambda depth, width: SumHash(depth=depth, width=width), _model_sums, _drive_sums)
test_sum_depth = refused_values(SumHash, {}, "depth", [1, 0, "2", None],
                                "Number of hashes must be an integer of at least 2")
test_sum_width = refused_values(SumHash, {"depth": 2}, "width", [8, 64, "16"], "Integer width must be 16 or 32")
test_sums = SUMS.lockstep([(2, None), *((4, width) for width in WIDTHS)])


@pytest.mark.parametrize("width", [None, *WIDTHS])
def test_each_bit_changes_the_hash_of_sums(width):
    """Inverting any bit of an integer or flag, or omitting, repeating or swapping words, changes the hash."""
    rows, _ = _sums(np.random.default_rng(1), width, 5)
    words = rows[:, np.newaxis] if rows.ndim == 1 else rows
    bits = 32 if width is None else 32 + 2 * (32 // width)
    wrong = [words[order] for order in ([0, 1, 3, 4], [0, 1, 1, 2, 3, 4], [0, 2, 1, 3, 4])]
    for word, bit in np.ndindex(5, bits):
        if width is not None and bit < 32 and _is_special(rows[word], width, bit // width):
            continue  # the integers of special elements are ignored
        copy = words.copy()
        copy[word] ^= words.dtype.type(1 << bit)
        wrong.append(copy)
    unit = SUMS.unit(2, width)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(np.concatenate([words, *wrong]).reshape(-1, *rows.shape[1:]))},
                          sinks={"o": True, "hash": True}, cycles=10 * len(wrong))
    hashed = trace["hash__payload"][trace["hash__valid"].astype(bool)]
    assert len(hashed) == 1 + len(wrong)
    assert (hashed[1:] != hashed[0]).all()


def _is_special(row, width, lane):
    return int(row) >> 32 + 2 * lane & 3 != 0


# --- HashGate

def _drive_gate(generator, wrong=None):
    """Packets, each with a pair of equal hashes; only the hashes of packet ``wrong`` differ, in one bit."""
    words = [generator.integers(0, 1 << 32, count, dtype=np.uint32)
             for count in (1, 1, 2, 9, 1, *generator.integers(1, 20, 30))]
    first = generator.integers(0, 1 << SUM_HASH, len(words), dtype=np.uint16)
    second = first.copy()
    if wrong is not None:
        second[wrong] ^= np.uint16(1 << int(generator.integers(SUM_HASH)))
    beats = {"i": packets.words(words), "a": first, "b": second}
    return Drive(beats, (words, wrong), cycles=cycles_for(beats))


def _model_gate(_, drawn, willing, ready):
    words, wrong = drawn
    if wrong is None:
        return Want({"wrong": np.zeros(len(ready["o"]), np.uint8)}, {"o": packets.words(words)})
    return Want({}, {"o": packets.words(words[:wrong + 1])[:-1]})


GATE = UnitBench(lambda: HashGate(shape=word_layout()), _model_gate, _drive_gate)
test_gate = GATE.lockstep()
test_gate_resets = GATE.resets([()], (1, 2, 3, 17))


@pytest.mark.parametrize("kinds", ["none", "alternating", "geometric"])
@pytest.mark.parametrize("wrong", [0, 1, 3, 20])
def test_hashes_differ(wrong, kinds):
    """If hashes differ, the packet's last word and all later words are held back, and ``wrong`` pulses once."""
    for seed in range(32):
        run = GATE.check(drive=_drive_gate(np.random.default_rng(seed), wrong), kinds=kinds, seed=seed)
        assert np.flatnonzero(run.trace["wrong"]).tolist() == [run.moves("a")[-1]] == [run.moves("b")[-1]]
        assert len(run.moves("a")) == len(run.moves("b")) == wrong + 1


def test_gate_takes_hashes_in_any_order():
    """Hashes may arrive long before or after a packet's words; the last word passes two cycles after both hashes."""
    unit = GATE.unit()
    for late in ("a", "b", "i"):
        unit.reset()
        willing = {name: np.arange(60) >= (20 if name == late else 0) for name in ("a", "b", "i")}
        rows = {"a": np.array([7], np.uint16), "b": np.array([7], np.uint16),
                "i": packets.words([np.arange(3, dtype=np.uint32)])}
        trace = unit.lockstep(sources={name: Feed(rows[name], willing[name]) for name in rows},
                              sinks={"o": stall_array("none", 60, seed=1)})
        moves = np.flatnonzero(trace["o__valid"] & trace["o__ready"])
        assert moves.tolist() == ([20, 21, 22] if late == "i" else [0, 1, 22])


@pytest.mark.parametrize("make", [lambda: FieldHash(depth=2), lambda: SingleFieldHash(depth=2),
                                  lambda: SumHash(depth=2), lambda: HashGate(shape=word_layout())])
def test_offers(make):
    """Every offered word stays valid until it is accepted."""
    offers(make, depth=4)()
