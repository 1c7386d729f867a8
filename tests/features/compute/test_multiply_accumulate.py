# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.features.compute.multiply_accumulate import PLACES, SLOTS, MultiplyAccumulate
from hdl.floating.add import FloatAdder
from hdl.floating.multiply import FloatMultiplier
from sim.golden.features.compute import mac_array as model
from sim.verilated.vectors import Unit
from tests.features.compute.terms import KINDS, draw
from tests.refusals import refused_values

DSPS = (4, 2, 1)


def _sums(inputs):
    """Running sum of each cycle's active slot, including the term of that cycle."""
    rows = {name: values.reshape(-1, SLOTS) for name, values in inputs.items()}
    total = np.zeros(SLOTS, np.uint32)
    sums = []
    for turn in range(len(rows["a"])):
        now = {name: values[turn] for name, values in rows.items()}
        total = model.accumulate(total, now["a"], now["b"], first=now["first"], negative=now["negative"],
                                 bubble=now["bubble"])
        sums.append(total)
    return np.concatenate(sums)


def _delayed(values, cycles, count):
    return np.concatenate([np.zeros(cycles, values.dtype), values])[:count]


test_dsps = refused_values(MultiplyAccumulate, {}, "dsps", [0, 3, None], "DSP block count must be 4, 2 or 1")


@pytest.mark.parametrize("dsps", DSPS)
def test_latencies(dsps):
    unit = MultiplyAccumulate(dsps=dsps)
    assert unit.dsps == dsps
    assert unit.product_latency == FloatMultiplier(dsps=dsps).latency
    assert unit.sum_latency == unit.product_latency + SLOTS
    assert FloatAdder.latency + 1 == SLOTS
    assert PLACES == 2 * SLOTS


@pytest.mark.parametrize("dsps", DSPS)
def test_every_cycle(dsps):
    """With random controls in every cycle, all outputs match the model."""
    component = MultiplyAccumulate(dsps=dsps)
    unit = Unit(component)
    held, o = [0] * PLACES, 0  # state of the model, which continues from run to run
    for seed, kind in enumerate(KINDS, start=1):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        count = SLOTS * 6_000
        inputs = {name: draw(generator, kind, count) for name in "ab"}
        inputs |= {name: generator.random(count) < rate for name, rate in
                   (("first", 0.1), ("negative", 0.5), ("bubble", 0.3))}
        inputs["first"][:SLOTS] = True
        stored = generator.random(count) < 0.4
        slot, fetch = generator.integers(0, PLACES, (2, count))
        move, select = generator.random(count) < 0.7, generator.random(count) < 0.8
        late = {name: _delayed(inputs[name], component.product_latency, count)
                for name in ("first", "negative", "bubble")}
        store = _delayed(stored, component.sum_latency, count)
        trace = unit.run({"a": inputs["a"], "b": inputs["b"], **late, "store": store, "place": slot, "fetch": fetch,
                          "move": move, "select": select})
        sums = _delayed(_sums(inputs), component.sum_latency, count)
        known = 0
        want = np.zeros(count, np.uint32)
        for cycle in range(count):
            want[cycle] = o
            if move[cycle]:
                o = held[fetch[cycle]] if select[cycle] else 0
            if store[cycle]:
                held[slot[cycle]] = int(sums[cycle])
                known |= 1 << int(slot[cycle])
        assert known == (1 << PLACES) - 1
        np.testing.assert_array_equal(trace["o"], want, f"{seed=}")
