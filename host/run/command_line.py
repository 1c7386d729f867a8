"""Command line of a run: each field of its description is an option, which overrides a description file."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from host.options import Option, Section
from host.run.defaults import without_defaults
from host.run.sections import SCHEDULES
from host.run.sections import SECTIONS as PARTS
from host.run.spec import RunSpec, fields_of, read, with_texts

__all__ = ["SECTIONS", "command", "fields"]

_ORDER = ("workload", "model", "optimizer", "formats", "compute", "ring", "faults", "schedule", "backend", "output")
#: Sections in the order of the help text. All schedules share one section name.
SECTIONS: tuple[tuple[str, type[Section]], ...] = tuple(
    (name, kind) for name in _ORDER for kind in (SCHEDULES.values() if name == "schedule" else [PARTS[name]]))


def fields() -> Iterator[tuple[str, str, Any, Option, str]]:
    """Yield the path, parameter name, type, option and help heading of each field."""
    for section, kind in SECTIONS:
        types = fields_of(kind)
        for name, option in kind.options().items():
            yield f"{section}.{name}", f"{section}_{name}", types[name], option, kind.panel or kind.__name__


def _parameters() -> Iterator[inspect.Parameter]:
    """Return the parameters that Typer turns into options. None or False means that an option is not set."""
    for path, name, kind, option, panel in fields():
        switch = kind is bool and "/" not in option.flags[0]
        default = RunSpec().value(path)
        shown = default is not None and not switch and option.shown_default is None
        text = f"{option.help} [default: {getattr(default, 'value', default)}]" if shown else option.help
        described = Option(text, option.flags, metavar=option.metavar, shown_default=option.shown_default)
        yield described.parameter(name, bool if switch else kind | None, False if switch else None, panel=panel)


def command(run: Callable[[RunSpec, Path | None], None]) -> Callable[..., None]:
    """Create a command function with an option for each field of a run description. It calls ``run`` with the
    description and with the report to reproduce, if there is one."""
    known = {name: (path, option.flags[0]) for path, name, _, option, _ in fields()}
    file, assignments, schedule = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in (
            ("file", Annotated[Path | None, typer.Argument(
                metavar="[FILE]", show_default=False, rich_help_panel="Description",
                help="Description in TOML, or report.json of a run to repeat and compare; options override it.")]),
            ("assignments", Annotated[list[str] | None, typer.Option(
                "--set", metavar="SECTION.FIELD=VALUE", show_default=False, rich_help_panel="Description",
                help="Set a field of the description, such as optimizer.rule=adam; may be given several times.")]),
            ("schedule", Annotated[str | None, typer.Option(
                "--schedule", metavar="|".join(SCHEDULES), show_default=False, rich_help_panel="Schedule",
                help="Schedule of computations and updates. [default: as implied by the options --overlap, "
                     "--straggler and --jobs, else update]")])))

    def call(file: Path | None, schedule: str | None, assignments: list[str] | None, **values: Any) -> None:
        spec = with_texts(RunSpec() if file is None else without_defaults(read(file)), assignments or ())
        options = [(*known[name], value) for name, value in values.items() if value is not None]
        chosen = {path: value for path, flag, value in options if value is not False or "/" in flag}
        if schedule is not None:
            chosen["schedule.kind"] = schedule
        if chosen.get("schedule.jobs") == 1:
            del chosen["schedule.jobs"]
        run(spec.replace(chosen), file if file is not None and file.suffix == ".json" else None)

    parameters = [file, assignments, *_parameters(), schedule]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__ = run.__doc__
    return call
