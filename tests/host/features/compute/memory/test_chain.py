"""Test timelines of chains of activation maps: known answers, and properties that every plan must have."""

import itertools

import numpy as np
import pytest

from host.features.compute.memory.chain import EXHAUSTIVE, Chain, Event, Map, Policy, decide, exhaustive, greedy, run
from host.features.compute.memory.checker import random_chain
from tests.refusals import refuses

KEEP, SWAP, REMAKE = Policy
FOUR = Chain("four", (Map(100, 100, 200, 10),) * 4)


@pytest.mark.parametrize(("policies", "budget", "rate", "cycles"), [
    ([KEEP] * 4, 400, 1, 1200),
    ([SWAP, KEEP, KEEP, KEEP], 300, 1, 1200), ([SWAP, KEEP, KEEP, KEEP], 300, 1 / 2, 1200),
    ([SWAP, KEEP, KEEP, KEEP], 300, 1 / 4, 1600), ([REMAKE, KEEP, KEEP, KEEP], 300, 1 / 4, 1300),
    ([SWAP, SWAP, KEEP, KEEP], 200, 1 / 2, 1800), ([REMAKE, SWAP, KEEP, KEEP], 200, 1 / 2, 1600),
])
def test_four_maps(policies, budget, rate, cycles):
    timeline = run(FOUR, policies, budget=budget, rate=rate)
    assert timeline.cycles == cycles
    assert timeline.far_words == 200 * policies.count(SWAP)
    assert timeline.multiplications == 10 * policies.count(REMAKE)
    assert timeline.peak <= budget


def test_events():
    """If memory has room for one and a half maps, and one of two maps is swapped, all events have the expected
    times."""
    chain = Chain("two", (Map(2, 5, 7), Map(1, 3, 4)), loss=2)
    timeline = run(chain, [KEEP, SWAP], budget=3, rate=1)
    assert timeline.events == (
        Event("forward", 0, 0, 5), Event("forward", 1, 5, 8), Event("loss", 1, 8, 10), Event("out", 1, 8, 9),
        Event("back", 1, 10, 11), Event("backward", 1, 11, 15), Event("backward", 0, 15, 22))
    assert (timeline.cycles, timeline.peak, timeline.far_words, chain.cycles) == (22, 3, 2, 21)


def test_maps_between_are_made_again_once():
    """Three discarded maps are each recomputed once, before the first backward pass that needs one of them."""
    timeline = run(Chain("five", FOUR.maps + FOUR.maps[:1]), [KEEP, REMAKE, REMAKE, REMAKE, KEEP], budget=500)
    assert [(event.kind, event.number) for event in timeline.events][5:] == [
        ("loss", 4), ("remake", 1), ("remake", 2), ("remake", 3), ("backward", 4), ("backward", 3), ("backward", 2),
        ("backward", 1), ("backward", 0)]
    assert timeline.cycles == 1500 + 300


def test_maps_that_name_others():
    """Maps 0 and 1 are moved back first, because the last map is recomputed from them. Map 2 is not needed for this,
    so it is moved back last."""
    maps = (*FOUR.maps[:3], Map(100, 100, 200, again=70, sources=(0, 2), needs=(0, 1), reads=()))
    timeline = run(Chain("named", maps), [SWAP, SWAP, SWAP, REMAKE], budget=300, rate=1)
    assert [event.number for event in timeline.events if event.kind == "back"] == [0, 1, 2]
    again, = (event for event in timeline.events if event.kind == "remake")
    assert again.end - again.start == 70
    # The last forward pass reads map 0, which therefore cannot be freed before; the pass writes its output to the
    # space of map 1.
    first = {(event.kind, event.number): event.start for event in timeline.events}
    assert (first["out", 0], first["forward", 3], first["back", 0]) == (100, 300, 400)
    assert timeline.peak == 300


@pytest.mark.parametrize(("loss_reads", "budget"), [((0,), 3), ((1,), 2), ((), 2), (None, 2)])
def test_maps_that_nobody_reads(loss_reads, budget):
    """If neither the loss nor a later forward pass reads an activation map, its memory is freed as soon as the map
    has been written."""
    chain = Chain("two", (Map(1, 5, 7), Map(2, 3, 4, sources=(), reads=())), loss=2, loss_reads=loss_reads)
    assert run(chain, [REMAKE, KEEP], budget=budget - 1) is None
    assert run(chain, [REMAKE, KEEP], budget=budget) is not None
    assert chain.reader(0) == (("loss", 1) if loss_reads == (0,) else ("forward", 0))
    assert chain.reader(1) == (("loss", 1) if loss_reads in ((1,), None) else ("forward", 1))


def test_no_room():
    assert run(FOUR, [KEEP] * 4, budget=399) is None
    assert run(FOUR, [SWAP] * 4, budget=199) is None
    assert run(FOUR, [REMAKE] * 4, budget=399) is None
    assert run(FOUR, [KEEP] * 4, budget=400, most=1200) is None
    assert run(FOUR, [KEEP] * 4, budget=400, most=1201).cycles == 1200


@pytest.mark.parametrize(("options", "message"), [
    ({"policies": [KEEP]}, "Policies must be one per map, 4, not 1"),
    ({"policies": [KEEP] * 4, "rate": 0}, "Rate of far memory must be above zero, not 0")])
def test_errors(options, message):
    refuses(message, run, FOUR, budget=400, **options)


def check(chain, policies, timeline, budget, rate):
    """Check a timeline against the rules that all timelines must obey, using only its events."""
    near, taken, there = [], {}, set()
    for event in timeline.events:
        if event.kind in ("forward", "remake", "back"):
            near.append((event.start, chain.maps[event.number].words))
    for kinds in (("forward", "loss", "remake", "backward"), ("out", "back")):
        in_order = [event for event in timeline.events if event.kind in kinds]
        assert all(current.end <= other.start for current, other in itertools.pairwise(in_order))
    ends = {(event.kind, event.number): event.end for event in timeline.events}
    starts = {(event.kind, event.number): event.start for event in timeline.events}
    for number, (current, policy) in enumerate(zip(chain.maps, policies, strict=True)):
        assert (("out", number) in ends, ("remake", number) in ends) == (policy is SWAP, policy is REMAKE)
        again = {SWAP: "back", REMAKE: "remake"}.get(policy)
        if policy is SWAP:
            assert ends["out", number] - starts["out", number] == int(np.ceil(current.words / rate))
            assert ends["forward", number] <= starts["out", number] <= starts["back", number]
        for reader in (number, number + 1):
            if again and reader < len(chain.maps):
                assert ends[again, number] <= starts["backward", reader]
        read = ends["forward", number + 1] if number + 1 < len(chain.maps) else ends["loss", number]
        taken[number] = [(starts["forward", number], ends["backward", number] if policy is KEEP else
                          max(read, ends.get(("out", number), 0)))]
        if again:
            taken[number].append((starts[again, number], ends["backward", number]))
    for time in {event.start for event in timeline.events}:
        there = sum(chain.maps[number].words for number, spans in taken.items()
                    for begin, end in spans if begin <= time < end)
        assert there <= timeline.peak <= budget
    assert near


def test_random_chains():
    """Timelines of random policies respect order, dependencies and budget, and take at least ``chain.cycles``."""
    generator = np.random.default_rng(0)
    fitted = 0
    for _ in range(150):
        chain, budget, rate = random_chain(generator)
        policies = [Policy(int(number)) for number in generator.integers(3, size=len(chain.maps))]
        timeline = run(chain, policies, budget=budget, rate=rate)
        if timeline is not None:
            fitted += 1
            check(chain, policies, timeline, budget, rate)
            assert timeline.cycles >= chain.cycles
    assert fitted > 30


def test_mixed_is_never_slower():
    """Mixing all three policies is never slower than using only one; no map is swapped to a very slow memory."""
    generator = np.random.default_rng(1)
    for _ in range(8):
        chain, budget, rate = random_chain(generator, most=6)
        plans = {kind: exhaustive(chain, budget=budget, rate=rate, kind=kind)
                 for kind in ("keep", "swap", "recompute", "mixed")}
        cycles = [plan.run.cycles for name, plan in plans.items() if plan is not None and name != "mixed"]
        assert plans["mixed"].run.cycles <= min(cycles)
        slow = exhaustive(chain, budget=budget, rate=1e-6)
        assert plans["recompute"] is None or SWAP not in slow.policies


class TestSearch:
    def test_greedy_is_nearly_exhaustive(self):
        """Of 20 greedy plans for the chains of `make memory`, at most one is slower than the best plan, by up to 6 %.
        """
        generator = np.random.default_rng(0)
        ratios = []
        for _ in range(20):
            chain, budget, rate = random_chain(generator, most=6)
            best = exhaustive(chain, budget=budget, rate=rate)
            ratios.append(greedy(chain, budget=budget, rate=rate).run.cycles / best.run.cycles)
        assert min(ratios) == 1
        assert sum(ratio > 1 for ratio in ratios) <= 1
        assert max(ratios) <= 1.06

    def test_longer_chains_are_searched_greedily(self):
        chain = Chain("long", FOUR.maps * 3)
        assert len(chain.maps) > EXHAUSTIVE
        plan = decide(chain, budget=600, rate=1 / 2)
        assert plan == greedy(chain, budget=600, rate=1 / 2)
        assert plan.run.peak <= 600
        assert decide(FOUR, budget=300, rate=1 / 4) == exhaustive(FOUR, budget=300, rate=1 / 4)

    def test_nothing_fits(self):
        assert decide(FOUR, budget=100, rate=1) is None
        assert greedy(FOUR, budget=100, rate=1) is None
