# amaranth: UnusedElaboratable=no
"""Exponent fields of groups that have several addends: hdl/features/microbatches/fields.py."""

import numpy as np
import pytest

from hdl.features.microbatches.fields import AddendMaximum, FieldRepeater
from hdl.features.reproducible.exponents import MAX_GROUPS
from hdl.streams.stream import word_layout
from sim.golden.features.reproducible.packet import pack_fields
from sim.payload import pack
from sim.verilated.vectors import Feed
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.traces import moved

#: Numbers of addends to test: small numbers and the largest ones.
COUNTS = (*range(1, 9), 16, 17, 254, 255)


def cycles_for(beats):
    """Number of cycles that suffices for any stall pattern."""
    return 12 * sum(map(len, beats.values())) + 1500


def _addends(generator):
    """Draw the number of addends for a run with stalls."""
    return int(generator.choice([1, 1, 2, 3, 4, 7]))


# --- AddendMaximum

def draw(generator, addends, groups):
    """Draw the exponent fields of a packet, one for each addend of each group."""
    fields = generator.integers(1, 255, (groups, addends), np.uint8)
    kind = generator.integers(4)
    if kind == 0:
        fields[...] = generator.choice([1, 2, 127, 128, 254], fields.shape)
    if kind == 1:  # fields of a group are close to each other
        fields[...] = np.clip(fields[:, :1].astype(int) + generator.integers(-1, 2, fields.shape), 1, 254)
    return fields


def drive_fields(generator, fields):
    """Stimuli for packets of exponent fields, with random values in all other bits of the words."""
    addends = fields[0].shape[1]
    flat = np.concatenate([packet.ravel() for packet in fields]).astype(np.uint32)
    noise = generator.integers(0, 1 << 24, len(flat), np.uint32)
    beats = {"i": pack(word_layout(), {"data": flat | noise << np.uint32(8), "last": noise & 1}),
             "groups": np.array(list(map(len, fields)), np.uint8)}
    return Drive(beats, fields, {"addends": addends}, cycles=cycles_for(beats))


def _drive_maximum(generator, addends=None):
    addends = _addends(generator) if addends is None else addends
    sizes = (MAX_GROUPS, 1, 4, 5, 1, 1, 8, *generator.integers(1, MAX_GROUPS + 1, 5))
    return drive_fields(generator, [draw(generator, addends, groups) for groups in sizes])


def _model_maximum(_, fields, willing, ready):
    return Want({}, {"o": packets.words(pack_fields(packet.max(axis=1)) for packet in fields)})


MAXIMUM = UnitBench(AddendMaximum, _model_maximum, _drive_maximum)
test_maximum = MAXIMUM.lockstep()
test_maximum_resets = MAXIMUM.resets([()], (1, 2, 3, 5, 8, 17, 40))


def test_maximum_vectors():
    """Known maxima: first a packet with a full word and a partial word, then two packets of one group each."""
    fields = [np.array([[3, 2, 1], [2, 3, 1], [1, 2, 3], [254, 254, 254], [1, 1, 1], [127, 128, 127]], np.uint8),
              np.array([[5, 254, 6]], np.uint8), np.array([[1, 1, 1]], np.uint8)]
    run = MAXIMUM.check(drive=drive_fields(np.random.default_rng(1), fields))
    rows = run.trace["o__payload"][run.moves()]
    assert (rows & 0xFFFF_FFFF).tolist() == [0xFE03_0303, 0x0000_8001, 0x0000_00FE, 0x0000_0001]
    assert (rows >> 32).tolist() == [0, 1, 1, 1]


def test_maximum_latency_and_rate():
    """A field is accepted in each cycle, and a word is offered after the field that completes it."""
    for addends in COUNTS:
        run = MAXIMUM.check(drive=_drive_maximum(np.random.default_rng(addends), addends))
        completing, ends, first = [], [], 0
        for packet in run.drive.drawn:
            groups = [*range(4, len(packet), 4), len(packet)]
            completing += [first + group * addends - 1 for group in groups]
            first += len(packet) * addends
            ends.append(first - 1)
        assert run.moves("i").tolist() == list(range(first))
        assert run.moves("groups").tolist() == ends
        assert run.moves().tolist() == [cycle + AddendMaximum.latency for cycle in completing]


@pytest.mark.parametrize("groups", range(1, MAX_GROUPS + 1))
def test_maximum_of_each_size(groups):
    """Packets with any number of groups are correct, even when the number of addends changes without a reset."""
    generator = np.random.default_rng(groups)
    for turn, addends in enumerate((3, 1, 2)):
        fields = [draw(generator, addends, groups) for _ in range(2)]
        MAXIMUM.check(drive=drive_fields(generator, fields), reset=not turn)


def test_maximum_waits_for_groups():
    """If each field completes a word, no field is accepted before the packet's number of groups is known."""
    fields = [np.array([[field]], np.uint8) for field in range(1, 9)]
    drive = drive_fields(np.random.default_rng(1), fields)
    unit = MAXIMUM.unit()
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(drive.beats["i"]),
                                   "groups": Feed(drive.beats["groups"], np.arange(2000) % 200 == 199)},
                          sinks={"o": True}, inputs=drive.inputs)
    when, rows = moved(trace)
    assert when.tolist() == list(range(200, 1800, 200))
    assert (rows & 0xFFFF_FFFF).tolist() == list(range(1, 9))


# --- FieldRepeater

def _drive_repeater(generator, addends=None, count=200):
    addends = _addends(generator) if addends is None else addends
    fields = generator.integers(0, 256, count, np.uint8)
    return Drive({"i": fields}, (fields, addends), {"addends": addends}, cycles=8 * addends * count + 1500)


def _model_repeater(_, drawn, willing, ready):
    return Want({}, {"o": np.repeat(*drawn)})


REPEATER = UnitBench(FieldRepeater, _model_repeater, _drive_repeater)
test_repeater = REPEATER.lockstep()
test_repeater_resets = REPEATER.resets([()], (1, 2, 3, 17))


def test_repeater_latency_and_rate():
    """The unit offers a field in each cycle, without latency, and accepts a field together with its last repetition.
    """
    for turn, addends in enumerate(COUNTS):
        drive = _drive_repeater(np.random.default_rng(addends), addends, count=9)
        run = REPEATER.check(drive=drive, reset=not turn)
        assert run.moves().tolist() == list(range(FieldRepeater.latency, FieldRepeater.latency + 9 * addends))
        assert run.moves("i").tolist() == list(range(addends - 1, 9 * addends, addends))


def test_repeater_has_no_registers():
    """The output follows the input in the same cycle, and a field is accepted only if the output is ready."""
    run = REPEATER.check(drive=_drive_repeater(np.random.default_rng(1), 3), kinds="geometric")
    np.testing.assert_array_equal(run.trace["o__valid"], run.trace["i__valid"])
    np.testing.assert_array_equal(run.trace["o__payload"], run.trace["i__payload"])
    assert not (run.trace["i__ready"] & ~run.trace["o__ready"] & 1).any()


@pytest.mark.parametrize("make", [AddendMaximum, FieldRepeater])
def test_offers(make):
    """Every offered field or word stays valid until it is accepted, for any number of addends."""
    offers(make, depth=4)()
