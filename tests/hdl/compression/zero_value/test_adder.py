# amaranth: UnusedElaboratable=no
"""Addition of zero-value compressed packets: hdl/compression/zero_value/adder.py."""

import itertools

import numpy as np
import pytest

from hdl.compression.zero_value.adder import Adder
from hdl.floating.format import BF16, FloatFormat
from hdl.group import GROUP
from hdl.streams.stream import word_layout
from sim.golden import floating
from sim.golden import zero_value as model
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression.packets import words as as_words
from tests.hdl.compression.zero_value.streams import (
    DENSITIES,
    DOUBLED,
    EMPTY,
    KNOWN_A,
    KNOWN_B,
    ONE,
    TWO,
    VECTORS,
    random_elements,
    random_vectors,
    run_adder,
    taken_of,
    vectors_of,
)
from tests.hdl.unit_bench import under_cocotb
from tests.refusals import refused, refused_values
from tests.words import bits_of

test_format = refused(Adder, {}, [({"format": FloatFormat(exponent_bits=11, fraction_bits=52)},
                                   "Format must be at most 32 bits wide, not 64")])
test_no_format = refused_values(Adder, {}, "format", [32], "Format must be a FloatFormat", error=TypeError)


def test_adder_known():
    data, last, _, trace = run_adder([model.encode(KNOWN_A)], [model.encode(KNOWN_B)])
    assert data.tolist() == [0b0100_1100, *bits_of([2, 1, 8])]
    assert last.tolist() == [0, 0, 0, 1]
    # Nonzero values are at positions 1, 2, 3 and 6, and the sum at position 1 is zero.
    assert (trace["position"].sum(), trace["added"].sum(), trace["error"].sum()) == (4, 1, 0)


@pytest.mark.parametrize("positions", range(GROUP + 1))
def test_adder_latency(positions):
    vector = np.arange(GROUP, dtype=np.uint32) < positions
    words = model.encode(vector)
    data, _, when, _ = run_adder([words], [words])
    np.testing.assert_array_equal(data, model.add(words, words))
    mask = positions + Adder().latency
    # In a group with a single value, the value follows its mask one cycle later than usual.
    assert when.tolist() == [mask, *range(mask + 1 + (positions == 1), mask + 1 + positions + (positions == 1))]

#: Delay of the adder in cycles. Groups are written while later groups are read, so only the last group, of at most 33
#: words, adds to it.
ADDER_DELAY = Adder().latency + 1 + GROUP + 1


def check_rate(a, b, note=""):
    """Check that the adder takes one cycle per nonzero position and one per mask."""
    data, last, when, trace = run_adder([a], [b])
    np.testing.assert_array_equal(data, model.add(a, b), note)
    np.testing.assert_array_equal(last, np.arange(len(data)) == len(data) - 1, note)
    assert when[-1] <= model.add_cycles(a, b) + ADDER_DELAY, note
    assert trace["position"].sum() == model.add_cycles(a, b) - len(model.group_sizes(a)), note


@pytest.mark.parametrize("b_density", DENSITIES)
@pytest.mark.parametrize("a_density", DENSITIES)
def test_adder_throughput(a_density, b_density):
    """At any density, the adder takes one cycle per nonzero position plus one per mask, even across groups."""
    generator = np.random.default_rng([int(a_density * 100), int(b_density * 100)])
    check_rate(*(model.encode(random_elements(generator, 3200, density)) for density in (a_density, b_density)))


@pytest.mark.parametrize("zeros", [0, 1, 2, 5, 10, 20, 40, 60])
def test_adder_throughput_of_bursts(zeros):
    """Groups of zeros that follow a dense group pass at the rate of the output."""
    vector = np.ones(GROUP * (1 + zeros) * 20, np.uint32)
    vector.reshape(20, -1)[:, GROUP:] = 0
    check_rate(model.encode(vector), model.encode(vector))


def test_adder_throughput_of_mixed_groups():
    vectors = list(map(model.encode, vectors_of("mixed")))
    for number, pair in enumerate(itertools.pairwise(vectors)):
        check_rate(*pair, f"place={number!r}")


def test_adder_is_dense():
    """Each dense group, which has 33 words, takes 33 cycles."""
    words = model.encode(np.full(3200, 0x3F80_0000, np.uint32))
    _, _, when, _ = run_adder([words], [words])
    assert (np.diff(when) == 1).all()
    assert len(when) == 3300


def _pairs(generator, total):
    """Pairs of streams of equal length, some of them with cancelling elements."""
    a = random_vectors(generator, total)
    b = []
    for vector in a:
        other = np.concatenate(random_vectors(generator, len(vector)))[:len(vector)]
        cancelling = generator.random(len(vector)) < generator.choice([0, 0.2, 1])
        b.append(np.where(cancelling & (vector != 0), vector ^ 0x8000_0000, other))
    return [[model.encode(vector) for vector in vectors] for vectors in (a, b)]

#: Stall patterns for three streams, chosen so that any two streams see every pair of patterns.
_PAIRS = [(a, b, STALLS[(STALLS.index(a) + STALLS.index(b)) % len(STALLS)]) for a in STALLS for b in STALLS]


@pytest.mark.parametrize(("a_source", "b_source", "sink"), _PAIRS)
def test_adder_values(a_source, b_source, sink):
    count = 20_000 * (1 + [a_source, b_source, sink].count("freeze"))
    for seed in range(2):
        a, b = _pairs(np.random.default_rng(seed), 3_000)
        stall = [stall_array(kind, count, seed=seed + n) for n, kind in enumerate((a_source, b_source, sink))]
        data, last, _, trace = run_adder(a, b, stall=stall, seed=seed)
        expected = [model.add(x, y) for x, y in zip(a, b, strict=True)]
        words = unpack(word_layout(), as_words(expected))
        np.testing.assert_array_equal(data, words["data"], f"{seed=}")
        np.testing.assert_array_equal(last, words["last"], f"{seed=}")
        assert trace["added"].sum() == len(a)
        assert not trace["error"].any()
        positions = sum(model.add_cycles(x, y) - len(model.group_sizes(x)) for x, y in zip(a, b, strict=True))
        assert trace["position"].sum() == positions, f"{seed=}"


def test_adder_corners():
    """All pairs of infinities, NaNs, subnormals and cancelling values are added correctly."""
    corners = np.array([0, 1, 0x007F_FFFF, 0x0080_0000, 0x3F80_0000, 0x7F7F_FFFF, 0x7F80_0000], np.uint32)
    corners = np.unique(np.concatenate([corners, corners[1:] | 0x8000_0000, [np.uint32(0x7FC0_0000)]]))
    a, b = (model.encode(values.reshape(-1)) for values in np.meshgrid(corners, corners))
    data, _, _, _ = run_adder([a], [b])
    np.testing.assert_array_equal(data, model.add(a, b))


def test_adder_format():
    generator = np.random.default_rng(1)
    a, b = (floating.add_exact(generator.integers(0, 1 << 16, 320), 0, exponent_bits=8, fraction_bits=7)
            for _ in range(2))
    b[::3] = a[::3] ^ 0x8000
    a, b = (np.where((generator.random(320) < 0.7) & (values != 0x8000), values, 0).astype(np.uint32)
            for values in (a, b))
    trace = Unit(Adder(format=BF16), name="AdderBF16").lockstep(
        sources={"a": Feed(as_words([model.encode(a)])), "b": Feed(as_words([model.encode(b)]))}, sinks={"o": True},
        cycles=500)
    payload, _ = taken_of(trace, word_layout())
    expected = model.encode(floating.add_exact(a, b, exponent_bits=8, fraction_bits=7))
    np.testing.assert_array_equal(payload["data"], expected)

@pytest.mark.parametrize(("a", "b", "total"), [
    (ONE, TWO, DOUBLED),
    (EMPTY, TWO, ONE.tolist()),
    (EMPTY, np.zeros(3, np.uint32), [0]),
    (ONE, ONE[:2], [0b01, 0x4000_0000]),  # one stream ends before its second value
    (ONE, ONE[:1], [0]),  # one stream ends after a mask that announces more values
    (ONE[:1], ONE[:1], [0]),
    (ONE[:2], ONE[:2], [0b01, 0x4000_0000]),
    (TWO, TWO[:4], [*DOUBLED, 0]),
    (TWO, np.array([0, 0, 1, 5], np.uint32), [*ONE.tolist(), 1, 0x4040_0000]),
])
def test_adder_unequal_streams(a, b, total):
    for first, second in ((a, b), (b, a)):
        data, last, _, trace = run_adder([first, ONE], [second, ONE])
        assert data.tolist() == [*total, *DOUBLED]
        assert np.flatnonzero(last).tolist() == [len(total) - 1, len(total) + 2]
        assert (trace["error"].sum(), trace["added"].sum()) == (1, 2)


@pytest.mark.parametrize("sink", STALLS)
def test_adder_never_hangs(sink):
    """If streams are cut at any point, each pair gives one well-formed sum, with an error unless both are complete.
    """
    count = 30_000
    for seed in range(5):
        generator = np.random.default_rng(seed)
        a, b = _pairs(generator, 3_000)
        for streams in (a, b):
            for index in np.flatnonzero(generator.random(len(streams)) < 0.5):
                streams[index] = streams[index][:generator.integers(1, len(streams[index]) + 1)]
        stall = [stall_array("geometric", count, seed=seed + 5), stall_array("freeze", count, seed=seed),
                 stall_array(sink, count, seed=seed)]
        data, last, _, trace = run_adder(a, b, stall=stall, seed=seed)
        ends = np.flatnonzero(last) + 1
        assert len(ends) == len(a) == trace["added"].sum(), f"{seed=}"
        whole = 0
        for x, y, words in zip(a, b, np.split(data, ends), strict=False):
            model.decode(words)
            try:
                np.testing.assert_array_equal(words, model.add(x, y), f"{seed=}")
                whole += 1
            except ValueError:
                continue
        assert trace["error"].sum() == len(a) - whole, f"{seed=}"


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb_adder(kind):
    addends = [KNOWN_B, np.arange(32, dtype=np.uint32), np.full(100, 0x8000_0001, np.uint32)]
    a, b = ([model.encode(vector) for vector in vectors] for vectors in (VECTORS, addends))
    under_cocotb(Adder(), kind, {"a": as_words(a), "b": as_words(b)}, {"o": as_words(map(model.add, a, b))}, cut=50)
