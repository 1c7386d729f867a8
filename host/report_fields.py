"""The document of all reports' fields, from their columns: a new schema is entered here."""

import itertools
import textwrap
from collections.abc import Iterator, Sequence

from host.columns import Column
from host.migration import report as migration
from host.predict import model as predict
from host.pytorch import report as pytorch
from host.quantization import report as quantization
from host.reports import bench, estimate, late_run, relay, report, slow_link, stale_speed, streaming, tiling
from host.schema import HEADER, Schema
from host.sweep import page as sweep
from host.training import late_learning

__all__ = ["SCHEMAS", "report_fields"]

#: Schemas of all reports.
SCHEMAS: tuple[Schema, ...] = tuple(module.SCHEMA for module in (
    report, late_run, streaming, pytorch, quantization, sweep, predict, bench, estimate, tiling, relay, slow_link,
    stale_speed, migration, late_learning))

_INTRODUCTION = """\
# Fields of reports

Made by `python -m host.documents` from the columns in the sources. Do not edit.

A report is a JSON file with these fields and the fields of its schema. A reader refuses a report of another version
in one line: run its command again, or read it with the release that wrote it. Fields that are modelled are called so.

"""


def _items(columns: Sequence[Column], listed: set[str], indent: str = "") -> Iterator[str]:
    """Lines of a list: names that have one meaning are one item, and names that are ``listed`` are the last one."""
    known = []
    for (help, rows), group in itertools.groupby(columns, lambda column: (column.help, tuple(column.columns))):
        names = ", ".join(f"`{column.name}`" for column in group)
        text = f"{names}: {help}" if help else names
        if indent and text in listed:
            known.append(names)
            continue
        listed.add(text)
        yield _wrapped(text, indent)
        yield from _items(rows, listed, f"{indent}  ")
    if known:
        yield _wrapped(f"{', '.join(known)}: as above", indent)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, 118, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ",
                         break_long_words=False, break_on_hyphens=False)


def report_fields() -> str:
    """The text of docs/report_fields.md."""
    lines = list(_items(HEADER, set()))
    for schema in SCHEMAS:
        lines += ["", f"## {schema.title}", "", f"Schema `{schema.name}`, version {schema.version}."]
        listed: set[str] = set()
        for title, columns in schema.groups.items():
            heading = [f"**{title}**", ""] if len(schema.groups) > 1 else []
            lines += ["", *heading, *_items(columns, listed)]
    return _INTRODUCTION + "\n".join(lines) + "\n"
