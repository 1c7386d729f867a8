# amaranth: UnusedElaboratable=no
import functools
import itertools

import numpy as np
import numpy.typing as npt
import pytest

from hdl.optimizer.moments import MomentPacker, MomentUnpacker
from hdl.streams.stream import beat_layout
from sim import formal
from sim.golden import moments as model
from sim.golden import stream
from sim.payload import unpack
from sim.verilated.vectors import Feed
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refuses

LANES = (1, 2, 4, 8)
UNITS = (MomentUnpacker, MomentPacker)
EXPECT = {MomentUnpacker: model.unpack_beats, MomentPacker: model.pack_beats}


def _trace_unpacker(counts: npt.ArrayLike, *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> stream.Trace:
    """Trace an unpacker, which takes a row in the cycle in which the output register takes its last beat."""
    given = np.asarray(counts).tolist()
    source, output = stream.Feed(len(given), willing), stream.Output(np.asarray(ready, np.bool_))
    for count in given:
        loaded = source.offered
        for _ in range(count):
            loaded = output.load(loaded)
        if loaded >= source.end:
            break
        source.ready[loaded] = True
        source.take(loaded)
    return stream.Trace(source.valid, source.ready, output.offered >= 0, output.offered)


def _trace_packer(counts: npt.ArrayLike, *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> stream.Trace:
    """Trace a packer: a beat is rounded, and leaves at once for the place where the lower half of a row waits, or
    completes a row as soon as the output register can take this.
    """
    given = np.asarray(counts).tolist()
    source, output = stream.Feed(len(given), willing), stream.Output(np.asarray(ready, np.bool_))
    left = 0
    for completes in given:
        left = source.accept(left) + 1
        if completes:
            left = output.load(left)
    source.accept(left)
    return stream.Trace(source.valid, source.ready, output.offered >= 0, output.offered)


TRACE = {MomentUnpacker: _trace_unpacker, MomentPacker: _trace_packer}

# --- inputs and outputs


def _elements(generator, count):
    """Draw arbitrary bits; every fourth element lies near the middle of two bf16 numbers, and some are special."""
    elements = generator.integers(0, 1 << 32, count, dtype=np.uint32)
    middles = elements[::4] & 0xFFFF0000 | 0x8000
    elements[::4] = middles + generator.integers(-1, 2, len(middles)).astype(np.uint32)
    special = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC00000, 0xFF800001, 1], np.uint32)
    return np.where(generator.random(count) < 0.1, generator.choice(special, count), elements)


def _beats(vectors, lanes, generator):
    """Beats of vectors, in which elements that are not kept are noise."""
    return model.Beats(*packets.as_rows(vectors, lanes, generator))


def _stream(seed, lanes, count):
    """Beats of vectors of uneven lengths."""
    generator = np.random.default_rng(seed)
    vectors = []
    while sum(-(-len(vector) // lanes) for vector in vectors) < count:
        vectors.append(_elements(generator, generator.integers(1, 6 * lanes + 1)))
    return _beats(vectors, lanes, generator)


def _payload(beats):
    return packets.as_beats(beats.elements, beats.keep, beats.last)


def _expect(kind, beats, packed):
    return EXPECT[kind](beats) if packed else (beats, np.ones(len(beats), np.int64))


def _run(kind, lanes, beats, packed, *, willing=None, ready=True, cycles=None, reset=True):
    """Run a unit and return the trace of all ports, the transferred payloads, and their cycles."""
    unit = BENCH.unit(kind, lanes, 0)
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
    refuses(f"Lane count must be 1, 2, 4 or 8, not {lanes!r}", unit, lanes=lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("unit", UNITS)
def test_ports(unit, lanes):
    component = unit(lanes=lanes)
    assert component.lanes == lanes
    assert component.i.payload.shape() == component.o.payload.shape() == beat_layout(lanes)


# --- every cycle against the model


def _drive(generator, unit, lanes, packed, count=2_500):
    beats = _stream(int(generator.integers(1000)), lanes, count)
    return Drive({"i": _payload(beats)}, (unit, beats, packed), {"packed_state": packed})


def _model(_, drawn, willing, ready):
    unit, beats, packed = drawn
    want, counts = _expect(unit, beats, packed)
    return Want.of(TRACE[unit](counts, willing=willing["i"], ready=ready["o"]), _payload(want))


BENCH = UnitBench(lambda unit, lanes, packed: unit(lanes=lanes), _model, _drive)
test_lockstep = BENCH.lockstep(list(itertools.product(UNITS, LANES, (0, 1))), count=2_500, seeds=2, least=300)
test_cocotb = BENCH.cocotb(list(itertools.product(UNITS, (1, 4), (0, 1))), cut=5,
                           drive=functools.partial(_drive, count=40))


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


# --- the golden models, by hand


def offers(text):
    """Indices on offer, a letter or digit per cycle."""
    return [-1 if mark == "." else int(mark) for mark in text]


def test_unpacker_cycles():
    """A row is taken with its last beat; the output register takes a beat when the one before departs."""
    always = np.ones(8, bool)
    trace = _trace_unpacker([2, 1, 2], willing=always, ready=always)
    assert trace.offered.tolist() == offers(".01234..")
    assert np.flatnonzero(trace.i_ready & trace.i_valid).tolist() == [1, 2, 4]
    ready = np.array([0, 0, 0, 1, 0, 1, 1, 1, 1, 1], bool)
    trace = _trace_unpacker([2, 1], willing=np.ones(10, bool), ready=ready)
    assert trace.offered.tolist() == offers(".000112...")
    assert trace.o_valid.tolist() == [mark != "." for mark in ".000112..."]
    assert np.flatnonzero(trace.i_ready & trace.i_valid).tolist() == [3, 5]
    # The second row is on offer from cycle 5 on, of its own accord.
    trace = _trace_unpacker([1, 1], willing=np.array([1, 0, 0, 0, 0, 1, 0, 0], bool), ready=always)
    assert trace.offered.tolist() == offers(".0....1.")
    assert np.flatnonzero(trace.i_valid).tolist() == [0, 5]


def test_packer_cycles():
    """A beat is rounded in a cycle of its own; the lower half of a row leaves at once, the upper one with it."""
    always = np.ones(10, bool)
    trace = _trace_packer([0, 1, 0, 1, 1], willing=always, ready=always)
    assert trace.offered.tolist() == offers("...0.12...")
    assert np.flatnonzero(trace.i_ready & trace.i_valid).tolist() == [0, 1, 2, 3, 4]
    ready = np.arange(10) >= 6
    trace = _trace_packer([1, 1, 1], willing=always, ready=ready)
    assert trace.offered.tolist() == offers("..0000012.")
    assert np.flatnonzero(trace.i_ready & trace.i_valid).tolist() == [0, 1, 6]
