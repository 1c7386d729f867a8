"""Groups of commands; a command is loaded only when it runs or its help is requested."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import typer
from typer import core, main

from hdl.registry import FEATURES
from host.errors import ExpectedError
from host.signals import ended_at_once

__all__ = ["CommandGroup", "Entry"]


class Entry(NamedTuple):
    """Description of a command, available without loading the command's module."""

    #: Module and name of the command's function, or of the :class:`typer.Typer` of a command with subcommands.
    module: str
    name: str
    #: First sentence of the command's docstring.
    help: str
    #: Typer settings for the command's context.
    settings: dict[str, Any] | None = None
    #: Features that the command requires.
    features: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Required features missing from this copy; if there are any, the command is not listed."""
        return [name for name in self.features if name not in FEATURES]


class _Command(core.TyperCommand):
    """Command with help text that lists its options by section."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options under their section headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                other = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or other, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class _Commands(Mapping[str, Any]):
    """Commands keyed by name; each is imported when it is looked up."""

    def __init__(self, entries: Mapping[str, Entry]):
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self._loaded:
            return self._loaded[name]
        entry = self._entries[name]
        if entry.missing:
            raise ExpectedError(f"{name} needs feature {entry.missing[0]}, which is not in this copy")
        with ended_at_once():
            app = getattr(importlib.import_module(entry.module), entry.name)
        if not isinstance(app, typer.Typer):
            function, app = app, typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(name, context_settings=entry.settings, cls=_Command)(function)
        command = self._loaded[name] = main.get_command(app)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in self._entries.items() if not entry.missing)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class CommandGroup(core.TyperGroup):
    """Group of the commands in a table; its help is printed without loading any of them."""

    #: Commands keyed by name, in help order.
    entries: ClassVar[Mapping[str, Entry]]
    #: Heading of the list of commands.
    heading: ClassVar[str] = "Commands"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(self.entries)  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands with their help text."""
        with formatter.section(self.heading):
            formatter.write_dl([(name, self.entries[name].help) for name in self.commands])
