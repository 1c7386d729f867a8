"""Memory plans: a known result for every rule, random programs, and plans that belong to other programs."""

import numpy as np
import pytest

from host.driver.planned_lists import PlanError
from host.features.compute.memory.checker import overlaps, random_profile
from host.features.compute.memory.plan import (
    ORDERS,
    Lifetime,
    Operation,
    Profile,
    ProfileError,
    live_words,
    lowest_fit,
    make_plan,
    peak,
    planned,
    search,
    shared,
    strict,
)
from host.features.compute.memory.steps import perceptron_profile
from tests.refusals import refuses

#: Buffers of a handmade example, each with its first operation, its end, and its number of words.
BUFFERS = [Lifetime(*one) for one in ((0, 4, 1), (4, 6, 4), (1, 4, 1), (4, 6, 3), (3, 4, 2), (1, 2, 5))]


def profile(*operations, **words):
    return Profile(words, [Operation(f"operation {number}", tuple(reads), tuple(writes))
                           for number, (reads, writes) in enumerate(operations)])


SIMPLE = profile(("", "a"), ("a", "b"), ("b", "c"), ("c", ""), a=4, b=2, c=3)


class TestKnownAnswers:
    @pytest.mark.parametrize(("rule", "places", "words"), [
        (strict, [7, 0, 8, 5, 5, 0], 9), (shared, [5, 0, 6, 5, 0, 0], 8), (search, [0, 0, 1, 4, 2, 2], 7)])
    def test_places(self, rule, places, words):
        assert rule(BUFFERS) == places
        assert peak(BUFFERS, places) == words

    def test_bounds(self):
        assert sum(buffer.words for buffer in BUFFERS) == 16
        assert live_words(BUFFERS) == 7

    def test_all_methods(self):
        peaks = {method: peak(BUFFERS, places) for method, places in planned(BUFFERS).items()}
        assert peaks == {"strict": 9, "shared": 8, "search": 7, **{f"lowest fit by {name}": 7 for name in ORDERS}}

    def test_lowest_fit_fills_a_gap(self):
        """A buffer is placed below live buffers, in words that an earlier buffer no longer uses."""
        buffers = [Lifetime(0, 2, 3), Lifetime(0, 5, 2), Lifetime(3, 5, 2), Lifetime(3, 5, 2)]
        assert lowest_fit(buffers, range(4)) == [0, 3, 0, 5]

    def test_search_beats_the_orders(self):
        """For these six buffers, every fixed order of placement needs more words than are live at once, but the
        search does not."""
        buffers = [Lifetime(*values) for values in ((1, 2, 4), (1, 4, 3), (2, 6, 3), (2, 5, 1), (4, 7, 4), (3, 6, 1))]
        assert live_words(buffers) == 9
        assert min(peak(buffers, places) for method, places in planned(buffers).items()
                   if method.startswith("lowest")) == 10
        assert peak(buffers, search(buffers)) == 9


def test_random_programs():
    """No plan has overlaps, and a plan's size is between the number of live words and the total size of all
    buffers."""
    generator = np.random.default_rng(0)
    for _ in range(60):
        program = random_profile(generator)
        placements = planned(program.lifetimes, rounds=40)
        peaks = {method: peak(program.lifetimes, places) for method, places in placements.items()}
        for method, places in placements.items():
            assert program.live <= peaks[method] <= program.naive, method
            assert not overlaps(program, dict(zip(program.words, places, strict=True))), method
        assert peaks["search"] <= min(words for name, words in peaks.items() if name.startswith("lowest"))


class TestProfile:
    def test_lifetimes(self):
        assert [(span.first, span.end, span.words) for span in SIMPLE.lifetimes] == [(0, 2, 4), (1, 3, 2), (2, 4, 3)]
        assert (SIMPLE.naive, SIMPLE.live) == (9, 6)

    def test_a_result_that_is_never_read(self):
        assert [lifetime.end for lifetime in profile(("", "a"), ("a", "bc"), a=1, b=1, c=1).lifetimes] == [2, 2, 2]

    @pytest.mark.parametrize(("operations", "words", "message"), [
        ([("a", "b")], {"a": 1, "b": 1}, "Buffer a must be written before operation 0 reads it"),
        ([("", "a")], {}, "Buffer a of operation 0 must have a number of words"),
        ([("", "a")], {"a": 1, "b": 1}, "Buffer b must be written by some operation"),
    ])
    def test_errors(self, operations, words, message):
        refuses(message, profile, *operations, **words, error=ProfileError)

    @pytest.mark.parametrize(("arguments", "message"), [
        ((2, 2, 1), r"^Lifetime must begin at 0 or later and end behind its begin, not \(2, 2\)$"),
        ((-1, 2, 1), r"not \(-1, 2\)$"), ((0, 1, 0), r"^Words of a buffer must be at least 1, not 0$")])
    def test_lifetime_errors(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            Lifetime(*arguments)


class TestPlan:
    def test_best(self):
        plan = make_plan(SIMPLE)
        assert (plan.method, plan.peak, plan.digest) == ("lowest fit by first use", 6, SIMPLE.digest)
        assert make_plan(SIMPLE, method="strict").places == {"a": 0, "b": 4, "c": 0}
        plan.check(SIMPLE, budget=6)

    def test_digest(self):
        """The digest of a program depends on sizes, order and buffers, but not on the names of operations."""
        renamed = Profile(SIMPLE.words, [Operation("other", item.reads, item.writes) for item in SIMPLE.operations])
        assert renamed.digest == SIMPLE.digest
        different = [profile(("", "a"), ("a", "b"), ("b", "c"), ("c", ""), a=4, b=2, c=4),
                     profile(("", "a"), ("a", "b"), ("ab", "c"), ("c", ""), a=4, b=2, c=3),
                     profile(("", "a"), ("a", "b"), ("b", "c"), a=4, b=2, c=3)]
        assert len({SIMPLE.digest, *(item.digest for item in different)}) == 4

    @pytest.mark.parametrize(("other", "message"), [
        (profile(("", "a"), ("a", "b"), ("b", "c"), ("c", ""), a=4, b=2, c=5),
         r"^Program must be the one of its memory plan, [0-9a-f]{16}, not [0-9a-f]{16} \(buffer c: planned 3 words, "
         r"used 5 words\): plan its memory again$"),
        (profile(("", "a"), ("a", "b"), a=4, b=2), r"\(buffer c: planned 3 words, used none\)"),
        (profile(("", "a"), ("a", "b"), ("ab", "c"), ("c", ""), a=4, b=2, c=3),
         r"\(the same buffers, in other operations\): plan its memory again$"),
    ])
    def test_another_program(self, other, message):
        with pytest.raises(PlanError, match=message):
            make_plan(SIMPLE).check(other)

    def test_errors(self):
        with pytest.raises(PlanError, match=r"^Memory plan must take at most the 5 words there are, not 6$"):
            make_plan(SIMPLE).check(SIMPLE, budget=5)
        with pytest.raises(ValueError, match=r"^Method of a plan must be one of strict, shared, lowest fit by first "
                                             r"use, .*, search, not 'first'$"):
            make_plan(SIMPLE, method="first")


@pytest.mark.parametrize(("widths", "naive", "strict", "live"), [
    ((64, 64, 10), 7136, -9.4, -9.4), ((64, *[64] * 9, 10), 39_904, -42.7, -42.7),
    ((64, 128, 96, 48, 10), 20_448, -27.4, -32.4)], ids=["digits", "deep", "narrowing"])
def test_perceptrons_with_softmax_apart(widths, naive, strict, live):
    """Words for a batch of 32, and the percentages that a strict plan and a minimal plan save."""
    program = perceptron_profile(widths, 32)
    peaks = {method: peak(program.lifetimes, places) for method, places in planned(program.lifetimes).items()}
    assert program.naive == naive
    assert round(100 * peaks["strict"] / naive - 100, 1) == strict
    assert round(100 * program.live / naive - 100, 1) == live
    assert peaks["search"] == program.live
