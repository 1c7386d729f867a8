# amaranth: UnusedElaboratable=no
"""The watch over a command: what it makes of events."""

import numpy as np
import pytest

from hdl.control.command_watch import CommandWatch
from hdl.control.protocol import EventStatus, event_layout
from sim.payload import from_int, to_int
from sim.verilated.vectors import Unit

EVENT = {"tag": 5, "status": EventStatus.BAD_MASK, "flags": 2, "queue": 1, "detail": 77, "cycles": 9,
         "weight_version": 3}


def words_of(event):
    """The words of an event."""
    number = to_int(event_layout(), event)
    return np.array([number >> 32 * n & 0xFFFFFFFF for n in range(4)], np.uint32)


def watch(*, length, budget=0, strays=(), taken=3, held=None):
    """Run one command: its event is offered ``length`` cycles after its start, and taken ``taken`` cycles later. A
    gate holds it back for ``held`` cycles before, to which strays of negative cycles belong."""
    unit = Unit(CommandWatch(gated=held is not None), name=f"CommandWatch{held is not None}")
    unit.reset()
    if held is not None:
        time = np.arange(-held - 2, 0)
        unit.run({"started": time < -held - 2, "offered": time >= -held, "stray": np.isin(time, strays)})
    cycles = length + taken + 4
    time = np.arange(cycles)
    trace = unit.run({
        "started": time == 0, **({} if held is None else {"offered": time == 0}),
        "budget": np.full(cycles, budget), "stray": np.isin(time, strays),
        "i__valid": (time >= length) & (time <= length + taken), "o__ready": time == length + taken,
        "i__payload": np.tile(words_of(EVENT), (cycles, 1))})
    offered = [from_int(event_layout(), sum(int(word) << 32 * n for n, word in enumerate(trace["o__payload"][cycle])))
               for cycle in range(length, length + taken + 1)]
    assert all(one == offered[0] for one in offered)  # an offer stands until it is taken
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
    assert watch(length=9, taken=taken, strays=[0, 9, 10]) == (EventStatus.BAD_MASK, [])  # another command's
    assert watch(length=9, taken=taken, budget=9) == (EventStatus.BAD_MASK, [])
    assert watch(length=9, taken=taken, budget=5)[0] == EventStatus.OVER_BUDGET
    assert watch(length=9, taken=taken, budget=5, strays=[3])[0] == EventStatus.OUT_OF_WINDOW


def test_strays_of_a_gate():
    """Reads of a gate outside count for the command that it holds back, and those before that do not."""
    assert watch(length=9, held=0) == (EventStatus.BAD_MASK, [])
    assert watch(length=9, held=4, strays=[-6, -5, 0]) == (EventStatus.BAD_MASK, [])
    for stray in (-4, -3, -1):
        assert watch(length=9, held=4, strays=[stray]) == (EventStatus.OUT_OF_WINDOW, [])
    assert watch(length=9, held=4, strays=[3]) == (EventStatus.OUT_OF_WINDOW, [])


def test_cut():
    """A command is cut one cycle after its budget, until its event is taken."""
    for length, budget in ((20, 1), (20, 7), (20, 18), (20, 19), (20, 20)):
        _, cut = watch(length=length, budget=budget)
        assert cut == (list(range(budget + 2, length + 4)) if budget + 2 <= length else []), (length, budget)
