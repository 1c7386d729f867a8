"""Report schemas: names, versions and columns, and functions to read and write reports."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from host.columns import Column, columns_of
from host.output import write_json
from host.versions import program
from sim import json_files

__all__ = ["HEADER", "REPORT", "RUN", "Schema", "read_report", "repeat_command", "write_report"]

#: Default file name of a report.
REPORT = "report.json"

#: Columns that are part of every report.
HEADER = columns_of("schema program")
#: Columns that reports of training runs have for all schedules: the description of the run, the SHA-256 of its
#: weights, and the levels of reproducibility of its sums.
RUN = columns_of("run weights_sha256 levels")


@dataclasses.dataclass(frozen=True)
class Schema:
    """Schema of a report. docs/report_fields.md describes the columns."""

    name: str
    #: Schema version. It is incremented when a column is removed or its meaning changes.
    version: int
    #: Columns of this report, without the columns that every report has.
    own: Sequence[Column]

    @property
    def columns(self) -> dict[str, Column]:
        """All columns, keyed by name, including the columns that every report has."""
        return {column.name: column for column in (*HEADER, *self.own)}

    def report(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Create a report with the given content. Raises ``AssertionError`` for columns not in the schema."""
        self._check(content, self.columns, self.name)
        return {"schema": {"name": self.name, "version": self.version}, "program": program(),
                **{column.name: None for column in RUN if column.name in self.columns}, **content}

    def _check(self, row: Mapping[str, Any], columns: Mapping[str, Column], path: str) -> None:
        for name, value in row.items():
            if name not in columns:
                raise AssertionError(f"Field {path}.{name} must be a column of the schema")
            within = {column.name: column for column in columns[name].columns}
            for item in (value if isinstance(value, list) else [value]) if within else ():
                if isinstance(item, Mapping):
                    self._check(item, within, f"{path}.{name}")


def repeat_command(report: Mapping[str, Any], folder: Path) -> str | None:
    """Return the command that repeats the run reported in a folder, or None if the report is not about a run."""
    return None if report.get("run") is None else shlex.join(["gradring", "train", str(folder / REPORT)])


def write_report(report: Mapping[str, Any], folder: Path, name: str = REPORT) -> Path:
    """Write a report created by :meth:`Schema.report`, and return its path."""
    write_json(folder / name, report)
    return folder / name


def read_report(path: Path, *schemas: Schema) -> dict[str, Any]:
    """Read a report that has one of the given schemas. Raises ``OSError`` if the file cannot be read, and
    ``ValueError`` with a remedy if it is damaged or has a different schema or version."""
    report = json_files.read(path)
    header = report.get("schema") if isinstance(report, dict) else None
    name, version = (header.get("name"), header.get("version")) if isinstance(header, dict) else (header, None)
    schema = next((schema for schema in schemas if schema.name == name), None)
    if schema is None:
        raise ValueError(f"{path} must be a report {' or '.join(schema.name for schema in schemas)}, not damaged "
                         f"or another file: name its file, or run the command that writes it")
    if version != schema.version:
        raise ValueError(f"{path} must have version {schema.version} of {schema.name}, not {version!r}: run its "
                         f"command again, or read it with the release that wrote it")
    result: dict[str, Any] = report
    return result
