"""Operands and scalars for tests of both kinds of update lanes."""

import numpy as np
import pytest

from hdl.optimizer.rules import Rule as HardwareRule
from sim.golden.optimizer import Rule, Settings

CORNERS = np.array([0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800001,
                    0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001], np.uint32)

SETS = {
    "sgd": (HardwareRule.SGD,),
    "momentum": (HardwareRule.SGD, HardwareRule.MOMENTUM),
    "all": tuple(HardwareRule),
    "adamw": (HardwareRule.ADAMW,),
}

SCALARS = ("gradient_scale", "learning_rate", "clip", "weight_factor", "first_decay", "first_gain", "second_decay",
           "second_gain", "epsilon")
USUAL = dict(zip(SCALARS, (0.25, 1e-3, 1.5, 0.01, 0.9, 0.1, 0.999, 0.001, 1e-8), strict=True))


def draw(generator, kind, count):
    """Draw encodings of a kind: ``corners``, arbitrary ``bits`` or ``ordinary`` numbers."""
    if kind == "corners":
        return generator.choice(CORNERS, count)
    if kind == "bits":
        return generator.integers(1 << 32, size=count, dtype=np.uint32)
    ordinary = generator.standard_normal(count) * 2.0 ** generator.integers(-4, 4, count)
    return ordinary.astype(np.float32).view(np.uint32)


def settings_of(rule, wild):
    """Yield a rule's settings: usual scalars, scalars that disable a term, and arbitrary ones."""
    wild = {scalar: bits.view(np.float32) for scalar, bits in zip(SCALARS, wild, strict=True)}
    wild["clip"] = abs(wild["clip"])
    for scalars in (USUAL, {**USUAL, "weight_factor": 0.0, "clip": np.inf, "first_gain": 1.0},
                    {**USUAL, "weight_factor": -0.0, "epsilon": 0.0, "first_decay": 0.0}, wild):
        for nesterov in (False, True) if rule == Rule.MOMENTUM else (rule == Rule.ADAM,):
            patterns = {scalar: int(np.float32(value).view(np.uint32)) for scalar, value in scalars.items()}
            yield Settings(rule, nesterov=nesterov, **patterns)


def state_of(generator, kind, count, planes):
    """Draw a lane's state; in ordinary state, no mean square is negative."""
    state = [draw(generator, kind, count) for _ in range(planes)]
    if kind == "ordinary" and planes == 2:
        state[1] &= np.uint32(0x7FFF_FFFF)
    return state


def compare(outputs, expected, lead, count, interval=1):
    """Compare outputs with the expected values, in the expected cycles after the operands."""
    for output, (cycle, want) in expected.items():
        got = outputs[output][lead + cycle:][:count * interval:interval]
        wrong = np.flatnonzero(got != want)
        assert wrong.size == 0, f"{output}, element {wrong[0]}: {got[wrong[0]]:08x}, not {want[wrong[0]]:08x}"


def values(check, cases, count):
    """Test the results with usual scalars, with scalars that disable a term, and with arbitrary scalars."""
    @pytest.mark.parametrize("kind", ["corners", "bits", "ordinary"])
    @pytest.mark.parametrize(("name", "rule"), cases)
    def test(name, rule, kind):
        seed = [int(rule), len(name), len(kind)]
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        wild = [draw(generator, "bits", count)[0] for _ in SCALARS]
        for settings in settings_of(rule, wild):
            check(name, settings, generator, kind)

    return test
