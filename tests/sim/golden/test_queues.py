"""Kernel of the timing model, checked by hand; random tests: :mod:`tests.features.programs.golden.test_program`."""

import math
import re

import pytest

from sim.golden import constants
from sim.golden.queues import Queues
from tests.refusals import refuses


def test_items_of_a_queue_follow_each_other():
    queues = Queues([3, 0])
    assert queues.run(ready=lambda queue, index: queues.now, cycles=lambda queue, index: (5, 0, 7)[index])
    assert queues.starts == [[0, 5, 5], []]
    assert queues.ends == [[5, 5, 12], []]


def test_an_item_may_start_later():
    """If no other item ends before the next item can start, the kernel advances to the cycle in which it can
    start."""
    queues = Queues([2])
    assert queues.run(ready=lambda queue, index: 4 if index == 0 else queues.ends[0][0] + 10,
                      cycles=lambda queue, index: 1)
    assert queues.starts == [[4, 15]]


def test_an_item_waits_for_another_queue():
    queues = Queues([1, 1])
    assert queues.run(ready=lambda queue, index: 0 if queue else (queues.ends[1][0] if queues.ends[1] else None),
                      cycles=lambda queue, index: 8)
    assert queues.starts == [[8], [0]]


def test_an_item_in_common_ends_after_its_last_start():
    queues = Queues([1, 1, 1])
    assert queues.run(ready=lambda queue, index: 10 * queue, cycles=lambda queue, index: queue + 1,
                      together=lambda queue, index: (0, 2) if queue != 1 else (1,))
    assert queues.starts == [[0], [10], [20]]
    assert queues.ends == [[21], [12], [23]]


def test_ends_of_a_cycle_are_reported_at_once():
    queues, ended = Queues([2, 1, 1]), []
    assert queues.run(ready=lambda queue, index: queues.now, cycles=lambda queue, index: (3, 6, 3)[queue],
                      ended=lambda items: ended.append((queues.now, list(items))))
    assert ended == [(3, [(0, 0), (2, 0)]), (6, [(0, 1), (1, 0)])]


def test_items_that_wait_forever():
    queues = Queues([2])
    assert not queues.run(ready=lambda queue, index: None if index else 0, cycles=lambda queue, index: 1)
    assert queues.ends == [[1]]


@pytest.mark.parametrize(("lengths", "cycles", "members", "message"), [
    ([-1], 1, (0,), "Lengths of queues must be at least 0, not (-1,)"),
    ([1], -5, (0,), "Cycles of item 0 of queue 0 must be at least 0, not -5"),
    ([1], math.nan, (0,), "Cycles of item 0 of queue 0 must be at least 0, not nan"),
    ([1, 1], 1, (1,), "Queues of item 0 of queue 0 must have it among them, not be (1,)")])
def test_refused(lengths, cycles, members, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Queues(lengths).run(ready=lambda queue, index: 0, cycles=lambda queue, index: cycles,
                            together=lambda queue, index: members)


def test_refused_constants(monkeypatch):
    monkeypatch.setattr(constants, "TABLE", [])
    assert constants.constant("model", 3, "a step", "assumed") == 3
    for cycles in (-1, 2.5, True, "3"):
        refuses(f"Cycles of a step must be an integer from 0 on, not {cycles!r}",
                constants.constant, "model", cycles, "a step", "assumed")
    refuses("Cycles of a step must be stated once for model", constants.constant, "model", 4, "a step", "assumed")


@pytest.mark.parametrize(("limit", "whole"), [(20, False), (21, True)])
def test_limit(limit, whole):
    queues = Queues([2])
    assert queues.run(ready=lambda queue, index: queues.now, cycles=lambda queue, index: 10, limit=limit) is whole
