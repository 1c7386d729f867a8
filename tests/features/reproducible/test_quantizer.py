# amaranth: UnusedElaboratable=no
"""Quantizer that converts elements to the integers of reproducible sums: hdl/features/reproducible/quantizer.py."""

import dataclasses

import numpy as np
import pytest

from hdl.features.reproducible.layout import SPARE, WIDTHS, integers_layout
from hdl.features.reproducible.quantizer import Quantizer
from sim.golden.features.reproducible import sums as golden
from tests.features.reproducible.words import own_rows
from tests.hdl.compression.packets import as_beats, as_rows
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused_values
from tests.traces import taken

GROUP = golden.GROUP
LARGEST_FIELD = 254
SPECIALS = np.array([0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFFC0_0000, 0x7F80_0001, 0xFFFF_FFFF], np.uint32)
#: Packet lengths in elements: whole groups, short last groups, and a single short group.
LENGTHS = (1, 32, 33, 64, 31, 2, 3, 65, 63, 1, 96, 30, 128, 1)


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Packets of elements, and the exponent fields of all groups in each packet."""

    width: int
    spare: int
    packets: list
    fields: list

    @property
    def lanes(self):
        return 32 // self.width

    def integers(self):
        """Yield the expected integers and flags of each packet."""
        bits = golden.addend_bits(self.width, 1 << self.spare)
        for elements, fields in zip(self.packets, self.fields, strict=True):
            starts = golden.group_starts([len(elements)])
            positive, negative = golden.special_flags(elements)
            with np.errstate(invalid="ignore"):  # for signalling NaNs
                integers = golden.quantize(elements, fields, starts, bits)
            yield integers, positive + 2 * negative

    def rows(self):
        """Expected beats of the output."""
        data, special, last = [], [], []
        for integers, flags in self.integers():
            beats = -(-len(integers) // self.lanes)
            padding = (0, beats * self.lanes - len(integers))
            codes = (np.pad(integers, padding) & ((1 << self.width) - 1)).reshape(beats, self.lanes)
            data.append((codes << np.arange(self.lanes) * self.width).sum(axis=1))
            special.append(np.pad(flags, padding).reshape(beats, self.lanes))
            last.append(np.arange(beats) == beats - 1)
        return own_rows(self.width, np.concatenate(data), np.concatenate(special), np.concatenate(last))

    def drive(self):
        """Stimuli for the packets; elements without ``keep`` are infinities and NaNs."""
        rows, keep, last = as_rows(self.packets, self.lanes, np.random.default_rng(1))
        rows = np.where(keep, rows, SPECIALS[rows % len(SPECIALS)])
        return Drive({"i": as_beats(rows, keep, last), "fields": np.concatenate(self.fields).astype(np.uint8)},
                     self, {"spare": self.spare})


def _elements(generator, count, field, width, spare):
    """Draw elements with exponents up to ``field``, many of them near a rounding threshold or the limit."""
    distance = generator.integers(0, width + 6, count)
    distance[generator.random(count) < 0.2] = 0
    exponent = np.maximum(field - distance, 0)
    anywhere = generator.random(count) < 0.3
    exponent[anywhere] = generator.integers(0, field + 1, anywhere.sum())

    # Number of bits below the unit of the integer, and a tail at, just below or just above half a unit.
    lost = np.clip(field - np.maximum(exponent, 1) + spare + 25 - width, 0, 24)
    half = (1 << lost) >> 1
    tail = np.clip(half + generator.integers(-1, 2, count), 0, (1 << lost) - 1)
    ones = np.full(count, (1 << 23) - 1)
    upper = np.choose(generator.integers(0, 4, count), [
        generator.integers(0, 1 << 23, count), ones, ones & ~(1 << lost), 1 << generator.integers(0, 23, count)])
    fraction = ((upper >> lost << lost) | tail) & ((1 << 23) - 1)
    random = generator.random(count) < 0.3
    fraction[random] = generator.integers(0, 1 << 23, random.sum())
    elements = (generator.integers(0, 2, count) << 31 | exponent << 23 | fraction).astype(np.uint32)

    special = generator.random(count) < generator.choice([0, 0.1, 1], p=[0.45, 0.5, 0.05])
    elements[special] = generator.choice(SPECIALS, special.sum())
    return elements


def _draw(generator, width, spare, lengths):
    """Draw packets; the exponent field of a group is at least the exponent of its largest element."""
    packets, fields = [], []
    for length in lengths:
        elements = np.concatenate([_elements(generator, min(GROUP, length - start), field, width, spare) for start in
                                   range(0, length, GROUP) for field in [_field(generator)]])
        least = golden.exponent_fields(elements, golden.group_starts([length]))
        packets.append(elements)
        fields.append(np.minimum(least + generator.choice([0, 0, 1, 2, 10, 300], len(least)), LARGEST_FIELD))
    return Vectors(width, spare, packets, fields)


def _field(generator):
    return int(generator.choice([1, 2, 8, 30, 127, LARGEST_FIELD, *generator.integers(1, LARGEST_FIELD + 1, 3)]))


def _drive(generator, width):
    spare = int(generator.integers(len(SPARE)))
    return _draw(generator, width, spare, [*LENGTHS, *generator.integers(1, 200, 10).tolist()]).drive()


def _model(unit, vectors, willing, ready):
    """All stages advance together when the output is free or accepted; a beat waits for its group's field."""
    lengths = [-(-len(elements) // vectors.lanes) for elements in vectors.packets]
    final = np.concatenate([
        (np.arange(1, beats + 1) % (GROUP // vectors.lanes) == 0) | (np.arange(beats) == beats - 1)
        for beats in lengths])
    remaining = {"i": len(final), "fields": int(final.sum())}
    offering = dict.fromkeys(remaining, False)
    stages = [-1] * unit.latency
    count = len(ready["o"])
    ports = {name: np.zeros(count, bool) for name in ("i__ready", "fields__ready")}
    offered = np.zeros(count, int)
    for cycle in range(count):
        for name, left in remaining.items():
            offering[name] = offering[name] or (left > 0 and bool(willing[name][cycle]))
        beat = len(final) - remaining["i"]
        offered[cycle] = stages[-1]
        advance = ready["o"][cycle] or stages[-1] < 0
        ends = offering["i"] and final[beat]
        ports["i__ready"][cycle] = advance and offering["fields"]
        ports["fields__ready"][cycle] = advance and ends
        if advance:
            both = offering["i"] and offering["fields"]
            stages = [beat if both else -1, *stages[:-1]]
            if both:
                offering["i"] = False
                remaining["i"] -= 1
                if ends:
                    offering["fields"] = False
                    remaining["fields"] -= 1
    return Want(ports, {"o": vectors.rows()}, {"o": offered})


BENCH = UnitBench(lambda width: Quantizer(width=width), _model, _drive)
CASES = [(width,) for width in WIDTHS]

test_lockstep = BENCH.lockstep(CASES, seeds=2, least=40)
test_reset = BENCH.resets(CASES, [1, 2, 5, 17, 50])
test_cocotb = BENCH.cocotb(CASES)
test_offers_stand_for_all_time = offers(lambda: Quantizer(width=16), depth=2)
test_refused = refused_values(Quantizer, {}, "width", [0, 8, 24, 64, "32", None], "Integer width must be 16 or 32")


@pytest.mark.parametrize(("width", "spare", "field", "element", "integer", "flags"), [
    # If 1.0 has the largest exponent in its group, it becomes half of the bound.
    (32, 0, 127, 0x3F80_0000, 1 << 30, 0), (32, 0, 127, 0xBF80_0000, -1 << 30, 0),
    (32, 8, 127, 0x3F80_0000, 1 << 22, 0), (16, 0, 127, 0xBF80_0000, -1 << 14, 0), (16, 8, 127, 0x3F80_0000, 64, 0),
    (32, 0, 157, 0x3F80_0000, 1, 0), (32, 0, 158, 0x3F80_0000, 0, 0), (32, 0, 158, 0x3F80_0001, 1, 0),
    (32, 0, 159, 0x3FFF_FFFF, 0, 0), (32, 0, LARGEST_FIELD, 0xBF80_0000, 0, 0),
    # Ties go to even: 1.5 and 2.5 units become 2 units.
    (16, 0, 141, 0x3FC0_0000, 2, 0), (16, 0, 141, 0xC020_0000, -2, 0), (16, 0, 141, 0xC020_0001, -3, 0),
    # Rounding up stops at the limit. Significands of 24 bits fit into 25 or more bits without rounding.
    (16, 0, 127, 0x3FFF_FFFF, 32767, 0), (16, 0, 127, 0xBFFF_FFFF, -32767, 0), (16, 8, 254, 0x7F7F_FFFF, 127, 0),
    (16, 0, 127, 0x3FFF_FDFF, 32767, 0), (16, 0, 128, 0x3FFF_FFFF, 16384, 0),
    (32, 8, 127, 0x3FFF_FFFF, 8388607, 0), (32, 8, 127, 0xBFFF_FFFF, -8388607, 0),
    (32, 7, 127, 0x3FFF_FFFF, 16777215, 0), (32, 7, 128, 0x3FFF_FFFF, 8388608, 0),
    # Subnormal numbers have the same unit as numbers with exponent field 1.
    (32, 0, 1, 0x0000_0001, 128, 0), (32, 7, 1, 0x8000_0001, -1, 0), (32, 8, 1, 0x0000_0001, 0, 0),
    (32, 8, 1, 0x0000_0003, 2, 0), (32, 0, 1, 0x007F_FFFF, 0x3FFF_FF80, 0), (32, 0, 2, 0x807F_FFFF, -0x1FFF_FFC0, 0),
    (32, 0, 1, 0, 0, 0), (16, 3, 1, 0x8000_0000, 0, 0),
    # An infinity has one flag, and a NaN has both flags.
    (32, 0, 1, 0x7F80_0000, 0, 1), (16, 8, 254, 0xFF80_0000, 0, 2), (32, 4, 9, 0x7FC0_0000, 0, 3),
    (16, 0, 127, 0xFF80_0001, 0, 3)])
def test_values(width, spare, field, element, integer, flags):
    vectors = Vectors(width, spare, [np.array([element], np.uint32)], [np.array([field])])
    assert [(value.tolist(), special.tolist()) for value, special in vectors.integers()] == [([integer], [flags])]
    BENCH.check((width,), drive=vectors.drive())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("spare", SPARE)
def test_random_elements(width, spare):
    """Elements of all kinds are converted correctly for any number of spare bits.

    If elements can reach the limit, some do.
    """
    generator = np.random.default_rng(spare)
    vectors = _draw(generator, width, spare, [GROUP] * 400 + [1] * 50)
    limit = 2 ** (width - spare - 1) - 1
    integers = np.concatenate([value for value, _ in vectors.integers()])
    if width == 16 or spare == 8:
        assert {limit, -limit} <= set(integers.tolist())
    BENCH.check((width,), seed=spare, drive=vectors.drive())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("spare", SPARE)
def test_exponents(width, spare):
    """Elements with every exponent are converted correctly in groups whose exponent field is equal or larger."""
    generator = np.random.default_rng(spare)
    packets, fields = [], []
    for start in range(0, LARGEST_FIELD + 1, GROUP):
        exponents = np.arange(start, min(start + GROUP, LARGEST_FIELD + 1))
        for field in range(max(exponents[-1], 1), LARGEST_FIELD + 1):
            signs, fractions = (generator.integers(0, 1 << bits, len(exponents)) for bits in (1, 23))
            packets.append((signs << 31 | exponents << 23 | fractions).astype(np.uint32))
            fields.append(np.array([field]))
    BENCH.check((width,), seed=spare, drive=Vectors(width, spare, packets, fields).drive())


@pytest.mark.parametrize("width", WIDTHS)
def test_latency_and_rate(width):
    """Beats follow each other without gaps, even across groups and packets."""
    vectors = _draw(np.random.default_rng(3), width, 2, LENGTHS)
    run = BENCH.check((width,), drive=vectors.drive())
    beats = len(run.drive.beats["i"])
    when, _ = taken(run.trace, "o", integers_layout(width, parity=True))
    assert run.moves("i").tolist() == list(range(beats))
    assert when.tolist() == list(range(Quantizer.latency, Quantizer.latency + beats))
    assert Quantizer(width=width).width == width
