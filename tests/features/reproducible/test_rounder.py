# amaranth: UnusedElaboratable=no
"""Tests of the unit that rounds reproducible sums to binary32: hdl/features/reproducible/rounder.py."""

import functools

import numpy as np
import pytest

from hdl.features.reproducible.layout import integers_layout
from hdl.features.reproducible.rounder import Rounder
from sim.golden.features.reproducible.sums import GROUP, group_starts, round_sum
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit, pack
from tests.hdl.compression import packets
from tests.hdl.unit_bench import offers
from tests.refusals import refused_values
from tests.traces import moved

WIDTHS = (16, 32)
NAN, INFINITY, NEGATIVE_INFINITY = 0x7FC0_0000, 0x7F80_0000, 0xFF80_0000
ONE, SMALLEST_NORMAL, SMALLEST, LARGEST = 0x3F80_0000, 0x0080_0000, 1, 0x7F7F_FFFF
NEGATIVE = 0x8000_0000


@functools.cache
def rounder(width):
    return Unit(Rounder(width=width))


class Sums:
    """Packets of integers, with the flags of their elements and the exponent fields of their groups."""

    def __init__(self, width, lengths, integers, fields, flags=None):
        self.width = width
        self.lanes = 32 // width
        self.lengths = lengths
        self.starts = group_starts(lengths)
        self.integers = np.asarray(integers, np.int64)
        self.fields = np.broadcast_to(np.asarray(fields), self.starts.shape).astype(np.uint8)
        self.flags = np.zeros(len(self.integers), np.uint8) if flags is None else np.asarray(flags, np.uint8)

    def beats(self):
        """Beats of integers; lanes after the end of a packet are random."""
        generator = np.random.default_rng(0)

        def rows(values, bits):
            return packets.as_rows(self.split(values.astype(np.uint32) & (1 << bits) - 1), self.lanes, generator,
                                   width=bits)

        integers, _, last = rows(self.integers, self.width)
        shifts = self.width * np.arange(self.lanes, dtype=np.uint64)
        return pack(integers_layout(self.width), {
            "data": (integers.astype(np.uint64) << shifts).sum(axis=1), "special": rows(self.flags, 2)[0],
            "last": last})

    def expected(self, spare):
        """Expected results, split into packets."""
        bits = round_sum(self.integers, self.fields.astype(np.int64), self.starts, self.width - spare,
                         self.flags & 1 != 0, self.flags & 2 != 0)
        return self.split(bits)

    def split(self, values):
        """Split values into packets."""
        return np.split(values, np.cumsum(self.lengths)[:-1])


def run(sums, spare, kinds=("none", "none", "none"), *, seed=1):
    """Run the unit on all packets; check the results and handshakes, and return the trace."""
    unit = rounder(sums.width)
    unit.reset()
    beats = sums.beats()
    cycles = 3_000 + (20 if any(kind != "none" for kind in kinds) else 1) * len(beats)
    trace = unit.lockstep(
        sources={"i": Feed(beats, stall_array(kinds[0], cycles, seed=seed)),
                 "fields": Feed(sums.fields, stall_array(kinds[1], cycles, seed=seed + 1))},
        sinks={"o": stall_array(kinds[2], cycles, seed=seed + 2)}, inputs={"spare": spare}, seed=seed)
    note = f"width={sums.width}, {spare=}, {kinds=}, {seed=}"
    assert len(moved(trace, "i")[0]) == len(beats), note
    check(trace, sums, sums.expected(spare), note)
    return trace


def check(trace, sums, expected, note):
    whole, rest, _ = packets.taken(trace, sums.lanes)
    assert not len(rest), note
    assert [len(packet) for packet in whole] == [
        -(-length // sums.lanes) * sums.lanes for length in sums.lengths], note
    results = np.concatenate([packet[:length] for packet, length in zip(whole, sums.lengths, strict=True)])
    np.testing.assert_array_equal(results, np.concatenate(expected), note)
    # An offered beat stays until it is accepted. A field is accepted with the last beat of its group.
    held = np.flatnonzero((trace["o__valid"] & ~trace["o__ready"] & 1)[:-1])
    assert trace["o__valid"][held + 1].all(), note
    np.testing.assert_array_equal(trace["o__payload"][held + 1], trace["o__payload"][held], note)
    ends = np.concatenate([np.minimum(np.arange(GROUP, length + GROUP, GROUP), length) + start
                           for start, length in zip(starts_of(sums), sums.lengths, strict=True)])
    np.testing.assert_array_equal(moved(trace, "fields")[0], moved(trace, "i")[0][beat_of(sums)[ends - 1]], note)


def starts_of(sums):
    """Index of the first element of each packet."""
    return np.cumsum([0, *sums.lengths[:-1]])


def beat_of(sums):
    """For each element, the index of the beat that contains it."""
    counts = [-(-length // sums.lanes) for length in sums.lengths]
    first = np.cumsum([0, *counts[:-1]])
    return np.concatenate([start + np.arange(length) // sums.lanes
                           for start, length in zip(first, sums.lengths, strict=True)])


def draw_lengths(generator):
    """Draw packet lengths, most of them with a short last group."""
    return [256, 1, 2, 3, 31, 32, 33, 63, 1, 1, 64, 95, *generator.integers(1, 300, 30).tolist()]


def draw(generator, width, count):
    """Draw integers of all magnitudes, including ties, neighbours of powers of two, and 0."""
    bits = generator.integers(0, width, count)
    magnitude = generator.integers(0, 1 << 62, count) & (1 << bits) - 1 | 1 << bits >> 1
    # Long runs of equal bits give results near a tie or near the next binade.
    row = (1 << generator.integers(0, width, count)) - 1
    near = generator.integers(-1, 2, count)
    kind = generator.integers(0, 6, count)
    above = magnitude & ~row
    magnitude = np.select([kind == 0, kind == 1, kind == 2, kind == 3],
                          [above, above | row, above + (row + 1 >> 1), 1 << bits], magnitude)
    magnitude = magnitude + np.where(generator.random(count) < 0.5, near, 0)
    integers = np.where(generator.random(count) < 0.5, magnitude, -magnitude)
    return np.where(kind == 5, generator.choice([0, 1, -1, -1 << width - 1, (1 << width - 1) - 1], count),
                    np.clip(integers, -1 << width - 1, (1 << width - 1) - 1))


def draw_packets(seed, width, *, flagged=0.05):
    generator = np.random.default_rng(seed)
    lengths = draw_lengths(generator)
    count = sum(lengths)
    groups = len(group_starts(lengths))
    fields = np.where(generator.random(groups) < 0.4, generator.choice([1, 2, 3, 8, 16, 30, 31, 32, 33, 34], groups),
                      np.where(generator.random(groups) < 0.4, generator.integers(240, 255, groups),
                               generator.integers(1, 255, groups)))
    flags = np.where(generator.random(count) < flagged, generator.integers(1, 4, count), 0)
    return Sums(width, lengths, np.where(flags, 0, draw(generator, width, count)), fields, flags)


class TestValues:
    @pytest.mark.parametrize(("width", "spare", "field", "integer", "result"), [
        (32, 2, 127, 1 << 28, ONE), (32, 2, 127, -1 << 28, ONE | NEGATIVE), (32, 0, 127, 1 << 30, ONE),
        (32, 8, 119, 1 << 30, ONE), (16, 2, 127, 1 << 12, ONE), (16, 8, 119, -1 << 14, ONE | NEGATIVE),
        (32, 3, 127, 0, 0), (16, 3, 1, 0, 0), (32, 0, 254, 0, 0),
        # The largest integer is rounded up to the next binade; the smallest integer is already in this binade.
        (32, 0, 127, (1 << 31) - 1, 0x4000_0000), (32, 0, 127, -1 << 31, 0x4000_0000 | NEGATIVE),
        (16, 0, 127, (1 << 15) - 1, 0x3FFF_FE00), (16, 0, 127, -1 << 15, 0x4000_0000 | NEGATIVE),
        # At ties, integers of 25 bits are rounded to even.
        (32, 7, 126, (1 << 24) + 1, ONE), (32, 7, 126, (1 << 24) + 3, ONE + 2),
        (32, 7, 126, -(1 << 24) - 1, ONE | NEGATIVE), (32, 7, 126, -(1 << 24) - 3, ONE + 2 | NEGATIVE),
        # Integers of 26 bits that are next to a tie.
        (32, 6, 126, (1 << 25) + 1, ONE), (32, 6, 126, (1 << 25) + 3, ONE + 1),
        (32, 6, 126, -(1 << 25) - 1, ONE | NEGATIVE), (32, 6, 126, -(1 << 25) - 3, ONE + 1 | NEGATIVE),
        # Subnormal results: one unit at field 1 is 2**-156 with 32 bits per addend, and 2**-149 with 25 bits.
        (32, 0, 1, 1 << 30, SMALLEST_NORMAL), (32, 0, 1, (1 << 30) - 1, SMALLEST_NORMAL),
        (32, 0, 1, -(1 << 30) + 64, SMALLEST_NORMAL | NEGATIVE), (32, 0, 1, (1 << 30) - 65, SMALLEST_NORMAL - 1),
        (32, 7, 1, 1, SMALLEST), (32, 7, 1, -1, SMALLEST | NEGATIVE), (32, 0, 1, 128, SMALLEST),
        (32, 0, 1, 65, SMALLEST), (32, 0, 1, 64, 0), (32, 0, 1, -64, NEGATIVE), (32, 0, 1, -1, NEGATIVE),
        (32, 0, 1, 192, 2), (16, 0, 1, 1, 1 << 9), (16, 0, 1, 1 << 14, SMALLEST_NORMAL),
        # Results that overflow, and the largest finite result.
        (32, 2, 254, (1 << 29) - 32, LARGEST), (32, 2, 254, (1 << 29) - 17, LARGEST),
        (32, 2, 254, (1 << 29) - 16, INFINITY), (32, 2, 254, 16 - (1 << 29), NEGATIVE_INFINITY),
        (32, 2, 254, -(1 << 29), NEGATIVE_INFINITY), (32, 2, 254, (1 << 31) - 1, INFINITY),
        (16, 1, 254, 1 << 14, INFINITY), (16, 1, 254, (1 << 14) - 1, 0x7F7F_FC00),
        (16, 0, 254, -1 << 15, NEGATIVE_INFINITY),
    ])
    def test_numbers(self, width, spare, field, integer, result):
        sums = Sums(width, [1], [integer], field)
        assert sums.expected(spare)[0].tolist() == [result]
        run(sums, spare)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_flags(self, width):
        """The integers of flagged elements have no effect on the result."""
        flags = [0, 1, 2, 3, 0, 1, 2, 3]
        sums = Sums(width, [8], [0, 0, 0, 0, 1 << width - 5, -1, 77, -1 << width - 1], 127, flags)
        assert sums.expected(3)[0].tolist() == [
            0, INFINITY, NEGATIVE_INFINITY, NAN, ONE, INFINITY, NEGATIVE_INFINITY, NAN]
        run(sums, 3)

    def test_all_integers_of_16_bits(self):
        integers = np.arange(-1 << 15, 1 << 15)
        for spare in (0, 1, 2, 5, 8):
            for field in (1, 2, 7, 14, 15, 16, 17, 18, 127, 246, 253, 254):
                run(Sums(16, [1 << 16], integers, field), spare)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_all_scales(self, width):
        """Integers around each binade's bounds are rounded correctly for every field and spare count."""
        powers = 1 << np.arange(width)
        values = np.concatenate([powers - 2, powers - 1, powers, powers + 1, powers * 3 // 2, [0] * GROUP])
        values = np.concatenate([values, -values])
        integers = np.clip(values, -1 << width - 1, (1 << width - 1) - 1)[:len(values) // GROUP * GROUP]
        groups = len(integers) // GROUP
        for spare in range(9):
            run(Sums(width, [254 * len(integers)], np.tile(integers, 254), np.repeat(np.arange(1, 255), groups)),
                spare)

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("spare", range(9))
    def test_random_integers(self, width, spare):
        generator = np.random.default_rng(100 * width + spare)
        for field in (1, 2, 5, 12, 24, 33, 127, 248, 254):
            run(Sums(width, [1 << 14], draw(generator, width, 1 << 14), field), spare)
        fields = generator.integers(1, 255, 1 << 11)
        run(Sums(width, [1 << 16], draw(generator, width, 1 << 16), fields), spare)


class TestStreams:
    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("sink", STALLS)
    def test_stalls(self, width, sink):
        """Packets of any length, with short last groups, are correct while the inputs and the output stall."""
        for number, (source, fields) in enumerate([
                ("none", "none"), ("geometric", "none"), ("none", "geometric"), ("geometric", "freeze"),
                ("freeze", "geometric"), ("alternating", "alternating")]):
            seed = 10 * number + width
            run(draw_packets(seed, width), number, (source, fields, sink), seed=seed)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_latency_and_rate(self, width):
        sums = draw_packets(1, width)
        trace = run(sums, 4)
        count = len(sums.beats())
        first = np.flatnonzero(trace["i__valid"] & trace["i__ready"])[0]
        assert np.flatnonzero(trace["i__valid"] & trace["i__ready"]).tolist() == list(range(first, first + count))
        assert np.flatnonzero(trace["o__valid"]).tolist() == list(
            range(first + Rounder.latency, first + Rounder.latency + count))

    @pytest.mark.parametrize("width", WIDTHS)
    def test_reset(self, width):
        """A reset in the middle of a packet discards its beats, and the next beat starts a new packet."""
        unit = rounder(width)
        sums = draw_packets(2, width)
        unit.reset()
        unit.lockstep(sources={"i": Feed(sums.beats()), "fields": Feed(sums.fields)}, sinks={"o": True}, cycles=21,
                      inputs={"spare": 3})
        run(draw_packets(3, width), 3)

    test_refused = staticmethod(refused_values(
        Rounder, {}, "width", [8, 24, 64, None], "Integer width must be 16 or 32"))

    test_offers = staticmethod(offers(lambda: Rounder(width=16), depth=2))
