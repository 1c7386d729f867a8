"""The compiled optimizer is bit-identical to the golden model, for every rule, option, scalar and number."""

import concurrent.futures
import dataclasses
import itertools

import numpy as np
import pytest

from sim.arithmetic import library, optimizer
from sim.golden import moments, ring
from sim.golden import optimizer as golden
from sim.golden.optimizer import Rule, Settings
from sim.verilated.toolchain import ToolError
from tests.sim.arithmetic.samples import SPECIAL, scaled
from tests.words import bits_of, random_words, words

INFINITY = 0x7F80_0000

#: Names of the scalar settings of an optimizer.
SCALARS = tuple(field.name for field in dataclasses.fields(Settings) if field.name not in ("rule", "nesterov"))

#: Every rule, with and without Nesterov momentum, and with packed and unpacked state.
KINDS = [(rule, nesterov, packed) for rule, nesterov, packed in itertools.product(Rule, (False, True), (False, True))
         if nesterov <= (rule == Rule.MOMENTUM) and packed <= (rule != Rule.SGD)]
every_kind = pytest.mark.parametrize(("rule", "nesterov", "packed"), KINDS)


def usual(rule, nesterov=False, **changed):
    """Return settings that are usual in training, with the scalars in ``changed`` replaced."""
    scalars = {"gradient_scale": 0.25, "learning_rate": 0.01, "clip": np.inf, "weight_factor": 0.99,
               "first_decay": 0.9, "first_gain": 0.1, "second_decay": 0.999, "second_gain": 0.001, "epsilon": 1e-8}
    return ring.settings(rule, nesterov=nesterov, **(scalars | changed))


def stored(plane, packed):
    """Return a plane of state as it is stored in memory, where it may be packed."""
    return moments.pack(plane) if packed else plane.copy()


def same(gradient, weights, state, settings, packed):
    """Return whether compiled weights and state equal the golden ones, and no other array has changed."""
    count, used = len(gradient), settings.planes
    kept, result, planes = gradient.copy(), weights.copy(), [stored(plane, packed) for plane in state]
    before = [moments.unpack(plane, count) for plane in planes] if packed else state
    expected, new_state = golden.update(gradient, weights, before, settings)
    wanted = [stored(plane, packed) for plane in new_state[:used]] + [plane.copy() for plane in planes[used:]]
    optimizer.update(gradient, result, planes, settings, packed=packed)
    return all(a.tobytes() == b.tobytes() for a, b in zip(
        [gradient, result, *planes], [kept, expected, *wanted], strict=True))


def special():
    """All pairs of a special gradient and a special weight, with special state in random order."""
    gradient, weights = (np.ascontiguousarray(x.reshape(-1)) for x in np.meshgrid(SPECIAL, SPECIAL))
    generator = np.random.default_rng(3)
    return gradient, weights, [generator.permutation(weights) for _ in range(2)]


def mixed(count, seed=1):
    """Random gradients, weights and moments of widely varying magnitude, with second moments that are not
    negative."""
    gradient, weights, first, second = (scaled(count, 4 * seed + index, -60, 40) for index in range(4))
    return gradient, weights, [first, second & np.uint32(0x7FFF_FFFF)]


def near(count, seed=1):
    """Random gradients, weights and moments of the magnitudes that are usual in training."""
    generator = np.random.default_rng(seed)
    gradient, weights, first = (bits_of(generator.standard_normal(count) * scale) for scale in (1e-3, 1, 1e-3))
    return gradient, weights, [first, bits_of(generator.random(count) * 1e-6)]


def anything(count, seed=1):
    """Gradients, weights and moments that are random bits."""
    gradient, weights, *state = random_words(4 * count, seed).reshape(4, count)
    return gradient, weights, state


@every_kind
@pytest.mark.parametrize("weight_factor", [0.0, -0.0, 0.99, -1e-40])
@pytest.mark.parametrize("clip", [np.inf, 1e-3, 0.0, -2.0, 1e-40, np.nan])
def test_numbers(rule, nesterov, packed, weight_factor, clip):
    """Every option gives the golden bits for special numbers, various magnitudes, usual numbers, and random bits."""
    settings = usual(rule, nesterov, weight_factor=weight_factor, clip=clip)
    for arrays in (special(), mixed(1000), near(1000), anything(1000)):
        assert same(*arrays, settings, packed)


@every_kind
def test_settings(rule, nesterov, packed):
    """Results match the golden model even if scalar settings are random bits, of random magnitude, or special
    numbers."""
    generator = np.random.default_rng(rule + 10)
    for trial in range(60):
        bits = (random_words(9, trial), scaled(9, trial, -20, 20), generator.choice(SPECIAL, 9))[trial % 3]
        settings = Settings(rule, nesterov=nesterov, **dict(zip(SCALARS, map(int, bits), strict=True)))
        arrays = (mixed, near, anything)[trial // 3 % 3](300, trial)
        assert same(*arrays, settings, packed), settings


@every_kind
def test_lengths(rule, nesterov, packed):
    """Vectors may have any length from 0 to 70, and may start at any element of an array."""
    gradient, weights, state = mixed(75)
    settings = usual(rule, nesterov)
    for count in range(71):
        part = slice(count % 5, count % 5 + count)
        assert same(gradient[part], weights[part], [plane[part] for plane in state], settings, packed), count


@pytest.mark.parametrize("rule", [Rule.MOMENTUM, Rule.ADAM, Rule.ADAMW])
def test_every_packed_moment(rule):
    """Packed state may have any 16-bit pattern in each plane."""
    patterns = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    gradient, weights, state = near(1 << 16)
    for plane in range(rule.planes):
        assert same(gradient, weights, [*state[:plane], patterns, *state[plane + 1:]], usual(rule), True)


def test_every_rounding():
    """New state is packed correctly at, just below and just above each tie between two bfloat16 numbers, and for
    NaNs."""
    bits = (np.arange(1 << 16, dtype=np.uint32)[:, np.newaxis] << np.uint32(16) | words(0, 1, 0x7FFF, 0x8000, 0x8001,
                                                                                      0xFFFF)).reshape(-1)
    settings = usual(Rule.MOMENTUM, gradient_scale=1, first_decay=0, first_gain=1, weight_factor=0)
    assert same(bits, bits[::-1].copy(), [np.zeros_like(bits)], settings, True)


def test_roots():
    """Square roots, and quotients with square roots, match the model for every 64th number with an even and an odd
    exponent."""
    square = np.arange(0x3F00_0000, 0x4000_0000, 64, dtype=np.uint32)
    first = square * np.uint32(0x9E37_79B9) & np.uint32(0x00FF_FFFF) | np.uint32(0x3F00_0000)
    settings = usual(Rule.ADAM, first_decay=1, first_gain=0, second_decay=1, second_gain=0, epsilon=0,
                     weight_factor=0, learning_rate=1)
    zeros = np.zeros_like(square)
    assert same(zeros, zeros, [first, square], settings, False)


def test_slices():
    """Several threads may update different slices of the same arrays."""
    gradient, weights, state = near(4096)
    settings, parts = usual(Rule.ADAM), [slice(start, start + 512) for start in range(0, 4096, 512)]
    expected, planes = golden.update(gradient, weights, state, settings)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: optimizer.update(gradient[part], weights[part], [plane[part] for plane in state],
                                                    settings), parts))
    for result, wanted in zip([weights, *state], [expected, *planes], strict=True):
        assert result.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("option", ["-march=native", "-DONE_VERSION"])
def test_all_instructions_of_the_processor(option, monkeypatch):
    """Results do not depend on whether code is compiled for all of the processor's instructions or only for the
    common baseline."""
    loaded = optimizer.load(flags=(*optimizer.FLAGS, option))
    assert optimizer._agrees(loaded)
    monkeypatch.setattr(optimizer, "kernel", lambda: loaded)
    for kind in KINDS:
        test_numbers(*kind, weight_factor=0.99, clip=1e-3)
        test_settings(*kind)
        test_lengths(*kind)
    test_every_rounding()
    test_roots()


@pytest.mark.parametrize(("before", "after"), [
    ("first_decay * State::load(first, i) + first_gain * g",
     "__builtin_fmaf(first_decay, State::load(first, i), first_gain * g)"),
    ("(second_gain * g) * g", "second_gain * (g * g)"),
    ("first_decay * step + g", "g + first_gain * step"),
    ("__builtin_sqrtf(square) + epsilon", "__builtin_sqrtf(square + epsilon)"),
    ("step / (__builtin_sqrtf(square) + epsilon)", "step * (1 / (__builtin_sqrtf(square) + epsilon))"),
    ("scalars[WEIGHT_FACTOR] & MAGNITUDE", "true"),
    ("magnitude <= INFINITE", "magnitude < INFINITE"),
    ("magnitude > most && magnitude <= INFINITE", "magnitude > most"),
    ("pattern(canonical(value))", "pattern(value)"),
    ("pattern(canonical((RULE == ADAMW ? decayed : weight) - rate * step))",
     "pattern((RULE == ADAMW ? decayed : weight) - rate * step)"),
    ("bits + 0x7fff", "bits + 0x8000"),
    ("NAN_BITS >> 16 : half", "0x7fc1 : half"),
], ids=["fused", "order", "look-ahead", "root", "reciprocal", "no decay", "infinity", "limited NaN",
        "state's payload", "payload", "ties", "packed NaN"])
def test_a_planted_fault_is_refused(before, after, monkeypatch):
    assert optimizer.TEXT.count(before) == 1
    load = optimizer.load
    monkeypatch.setattr(optimizer, "load", lambda: load(
        flags=("-O1", *optimizer.FLAGS[1:], "-DONE_VERSION"), text=optimizer.TEXT.replace(before, after)))
    with pytest.raises(ToolError, match=r"must make updates that round every operation to nearest even, and its "
                                        r"library does not; CXX must name a compiler without options such as "
                                        r"-ffast-math$"):
        optimizer.kernel.__wrapped__()


def test_fast_math_is_refused():
    with pytest.raises(ToolError):
        optimizer.load(flags=(*library.FLAGS, "-ffast-math"))


def test_refusals():
    settings, x = usual(Rule.ADAM), np.zeros((4, 64), np.uint32)
    fixed = np.zeros(64, np.uint32)
    fixed.flags.writeable = False
    for arguments, message in (
            ((x[0], x[1], [x[2]]), r"^State of rule ADAM must have 2 planes, not 1$"),
            ((x[0], x[1][:63], [x[2], x[3]]), r"^Weights must be of 64 numbers, not 63$"),
            ((x[0], x[1], [x[2], x[3][:32]]), r"^Plane 1 of the state must be of 64 numbers, not 32$"),
            ((x[0], fixed, [x[2], x[3]]), r"^Weights must be an array that can be written, not"),
            ((x[0], x[1].view(np.float32), [x[2], x[3]]), r"^Weights must be a contiguous array of uint32"),
            ((x[:, 0], x[1], [x[2], x[3]]), r"^Gradients must be a contiguous array of uint32"),
            ((x[0], x[1], [x[2], x[2]]), r"^Gradients, weights and planes of the state must not overlap$"),
            ((x[0], x[0], [x[2], x[3]]), r"^Gradients, weights and planes of the state must not overlap$")):
        with pytest.raises(ValueError, match=message):
            optimizer.update(*arguments, settings)
    with pytest.raises(ValueError, match=r"^Plane 0 of the state must be of 32 numbers, not 64$"):
        optimizer.update(x[0], x[1], [x[2], x[3]], settings, packed=True)
    for changed in ({"clip": np.full(64, INFINITY, np.uint32)}, {"nesterov": np.ones(64, np.bool_)}):
        with pytest.raises(ValueError, match=r"^Settings must be scalars, not arrays$"):
            optimizer.update(x[0], x[1], [x[2], x[3]], dataclasses.replace(settings, **changed))
    assert not x.any()
