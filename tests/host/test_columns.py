"""Columns and tables: cell text, headings, JSON, and output on consoles of any width."""

import dataclasses
import io

import pytest

from host.columns import Column, Table, columns_of, pairs, record, shown
from host.plain_text import PlainConsole


@dataclasses.dataclass
class Figures:
    """A dataclass of figures, as an example."""

    cycles: int
    bound: int
    name: str


@pytest.mark.parametrize(("value", "form", "text"), [
    (None, ",", "-"), (1234, ",", "1,234"), (0.5, ".1%", "50.0%"), (True, "", "yes"), ([64, 32], "", "64, 32"),
    ([], "", "none"), ("a", ".2f", "a"), (0.25, lambda value: f"1/{1 / value:.0f}", "1/4")])
def test_shown(value, form, text):
    assert shown(value, form) == text


def test_modelled():
    """Columns with modelled figures are marked as modelled. If there is no model, the cell reads "not modelled"."""
    column = Column("host_cycles", ",", modelled=True)
    assert column.heading == "host cycles, modelled"
    assert [column.text({"host_cycles": value}) for value in (1000, None)] == ["1,000", "not modelled"]
    assert Column("modelled_stall", modelled=True).heading == "modelled stall"


def test_of_a_dataclass():
    """Columns are created from names with formats, other columns, or fields of a dataclass, and can be renamed."""
    columns = columns_of("first words:,.0f", Column("second"), Figures, bound="least")
    assert [column.name for column in columns] == ["first", "words", "second", "cycles", "least", "name"]
    assert columns[1].text({"words": 1234.5}) == "1,234"
    assert record(columns[3:], Figures(1, 2, "a")) == {"cycles": 1, "least": 2, "name": "a"}


def test_nested():
    inner = (Column("a"), Column("b", of=lambda row: 2 * row["a"]))
    assert record([Column("rows", columns=inner)], {"rows": [{"a": 1}]}) == {"rows": [{"a": 1, "b": 2}]}


def printed(table, width):
    console = PlainConsole(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 80, 200])
def test_print(width):
    """Cells are never cut off or wrapped; headings are wrapped, and blank lines separate groups of rows."""
    columns = (Column("name"), Column("cycles_of_a_long_heading", format=","), Column("kind"))
    rows = [{"name": f"row {number}", "cycles_of_a_long_heading": 10**6 * number, "kind": "k" * 24}
            for number in range(1, 4)]
    lines = printed(Table("title", columns, rows, group=lambda row: row["name"] > "row 2", caption="caption"), width)
    assert (lines[0], lines[-1]) == ("title", "caption")
    for number in range(1, 4):
        line, = (line for line in lines if line.startswith(f"row {number}"))
        assert line.split() == ["row", str(number), f"{number},000,000", "k" * 24]
    assert [set(line.strip()) for line in lines].count(set()) == 1
    assert not any("|" in line for line in lines)


def test_headed_groups():
    table = Table("", [Column("name", of=str)], ["a1", "a2", "b1"], group=lambda row: f"group {row[0]}", headed=True)
    lines = printed(table, 80)
    texts = [line.strip() for line in lines if not set(line.strip()) <= {"─"}]
    assert texts == ["name", "group a", "a1", "a2", "group b", "b1"]


def test_pairs():
    table = pairs("figures", [("a", "1", "2"), ("b", "3")], labels=(" ", "one"))
    assert (table.cells, table.right, table.header) == ([["a", "1", "2"], ["b", "3", ""]], [False, True, True], True)
    assert not pairs("", [("a", "b")]).header
