"""Columns of reports, and the tables made from them for terminals, pages and JSON.

Example
-------
::

    TABLE = columns_of("nodes cycles:,", Column("words", ",", "words of a step"))
    console.print(Table("steps", TABLE, rows))
"""

import dataclasses
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box, table
from rich.console import Console, ConsoleOptions, RenderResult

from host.plain_text import PlainConsole

__all__ = ["NOT_MODELLED", "Column", "Table", "columns_of", "count_text", "pairs", "ratio_text", "record", "show",
           "shown"]

#: Text for a figure that the model does not provide.
NOT_MODELLED = "not modelled"
#: Maximum width in characters of a cell before it is wrapped.
_WIDEST = 24


def shown(value: Any, form: str | Callable[[Any], str] = "", *, missing: str = "-") -> str:
    """Format a value with a number format, such as ``,`` or ``.2%``, or a function; None is ``missing``."""
    if value is None:
        return missing
    if callable(form):
        return form(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(shown(item, form) for item in value) or "none"
    return value if isinstance(value, str) else format(value, form)


def count_text(count: float | None, per: float = 1) -> str:
    """Format a count such as cycles, or its mean over ``per`` steps."""
    return NOT_MODELLED if count is None else f"{count / per:,.0f}"


def ratio_text(part: float | None, whole: float) -> str:
    """Format the ratio of two counts."""
    return NOT_MODELLED if part is None else f"{part / whole:.3f}" if whole else "-"


@dataclasses.dataclass(frozen=True)
class Column:
    """A table column: the name, format and source of the value in each row."""

    #: Key of the column in JSON.
    name: str
    #: Format of the value; see :func:`shown`.
    format: str | Callable[[Any], str] = ""
    #: Column heading; by default derived from the name.
    title: str = ""
    #: Function that returns the value for a row; by default, the item or attribute with the column's name.
    of: Callable[[Any], Any] | None = None
    #: Whether the value comes from a model; the column heading then says so.
    modelled: bool = False
    #: Columns of the nested table, if the value is a list of rows.
    columns: Sequence["Column"] = ()

    @property
    def heading(self) -> str:
        """Heading of the column."""
        words = self.title or self.name.replace("_", " ")
        return f"{words}, modelled" if self.modelled and "modelled" not in words else words

    def value(self, row: Any) -> Any:
        """Return the column's value in a row, which is a mapping or an object with attributes."""
        if self.of is not None:
            return self.of(row)
        return row[self.name] if isinstance(row, Mapping) else getattr(row, self.name)

    def text(self, row: Any) -> str:
        """Value in a row, formatted as text."""
        return shown(self.value(row), self.format, missing=NOT_MODELLED if self.modelled else "-")

    def record(self, row: Any) -> Any:
        """Return the column's value in a row, in its JSON form."""
        value = self.value(row)
        return [record(self.columns, item) for item in value] if self.columns and value is not None else value


def record(columns: Sequence[Column], row: Any) -> dict[str, Any]:
    """Convert a row to its JSON form."""
    return {column.name: column.record(row) for column in columns}


@dataclasses.dataclass(frozen=True)
class Table:
    """A table for ``console.print``; it may be wider than the console."""

    title: str
    columns: Sequence[Column]
    #: Rows of the table: mappings, or objects with attributes.
    rows: Sequence[Any]
    #: Whether the table shows headings of columns.
    header: bool = True
    #: Text below the table.
    caption: str = ""
    #: Function that returns a row's group; different groups are separated by a line.
    group: Callable[[Any], Any] = lambda row: None
    #: Whether each group is shown as a heading above its rows.
    headed: bool = False
    #: Function that returns whether a row exceeds its limit.
    marked: Callable[[Any], bool] = lambda row: False

    @property
    def headings(self) -> list[str]:
        """Headings of the columns."""
        return [column.heading for column in self.columns]

    @property
    def cells(self) -> list[list[str]]:
        """Formatted cells of all rows."""
        return [[column.text(row) for column in self.columns] for row in self.rows]

    @property
    def right(self) -> list[bool]:
        """Whether each column contains numbers and is right-aligned; the first column contains names."""
        return [number > 0 and (column.format != "" or not any(
            isinstance(column.value(row), str | list | tuple | bool) for row in self.rows))
            for number, column in enumerate(self.columns)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        result = table.Table(box=box.SIMPLE_HEAD, border_style="dim", padding=(0, 1, 0, 0), show_header=self.header,
                             show_edge=False)
        texts, groups = self.cells, [self.group(row) for row in self.rows]
        for number, (heading, right) in enumerate(zip(self.headings, self.right, strict=True)):
            cells = [row[number] for row in texts] + (groups if self.headed and not number else [])
            widest = max((len(line) for cell in cells for line in cell.split("\n")), default=0)
            result.add_column(heading, justify="right" if right else "left", min_width=min(widest, _WIDEST))
        for before, group, row, cells in zip([None, *groups], groups, self.rows, texts, strict=False):
            if group != before:
                result.add_section()
                if self.headed:
                    result.add_row(group)
            result.add_row(*cells, style="bold red" if self.marked(row) else None)
        needed = console.measure(result, options=options.update(max_width=1 << 12)).minimum
        if self.title:
            yield console.render_str(self.title, style="bold")
        yield from console.render(result, options.update(width=max(options.max_width, needed)))
        if self.caption:
            yield console.render_str(self.caption, style="dim")


def show(*parts: "Table | str", console: Console | None = None) -> None:
    """Print tables and lines of text, by default to standard output."""
    chosen = PlainConsole() if console is None else console
    for part in parts:
        chosen.print(part, soft_wrap=isinstance(part, str))


def pairs(title: str, rows: Sequence[Sequence[str]], *, labels: Sequence[str] = ()) -> Table:
    """Create a table of names and texts, with column headings if ``labels`` are given."""
    names, *padded = list(zip(*itertools.zip_longest(labels, *rows, fillvalue=""), strict=True)) or [()]
    columns = [Column(f"{number}", format=str if number else "", title=name or " ", of=operator.itemgetter(number))
               for number, name in enumerate(names)]
    return Table(title, columns, padded, header=bool(labels))


def columns_of(*items: str | Column | type, **names: str) -> tuple[Column, ...]:
    """Create columns from dataclasses, one per field, and from strings of words, ``name`` or ``name:format``.
    ``names`` can rename fields."""
    columns: list[Column] = []
    for item in items:
        if isinstance(item, str):
            columns += [Column(name, form) for name, _, form in (word.partition(":") for word in item.split())]
        elif isinstance(item, Column):
            columns.append(item)
        else:
            columns += [Column(names.get(field.name, field.name), of=operator.attrgetter(field.name))
                        for field in dataclasses.fields(item)]
    return tuple(columns)
