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
from tests.hdl.optimizer.updates import SCALARS, SETS, draw, settings_of
from tests.refusals import refuses

COUNT = 60_000

CASES = [("sgd", Rule.SGD), ("momentum", Rule.SGD), ("momentum", Rule.MOMENTUM), *(("all", rule) for rule in Rule),
         ("adamw", Rule.ADAMW)]


@functools.cache
def lane(name):
    component = UpdateLane(rules=SETS[name])
    return component, Unit(component)


@pytest.mark.parametrize("rules", [(), [HardwareRule.SGD], (HardwareRule.SGD, HardwareRule.SGD), (0,), None])
def test_rules(rules):
    refuses(f"Rules must be a tuple of different rules, not {rules!r}", UpdateLane, rules=rules)


def test_dsps():
    refuses("DSP block count must be 4, 2 or 1, not 3", UpdateLane, dsps=3)


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
    """Apply operands in every cycle, each at its own time, and compare all results."""
    component, unit = lane(name)
    total, weight, *state = (draw(generator, kind, COUNT) for _ in range(2 + component.planes))
    if kind == "ordinary" and component.planes == 2:
        state[1] &= np.uint32(0x7FFF_FFFF)  # a mean of squares is not negative
    lead = 2  # the settings are there before the operands
    settle = component.latency + lead

    def at(values, cycle):
        """Delay the values so that the first is in the given cycle."""
        return np.concatenate([np.zeros(cycle + lead, np.uint32), values, np.zeros(settle - cycle, np.uint32)])

    layout = settings_layout()
    scalars = pack(layout, {member: np.full(COUNT + settle + lead, int(getattr(settings, member)))
                            for member in layout.members})
    inputs = {"settings": scalars, "total": at(total, 0), "weight": at(weight, component.weight_offset)}
    for plane, offset in enumerate(component.state_offsets):
        inputs[f"state__{plane}"] = at(state[plane], offset)
    outputs = unit.run(inputs)
    new_weight, new_state = update(total, weight, state, settings)
    for plane in range(settings.planes):
        begin = lead + component.state_latencies[plane]
        got = outputs[f"new_state__{plane}"][begin:begin + COUNT]
        wrong = np.flatnonzero(got != new_state[plane])
        assert wrong.size == 0, f"plane {plane}, element {wrong[0]}: {got[wrong[0]]:08x}"
    got = outputs["new_weight"][lead + component.latency:][:COUNT]
    wrong = np.flatnonzero(got != new_weight)
    assert wrong.size == 0, f"element {wrong[0]}: {got[wrong[0]]:08x}, not {new_weight[wrong[0]]:08x}"


@pytest.mark.parametrize("kind", ["corners", "bits", "ordinary"])
@pytest.mark.parametrize(("name", "rule"), CASES)
def test_values(name, rule, kind):
    """Results are right with the usual scalars, with those that turn a part off, and with arbitrary ones."""
    seed = [int(rule), len(name), len(kind)]
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    wild = [draw(generator, "bits", COUNT)[0] for _ in SCALARS]
    for settings in settings_of(rule, wild):
        check(name, settings, generator, kind)
