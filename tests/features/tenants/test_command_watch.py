# amaranth: UnusedElaboratable=no
"""Test the unit that watches tenants' commands and replaces the status of their events if necessary."""

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, event_layout
from hdl.features.tenants.command_watch import BudgetClock, CommandWatch
from sim.payload import from_int, to_int
from sim.verilated.vectors import Unit

EVENT = {"tag": 5, "status": EventStatus.BAD_MASK, "flags": 2, "queue": 1, "detail": 77, "cycles": 9,
         "weight_version": 3}


def words_of(event):
    number = to_int(event_layout(), event)
    return np.array([number >> 32 * n & 0xFFFFFFFF for n in range(4)], np.uint32)


def watch(*, length, budget=0, strays=(), taken=3, held=None, begin=0):
    """Run a command that starts at time ``begin``; return its status and the cycles when ``cut`` is high. Its event
    is offered after ``length`` cycles and accepted ``taken`` cycles later. A gate may hold the command for ``held``
    cycles before its start; ``strays`` are the cycles of stray accesses, relative to the start."""
    unit = Unit(CommandWatch(gated=held is not None), name=f"CommandWatch{held is not None}")
    unit.reset()
    if held is not None:
        time = np.arange(-held - 2, 0)
        unit.run({"started": time < -held - 2, "offered": time >= -held, "stray": np.isin(time, strays)})
    cycles = length + taken + 4
    time = np.arange(cycles)
    trace = unit.run({
        "started": time == 0, **({} if held is None else {"offered": time == 0}),
        "now": (time + begin) % 2**32, "deadline": (time + begin + 1 + budget) % 2**32,
        "stray": np.isin(time, strays),
        "i__valid": (time >= length) & (time <= length + taken), "o__ready": time == length + taken,
        "i__payload": np.tile(words_of(EVENT), (cycles, 1))})
    offered = [from_int(event_layout(), sum(int(word) << 32 * n for n, word in enumerate(trace["o__payload"][cycle])))
               for cycle in range(length, length + taken + 1)]
    assert all(event == offered[0] for event in offered)  # the offered event is stable
    assert {name: value for name, value in offered[0].items() if name != "status"} == {
        name: value for name, value in EVENT.items() if name != "status"}
    assert (trace["o__valid"] == ((time >= length) & (time <= length + taken))).all()
    assert (trace["i__ready"] == (time == length + taken)).all()
    return EventStatus(offered[0]["status"]), np.flatnonzero(trace["cut"]).tolist()


@pytest.mark.parametrize("taken", [0, 3])
def test_statuses(taken):
    assert watch(length=9, taken=taken) == (EventStatus.BAD_MASK, [])
    assert watch(length=9, taken=taken, strays=[4]) == (EventStatus.OUT_OF_WINDOW, [])
    assert watch(length=9, taken=taken, strays=[1]) == (EventStatus.OUT_OF_WINDOW, [])
    assert watch(length=9, taken=taken, strays=[8]) == (EventStatus.OUT_OF_WINDOW, [])
    assert watch(length=9, taken=taken, strays=[0, 9, 10]) == (EventStatus.BAD_MASK, [])  # outside the command
    assert watch(length=9, taken=taken, budget=9) == (EventStatus.BAD_MASK, [])
    assert watch(length=9, taken=taken, budget=5)[0] == EventStatus.OVER_BUDGET
    assert watch(length=9, taken=taken, budget=5, strays=[3])[0] == EventStatus.OUT_OF_WINDOW


def test_strays_of_a_gate():
    """A stray access is attributed to a command if a gate holds the command at that time, but not if it is earlier.
    """
    assert watch(length=9, held=0) == (EventStatus.BAD_MASK, [])
    assert watch(length=9, held=4, strays=[-6, -5, 0]) == (EventStatus.BAD_MASK, [])
    for stray in (-4, -3, -1):
        assert watch(length=9, held=4, strays=[stray]) == (EventStatus.OUT_OF_WINDOW, [])
    assert watch(length=9, held=4, strays=[3]) == (EventStatus.OUT_OF_WINDOW, [])


def test_clock():
    """The deadline of a command that starts now is the time plus its budget plus 1."""
    unit = Unit(BudgetClock())
    unit.reset()
    budget = np.array([0, 1, 5, 1000, 2**31 - 1, 2**31 - 1, 0], np.int64)
    trace = unit.run({"budget": budget})
    first = int(trace["now"][0])
    assert (trace["now"] == first + np.arange(7)).all()
    assert (trace["deadline"] == (trace["now"] + 1 + budget) % 2**32).all()


@pytest.mark.parametrize("taken", [0, 3])
def test_any_number_of_cycles(taken):
    """A budget of 0 means no limit, even if events are offered immediately or the time wraps."""
    for length in (1, 2, 9):
        assert watch(length=length, taken=taken, begin=2**32 - 4) == (EventStatus.BAD_MASK, [])


def test_cut():
    """``cut`` is high from one cycle after the budget is used up until the event is accepted."""
    for length, budget, begin in (
            (20, 1, 0), (20, 7, 2**32 - 5), (20, 18, 2**31 - 9), (20, 19, 2**32 - 1), (20, 20, 7),
            (20, 2**31 - 1, 2**31 + 3), (1, 1, 3), (20, 2**31 - 1, 0)):
        _, cut = watch(length=length, budget=budget, begin=begin)
        assert cut == (list(range(budget + 2, length + 4)) if budget + 2 <= length else []), (length, budget)
