
import pytest

from hdl.optimizer.timetable import Operation, Slot, Timetable, plan
from tests.refusals import refuses

LATENCIES = {"multiply": 6, "add": 7}
OPERATIONS = (
    Operation("one", "multiply", "x", "a"),
    Operation("other", "multiply", "y", {"b": "condition", "c": "not_condition"}, beside="one"),
    Operation("total", "add", "one", "-other"),
)


def table(**slots):
    places = {"one": Slot(0, 1), "other": Slot(0, 2), "total": Slot(0, 9)} | slots
    return Timetable(OPERATIONS, LATENCIES, 2, places)


def test_operations():
    assert OPERATIONS[1].sources == ["y", "b", "c"]
    assert OPERATIONS[2].sources == ["one", "other"]


def test_ready():
    """A result is available after its unit's latency and can be used as an operand one cycle later."""
    timetable = table()
    assert [timetable.ready(name) for name in ("x", "one", "other", "total")] == [0, 7, 8, 16]
    assert [timetable.loaded(name) for name in ("one", "other", "total")] == [0, 1, 8]
    assert (timetable.uses("y"), timetable.uses("other"), timetable.uses("total")) == ([1], [8], [])
    assert timetable.units == {"multiply": 1, "add": 1}


@pytest.mark.parametrize(("slots", "message"), [
    ({"other": Slot(0, 1)}, "other must not be in the slot of one"),
    ({"other": Slot(0, 7), "total": Slot(0, 20)}, "other must not be in the slot of one"),
    ({"total": Slot(0, 8)}, "total must be later than cycle 8, in which other is ready, not in cycle 8"),
    ({"other": Slot(1, 1), "total": Slot(0, 7)},
     "total must be later than cycle 7, in which one is ready, not in cycle 7"),
])
def test_conflicts(slots, message):
    refuses(message, table, **slots)


@pytest.mark.parametrize(("interval", "expected"), [
    (1, {"one": Slot(0, 1), "other": Slot(1, 1), "total": Slot(0, 8)}),
    (2, {"one": Slot(0, 1), "other": Slot(0, 2), "total": Slot(0, 9)}),
])
def test_plan(interval, expected):
    assert plan(OPERATIONS, latencies=LATENCIES, interval=interval).slots == expected


def test_full():
    """The plan uses as few units as possible. If an operation's slot is taken, the operation waits for the next
    slot."""
    chain = [Operation(f"sum_{index}", "add", f"sum_{index - 1}", "x") for index in range(1, 9)]
    timetable = plan(chain, latencies=LATENCIES, interval=8)
    assert timetable.units == {"add": 1}
    assert sorted(slot.cycle % 8 for slot in timetable.slots.values()) == list(range(8))
    assert [slot.cycle for slot in timetable.slots.values()] == [1, 10, 19, 28, 37, 46, 55, 64]
