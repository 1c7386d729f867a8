# amaranth: UnusedElaboratable=no
import functools

import cocotb
import numpy as np
import pytest

from hdl.optimizer.moments import MomentPacker, MomentUnpacker
from hdl.streams.stream import beat_layout
from sim import formal, regression
from sim.golden import moments as model
from sim.payload import pack, unpack
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit

LANES = (1, 2, 4, 8)
UNITS = (MomentUnpacker, MomentPacker)
EXPECT = {MomentUnpacker: model.unpack_beats, MomentPacker: model.pack_beats}
TRACE = {MomentUnpacker: model.trace_unpacker, MomentPacker: model.trace_packer}

# --- inputs and outputs


@functools.cache
def _unit(kind, lanes):
    return Unit(kind(lanes=lanes))


def _elements(generator, count):
    """Draw arbitrary bits; every fourth element lies near the middle of two bf16 numbers, and some are special."""
    elements = generator.integers(0, 1 << 32, count, dtype=np.uint32)
    middles = elements[::4] & 0xFFFF0000 | 0x8000
    elements[::4] = middles + generator.integers(-1, 2, len(middles)).astype(np.uint32)
    special = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC00000, 0xFF800001, 1], np.uint32)
    return np.where(generator.random(count) < 0.1, generator.choice(special, count), elements)


def _beats(vectors, lanes, generator):
    """Pack vectors into beats, in which elements that are not kept are noise."""
    elements, keep, last = [], [], []
    for vector in vectors:
        beats = -(-len(vector) // lanes)
        padded = generator.integers(0, 1 << 32, beats * lanes, dtype=np.uint32)
        padded[:len(vector)] = vector
        elements.append(padded.reshape(beats, lanes))
        keep.append((np.arange(beats * lanes) < len(vector)).reshape(beats, lanes))
        last.append(np.arange(beats) == beats - 1)
    return model.Beats(np.concatenate(elements), np.concatenate(keep), np.concatenate(last))


def _stream(seed, lanes, count):
    """Beats of vectors of uneven lengths."""
    generator = np.random.default_rng(seed)
    vectors = []
    while sum(-(-len(vector) // lanes) for vector in vectors) < count:
        vectors.append(_elements(generator, generator.integers(1, 6 * lanes + 1)))
    return _beats(vectors, lanes, generator)


def _payload(beats):
    lanes = beats.keep.shape[1]
    keep = (beats.keep << np.arange(lanes)).sum(axis=1)
    return pack(beat_layout(lanes), {"elements": beats.elements, "keep": keep, "last": beats.last})


def _expect(kind, beats, packed):
    return EXPECT[kind](beats) if packed else (beats, np.ones(len(beats), np.int64))


def _run(kind, lanes, beats, packed, *, willing=None, ready=True, cycles=None, reset=True):
    """Run a unit and return the trace of all ports, the transferred payloads, and their cycles."""
    unit = _unit(kind, lanes)
    if reset:
        unit.reset()
    trace = unit.lockstep(sources={"i": Feed(_payload(beats), willing)}, sinks={"o": ready}, cycles=cycles,
                          inputs={"packed_state": packed})
    when = np.flatnonzero(trace["o__valid"] & trace["o__ready"])
    payload = unpack(beat_layout(lanes), trace["o__payload"][when])
    keep = (payload["keep"][:, np.newaxis] >> np.arange(lanes) & 1).astype(bool)
    return trace, model.Beats(payload["elements"].reshape(-1, lanes), keep, payload["last"].astype(bool)), when


def _same(got, want, message=""):
    for name in ("elements", "keep", "last"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), f"{name} {message}")


# --- construction


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("lanes", [0, 3, 16, 4.0, "4", None])
def test_lanes(unit, lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4 or 8, not {lanes!r}$"):
        unit(lanes=lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("unit", UNITS)
def test_ports(unit, lanes):
    component = unit(lanes=lanes)
    assert component.lanes == lanes
    assert component.i.payload.shape() == component.o.payload.shape() == beat_layout(lanes)


# --- every cycle against the model


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("packed", [0, 1])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("unit", UNITS)
def test_lockstep(unit, lanes, packed, source, sink):
    count = 2_500
    for seed in range(2):
        beats = _stream(seed, lanes, count)
        willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 1)
        want, counts = _expect(unit, beats, packed)
        trace, got, _ = _run(unit, lanes, beats, packed, willing=willing, ready=ready)
        expected = TRACE[unit](counts, willing=willing, ready=ready)
        for name in ("i_valid", "i_ready", "o_valid"):
            np.testing.assert_array_equal(trace[name.replace("_", "__")], getattr(expected, name), f"{name}, {seed=}")
        valid = expected.o_valid
        assert valid.sum() > 300
        np.testing.assert_array_equal(trace["o__payload"][valid], _payload(want)[expected.offered[valid]],
                                      f"payload, {seed=}")
        _same(got, model.Beats(*(values[:len(got)] for values in (want.elements, want.keep, want.last))), f"{seed=}")


@pytest.mark.parametrize("lanes", LANES)
def test_round_trip(lanes):
    """Kept elements that are packed and unpacked come back rounded."""
    for seed in range(5):
        generator = np.random.default_rng(seed)
        vectors = [_elements(generator, int(count)) for count in generator.integers(1, 10 * lanes, 50)]
        beats = _beats(vectors, lanes, generator)
        _, rows, _ = _run(MomentPacker, lanes, beats, 1, cycles=2 * len(beats) + 50)
        _, got, _ = _run(MomentUnpacker, lanes, rows, 1, cycles=2 * len(beats) + 50)
        ends = np.flatnonzero(got.last) + 1
        assert len(ends) == len(vectors)
        for vector, elements, keep in zip(vectors, *(np.split(values, ends) for values in (got.elements, got.keep)),
                                          strict=False):
            np.testing.assert_array_equal(elements[keep], model.unpack(model.pack(vector)), f"{seed=}")


# --- latency and throughput without stalls


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("packed", [0, 1])
def test_unpacker_throughput(lanes, packed):
    """The unpacker offers a beat in every cycle, row after row and vector after vector."""
    want, _ = _expect(MomentUnpacker, _stream(1, lanes, 500), packed)
    _, got, when = _run(MomentUnpacker, lanes, _stream(1, lanes, 500), packed, cycles=1_200)
    _same(got, want)
    assert when.tolist() == list(range(MomentUnpacker.latency, MomentUnpacker.latency + len(want)))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("packed", [0, 1])
def test_packer_throughput(lanes, packed):
    """The packer takes a beat in every cycle, and offers a row `latency` cycles after the beat that completes it."""
    beats = _stream(1, lanes, 500)
    want, counts = _expect(MomentPacker, beats, packed)
    trace, got, when = _run(MomentPacker, lanes, beats, packed, cycles=600)
    _same(got, want)
    assert trace["i__ready"].all()
    assert when.tolist() == (np.flatnonzero(counts) + MomentPacker.latency).tolist()


@pytest.mark.parametrize("lanes", LANES)
def test_packer_full_rate_at_half_rate_sink(lanes):
    """A sink that takes a row in every other cycle does not hold up the source."""
    generator = np.random.default_rng(1)
    beats = _beats([_elements(generator, 500 * lanes)], lanes, generator)
    for phase in (0, 1):
        trace, got, _ = _run(MomentPacker, lanes, beats, 1, ready=np.arange(600) % 2 == phase)
        assert trace["i__ready"].all()
        _same(got, model.pack_beats(beats)[0])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("lanes", LANES)
def test_mode_changes_while_empty(lanes, unit):
    for seed in range(4):
        packed = seed % 2
        beats = _stream(seed, lanes, 50)
        _, got, _ = _run(unit, lanes, beats, packed, cycles=150, reset=not seed)
        _same(got, _expect(unit, beats, packed)[0], f"{seed=}")


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("given", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("unit", UNITS)
def test_reset_in_a_packet(unit, given, lanes):
    """A reset discards all data inside a unit."""
    generator = np.random.default_rng(given)
    part = _beats([_elements(generator, given * lanes)], lanes, generator)
    part = model.Beats(part.elements, part.keep, np.zeros(given, bool))
    _, got, _ = _run(unit, lanes, part, 1, ready=np.zeros(10, bool))
    assert not len(got)
    beats = _stream(given, lanes, 20)
    _, got, _ = _run(unit, lanes, beats, 1, cycles=60)
    _same(got, _expect(unit, beats, 1)[0])


# --- the handshake, proven


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("unit", UNITS)
def test_offers_stand_for_all_time(unit, lanes):
    formal.prove(formal.Offers(unit(lanes=lanes)), depth=2)


# --- the same under cocotb, after a reset in the middle of a packet


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def passes(dut):
    parameters = regression.parameters()
    layout, beats, expected = beat_layout(parameters["lanes"]), parameters["i"], parameters["o"]
    await start(dut)
    dut.packed_state.value = parameters["packed"]
    dut.i__payload.value = 0x5555_5555
    dut.i__valid.value = 1
    await cycles(dut, 5)
    dut.rst.value = 1
    dut.i__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    source = Source(dut, "i", layout, stalls=stalls(parameters["stalls"], seed=1))
    sink = Sink(dut, "o", layout, stalls=stalls(parameters["stalls"], seed=9))
    monitors = [Monitor(dut, name, layout) for name in "io"]
    cocotb.start_soon(source.send(beats))
    assert await sink.receive(len(expected)) == expected
    assert [len(monitor.beats) for monitor in monitors] == [len(beats), len(expected)]


def _fields(beats):
    keep = (beats.keep << np.arange(beats.keep.shape[1])).sum(axis=1).tolist()
    return [{"elements": row, "keep": kept, "last": last}
            for row, kept, last in zip(beats.elements.tolist(), keep, beats.last.astype(int).tolist(), strict=True)]


@pytest.mark.parametrize("kind", ["none", "geometric"])
@pytest.mark.parametrize("packed", [0, 1])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("unit", UNITS)
def test_cocotb(unit, lanes, packed, kind):
    beats = _stream(3, lanes, 40)
    regression.run(unit(lanes=lanes), module=__name__, parameters={
        "lanes": lanes, "packed": packed, "stalls": kind, "i": _fields(beats),
        "o": _fields(_expect(unit, beats, packed)[0])})
