# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest

from hdl.optimizer.rules import RULES, UpdateLane, settings_layout
from hdl.optimizer.rules import Rule as HardwareRule
from sim.golden.optimizer import Rule, update
from sim.payload import pack
from sim.verilated.optimizer import floats
from sim.verilated.vectors import Unit
from tests.hdl.optimizer.updates import SETS, compare, draw, state_of, values
from tests.refusals import refused_values

COUNT = 60_000

CASES = [("sgd", Rule.SGD), ("momentum", Rule.SGD), ("momentum", Rule.MOMENTUM), *(("all", rule) for rule in Rule),
         ("adamw", Rule.ADAMW)]


@functools.cache
def lane(name):
    component = UpdateLane(rules=SETS[name])
    return component, Unit(component)


test_rules = refused_values(
    UpdateLane, {}, "rules", [(), [HardwareRule.SGD], (HardwareRule.SGD, HardwareRule.SGD), (0,), None],
    "Rules must be a tuple of different rules")
test_dsps = refused_values(UpdateLane, {}, "dsps", [3], "DSP block count must be 4, 2 or 1")


def test_rules_agree_with_the_model():
    assert {rule.name: rule.value for rule in HardwareRule} == {rule.name: rule.value for rule in Rule}
    for rule, traits in RULES.items():
        assert traits.planes == Rule(rule.value).planes


@pytest.mark.parametrize("name", SETS)
def test_latencies(name):
    component, _ = lane(name)
    model = floats(component)
    assert (component.planes, component.weight_offset, component.state_offsets, component.state_latencies) == (
        model.planes, model.weight, model.state, model.new_state)
    assert component.latency == model.latency


def check(name, settings, generator, kind):
    """Apply operands in every cycle, each with its own delay, and compare all results."""
    component, unit = lane(name)
    total, weight = (draw(generator, kind, COUNT) for _ in range(2))
    state = state_of(generator, kind, COUNT, component.planes)
    lead = 2  # settings arrive two cycles before the operands
    settle = component.latency + lead

    def at(values, cycle):
        """Pad ``values`` with zeros, so that the first value arrives in the given cycle."""
        return np.concatenate([np.zeros(cycle + lead, np.uint32), values, np.zeros(settle - cycle, np.uint32)])

    layout = settings_layout()
    scalars = pack(layout, {member: np.full(COUNT + settle + lead, int(getattr(settings, member)))
                            for member in layout.members})
    inputs = {"settings": scalars, "total": at(total, 0), "weight": at(weight, component.weight_offset)}
    for plane, offset in enumerate(component.state_offsets):
        inputs[f"state__{plane}"] = at(state[plane], offset)
    outputs = unit.run(inputs)
    new_weight, new_state = update(total, weight, state, settings)
    compare(outputs, {"new_weight": (component.latency, new_weight), **{
        f"new_state__{plane}": (component.state_latencies[plane], new_state[plane])
        for plane in range(settings.planes)}}, lead, COUNT)


test_values = values(check, CASES, COUNT)
