# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest

from hdl.optimizer.rules import settings_layout
from hdl.optimizer.shared_lane import SharedLane
from sim.golden.optimizer import Rule, reduce, update
from sim.payload import pack
from sim.verilated.native import Arithmetic
from sim.verilated.vectors import Unit
from tests.hdl.optimizer.updates import SCALARS, SETS, compare, draw, settings_of, state_of, values
from tests.refusals import refused

COUNT = 6_000

#: For each tested lane: its interval, workers, DSP blocks and rules, and the number of its units of each kind.
LANES = {
    "sgd": (4, 1, 4, "sgd", {"multiply": 1, "limit": 1, "add": 1}),
    "momentum": (2, 3, 1, "momentum", {"multiply": 3, "limit": 1, "add": 3}),
    "all_2": (2, 2, 4, "all", {"multiply": 4, "limit": 1, "add": 3, "root": 1, "divide": 1}),
    "all_4": (4, 2, 2, "all", {"multiply": 2, "limit": 1, "add": 2, "root": 1, "divide": 1}),
    "all_8": (8, 8, 2, "all", {"multiply": 1, "limit": 1, "add": 2, "root": 1, "divide": 1}),
    "adamw": (8, 2, 2, "adamw", {"multiply": 1, "limit": 1, "add": 1, "root": 1, "divide": 1}),
}
CASES = [(name, Rule(rule.value)) for name, (*_, rules, _) in LANES.items() for rule in SETS[rules]]


@functools.cache
def lane(name, arithmetic=Arithmetic.GATEWARE):
    interval, workers, dsps, rules, _ = LANES[name]
    component = SharedLane(interval=interval, workers=workers, rules=SETS[rules], dsps=dsps)
    return component, Unit(component, arithmetic=arithmetic)


test_parameters = refused(SharedLane, {"interval": 4, "workers": 2, "rules": SETS["sgd"]}, [
    ({"interval": 1}, "Interval must be 2, 4 or 8, not 1"),
    ({"interval": 3}, "Interval must be 2, 4 or 8, not 3"),
    ({"workers": 0}, "Worker count must be between 1 and 8, not 0"),
    ({"workers": 9}, "Worker count must be between 1 and 8, not 9"),
    ({"rules": ()}, "Rules must be a tuple of different rules, not ()"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
])


@pytest.mark.parametrize("name", LANES)
def test_units(name):
    component, _ = lane(name)
    units = component.timetable.units
    units.pop("choose", None)
    assert units == LANES[name][-1]


def check(name, settings, generator, kind, arithmetic=Arithmetic.GATEWARE):
    """Apply each operand at its own time, with random bits in all other cycles, and compare all results."""
    component, unit = lane(name, arithmetic)
    interval, workers, *_ = LANES[name]
    gradients = [draw(generator, kind, COUNT) for _ in range(workers)]
    weight, state = draw(generator, kind, COUNT), state_of(generator, kind, COUNT, component.planes)
    lead = interval  # settings arrive one interval before the operands
    cycles = (COUNT + 2) * interval + -(-(component.reducer_latency + component.latency) // interval) * interval

    def at(values, cycle):
        noise = generator.integers(1 << 32, size=cycles, dtype=np.uint32)
        noise[lead + cycle:][:COUNT * interval:interval] = values
        return noise

    layout = settings_layout()
    inputs = {"settings": pack(layout, {member: np.full(cycles, int(getattr(settings, member)))
                                        for member in layout.members})}
    inputs["phase"] = (1 << np.arange(cycles) % interval).astype(np.uint8)
    summed = component.reducer_latency
    inputs |= {f"gradients__{worker}": at(values, 0) for worker, values in enumerate(gradients)}
    inputs["weight"] = at(weight, summed + component.weight_offset)
    for plane, offset in enumerate(component.state_offsets):
        inputs[f"state__{plane}"] = at(state[plane], summed + offset)
    outputs = unit.run(inputs)
    total = reduce(gradients)
    new_weight, new_state = update(total, weight, state, settings)
    expected = {"total": (summed, total), "new_weight": (summed + component.latency, new_weight)}
    for plane in range(settings.planes):
        expected[f"new_state__{plane}"] = summed + component.state_latencies[plane], new_state[plane]
    compare(outputs, expected, lead, COUNT, interval)


test_values = values(check, CASES, COUNT)


@pytest.mark.parametrize("rule", SETS["all"])
def test_native_units(rule):
    """A folded divider and a folded square root are loaded and read in their own time slots."""
    generator = np.random.default_rng(int(rule))
    for settings in settings_of(rule, [draw(generator, "bits", COUNT)[0] for _ in SCALARS]):
        check("all_4", settings, generator, "ordinary", Arithmetic.NATIVE)
