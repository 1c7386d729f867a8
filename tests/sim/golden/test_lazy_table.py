"""Tables in which an entry's module is imported when the entry is read."""

import json

import pytest

from sim.golden.lazy_table import LazyTable, OnDemand


def table():
    return LazyTable({"one": 1, "dumps": OnDemand("json:dumps", lambda dumps: dumps), "no": OnDemand("json:no", int)})


def test_entries_in_their_order():
    entries = table()
    assert (list(entries), len(entries)) == (["one", "dumps", "no"], 3)
    assert entries["one"] == 1
    assert entries["dumps"] is json.dumps
    entries["two"] = 2
    del entries["one"]
    assert list(entries) == ["dumps", "no", "two"]
    with pytest.raises(KeyError, match="one"):
        entries["one"]


def test_an_entry_is_made_once_and_only_if_it_is_read():
    made = []
    entries = LazyTable({"list": OnDemand("json:loads", lambda loads: made.append(loads) or loads("[]"))})
    assert "list" in entries
    assert "loads" not in entries
    assert made == []
    assert entries["list"] is entries["list"]
    assert made == [json.loads]


def test_an_object_that_is_not_there():
    with pytest.raises(AttributeError, match="no"):
        table()["no"]
