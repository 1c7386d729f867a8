# amaranth: UnusedElaboratable=no
import functools

import cocotb
import numpy as np
import pytest

from hdl.compression.zero_value.format import Adder, Decoder, Encoder
from hdl.floating.format import BF16, FloatFormat
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, word_layout
from sim import formal, regression
from sim.golden import floating
from sim.golden import zero_value as model
from sim.payload import pack, unpack
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit
from tests.words import bits_of

LANES = (1, 2, 4, 8)
DENSITIES = (0, 0.02, 0.1, 0.3, 0.7, 0.97, 1)

# --- what goes in and what came out


@functools.cache
def _unit(kind, lanes=None):
    return Unit(kind() if lanes is None else kind(lanes=lanes))


def _elements(generator, count, density):
    """Canonical gradients: any bits, with neither -0.0 nor NaNs of other kinds."""
    elements = floating.add(generator.integers(0, 1 << 32, count, dtype=np.uint32), 0)
    elements[generator.random(count) >= density] = 0
    return elements


def _vectors(generator, total):
    """Vectors of uneven lengths whose density changes within and between them."""
    vectors = []
    while sum(map(len, vectors)) < total:
        pieces = [_elements(generator, int(generator.integers(1, 80)), generator.choice(DENSITIES))
                  for _ in range(generator.integers(1, 6))]
        vectors.append(np.concatenate(pieces))
    return vectors


def _words(streams):
    """Compressed streams, one after the other, as beats."""
    last = np.concatenate([np.arange(len(words)) == len(words) - 1 for words in streams])
    return pack(word_layout(), {"data": np.concatenate(streams), "last": last})


def _rows(vectors, lanes, generator):
    """Vectors as elements, keep and last of beats. What is not kept is noise."""
    rows, keep, last = [], [], []
    for vector in vectors:
        beats = -(-len(vector) // lanes)
        padded = generator.integers(0, 1 << 32, beats * lanes, dtype=np.uint32)
        padded[:len(vector)] = vector
        rows.append(padded.reshape(beats, lanes))
        keep.append((np.arange(beats * lanes) < len(vector)).reshape(beats, lanes))
        last.append(np.arange(beats) == beats - 1)
    return np.concatenate(rows), np.concatenate(keep), np.concatenate(last)


def _beats(rows, keep, last):
    lanes = rows.shape[1]
    return pack(beat_layout(lanes), {"elements": rows, "keep": (keep << np.arange(lanes)).sum(axis=1), "last": last})


def _taken(trace, layout, name="o"):
    """Payloads that moved, and when."""
    when = np.flatnonzero(trace[f"{name}__valid"] & trace[f"{name}__ready"])
    return unpack(layout, trace[f"{name}__payload"][when]), when


def _encode(lanes, vectors, *, seed=1, spare=100):
    """Run an encoder without stalls; its words, their last and when they came."""
    rows, keep, last = _rows(vectors, lanes, np.random.default_rng(seed))
    words = np.concatenate([model.encode(vector) for vector in vectors])
    unit = _unit(Encoder, lanes)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(_beats(rows, keep, last))}, sinks={"o": True},
                          cycles=model.code_cycles(words, lanes) + spare, seed=seed)
    payload, when = _taken(trace, word_layout())
    return payload["data"], payload["last"], when


def _decode(lanes, streams, *, seed=1, spare=100):
    unit = _unit(Decoder, lanes)
    unit.reset()
    bound = model.code_cycles(np.concatenate(streams), lanes)
    trace = unit.lockstep(sources={"i": Feed(_words(streams))}, sinks={"o": True}, cycles=bound + spare, seed=seed)
    payload, when = _taken(trace, beat_layout(lanes))
    return payload["elements"].reshape(-1), payload["last"], when


def _add(a, b, *, stall=None, seed=1):
    """Run an adder, for as long as the stall patterns are; its words, their last, when they came, and the trace."""
    unit = _unit(Adder)
    unit.reset()
    if stall is None:
        stall = np.ones((3, sum(len(x) + len(y) for x, y in zip(a, b, strict=True)) + 100), bool)
    trace = unit.lockstep(sources={"a": Feed(_words(a), stall[0]), "b": Feed(_words(b), stall[1])},
                          sinks={"o": stall[2]}, seed=seed)
    payload, when = _taken(trace, word_layout())
    return payload["data"], payload["last"], when, trace


KNOWN_A = bits_of([0, 5, 0, -3, 0, 0, 7, 0])
KNOWN_B = bits_of([0, -5, 2, 4, 0, 0, 1, 0])

# --- construction


@pytest.mark.parametrize("unit", [Encoder, Decoder])
@pytest.mark.parametrize("lanes", [0, 3, 16, 4.0, "4", None])
def test_lanes(unit, lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4 or 8, not {lanes!r}$"):
        unit(lanes=lanes)


def test_format():
    with pytest.raises(TypeError, match=r"^Format must be a FloatFormat, not 32$"):
        Adder(format=32)
    with pytest.raises(ValueError, match=r"^Format must be at most 32 bits wide, not 64$"):
        Adder(format=FloatFormat(exponent_bits=11, fraction_bits=52))


@pytest.mark.parametrize("lanes", LANES)
def test_ports(lanes):
    for unit in (Encoder(lanes=lanes), Decoder(lanes=lanes)):
        assert unit.lanes == lanes
    assert Encoder(lanes=lanes).i.payload.shape() == Decoder(lanes=lanes).o.payload.shape() == beat_layout(lanes)
    assert Encoder(lanes=lanes).o.payload.shape() == Decoder(lanes=lanes).i.payload.shape() == word_layout()


# --- known answers


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("vector", "words"), [
    (KNOWN_A, [0b0100_1010, *bits_of([5, -3, 7])]),
    (KNOWN_B, [0b0100_1110, *bits_of([-5, 2, 4, 1])]),
    (bits_of([-0.0, 0.0, -0.0, 1.0]), [0b1000, *bits_of([1])]),
    (np.zeros(64, np.uint32), [0, 0]),
    (np.full(33, 9, np.uint32), [0xFFFF_FFFF, *[9] * 32, 1, 9]),
])
def test_encoder_known(lanes, vector, words):
    data, last, _ = _encode(lanes, [vector])
    assert data.tolist() == words
    assert last.tolist() == [0] * (len(words) - 1) + [1]
    elements, last, _ = _decode(lanes, [np.array(words, np.uint32)])
    expected = np.zeros(-(-len(vector) // GROUP) * GROUP, np.uint32)
    expected[:len(vector)] = np.where(vector == 0x8000_0000, 0, vector)
    assert elements.tolist() == expected.tolist()
    assert last.tolist() == [0] * (len(expected) // lanes - 1) + [1]


def test_adder_known():
    data, last, _, trace = _add([model.encode(KNOWN_A)], [model.encode(KNOWN_B)])
    assert data.tolist() == [0b0100_1100, *bits_of([2, 1, 8])]
    assert last.tolist() == [0, 0, 0, 1]
    # Positions 1, 2, 3 and 6; the first of them cancels.
    assert (trace["position"].sum(), trace["added"].sum(), trace["error"].sum()) == (4, 1, 0)


# --- every cycle against the model


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("lanes", LANES)
def test_encoder_lockstep(lanes, source, sink):
    count = 6_000
    unit = _unit(Encoder, lanes)
    seed = STALLS.index(source) + 4 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    rows, keep, last = _rows(_vectors(generator, count * lanes // 2), lanes, generator)
    willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 1)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(_beats(rows, keep, last), willing)}, sinks={"o": ready}, seed=seed)
    expected = model.trace_encoder(rows, keep, last, depth=Encoder(lanes=lanes).depth, willing=willing,
                                   ready=ready)
    payload = unpack(word_layout(), trace["o__payload"])
    _same(trace, expected, payload["data"][:, np.newaxis], payload["last"], seed)


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("lanes", LANES)
def test_decoder_lockstep(lanes, source, sink):
    count = 6_000
    unit = _unit(Decoder, lanes)
    seed = STALLS.index(source) + 4 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    streams = [model.encode(vector) for vector in _vectors(generator, count)]
    willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 1)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(_words(streams), willing)}, sinks={"o": ready}, seed=seed)
    words = unpack(word_layout(), _words(streams))
    expected = model.trace_decoder(words["data"], words["last"], lanes=lanes, depth=Decoder(lanes=lanes).depth,
                                   willing=willing, ready=ready)
    payload = unpack(beat_layout(lanes), trace["o__payload"])
    _same(trace, expected, payload["elements"].reshape(-1, lanes), payload["last"], seed)
    assert (payload["keep"] == (1 << lanes) - 1).all()
    assert not trace["error"].any()


def _same(trace, expected, payload, last, seed):
    for name in ("i_valid", "i_ready", "o_valid"):
        np.testing.assert_array_equal(trace[name.replace("_", "__")], getattr(expected, name), f"{name}, {seed=}")
    valid = expected.o_valid
    assert valid.any()
    np.testing.assert_array_equal(payload[valid], expected.o_payload[valid], f"payload, {seed=}")
    np.testing.assert_array_equal(last[valid], expected.o_last[valid], f"last, {seed=}")


# --- latency and throughput without stalls


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("lanes", LANES)
def test_encoder_throughput(lanes, density):
    """Every group takes max(32 / lanes, 1 + non-zeros) cycles; the first one is collected before."""
    vectors = [_elements(np.random.default_rng(seed), 320, density) for seed in range(20)]
    words = np.concatenate([model.encode(vector) for vector in vectors])
    data, _, when = _encode(lanes, vectors)
    np.testing.assert_array_equal(data, words)
    assert when[0] == GROUP // lanes - 1 + Encoder.latency
    assert when[-1] < GROUP // lanes + Encoder.latency + model.code_cycles(words, lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_encoder_throughput_of_mixed_groups(lanes):
    for seed in range(20):
        generator = np.random.default_rng(seed)
        vector = np.concatenate([_elements(generator, GROUP, generator.choice(DENSITIES)) for _ in range(100)])
        words = model.encode(vector)
        data, _, when = _encode(lanes, [vector])
        np.testing.assert_array_equal(data, words, f"{seed=}")
        assert when[-1] < GROUP // lanes + Encoder.latency + model.code_cycles(words, lanes), f"{seed=}"


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("lanes", LANES)
def test_decoder_throughput(lanes, density):
    vectors = [_elements(np.random.default_rng(seed), 320, density) for seed in range(20)]
    streams = [model.encode(vector) for vector in vectors]
    elements, _, when = _decode(lanes, streams)
    np.testing.assert_array_equal(elements, np.concatenate(vectors))
    ends = when[GROUP // lanes - 1::GROUP // lanes]
    assert ends[-1] < GROUP // lanes + Decoder.latency + 1 + model.code_cycles(np.concatenate(streams), lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_decoder_throughput_of_mixed_groups(lanes):
    for seed in range(20):
        generator = np.random.default_rng(seed)
        vector = np.concatenate([_elements(generator, GROUP, generator.choice(DENSITIES)) for _ in range(100)])
        words = model.encode(vector)
        elements, _, when = _decode(lanes, [words])
        np.testing.assert_array_equal(elements, vector, f"{seed=}")
        assert when[-1] < GROUP // lanes + Decoder.latency + 1 + model.code_cycles(words, lanes), f"{seed=}"


@pytest.mark.parametrize("lanes", LANES)
def test_decoder_latency(lanes):
    _, _, when = _decode(lanes, [np.array([0], np.uint32)])
    assert when[0] == Decoder.latency + 1
    for values in range(1, GROUP + 1):
        words = model.encode(np.arange(1, values + 1))
        _, _, when = _decode(lanes, [words])
        # The first beat needs its own values only.
        first = min(values, lanes)
        assert when[0] == max(first + Decoder.latency, Decoder.latency + 1)


@pytest.mark.parametrize("positions", range(GROUP + 1))
def test_adder_latency(positions):
    vector = np.arange(GROUP, dtype=np.uint32) < positions
    words = model.encode(vector)
    data, _, when, _ = _add([words], [words])
    np.testing.assert_array_equal(data, model.add(words, words))
    mask = positions + Adder().latency
    # A value alone in its group takes one cycle more than its mask.
    assert when.tolist() == [mask, *range(mask + 1 + (positions == 1), mask + 1 + positions + (positions == 1))]


#: Groups are written while later ones are read, so that one group, of at most 33 words, is written beyond the bound.
ADDER_DELAY = Adder().latency + 1 + GROUP + 1


@pytest.mark.parametrize("b_density", DENSITIES)
@pytest.mark.parametrize("a_density", DENSITIES)
def test_adder_throughput(a_density, b_density):
    """One position per cycle and one cycle per mask, at any density and over group after group."""
    generator = np.random.default_rng([int(a_density * 100), int(b_density * 100)])
    a, b = (model.encode(_elements(generator, 3200, density)) for density in (a_density, b_density))
    data, last, when, trace = _add([a], [b])
    np.testing.assert_array_equal(data, model.add(a, b))
    np.testing.assert_array_equal(last, np.arange(len(data)) == len(data) - 1)
    assert when[-1] <= model.add_cycles(a, b) + ADDER_DELAY
    assert trace["position"].sum() == model.add_cycles(a, b) - 100


@pytest.mark.parametrize("zeros", [0, 1, 2, 5, 10, 20, 40, 60])
def test_adder_throughput_of_bursts(zeros):
    """Groups of zeros behind a dense one pass as fast as words go out."""
    vector = np.ones(GROUP * (1 + zeros) * 20, np.uint32)
    vector.reshape(20, -1)[:, GROUP:] = 0
    words = model.encode(vector)
    data, _, when, _ = _add([words], [words])
    np.testing.assert_array_equal(data, model.add(words, words))
    assert when[-1] <= model.add_cycles(words, words) + ADDER_DELAY


def test_adder_throughput_of_mixed_groups():
    for seed in range(20):
        generator = np.random.default_rng(seed)
        a, b = (model.encode(np.concatenate([_elements(generator, GROUP, generator.choice(DENSITIES))
                                             for _ in range(100)])) for _ in range(2))
        data, _, when, _ = _add([a], [b])
        np.testing.assert_array_equal(data, model.add(a, b), f"{seed=}")
        assert when[-1] <= model.add_cycles(a, b) + ADDER_DELAY, f"{seed=}"


def test_adder_is_dense():
    """33 words in 33 cycles, group after group."""
    words = model.encode(np.full(3200, 0x3F80_0000, np.uint32))
    _, _, when, _ = _add([words], [words])
    assert (np.diff(when) == 1).all()
    assert len(when) == 3300


# --- sums


def _pairs(generator, total):
    """Streams to add, of equal lengths, some of whose elements cancel."""
    a = _vectors(generator, total)
    b = []
    for vector in a:
        other = np.concatenate(_vectors(generator, len(vector)))[:len(vector)]
        cancelling = generator.random(len(vector)) < generator.choice([0, 0.2, 1])
        b.append(np.where(cancelling & (vector != 0), vector ^ 0x8000_0000, other))
    return [[model.encode(vector) for vector in vectors] for vectors in (a, b)]


#: Every pair of patterns at any two of three streams.
_PAIRS = [(a, b, STALLS[(STALLS.index(a) + STALLS.index(b)) % len(STALLS)]) for a in STALLS for b in STALLS]


@pytest.mark.parametrize(("a_source", "b_source", "sink"), _PAIRS)
def test_adder_values(a_source, b_source, sink):
    count = 20_000 * (1 + [a_source, b_source, sink].count("freeze"))
    for seed in range(2):
        a, b = _pairs(np.random.default_rng(seed), 3_000)
        stall = [stall_array(kind, count, seed=seed + n) for n, kind in enumerate((a_source, b_source, sink))]
        data, last, _, trace = _add(a, b, stall=stall, seed=seed)
        expected = [model.add(x, y) for x, y in zip(a, b, strict=True)]
        words = unpack(word_layout(), _words(expected))
        np.testing.assert_array_equal(data, words["data"], f"{seed=}")
        np.testing.assert_array_equal(last, words["last"], f"{seed=}")
        assert trace["added"].sum() == len(a)
        assert not trace["error"].any()
        positions = sum(model.add_cycles(x, y) - len(model.group_sizes(x)) for x, y in zip(a, b, strict=True))
        assert trace["position"].sum() == positions, f"{seed=}"


def test_adder_corners():
    """Infinities, NaNs, subnormal numbers and everything that cancels, in all pairs and as copies."""
    corners = np.array([0, 1, 0x007F_FFFF, 0x0080_0000, 0x3F80_0000, 0x7F7F_FFFF, 0x7F80_0000], np.uint32)
    corners = np.unique(np.concatenate([corners, corners[1:] | 0x8000_0000, [np.uint32(0x7FC0_0000)]]))
    a, b = (model.encode(values.reshape(-1)) for values in np.meshgrid(corners, corners))
    data, _, _, _ = _add([a], [b])
    np.testing.assert_array_equal(data, model.add(a, b))


def test_adder_format():
    generator = np.random.default_rng(1)
    a, b = (floating.add_exact(generator.integers(0, 1 << 16, 320), 0, exponent_bits=8, fraction_bits=7)
            for _ in range(2))
    b[::3] = a[::3] ^ 0x8000
    a, b = (np.where((generator.random(320) < 0.7) & (values != 0x8000), values, 0).astype(np.uint32)
            for values in (a, b))
    trace = Unit(Adder(format=BF16), name="AdderBF16").lockstep(
        sources={"a": Feed(_words([model.encode(a)])), "b": Feed(_words([model.encode(b)]))}, sinks={"o": True},
        cycles=500)
    payload, _ = _taken(trace, word_layout())
    expected = model.encode(floating.add_exact(a, b, exponent_bits=8, fraction_bits=7))
    np.testing.assert_array_equal(payload["data"], expected)


# --- malformed streams

ONE = np.array([0b11, 0x3F80_0000, 0x4000_0000], np.uint32)
TWO = np.array([0b11, 0x3F80_0000, 0x4000_0000, 0b1, 0x4040_0000], np.uint32)
EMPTY = np.array([0], np.uint32)
DOUBLED = [0b11, 0x4000_0000, 0x4080_0000]


@pytest.mark.parametrize(("a", "b", "total"), [
    (ONE, TWO, DOUBLED),
    (EMPTY, TWO, ONE.tolist()),
    (EMPTY, np.zeros(3, np.uint32), [0]),
    (ONE, ONE[:2], [0b01, 0x4000_0000]),  # ends in front of its second value
    (ONE, ONE[:1], [0]),  # ends with a mask that announces values
    (ONE[:1], ONE[:1], [0]),
    (ONE[:2], ONE[:2], [0b01, 0x4000_0000]),
    (TWO, TWO[:4], [*DOUBLED, 0]),
    (TWO, np.array([0, 0, 1, 5], np.uint32), [*ONE.tolist(), 1, 0x4040_0000]),
])
def test_adder_unequal_streams(a, b, total):
    for first, second in ((a, b), (b, a)):
        data, last, _, trace = _add([first, ONE], [second, ONE])
        assert data.tolist() == [*total, *DOUBLED]
        assert np.flatnonzero(last).tolist() == [len(total) - 1, len(total) + 2]
        assert (trace["error"].sum(), trace["added"].sum()) == (1, 2)


@pytest.mark.parametrize("sink", STALLS)
def test_adder_never_hangs(sink):
    """Pairs of streams that are cut anywhere: as many sums as pairs, each well formed, and an error unless whole."""
    count = 30_000
    for seed in range(5):
        generator = np.random.default_rng(seed)
        a, b = _pairs(generator, 3_000)
        for streams in (a, b):
            for index in np.flatnonzero(generator.random(len(streams)) < 0.5):
                streams[index] = streams[index][:generator.integers(1, len(streams[index]) + 1)]
        stall = [stall_array("geometric", count, seed=seed + 5), stall_array("freeze", count, seed=seed),
                 stall_array(sink, count, seed=seed)]
        data, last, _, trace = _add(a, b, stall=stall, seed=seed)
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


@pytest.mark.parametrize("lanes", LANES)
def test_decoder_short_streams(lanes):
    """What a short stream lacks is zeros, from the beat on that is not whole, and the next stream is sound."""
    vector = np.arange(1, GROUP + 1, dtype=np.uint32)
    words = model.encode(vector)
    unit = _unit(Decoder, lanes)
    for length in range(1, len(words)):
        unit.reset()
        streams = _words([words, words[:length], words])
        trace = unit.lockstep(sources={"i": Feed(streams)}, sinks={"o": True}, cycles=150)
        payload, _ = _taken(trace, beat_layout(lanes))
        short = np.where(np.arange(GROUP) < (length - 1) // lanes * lanes, vector, 0)
        np.testing.assert_array_equal(payload["elements"].reshape(-1), np.concatenate([vector, short, vector]))
        beats = GROUP // lanes
        assert np.flatnonzero(payload["last"]).tolist() == [beats - 1, 2 * beats - 1, 3 * beats - 1]
        assert trace["error"].sum() == 1


def _whole_beats(words, lanes):
    """Elements of a stream that may end inside a group, and whether it does: zeros from the first beat on of which
    a value is missing."""
    groups, at, short = [], 0, False
    while at < len(words):
        places = np.flatnonzero(int(words[at]) >> np.arange(GROUP) & 1)
        values = words[at + 1:at + 1 + len(places)]
        group = np.zeros(GROUP, np.uint32)
        group[places[:len(values)]] = values
        if short := len(values) < len(places):
            group[places[len(values)] // lanes * lanes:] = 0
        groups.append(group)
        at += 1 + len(places)
    return np.concatenate(groups), short


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("lanes", LANES)
def test_decoder_cut_streams(lanes, sink):
    """Streams that are cut anywhere, into a sink that stalls: one group may wait while that behind it is cut."""
    for seed in range(3):
        generator = np.random.default_rng([seed, lanes])
        streams = [model.encode(vector) for vector in _vectors(generator, 3_000)]
        streams += [words[:generator.integers(1, len(words) + 1)] for words in streams]
        streams = [streams[number] for number in generator.permutation(len(streams))]
        expected, shorts = zip(*(_whole_beats(words, lanes) for words in streams), strict=True)
        count = 40_000
        unit = _unit(Decoder, lanes)
        unit.reset()
        source = Feed(_words(streams), stall_array("geometric", count, seed=seed, rate=0.9))
        trace = unit.lockstep(sources={"i": source}, sinks={"o": stall_array(sink, count, seed=seed)})
        payload, _ = _taken(trace, beat_layout(lanes))
        np.testing.assert_array_equal(payload["elements"].reshape(-1), np.concatenate(expected), f"{seed=}")
        ends = np.cumsum([len(elements) // lanes for elements in expected]) - 1
        np.testing.assert_array_equal(np.flatnonzero(payload["last"]), ends, f"{seed=}")
        assert trace["error"].sum() == sum(shorts) > 10, f"{seed=}"


# --- handshakes, proven


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_offers_stand_for_all_time(unit):
    formal.prove(formal.Offers(unit(lanes=1)), depth=2)


# --- the same under cocotb, after a reset in the middle of a packet


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def passes(dut):
    layouts = {"beats": beat_layout(regression.parameters()["lanes"]), "words": word_layout()}
    inputs, output = regression.parameters()["inputs"], regression.parameters()["output"]
    kind = regression.parameters()["stalls"]
    await start(dut)
    await _interrupt(dut, inputs)
    sources = [Source(dut, name, layouts[form], stalls=stalls(kind, seed=seed))
               for seed, (name, (form, _)) in enumerate(inputs.items())]
    form, expected = output
    sink = Sink(dut, "o", layouts[form], stalls=stalls(kind, seed=9))
    monitors = [Monitor(dut, name, layouts[form]) for name, (form, _) in (*inputs.items(), ("o", output))]
    for source, (_, beats) in zip(sources, inputs.values(), strict=True):
        cocotb.start_soon(source.send(beats))
    assert await sink.receive(len(expected)) == expected
    counts = [len(beats) for _, beats in (*inputs.values(), output)]
    assert [len(monitor.beats) for monitor in monitors] == counts


async def _interrupt(dut, inputs):
    """Fill the unit with words that never end, and reset it."""
    for name in inputs:
        getattr(dut, f"{name}__payload").value = 0x5555_5555
        getattr(dut, f"{name}__valid").value = 1
    await cycles(dut, 50)
    dut.rst.value = 1
    for name in inputs:
        getattr(dut, f"{name}__valid").value = 0
    await cycles(dut, 1)
    dut.rst.value = 0


VECTORS = [KNOWN_A, np.zeros(32, np.uint32), np.arange(100, dtype=np.uint32)]


def _word_beats(vectors):
    return [{"data": int(word), "last": int(number == len(words) - 1)}
            for words in map(model.encode, vectors) for number, word in enumerate(words)]


def _row_beats(vectors, lanes):
    rows, keep, last = _rows(vectors, lanes, np.random.default_rng(1))
    return [{"elements": row.tolist(), "keep": int((kept << np.arange(lanes)).sum()), "last": int(end)}
            for row, kept, end in zip(rows, keep, last, strict=True)]


def _passes(unit, kind, *, lanes=1, **beats):
    output = beats.pop("o")
    regression.run(unit, module=__name__, parameters={
        "lanes": lanes, "stalls": kind, "inputs": beats, "output": output})


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb_encoder(kind):
    lanes = 4
    _passes(Encoder(lanes=lanes), kind, lanes=lanes, i=("beats", _row_beats(VECTORS, lanes)),
            o=("words", _word_beats(VECTORS)))


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb_decoder(kind):
    lanes = 4
    whole = [model.decode(model.encode(vector)) for vector in VECTORS]
    _passes(Decoder(lanes=lanes), kind, lanes=lanes, i=("words", _word_beats(VECTORS)),
            o=("beats", _row_beats(whole, lanes)))


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb_adder(kind):
    others = [KNOWN_B, np.arange(32, dtype=np.uint32), np.full(100, 0x8000_0001, np.uint32)]
    sums = [model.decode(model.add(model.encode(a), model.encode(b))) for a, b in zip(VECTORS, others, strict=True)]
    _passes(Adder(), kind, a=("words", _word_beats(VECTORS)), b=("words", _word_beats(others)),
            o=("words", _word_beats(sums)))
