"""Description of a training run, shared by command line, TOML files, make, the library and reports.

Example
-------
::

    spec = RunSpec(workload=Workload(steps=20), optimizer=Optimizer(rule=OptimizerName.ADAM))
    spec = with_texts(spec, ["formats.weights=mx9"])
    check(spec)  # of host.run.execution
    Path("run.toml").write_text(to_toml(spec))

In TOML, each section is a table. ``[schedule]`` has the additional key ``kind``: update, program, quorum, streaming
or side-by-side.
"""

import contextlib
import dataclasses
import enum
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from hdl.choices import choice_error
from host.options import Section
from host.run import sections
from host.run.schedule import Schedule
from host.run.sections import SCHEDULES, SECTIONS, of_schedule

__all__ = ["RunSpec", "SpecError", "fields_of", "from_dict", "paths_of", "read", "repeatable", "to_dict",
           "to_toml", "with_texts"]

#: Maximum size of a description file in bytes.
_LARGEST = 1 << 20


class SpecError(ValueError):
    """Raised if a text does not describe a valid run. The message names the faulty field."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Description of a training run, in sections. If the schedule is not set, other options determine it.

    :func:`host.run.execution.check` rejects an impossible run before anything is built.
    """

    workload: sections.Workload = dataclasses.field(default_factory=sections.Workload)
    model: sections.Model = dataclasses.field(default_factory=sections.Model)
    ring: sections.Ring = dataclasses.field(default_factory=sections.Ring)
    backend: sections.Backend = dataclasses.field(default_factory=sections.Backend)
    optimizer: sections.Optimizer = dataclasses.field(default_factory=sections.Optimizer)
    formats: sections.Formats = dataclasses.field(default_factory=sections.Formats)
    compute: sections.Compute = dataclasses.field(default_factory=sections.Compute)
    schedule: Schedule | None = None
    faults: sections.Faults = dataclasses.field(default_factory=sections.Faults)
    output: sections.Output = dataclasses.field(default_factory=sections.Output)

    def given(self, path: str) -> bool:
        """Return whether a field, for example ``optimizer.momentum``, differs from its default."""
        section, _, name = path.partition(".")
        part = getattr(self, section)
        field = None if part is None else type(part).__dataclass_fields__.get(name)
        return field is not None and getattr(part, name) != field.default

    def value(self, path: str) -> Any:
        """Return the value of a field like ``optimizer.momentum``; None if the schedule has no such field."""
        section, _, name = path.partition(".")
        return getattr(getattr(self, section), name, None)

    def known(self, path: str) -> Any:
        """Return the value of a field that must be set, as it is after all defaults have been filled in."""
        value = self.value(path)
        assert value is not None, path
        return value

    @property
    def known_schedule(self) -> Schedule:
        """Return the schedule of a run, which must be set, as it is after all defaults have been filled in."""
        assert self.schedule is not None
        return self.schedule

    def replace(self, values: Mapping[str, Any]) -> Self:
        """Replace field values, keyed by paths like ``optimizer.momentum``. Setting a field of a different schedule
        switches to that schedule, unless the values request two kinds."""
        groups: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            section, _, name = path.partition(".")
            groups.setdefault(section, {})[name] = value
        return dataclasses.replace(self, **{
            section: self._schedule(group) if section == "schedule" else
            dataclasses.replace(getattr(self, section), **group) for section, group in groups.items()})

    def _schedule(self, values: dict[str, Any]) -> Any:
        """Return the schedule with changed values, using the kind of schedule that has these fields."""
        chosen = values.pop("kind", None)
        if chosen is not None and chosen not in SCHEDULES:
            raise SpecError(choice_error("Schedule", SCHEDULES, str(chosen)))
        owners = {name: kind for kind, section in SCHEDULES.items() for name in fields_of(section)}
        for name in values:
            if name not in owners:
                raise SpecError(choice_error("Field of schedule", owners, name))
            if chosen not in (None, owners[name]):
                raise SpecError(of_schedule(f"schedule.{name}", chosen))
            chosen = owners[name]
        assert chosen is not None  # always true, since at least one field is named
        kind = SCHEDULES[chosen]
        own = vars(self.schedule) if isinstance(self.schedule, kind) else {}
        return kind(**{**own, **values})


def fields_of(section: type[Section]) -> dict[str, Any]:
    """Return the types of a section's fields, keyed by name. The type of an optional field is given without None."""
    hints = typing.get_type_hints(section)
    kinds = {field.name: typing.get_args(hints[field.name]) or [hints[field.name]]
             for field in dataclasses.fields(section)}
    return {name: next(kind for kind in several if kind is not types.NoneType) for name, several in kinds.items()}


def paths_of(spec: RunSpec) -> list[str]:
    """Return the paths of all fields that are set."""
    return [f"{section}.{name}" for section, fields in to_dict(spec).items() for name in fields if name != "kind"]


def to_dict(spec: RunSpec) -> dict[str, dict[str, Any]]:
    """Convert all fields with non-default values to nested dictionaries, for JSON and TOML."""
    parts = {}
    for name, part in ((name, part) for name, part in vars(spec).items() if part is not None):
        values = {field.name: _plain(getattr(part, field.name)) for field in dataclasses.fields(part)
                  if getattr(part, field.name) != field.default}
        parts[name] = {"kind": part.kind, **values} if name == "schedule" else values
    return {name: values for name, values in parts.items() if values}


def repeatable(spec: RunSpec) -> dict[str, dict[str, Any]]:
    """Convert a run for a report: like :func:`to_dict`, but without the output folder and resume option."""
    return to_dict(spec.replace({"output.folder": None, "output.resume": False}))


def _plain(value: Any) -> Any:
    """Convert a value to a form suitable for JSON and TOML."""
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def from_dict(values: Mapping[str, Any]) -> RunSpec:
    """Create a run from nested dictionaries; raises ``SpecError`` for an unknown section, field or value."""
    flat = {}
    for section, fields in values.items():
        _check_section(section)
        if not isinstance(fields, Mapping):
            raise SpecError(f"Section {section} must be a table of fields, not {fields!r}")
        for name, value in fields.items():
            path = f"{section}.{name}"
            flat[path] = _typed(path, _kind(path), value)
    return RunSpec().replace(flat)


def _check_section(section: str) -> None:
    if section not in RunSpec.__dataclass_fields__:
        raise SpecError(choice_error("Section", RunSpec.__dataclass_fields__, str(section)))


def _kind(path: str) -> Any:
    """Return the type of a field, given the field's path."""
    section, _, name = path.partition(".")
    _check_section(section)
    kinds = SCHEDULES.values() if section == "schedule" else [SECTIONS[section]]
    fields = {"kind": str} if section == "schedule" else {}
    for kind in kinds:
        fields |= fields_of(kind)
    if name not in fields:
        raise SpecError(choice_error(f"Field of {section}", fields, name))
    return fields[name]


def _typed(path: str, kind: Any, value: Any) -> Any:
    """Convert a value from JSON or TOML to the type of a field."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        names = [str(member.value) for member in kind]
        if value not in names:
            raise SpecError(choice_error(f"Field {path}", names, str(value)))
        return kind(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        kinds = {int: "an integer", float: "a number", bool: "true or false", str: "a text", Path: "a text"}
        raise SpecError(f"Field {path} must be {kinds[kind]}, not {value!r}")
    return value


def with_texts(spec: RunSpec, assignments: Iterable[str]) -> RunSpec:
    """Set fields of a run from texts like ``optimizer.rule=adam``. Raises ``SpecError`` if a text is not an
    assignment or if the field or value does not exist."""
    values = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or "." not in path:
            raise SpecError(f"Assignment must be section.field=value, such as optimizer.rule=adam, not {text!r}")
        kind = _kind(path)
        values[path] = _typed(path, kind, _parsed(path, kind, value))
    return spec.replace(values)


def _parsed(path: str, kind: Any, text: str) -> Any:
    """Parse a text as a JSON value."""
    if kind is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        return words.get(text.lower(), text)
    with contextlib.suppress(ValueError):
        return kind(text) if kind in (int, float) else text
    return text


def to_toml(spec: RunSpec) -> str:
    """Convert the run to TOML, without its output folder."""
    import tomli_w

    return tomli_w.dumps(repeatable(spec))


def read(path: Path) -> RunSpec:
    """Read a run from a TOML file or from the ``report.json`` of its results. Raises ``SpecError`` if the file does
    not describe a run, and ``OSError`` if it cannot be read."""
    from sim import bounded_files, json_files

    try:
        if path.suffix == ".json":
            content = json_files.read(path)
            if not isinstance(content, dict) or not isinstance(content.get("run"), dict):
                raise SpecError("it has no description of one, as the report of a gradring train of this version")
            return from_dict(content["run"])
        return from_dict(tomllib.loads(bounded_files.read_bytes(path, largest=_LARGEST).decode()))
    except (ValueError, TypeError) as error:
        raise SpecError(f"{path} describes no run: {error}") from None
