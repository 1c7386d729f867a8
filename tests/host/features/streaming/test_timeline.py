"""Timelines of sets in which layers are streamed from a server: host/features/streaming/timeline.py."""

import dataclasses
from fractions import Fraction

import pytest

from host.features.streaming.timeline import (
    Costs,
    costs_of,
    execution_cycles,
    link_cycles,
    microbatches,
    streaming_timeline,
    uniform,
)
from sim.golden.features.streaming.streaming import Unit, accesses, units_of
from tests.refusals import refuses

#: Costs of a 64 x 64 layer, for 16 multiply-add units, microbatches of 8 examples, and 4 workers.
LAYER = Unit(1, 64, 64)
COSTS = Costs(*link_cycles(LAYER.length, workers=4), *execution_cycles(LAYER, microbatch=8, macs=16))


def test_costs_of_a_layer():
    assert LAYER.length == 4160
    assert Costs(4525, 4525, 2148, 6444) == COSTS


@pytest.mark.parametrize(("layers", "backward", "count", "end", "stalled"), [
    (4, 200, 1, 1850, 350), (4, 200, 2, 2700, 0), (3, 300, 1, 1600, 100), (3, 300, 2, 2700, 0)])
def test_known_answers(layers, backward, count, end, stalled):
    run = uniform(layers, Costs(150, 150, 100, backward), count)
    assert (run.end, run.stalled) == (end, stalled)


@pytest.mark.parametrize(("layers", "stalls", "idle"), [
    (4, (26.4, 1.0, 0.0), 8), (8, (32.0, 1.2, 0.0), 4), (16, (34.4, 1.2, 0.0), 2)])
def test_stalls(layers, stalls, idle):
    runs = [uniform(layers, COSTS, count) for count in (1, 2, 3)]
    assert tuple(round(100 * run.stall, 1) for run in runs) == stalls
    assert round(100 * runs[-1].idle) == idle


@pytest.mark.parametrize(("microbatch", "options", "count"), [
    (8, {}, 3), (4, {}, 5), (16, {}, 2), (8, {"rate": Fraction(1)}, 3),
    (8, {"rate": Fraction(1), "state_words": 4}, 4), (8, {"rate": Fraction(1), "state_words": 6}, 5),
    (8, {"words_per_parameter": Fraction(9, 32)}, 1),
    (8, {"words_per_parameter": Fraction(9, 32), "pushed": Fraction(9, 32)}, 1)])
def test_choice_of_microbatches(microbatch, options, count):
    costs = Costs(*link_cycles(LAYER.length, workers=4, **options),
                  *execution_cycles(LAYER, microbatch=microbatch, macs=16))
    assert microbatches([costs]) == count
    assert uniform(8, costs, count).stall == 0
    if count > 1:
        assert uniform(8, costs, count - 1).stall > 0


@pytest.mark.parametrize(("form", "count"), [("raw", 3), ("mx9", 1), ("mx4", 1)])
def test_choice_for_a_classifier(form, count):
    """The chosen number of microbatches is right even if the last layer is small, and for formats that only FETCH
    uses."""
    units = [dataclasses.replace(unit, format=form) for unit in units_of([64] * 17 + [10])]
    costs = costs_of(units, workers=4, microbatch=8, macs=16)
    assert microbatches(costs) == count
    assert streaming_timeline(units, costs, count).stall == 0


def test_recomputing_nothing_leaves_the_choice():
    costs = Costs(4525, 4525, *execution_cycles(LAYER, microbatch=8, macs=16, recompute=False))
    assert costs.backward == 2 * costs.forward
    assert microbatches([costs]) == 3


def test_the_last_two_layers_stay_and_pushes_go_first():
    run = uniform(4, Costs(150, 150, 100, 200), 1)
    link = [(event.kind, event.unit + 1) for event in run.events if not event.executes]
    assert link == [("fetch", 1), ("fetch", 2), ("fetch", 3), ("fetch", 4), ("push", 4), ("fetch", 2), ("push", 3),
                    ("fetch", 1), ("push", 2), ("push", 1)]
    three = [{event.kind for event in run.events if event.start <= cycle < event.end} for cycle in range(run.end)]
    assert {"push", "backward"} in three
    assert {"fetch", "forward"} in three


@pytest.mark.parametrize("layers", [1, 2])
def test_few_layers_are_fetched_once(layers):
    run = uniform(layers, Costs(150, 150, 100, 200), 1)
    assert sum(event.kind == "fetch" for event in run.events) == layers


def test_parts_of_a_layer():
    """The backward pass of a split layer processes its parts in ascending order and pushes each of them once; no
    window that is in use is overwritten."""
    units = [Unit(1, 64, 64), Unit(2, 64, 32), Unit(2, 64, 32, 32), Unit(3, 64, 10)]
    assert accesses(units) == ([0, 1, 2, 3], [3, 1, 2, 0])
    run = streaming_timeline(units, [Costs(150, 150, 100, 200)] * 4, 1)
    assert sorted(event.unit for event in run.events if event.kind == "push") == [0, 1, 2, 3]
    held: dict[int, int] = {}
    executed = {}
    for event in run.events:
        if event.kind == "fetch":
            assert event.start >= executed.get(event.window, 0)
            held[event.window] = event.unit
        elif event.executes:
            assert held[event.window] == event.unit
            executed[event.window] = event.end


def test_wrong_parameters():
    refuses("Microbatches must be 1 or more, not 0", uniform, 2, COSTS, 0)
    refuses("Units must be one or more, each with its costs, not 0 with 0", streaming_timeline, [], [], 1)
    refuses("Units must be one or more, not none", microbatches, [])
    refuses("Workers must be 1 or more, not 0", link_cycles, 32, workers=0)
    refuses("Rate of the server's far memory must be above zero, not 0", link_cycles, 32, workers=1, rate=0)
