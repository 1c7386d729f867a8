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
from sim.verilated.vectors import Feed
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused_values

LANES = (1, 2, 4, 8)
UNITS = (MomentUnpacker, MomentPacker)
CASES = list(itertools.product(UNITS, LANES, (0, 1)))
EXPECT = {MomentUnpacker: model.unpack_beats, MomentPacker: model.pack_beats}


def _trace_unpacker(counts: npt.ArrayLike, *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> stream.Trace:
    """Trace an unpacker: it accepts a row when the row's last beat moves to the output register."""
    beat_counts = np.asarray(counts).tolist()
    source, output = stream.Feed(len(beat_counts), willing), stream.Output(np.asarray(ready, np.bool_))
    for count in beat_counts:
        loaded = source.offered
        for _ in range(count):
            loaded = output.load(loaded)
        if loaded >= source.end:
            break
        source.ready[loaded] = True
        source.take(loaded)
    return stream.Trace(source.valid, source.ready, output.offered >= 0, output.offered)


def _trace_packer(counts: npt.ArrayLike, *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> stream.Trace:
    """Trace a packer. Each rounded beat either moves to the lower half of a row immediately, or completes a row as
    soon as the output register is free."""
    completions = np.asarray(counts).tolist()
    source, output = stream.Feed(len(completions), willing), stream.Output(np.asarray(ready, np.bool_))
    left = 0
    for completes in completions:
        left = source.accept(left) + 1
        if completes:
            left = output.load(left)
    source.accept(left)
    return stream.Trace(source.valid, source.ready, output.offered >= 0, output.offered)


TRACE = {MomentUnpacker: _trace_unpacker, MomentPacker: _trace_packer}

# --- inputs and outputs


def _elements(generator, count):
    """Draw random bit patterns. Every fourth one is near a midpoint between two bfloat16 numbers, and some are
    special values."""
    elements = generator.integers(0, 1 << 32, count, dtype=np.uint32)
    middles = elements[::4] & 0xFFFF0000 | 0x8000
    elements[::4] = middles + generator.integers(-1, 2, len(middles)).astype(np.uint32)
    special = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC00000, 0xFF800001, 1], np.uint32)
    return np.where(generator.random(count) < 0.1, generator.choice(special, count), elements)


def _beats(vectors, lanes, generator):
    """Beats that hold the vectors, with random values for elements that are not kept."""
    return model.Beats(*packets.as_rows(vectors, lanes, generator))


def _stream(seed, lanes, count):
    """Draw beats of vectors of varying lengths."""
    generator = np.random.default_rng(seed)
    vectors = []
    while sum(-(-len(vector) // lanes) for vector in vectors) < count:
        vectors.append(_elements(generator, generator.integers(1, 6 * lanes + 1)))
    return _beats(vectors, lanes, generator)


def _payload(beats):
    return packets.as_beats(beats.elements, beats.keep, beats.last)


# --- construction


test_lanes, test_lanes_of_packer = (refused_values(
    unit, {}, "lanes", [0, 3, 16, 4.0, "4", None], "Lane count must be 1, 2, 4 or 8") for unit in UNITS)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("unit", UNITS)
def test_ports(unit, lanes):
    component = unit(lanes=lanes)
    assert component.lanes == lanes
    assert component.i.payload.shape() == component.o.payload.shape() == beat_layout(lanes)


# --- every cycle compared with the model


def _drive(generator, unit, lanes, packed, count=2_500):
    beats = _stream(int(generator.integers(1000)), lanes, count)
    return Drive({"i": _payload(beats)}, (unit, beats, packed), {"packed_state": packed})


def _model(_, drawn, willing, ready):
    unit, beats, packed = drawn
    want, counts = EXPECT[unit](beats) if packed else (beats, np.ones(len(beats), np.int64))
    return Want.of(TRACE[unit](counts, willing=willing["i"], ready=ready["o"]), _payload(want))


BENCH = UnitBench(lambda unit, lanes, packed: unit(lanes=lanes), _model, _drive)
test_lockstep = BENCH.lockstep(CASES, count=2_500, seeds=2, least=300)
test_cocotb = BENCH.cocotb(list(itertools.product(UNITS, (1, 4), (0, 1))), cut=5,
                           drive=functools.partial(_drive, count=40))


test_reset_in_a_packet = BENCH.resets(list(itertools.product(UNITS, LANES, (1,))), range(1, 6), count=60,
                                      drive=functools.partial(_drive, count=20))


# --- latency and throughput without stalls


@pytest.mark.parametrize("case", CASES)
def test_throughput(case):
    """The throughput of both units is one beat per cycle. A row is output ``latency`` cycles after its last beat."""
    run = BENCH.check(case, count=5_100)
    unit, beats, packed = run.drive.drawn
    if unit is MomentUnpacker:
        assert run.moves().tolist() == list(range(unit.latency, unit.latency + len(run.want.beats["o"])))
    else:
        completes = np.flatnonzero(model.pack_beats(beats)[1]) if packed else np.arange(len(beats))
        assert run.moves("i").tolist() == list(range(len(beats)))
        assert run.moves().tolist() == (completes + unit.latency).tolist()


@pytest.mark.parametrize("lanes", LANES)
def test_packer_full_rate_at_half_rate_sink(lanes):
    """An output that accepts a row every second cycle does not stall the input."""
    generator = np.random.default_rng(1)
    beats = _payload(_beats([_elements(generator, 500 * lanes)], lanes, generator))
    unit = BENCH.unit(MomentPacker, lanes, 1)
    for phase in (0, 1):
        unit.reset()
        trace = unit.lockstep(sources={"i": Feed(beats)}, sinks={"o": np.arange(600) % 2 == phase},
                              inputs={"packed_state": 1})
        assert trace["i__ready"].all()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("lanes", LANES)
def test_mode_changes_while_empty(lanes, unit):
    for seed in range(4):
        drive = _drive(np.random.default_rng(seed), unit, lanes, seed % 2, count=50)
        BENCH.check((unit, lanes, 0), seed=seed, count=150, drive=drive, reset=not seed)


# --- proof of the handshake


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("unit", UNITS)
def test_offers_stand_for_all_time(unit, lanes):
    formal.prove(formal.Offers(unit(lanes=lanes)), depth=2)
