# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.floating.format import FP32
from hdl.masking.magnitude import MagnitudeMask
from sim.golden import floating
from sim.golden import masking as model
from sim.streams import STALLS
from sim.verilated.vectors import Feed
from tests.hdl.floating import operands
from tests.hdl.masking import cycles as masking_cycles
from tests.hdl.masking import masks
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused_values
from tests.traces import moved

INFINITY = 0x7F80_0000
#: Thresholds from zero to the largest NaN. The sign bit of a threshold has no effect.
THRESHOLDS = (0, 1, 0x007F_FFFF, 0x0080_0000, 0x3DCC_CCCD, 0x3F80_0000, 0xBF80_0000, 0x7F7F_FFFF, INFINITY,
              INFINITY + 1, int(floating.CANONICAL_NAN), 0xFFFF_FFFF)


@dataclasses.dataclass
class _Beats:
    """Payloads of one input stream, as arrays."""

    elements: np.ndarray
    keep: np.ndarray
    last: np.ndarray

    def __len__(self):
        return len(self.last)

    @property
    def rows(self):
        return masks.data_rows(self.elements, self.keep, self.last, 32)


def _numbers(generator, shape):
    """Draw pairs of numbers that often nearly cancel, with some NaNs and infinities."""
    a, b = operands.near_exponents(FP32, generator, int(np.prod(shape)))
    b[1::4] = a[1::4] ^ 0x8000_0000
    special = operands.corners(FP32)
    for values in (a, b):
        values[::7] = special[generator.integers(len(special), size=len(values[::7]))]
    return a.reshape(shape), b.reshape(shape)


def _beats(generator, count, lanes, more=0):
    """Draw beats of gradients, and of errors with ``more`` extra beats. Packets of the two streams end
    independently."""
    a, b = _numbers(generator, (count + more, lanes))
    keep = generator.random((2, count + more, lanes)) < 0.7
    last = generator.random((2, count + more)) < 0.2
    return _Beats(a[:count], keep[0, :count], last[0, :count]), _Beats(b, keep[1], last[1])


def _expected(gradients, errors, threshold):
    """Sent and deferred elements of all pairs, and the numbers of deferred elements. Thresholds may differ between
    pairs."""
    threshold = np.broadcast_to(np.asarray(threshold, np.uint32), len(gradients))
    a, b = gradients.elements, errors.elements[:len(gradients)]
    kept, dropped = np.zeros((2, *a.shape), np.uint32)
    for value in np.unique(threshold):
        pairs = threshold == value
        kept[pairs], dropped[pairs] = model.sparsify(a[pairs], b[pairs], value)
    small = (floating.add(a, b) & 0x7FFF_FFFF) < (threshold & 0x7FFF_FFFF)[:, None]
    return (dataclasses.replace(gradients, elements=kept).rows, dataclasses.replace(gradients, elements=dropped).rows,
            (small & gradients.keep).sum(axis=1))


# --- construction


test_lanes = refused_values(MagnitudeMask, {}, "lanes", [0, 3, 32, 4.0, "4", None],
                            "Lane count must be 1, 2, 4, 8 or 16")


# --- values, latency and throughput


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("lanes", masks.LANES)
def test_corners(lanes, threshold):
    """Corner cases and random pairs pass at one beat per cycle, even if the last beat is partial."""
    generator = np.random.default_rng(lanes)
    special = operands.corners(FP32)
    some = generator.choice(special, 128, replace=False)
    a, b = (np.concatenate(parts) for parts in zip(operands.pairs(some), _numbers(generator, 4096), strict=True))
    count = len(a) // lanes
    keep, last = np.ones((count, lanes), bool), np.zeros(count, bool)
    keep[-1, 1:], last[-1] = False, True
    gradients, errors = (_Beats(values.reshape(count, lanes), keep, last) for values in (a, b))
    unit = BENCH.unit(lanes)
    unit.reset()
    trace = unit.lockstep(sources={"gradients": Feed(gradients.rows), "errors": Feed(errors.rows)},
                          sinks={"kept": True, "dropped": True}, cycles=count + 20, inputs={"threshold": threshold})
    kept, dropped, replaced = _expected(gradients, errors, threshold)
    for name, want in (("kept", kept), ("dropped", dropped)):
        when, got = moved(trace, name)
        np.testing.assert_array_equal(got, want, name)
        assert when.tolist() == list(range(MagnitudeMask.latency, MagnitudeMask.latency + count))
    assert trace["replaced"][MagnitudeMask.latency - 1:][:count].tolist() == replaced.tolist()
    assert trace["replaced"].sum() == replaced.sum()


# --- every cycle


#: Number of cycles of a run.
COUNT = 1_200


def _drive(generator, lanes, count=COUNT, more=0, held=False):
    """Draw beats, and a threshold that either is constant or changes in every cycle."""
    gradients, errors = _beats(generator, count, lanes, more=more)
    thresholds = 0x3F80_0000 if held else generator.choice(np.array(THRESHOLDS, np.uint32), COUNT)
    return Drive({"gradients": gradients.rows, "errors": errors.rows}, (gradients, errors, thresholds),
                 {"threshold": thresholds})


def _model(unit, drawn, willing, ready):
    """Expected outputs. Each pair is compared with the threshold that is in effect shortly after the pair is
    accepted."""
    gradients, errors, thresholds = drawn
    trace = masking_cycles.trace_magnitude(
        len(gradients), len(errors), latency=unit.latency, depth=unit.depth, willing=willing["gradients"],
        errors_willing=willing["errors"], ready=ready["kept"], dropped_ready=ready["dropped"])
    cycles, count = len(ready["kept"]), len(trace.taken)
    thresholds = np.append(np.broadcast_to(thresholds, cycles), np.zeros(unit.latency)).astype(np.uint32)
    pairs = (dataclasses.replace(beats, elements=beats.elements[:count], keep=beats.keep[:count],
                                 last=beats.last[:count]) for beats in (gradients, errors))
    kept, dropped, replaced = _expected(*pairs, thresholds[trace.taken + unit.threshold_latency])
    pulses = np.zeros(cycles + unit.latency, np.int64)
    pulses[trace.taken + unit.latency - 1] = replaced
    ports = {name.replace("_", "__"): getattr(trace, name) for name in (
        "gradients_valid", "gradients_ready", "errors_valid", "errors_ready")}
    return Want({**ports, "replaced": pulses[:cycles]}, {"kept": kept, "dropped": dropped},
                {"kept": trace.kept_offered, "dropped": trace.dropped_offered})


BENCH = UnitBench(lambda lanes: MagnitudeMask(lanes=lanes), _model, _drive, rate=0.7)
test_reset_in_a_packet = BENCH.resets([(lanes,) for lanes in masks.LANES], (1, 2, 5, 8, 9, 10, 11, 12, 20, 40),
                                      count=COUNT, drive=functools.partial(_drive, count=100))
test_cocotb = BENCH.cocotb([(2,)], cut=14, drive=functools.partial(_drive, count=60, held=True))

#: Stall patterns for four streams, such that any two streams get every pair of patterns: affine functions of a and b
#: over GF(4), where _DOUBLED multiplies by 2, with constants that depend on the lane count.
_DOUBLED = (0, 2, 3, 1)
_PATTERNS = [(lanes, (a, b, a ^ _DOUBLED[b] ^ shift % 4, a ^ b ^ _DOUBLED[b] ^ (shift + shift // 4) % 4))
             for shift, lanes in enumerate(masks.LANES) for a in range(4) for b in range(4)]


def test_patterns_cover_all_pairs():
    for lanes in masks.LANES:
        lines = np.array([line for number, line in _PATTERNS if number == lanes])
        for first in range(4):
            for other in range(first):
                assert len(set(zip(lines[:, first].tolist(), lines[:, other].tolist(), strict=True))) == 16
    assert len(set(_PATTERNS)) == 16 * len(masks.LANES)


@pytest.mark.parametrize(("lanes", "pattern"), _PATTERNS)
def test_lockstep(lanes, pattern):
    seed = sum(kind * 4 ** digit for digit, kind in enumerate(pattern))
    kinds = dict(zip(("gradients", "errors", "kept", "dropped"), (STALLS[kind] for kind in pattern), strict=True))
    drive = _drive(np.random.default_rng(seed), lanes, COUNT if seed % 2 else 300, more=seed % 3)
    run = BENCH.check((lanes,), seed=seed, kinds=kinds, count=COUNT, drive=drive)
    assert len(run.moves("gradients")) > 30
