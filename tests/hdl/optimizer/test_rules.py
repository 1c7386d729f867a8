# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest

from hdl.optimizer.rules import RULES, UpdateLane, settings_layout
from hdl.optimizer.rules import Rule as HardwareRule
from sim.golden.optimizer import Rule, Settings, update
from sim.payload import pack
from sim.verilated.vectors import Unit

CORNERS = np.array([0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800001,
                    0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001], np.uint32)
COUNT = 60_000


@functools.cache
def lane():
    component = UpdateLane()
    return component, Unit(component)


def test_parameters():
    with pytest.raises(ValueError, match="DSP block count must be 4, 2 or 1, not 3"):
        UpdateLane(dsps=3)


def test_rules_agree_with_the_model():
    assert {rule.name: rule.value for rule in HardwareRule} == {rule.name: rule.value for rule in Rule}
    for rule, traits in RULES.items():
        assert traits.planes == Settings(Rule(rule.value), 0, 0, 0).planes


def draw(generator, kind):
    if kind == "corners":
        return generator.choice(CORNERS, COUNT)
    if kind == "bits":
        return generator.integers(1 << 32, size=COUNT, dtype=np.uint32)
    ordinary = generator.standard_normal(COUNT) * 2.0 ** generator.integers(-4, 4, COUNT)
    return ordinary.astype(np.float32).view(np.uint32)


@pytest.mark.parametrize("kind", ["corners", "bits", "ordinary"])
@pytest.mark.parametrize("rule", Rule)
def test_values(rule, kind):
    """Every operand at its own time, and new ones in every cycle, scalars included."""
    component, unit = lane()
    generator = np.random.default_rng([int(rule), len(kind)])
    total, state, weight, scale, rate, momentum = (draw(generator, kind) for _ in range(6))
    settle = component.latency

    def at(values, cycle):
        """The values, the first of them in the given cycle."""
        return np.concatenate([np.zeros(cycle, np.uint32), values, np.zeros(settle - cycle, np.uint32)])

    # Scalars are held during a command. Here each follows its operand, to meet as many values as operands do.
    scalars = pack(settings_layout(), {
        "rule": np.full(COUNT + settle, int(rule)), "gradient_scale": at(scale, 0), "momentum": at(momentum, 0),
        "learning_rate": at(rate, component.state_latency)})
    outputs = unit.run({"settings": scalars, "total": at(total, 0), "state": at(state, 0),
                        "weight": at(weight, component.weight_offset)})
    new_weight, new_state = update(total, weight, [state], Settings(rule, scale, rate, momentum))
    assert (outputs["new_weight"][settle:] == new_weight).all()
    if rule == Rule.MOMENTUM:
        assert (outputs["new_state"][component.state_latency:][:COUNT] == new_state[0]).all()
