"""All commands of the program and of boards/, which are read from their parsers instead of a list."""

import argparse
import ast
import dataclasses
import enum
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import typer
from typer import core

from host import cli

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    name: str  # as on the command line; empty for a positional argument
    kind: type  # type of the value; bool for flags
    samples: tuple[str, ...]  # values that may be legal: choices, the default, or words from the help text
    required: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    module: str  # module to run
    path: tuple[str, ...]  # names of the command and its subcommands
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """The command as a user types it in a shell."""
        return " ".join(["gradring" if self.module == "gradring" else f"python -m {self.module}", *self.path])


def walk(command: core.TyperCommand,
         path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], core.TyperCommand]]:
    """Yield all commands of the program that can be called, each with its names."""
    children = getattr(command, "commands", {})
    if not children or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, child in children.items():
        yield from walk(child, (*path, name))


def _kind(annotation: object) -> type:
    """Type of the values of an option; str for lists."""
    return annotation if isinstance(annotation, type) else str


def _samples(kind: type, default: object, text: str, words: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return sample values for an option, based on its type, default and help text."""
    if issubclass(kind, enum.Enum):
        return tuple(str(member.value) for member in kind)
    values = [] if default is None or callable(default) else [str(default)]
    if kind in (int, float):
        return (*values, "1", "2", "8")
    if kind is Path:
        return ("script.py", "folder", "new")
    return (*values, *words, *re.findall(r"(?<![\w./=-])[\w./:=-]+[\w]", text)) or ("x",)


def _of_program() -> Iterator[Command]:
    for path, command in walk(typer.main.get_command(cli.app)):
        yield Command(module="gradring", path=path, options=tuple(
            Option(name=param.opts[0] if isinstance(param, core.TyperOption) else "", required=param.required,
                   kind=bool if getattr(param, "is_flag", False) else _kind(param.type_descriptor.annotation),
                   samples=_samples(_kind(param.type_descriptor.annotation), param.default,
                                    getattr(param, "help", "") or ""))
            for param in command.params))


class _Caught(BaseException):
    """Exception that carries the parser of a program which was about to parse its command line."""


def _parser(module: object) -> argparse.ArgumentParser:
    def parse_args(self: argparse.ArgumentParser, *arguments: object) -> None:
        raise _Caught(self)

    before = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = parse_args
    try:
        module.main([])
    except _Caught as caught:
        return caught.args[0]
    finally:
        argparse.ArgumentParser.parse_args = before
    raise AssertionError(f"{module} parses nothing")


def _of_boards() -> Iterator[Command]:
    for path in sorted((ROOT / "boards").glob("*.py")):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        if not {"argparse", "__name__"} <= names:
            continue
        module = importlib.import_module(f"boards.{path.stem}")
        words = tuple(name for table in ("UNITS", "BOARDS") for name in getattr(module, table, ()))
        yield Command(module=module.__name__, path=(), options=tuple(
            Option(name=max(action.option_strings, key=len, default=""), required=action.required,
                   kind=bool if action.nargs == 0 else _kind(action.type),
                   samples=tuple(action.choices or _samples(_kind(action.type), action.default,
                                                            action.help or "", words)))
            for action in _parser(module)._actions if action.dest != "help"))


#: All commands that are tested.
COMMANDS = (*_of_program(), *_of_boards())
