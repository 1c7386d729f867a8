"""Schemas of reports: names, versions and columns; the only writer of reports, and their reader."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from host.columns import Column
from host.output import write_json
from host.versions import program
from sim import json_files

__all__ = ["HEADER", "REPORT", "RUN", "Schema", "read_report", "repeat_command", "write_report"]

#: Name of the file of most reports.
REPORT = "report.json"

#: Columns of every report.
HEADER = (
    Column("schema", help="`name`, and `version`, which changes when a field changes its meaning or is removed."),
    Column("program", help="`name`, `version` and `commit`, null where the program is in no repository, with a `+` "
                           "where files differ from it."),
)

#: Columns of reports of training runs, of all schedules.
RUN = (
    Column("run", help="Description of the run, as in [run.toml](run.md): `gradring train report.json` repeats it; "
                       "null where the library has made it."),
    Column("weights_sha256", help="SHA-256 of the bits of the final weights; null of a run that was interrupted."),
)


@dataclasses.dataclass(frozen=True)
class Schema:
    """Schema of a report.

    Parameters
    ----------
    name : str
    version : int
    title : str
        Heading in the document of fields.
    groups : mapping of str to sequence of Column
        Columns by the heading of their group.
    """

    name: str
    version: int
    title: str
    groups: Mapping[str, Sequence[Column]]

    @property
    def columns(self) -> dict[str, Column]:
        """Columns by their names, with the columns of every report."""
        return {column.name: column for group in (HEADER, *self.groups.values()) for column in group}

    def report(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """A report with this content.

        Raises
        ------
        AssertionError
            A field is not a column of the schema.
        """
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
    """Command that repeats the run of the report in a folder; None of a report of no run."""
    return None if report.get("run") is None else shlex.join(["gradring", "train", str(folder / REPORT)])


def write_report(report: Mapping[str, Any], folder: Path, name: str = REPORT) -> Path:
    """Write a report of :meth:`Schema.report`; its path."""
    write_json(folder / name, report)
    return folder / name


def read_report(path: Path, *schemas: Schema) -> dict[str, Any]:
    """Report in a file, of one of the schemas.

    Raises
    ------
    ValueError
        The file is damaged, or has another report, or one of another version; the message says what to do.
    OSError
        It cannot be read.
    """
    report = json_files.read(path)
    found = report.get("schema") if isinstance(report, dict) else None
    name, version = (found.get("name"), found.get("version")) if isinstance(found, dict) else (found, None)
    schema = next((schema for schema in schemas if schema.name == name), None)
    if schema is None:
        raise ValueError(f"{path} must be a report {' or '.join(schema.name for schema in schemas)}, not damaged "
                         f"or another file: name its file, or run the command that writes it")
    if version != schema.version:
        raise ValueError(f"{path} must have version {schema.version} of {schema.name}, not {version!r}: run its "
                         f"command again, or read it with the release that wrote it")
    result: dict[str, Any] = report
    return result
