"""Both checks of a memory plan find all errors and raise no false alarms."""

import numpy as np

from host.features.compute.memory.checker import DeadRead, Overlap, dead_reads, injected, overlaps, random_profile
from host.features.compute.memory.plan import Operation, Profile, make_plan

SIMPLE = Profile({"a": 4, "b": 2, "c": 3}, [
    Operation("0", writes=("a",)), Operation("1", ("a",), ("b",)), Operation("2", ("a", "b"), ("c",)),
    Operation("3", ("c",))])


def test_by_hand():
    good = {"a": 0, "b": 4, "c": 6}
    assert not overlaps(SIMPLE, good)
    assert not dead_reads(SIMPLE, good)
    assert overlaps(SIMPLE, {**good, "b": 3}) == [Overlap(1, "a", "b", 3, 4)]
    assert dead_reads(SIMPLE, {**good, "b": 3}) == [DeadRead(2, "a", "b", 3)]
    # A result shares words with an operand of the same operation. Both are live at the same time, but no read returns
    # wrong data.
    assert overlaps(SIMPLE, {**good, "c": 5}) == [Overlap(2, "b", "c", 5, 6)]
    assert not dead_reads(SIMPLE, {**good, "c": 5})


def test_a_read_in_front_of_its_write():
    """Words that no operation has written yet belong to no buffer."""
    late = Profile({"a": 1, "b": 1}, [Operation("0", writes=("a",)), Operation("1", ("a",), ("b",))])
    object.__setattr__(late, "operations", late.operations[1:])
    assert dead_reads(late, {"a": 0, "b": 1}) == [DeadRead(0, "a", "none", 0)]


def test_injected():
    """In each of 100 plans, both checks find an injected overlap in words that are read again; the original plans
    pass."""
    generator = np.random.default_rng(1)
    count = 0
    while count < 100:
        profile = random_profile(generator, most=20)
        plan = make_plan(profile, rounds=20)
        assert not overlaps(profile, plan.places)
        assert not dead_reads(profile, plan.places)
        wrong = injected(profile, plan.places, generator)
        if wrong is not None:
            assert overlaps(profile, wrong)
            assert dead_reads(profile, wrong)
            count += 1
