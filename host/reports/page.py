"""A report as one HTML page: tables, pictures and notes in a file that needs no other, and no script.

The page's policy forbids everything that is not in the file.
"""

import base64
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import markupsafe
from rich.table import Table

from host.output import write_bytes

__all__ = ["Note", "Picture", "settings_table", "table_of", "write_page"]


@dataclasses.dataclass(frozen=True)
class Note:
    """A footnote.

    Members
    -------
    text : str
    rows : tuple of str
        How the names of the rows begin that it belongs to; none, if it belongs to all.
    """

    text: str
    rows: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture, and its text for whom does not see it.

    Members
    -------
    path : Path
        PNG file.
    alternative : str
    """

    path: pathlib.Path
    alternative: str


def table_of(title: str, rows: Sequence[Sequence[str]], *, header: Sequence[str] = ()) -> Table:
    """A table of names and figures, with a header if it has columns of several kinds."""
    found = Table(*header, title=title, show_header=bool(header))
    for place in range(len(header), max(map(len, rows), default=0)):
        found.add_column(justify="right" if place else "left")
    for column in found.columns[1:]:
        column.justify = "right"
    for row in rows:
        found.add_row(*row)
    return found


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings of nested sections by their names in the code, joined by blanks; a section's ``kind`` has its name."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = prefix if prefix and name == "kind" else f"{prefix} {name}".strip()
        if isinstance(value, Mapping):
            found |= flat(value, path)
        else:
            found[path] = [part["kind"] for part in value] if name == "features" else value
    return found


def settings_table(title: str, values: Mapping[str, Any]) -> Table:
    """A table of settings by their names in the code."""
    return table_of(title, [(name.replace("_", " "), _shown(value)) for name, value in values.items()])


def _shown(value: Any) -> str:
    """A setting as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return str(value)


@functools.cache
def _template() -> jinja2.Template:
    text = pathlib.Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True).from_string(text)


def _contents(table: Table, notes: Sequence[Note]) -> dict[str, Any]:
    """Cells of a table, and numbers of the notes that belong to its rows."""
    rows = [{"cells": cells, "notes": [number for number, note in enumerate(notes, start=1)
                                       if note.rows and cells[0].startswith(note.rows)]}
            for cells in zip(*(map(str, column.cells) for column in table.columns), strict=True)]
    right = markupsafe.Markup(' class="right"')
    return {"title": str(table.title or ""), "rows": rows,
            "header": [str(column.header) for column in table.columns] if table.show_header else [],
            "aligned": [right if column.justify == "right" else "" for column in table.columns]}


def write_page(path: pathlib.Path, *, title: str, verdict: str, tables: Sequence[Table],
               settings: Sequence[Table] = (), pictures: Sequence[Picture], notes: Sequence[Note],
               program: Mapping[str, Any]) -> pathlib.Path:
    """Write a page.

    Parameters
    ----------
    path : Path
    title : str
    verdict : str
        What was compared with the golden model.
    tables : sequence of Table
        Tables of figures with titles, as they are printed; the first cell of a row is its name.
    settings : sequence of Table
        Tables that say what was run.
    pictures : sequence of Picture
    notes : sequence of Note
        What the figures are of, and what is modelled.
    program : dict
        See :func:`host.versions.program`.

    Returns
    -------
    Path
        The same path.
    """
    made = f"{program['name']} {program['version']}"
    if program["commit"] is not None:
        made += f", commit {program['commit']}"
    text = _template().render(
        title=title, verdict=verdict, notes=[note.text for note in notes], program=made,
        tables=[_contents(table, notes) for table in tables if table.row_count],
        settings=[_contents(table, ()) for table in settings],
        pictures=[{"data": base64.b64encode(picture.path.read_bytes()).decode(), "alt": picture.alternative}
                  for picture in pictures])
    write_bytes(path, text.encode())
    return path
