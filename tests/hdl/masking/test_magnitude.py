# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import cocotb
import numpy as np
import pytest

from hdl.floating.format import FP32
from hdl.masking.magnitude import MagnitudeMask
from hdl.streams.stream import beat_layout
from sim import regression
from sim.golden import floating
from sim.golden import masking as model
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit
from tests.hdl.floating import operands
from tests.hdl.masking import masks
from tests.traces import moved

INFINITY = 0x7F80_0000
#: Thresholds from zero to the largest NaN; the sign does not matter.
THRESHOLDS = (0, 1, 0x007F_FFFF, 0x0080_0000, 0x3DCC_CCCD, 0x3F80_0000, 0xBF80_0000, 0x7F7F_FFFF, INFINITY,
              INFINITY + 1, int(floating.CANONICAL_NAN), 0xFFFF_FFFF)
_HANDSHAKES = ("gradients_valid", "gradients_ready", "errors_valid", "errors_ready", "kept_valid", "dropped_valid")


@functools.cache
def _unit(lanes):
    return Unit(MagnitudeMask(lanes=lanes))


@dataclasses.dataclass
class _Beats:
    """Payloads of one stream."""

    elements: np.ndarray
    keep: np.ndarray
    last: np.ndarray

    def __len__(self):
        return len(self.last)

    @property
    def rows(self):
        return masks.data_rows(self.elements, self.keep, self.last, 32)


def _numbers(generator, shape):
    """Draw pairs of numbers, many of which nearly cancel, and some of which are NaN or infinite."""
    a, b = operands.near_exponents(FP32, generator, int(np.prod(shape)))
    b[1::4] = a[1::4] ^ 0x8000_0000
    special = operands.corners(FP32)
    for values in (a, b):
        values[::7] = special[generator.integers(len(special), size=len(values[::7]))]
    return a.reshape(shape), b.reshape(shape)


def _beats(generator, count, lanes, more=0):
    """Draw gradients and at least as many errors, with independent framing."""
    a, b = _numbers(generator, (count + more, lanes))
    keep = generator.random((2, count + more, lanes)) < 0.7
    last = generator.random((2, count + more)) < 0.2
    return _Beats(a[:count], keep[0, :count], last[0, :count]), _Beats(b, keep[1], last[1])


def _expected(gradients, errors, threshold):
    """Both results of all pairs, and the number of dropped elements in each; the threshold may differ per pair."""
    threshold = np.broadcast_to(np.asarray(threshold, np.uint32), len(gradients))
    a, b = gradients.elements, errors.elements[:len(gradients)]
    kept, dropped = np.zeros((2, *a.shape), np.uint32)
    for value in np.unique(threshold):
        pairs = threshold == value
        kept[pairs], dropped[pairs] = model.sparsify(a[pairs], b[pairs], value)
    small = (floating.add(a, b) & 0x7FFF_FFFF) < (threshold & 0x7FFF_FFFF)[:, None]
    return (dataclasses.replace(gradients, elements=kept).rows, dataclasses.replace(gradients, elements=dropped).rows,
            (small & gradients.keep).sum(axis=1))


def _run(lanes, gradients, errors, threshold, *, cycles=None, reset=True, willing=None, errors_willing=None,
         ready=True, dropped_ready=True):
    unit = _unit(lanes)
    if reset:
        unit.reset()
    return unit.lockstep(
        sources={"gradients": Feed(gradients.rows, willing), "errors": Feed(errors.rows, errors_willing)},
        sinks={"kept": ready, "dropped": dropped_ready}, cycles=cycles, inputs={"threshold": threshold})


# --- construction


@pytest.mark.parametrize("lanes", [0, 3, 32, 4.0, "4", None])
def test_lanes(lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4, 8 or 16, not {lanes!r}$"):
        MagnitudeMask(lanes=lanes)


def test_ports():
    component = MagnitudeMask(lanes=8)
    assert component.lanes == 8
    for port in (component.gradients, component.errors, component.kept, component.dropped):
        assert port.payload.shape() == beat_layout(8)
    assert (MagnitudeMask.latency, MagnitudeMask.threshold_latency, MagnitudeMask.depth) == (10, 7, 17)


# --- values, latency and throughput


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("lanes", masks.LANES)
def test_corners(lanes, threshold):
    """Corner cases and random pairs pass at one beat in every cycle, with a partial keep in the last beat."""
    generator = np.random.default_rng(lanes)
    special = operands.corners(FP32)
    some = generator.choice(special, 128, replace=False)
    a, b = (np.concatenate(parts) for parts in zip(operands.pairs(some), _numbers(generator, 4096), strict=True))
    count = len(a) // lanes
    keep, last = np.ones((count, lanes), bool), np.zeros(count, bool)
    keep[-1, 1:], last[-1] = False, True
    gradients, errors = (_Beats(values.reshape(count, lanes), keep, last) for values in (a, b))
    trace = _run(lanes, gradients, errors, threshold, cycles=count + 20)
    kept, dropped, replaced = _expected(gradients, errors, threshold)
    for name, want in (("kept", kept), ("dropped", dropped)):
        when, got = moved(trace, name)
        np.testing.assert_array_equal(got, want, name)
        assert when.tolist() == list(range(MagnitudeMask.latency, MagnitudeMask.latency + count))
    assert trace["replaced"][MagnitudeMask.latency - 1:][:count].tolist() == replaced.tolist()
    assert trace["replaced"].sum() == replaced.sum()


@pytest.mark.parametrize(("gradient", "error", "threshold", "kept", "dropped"), [
    (0x3F80_0000, 0x3F80_0000, 0x4000_0000, 0x4000_0000, 0),
    (0xBF80_0000, 0xBF80_0000, 0x4000_0000, 0xC000_0000, 0),
    (0x3F80_0000, 0x3F80_0000, 0x4000_0001, 0, 0x4000_0000),
    (0xBF80_0000, 0xBF80_0000, 0xC000_0001, 0, 0xC000_0000),
    (0x3F80_0000, 0xBF80_0000, 0, 0, 0),
    (0x8000_0000, 0x8000_0000, 0, 0x8000_0000, 0),
    (0x8000_0000, 0x8000_0000, 1, 0, 0x8000_0000),
    (0x8000_0001, 0, 1, 0x8000_0001, 0),
    (0x8000_0001, 0, 2, 0, 0x8000_0001),
    (0x7F7F_FFFF, 0x7F7F_FFFF, INFINITY, INFINITY, 0),
    (0x7F7F_FFFF, 0, INFINITY, 0, 0x7F7F_FFFF),
    (0xFF80_0000, 0, INFINITY, 0xFF80_0000, 0),
    (0xFF80_0000, INFINITY, INFINITY, 0x7FC0_0000, 0),
    (0xFFFF_FFFF, 0x3F80_0000, 0x7FC0_0000, 0x7FC0_0000, 0),
    (0x7F80_0001, 0x3F80_0000, 0x7FC0_0001, 0, 0x7FC0_0000),
])
def test_by_hand(gradient, error, threshold, kept, dropped):
    one = np.ones((1, 1), bool)
    gradients, errors = (_Beats(np.array([[value]], np.uint32), one, one[0]) for value in (gradient, error))
    trace = _run(1, gradients, errors, threshold, cycles=20)
    frame = 3 << 32
    assert moved(trace, "kept")[1].tolist() == [kept | frame]
    assert moved(trace, "dropped")[1].tolist() == [dropped | frame]
    assert np.flatnonzero(trace["replaced"]).tolist() == ([9] if threshold and not kept else [])


@pytest.mark.parametrize("lanes", masks.LANES)
def test_two_steps(lanes):
    """Dropped elements are in the sum of the next step, so that exactly representable sums lose nothing."""
    generator = np.random.default_rng(lanes)
    count = 200
    keep, last = np.ones((count, lanes), bool), np.zeros(count, bool)
    last[-1] = True
    errors = _Beats(np.zeros((count, lanes), np.uint32), keep, last)
    given = np.zeros((count, lanes))
    sent = np.zeros((count, lanes))
    for _ in range(5):
        values = generator.integers(-50, 51, (count, lanes)).astype(np.float32)
        given += values
        trace = _run(lanes, _Beats(values.view(np.uint32), keep, last), errors, 0x4248_0000, cycles=count + 20)  # 50
        rows = [_elements(moved(trace, name)[1], lanes) for name in ("kept", "dropped")]
        assert ((rows[0] == 0) | (np.abs(rows[0].view(np.float32)) >= 50)).all()
        sent += rows[0].view(np.float32)
        errors = dataclasses.replace(errors, elements=rows[1])
    assert 0 < np.count_nonzero(sent) < sent.size
    np.testing.assert_array_equal(sent + errors.elements.view(np.float32), given)


def _elements(rows, lanes):
    return np.ascontiguousarray(rows).view("<u4").reshape(len(rows), -1)[:, :lanes].astype(np.uint32)


# --- every cycle


def _lockstep(lanes, gradients, errors, thresholds, patterns, seed):
    trace = _run(lanes, gradients, errors, thresholds, **patterns)
    expected = model.trace_magnitude(len(gradients), len(errors), latency=MagnitudeMask.latency,
                                     depth=MagnitudeMask.depth, **patterns)
    for name in _HANDSHAKES:
        np.testing.assert_array_equal(trace[name.replace("_", "__")], getattr(expected, name), f"{name}, {seed=}")
    taken, compared = expected.taken, expected.taken + MagnitudeMask.threshold_latency
    used = np.append(thresholds, np.zeros(MagnitudeMask.latency, np.uint32))[compared]
    pairs = (dataclasses.replace(beats, elements=beats.elements[:len(taken)], keep=beats.keep[:len(taken)],
                                 last=beats.last[:len(taken)]) for beats in (gradients, errors))
    kept, dropped, replaced = _expected(*pairs, used)
    for name, rows in (("kept", kept), ("dropped", dropped)):
        valid, offered = getattr(expected, f"{name}_valid"), getattr(expected, f"{name}_offered")
        np.testing.assert_array_equal(trace[f"{name}__payload"][valid], rows[offered[valid]], f"{name}, {seed=}")
    pulses = np.zeros(len(thresholds) + MagnitudeMask.latency, np.int64)
    pulses[taken + MagnitudeMask.latency - 1] = replaced
    np.testing.assert_array_equal(trace["replaced"], pulses[:len(thresholds)], f"replaced, {seed=}")
    return expected


def _patterns(count, seed, *kinds):
    names = ("willing", "errors_willing", "ready", "dropped_ready")
    return {name: stall_array(kind, count, seed=seed + place, rate=0.7)
            for place, (name, kind) in enumerate(zip(names, kinds, strict=True))}


def _thresholds(generator, count):
    """Thresholds that change in every cycle."""
    return generator.choice(np.array(THRESHOLDS, np.uint32), count)


#: Assignments of four stall patterns in which any two streams meet each pair: lines over the field of four elements,
#: whose addition is the exclusive or, with (0, 2, 3, 1) the products with one element. Lane counts differ in lines.
_DOUBLED = (0, 2, 3, 1)
_PATTERNS = [(lanes, (a, b, a ^ _DOUBLED[b] ^ shift % 4, a ^ b ^ _DOUBLED[b] ^ (shift + shift // 4) % 4))
             for shift, lanes in enumerate(masks.LANES) for a in range(4) for b in range(4)]


def test_patterns_cover_all_pairs():
    for lanes in masks.LANES:
        lines = np.array([line for number, line in _PATTERNS if number == lanes])
        for one in range(4):
            for other in range(one):
                assert len(set(zip(lines[:, one].tolist(), lines[:, other].tolist(), strict=True))) == 16
    assert len(set(_PATTERNS)) == 16 * len(masks.LANES)


@pytest.mark.parametrize(("lanes", "pattern"), _PATTERNS)
def test_lockstep(lanes, pattern):
    seed = sum(kind * 4 ** place for place, kind in enumerate(pattern))
    gradients, errors, kept, dropped = (STALLS[kind] for kind in pattern)
    generator = np.random.default_rng(seed)
    count = 1_200
    beats = _beats(generator, count if seed % 2 else 300, lanes, more=seed % 3)
    expected = _lockstep(lanes, *beats, _thresholds(generator, count),
                         _patterns(count, seed, gradients, errors, kept, dropped), seed)
    assert len(expected.taken) > 30


@pytest.mark.parametrize("stalled", ["kept", "dropped"])
def test_one_output_stalls(stalled):
    """An output goes on for as many beats as a queue holds, and no more, while the other one stalls."""
    gradients, errors = _beats(np.random.default_rng(1), 100, 4)
    never = np.zeros(200, bool)
    free, sinks = ("dropped", {"ready": never}) if stalled == "kept" else ("kept", {"dropped_ready": never})
    trace = _run(4, gradients, errors, 0x3F80_0000, cycles=200, **sinks)
    assert len(moved(trace, "gradients")[0]) == len(moved(trace, "errors")[0]) == MagnitudeMask.depth
    assert len(moved(trace, free)[0]) == MagnitudeMask.depth
    assert trace[f"{stalled}__valid"].any()
    assert not len(moved(trace, stalled)[0])
    trace = _run(4, gradients, errors, 0x3F80_0000, cycles=30, reset=False)
    assert len(moved(trace, stalled)[0]) == 30


# --- packets of different lengths, and reset


@pytest.mark.parametrize("difference", [-3, -1, 1, 3])
def test_packets_differ(difference):
    """Beats are paired regardless of packets, and the results have the packets of the gradients."""
    generator = np.random.default_rng(1)
    gradients, errors = _beats(generator, 40, 4)
    for beats, first in ((gradients, 20), (errors, 20 + difference)):
        beats.last[:] = False
        beats.last[[first - 1, 39]] = True
    trace = _run(4, gradients, errors, 0x3F80_0000, cycles=60)
    kept, dropped, _ = _expected(gradients, errors, 0x3F80_0000)
    np.testing.assert_array_equal(moved(trace, "kept")[1], kept)
    np.testing.assert_array_equal(moved(trace, "dropped")[1], dropped)


@pytest.mark.parametrize("given", [1, 2, 5, 8, 9, 10, 11, 12, 20, 40])
@pytest.mark.parametrize("lanes", masks.LANES)
def test_reset_in_a_packet(lanes, given):
    """A reset discards the pairs in the arithmetic and in the queues, whether outputs stall or not."""
    for ready in (True, np.arange(given) < given // 2):
        _run(lanes, *_beats(np.random.default_rng(given), 100, lanes), 0x3F80_0000, cycles=given, ready=ready)
        gradients, errors = _beats(np.random.default_rng(given + 1), 50, lanes)
        trace = _run(lanes, gradients, errors, 0x3F80_0000, cycles=70)
        kept, dropped, replaced = _expected(gradients, errors, 0x3F80_0000)
        np.testing.assert_array_equal(moved(trace, "kept")[1], kept)
        np.testing.assert_array_equal(moved(trace, "dropped")[1], dropped)
        assert trace["replaced"].sum() == replaced.sum()


# --- the same under cocotb, after a reset in the middle of a packet


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def sparsifies(dut):
    parameters = regression.parameters()
    beat = beat_layout(parameters["lanes"])
    await start(dut)
    dut.threshold.value = parameters["threshold"]
    dut.gradients__valid.value = dut.errors__valid.value = 1
    await cycles(dut, 14)
    dut.rst.value = 1
    dut.gradients__valid.value = dut.errors__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    kind = parameters["stalls"]
    names = ("gradients", "errors", "kept", "dropped")
    monitors = {name: Monitor(dut, name, beat) for name in names}
    for seed, name in enumerate(names[:2]):
        source = Source(dut, name, beat, stalls=stalls(kind, seed=seed))
        cocotb.start_soon(source.send(parameters[name]))
    sinks = [Sink(dut, name, beat, stalls=stalls(kind, seed=seed)) for seed, name in enumerate(names[2:], 2)]
    count = len(parameters["gradients"])
    results = [cocotb.start_soon(sink.receive(count)) for sink in sinks]
    for name, result in zip(names[2:], results, strict=True):
        assert await result == parameters[name]
    assert [len(monitors[name].beats) for name in names] == [count] * 4


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb(kind):
    lanes = 2
    gradients, errors = _beats(np.random.default_rng(1), 60, lanes)
    threshold = 0x3F80_0000
    kept, dropped = model.sparsify(gradients.elements, errors.elements, threshold)

    def fields(beats, elements):
        return [{"elements": row, "keep": keep, "last": int(last)} for row, keep, last in zip(
            elements.tolist(), masks.number(beats.keep).tolist(), beats.last, strict=True)]

    regression.run(MagnitudeMask(lanes=lanes), module=__name__, parameters={
        "lanes": lanes, "stalls": kind, "threshold": threshold, "gradients": fields(gradients, gradients.elements),
        "errors": fields(errors, errors.elements), "kept": fields(gradients, kept),
        "dropped": fields(gradients, dropped)})
