"""Collect the options of the commands that make targets run, for the generated file host/make/options.json."""

import argparse
import enum
import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from typer import core

from host import cli
from host.make.targets import read_tables

__all__ = ["option_table"]

_KINDS = {int: "integer", float: "number", Path: "path"}


class _ParserError(Exception):
    """Exception that carries a program's argument parser out of the program before it parses a command line."""


def _row(option: str, text: str | None, kind: Any, default: Any, **more: Any) -> dict[str, Any]:
    """Describe an option by its kind and its help text, which includes the default. Unset members are omitted."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        more["values"] = [str(member.value) for member in kind]
    text = " ".join((text or "").split())
    if isinstance(default, enum.Enum):
        default = default.value
    if not text.endswith("]") and not isinstance(default, bool | list | None) and default != "":
        text = f"{text} [default: {default}]".strip()
    row = {"kind": _KINDS.get(kind, "text"), **more}
    return {"option": option, "text": text} | {key: value for key, value in row.items()
                                               if value not in ("text", [], "", False)}


def _of_typer(command: Any) -> dict[str, Any]:
    """Return the options of a Typer command, and its positional argument, which has no option name."""
    rows = {}
    for parameter in command.params:
        longest = max(parameter.opts, key=len)
        flags = [longest, *parameter.secondary_opts] if getattr(parameter, "is_flag", False) else []
        rows[longest] = _row(
            longest if isinstance(parameter, core.TyperOption) else "", parameter.help,
            parameter.type_descriptor.annotation, parameter.default if parameter.show_default else None,
            repeats=parameter.multiple or parameter.nargs < 0, section=parameter.rich_help_panel or "",
            values={"1": flags[:1], "0": flags[1:]} if flags else [])
    return rows


def _of_argparse(module: Any) -> dict[str, Any]:
    """Return the options of a program that has its own argument parser."""
    def stop(parser: argparse.ArgumentParser, *arguments: object) -> None:
        raise _ParserError(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            module.main(*[[]] * module.main.__code__.co_argcount)
        except _ParserError as caught:
            parser = caught.args[0]
    return {max(action.option_strings, key=len): _row(
        max(action.option_strings, key=len), action.help, action.type or str, action.default,
        repeats=type(action).__name__ in ("_AppendAction", "_ExtendAction"),
        values={"1": list(action.option_strings[-1:]), "0": []} if action.nargs == 0 else list(action.choices or ()))
        for action in parser._actions if action.dest != "help"}


def _options(command: str) -> dict[str, Any]:
    """Return the options of a command, keyed by the name of the make variable; none for programs outside gradring."""
    words = [word for word in shlex.split(command) if not word.startswith("--")]
    rows: dict[str, Any] = {}
    if words[0] == "gradring":
        program: Any = typer.main.get_command(cli.app)
        for word in words[1:]:
            program = program.commands[word]
        rows = _of_typer(program)
    elif words[:2] == ["python", "-m"] and (spec := importlib.util.find_spec(words[2])) and "." in words[2]:
        module = importlib.import_module(words[2] + ".__main__" * bool(spec.submodule_search_locations))
        if hasattr(module, "argparse"):
            rows = _of_argparse(module)
        elif hasattr(module, "typer"):
            app = typer.Typer(add_completion=False)
            app.command()(module.main)
            rows = _of_typer(typer.main.get_command(app))
    return {name.lstrip("-").replace("-", "_").upper(): row for name, row in rows.items()}


def option_table() -> str:
    """Return the text of host/make/options.json: one line per option of each command that is alone in its target."""
    groups = [table for target in read_tables().values() for table in (target, *target.get("modes", {}).values())]
    commands = dict.fromkeys(table["run"][0] for table in groups if len(table.get("run", ())) == 1)
    tables = {command: rows for command in commands if (rows := _options(command))}
    return "{\n" + ",\n".join(f"{json.dumps(command)}: {{\n" + ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()) + "}"
        for command, rows in tables.items()) + "}\n"
