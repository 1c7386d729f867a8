"""Make targets, with the command arguments that their variables add and with their help texts.

Targets and variables are defined by the tables in targets.toml and options.json.
"""

import dataclasses
import functools
import itertools
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdl.choices import choice_error, suggestion

__all__ = ["OFF", "Target", "Variable", "check_known", "find_target", "manual", "overview", "read_tables", "targets"]

_FOLDER = Path(__file__).parent
#: Values that switch a make variable off, and values that switch it on. Case is ignored.
OFF, _ON = ("0", "no", "false"), ("1", "yes", "true")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
    """A make variable and the arguments that it adds to a command."""

    option: str  # command-line option that passes the value; if empty, the arguments are added unchanged
    text: str  # help text of the variable
    kind: str = "text"  # kind of value: integer, number, text or path
    #: Arguments that each value adds to a command, or a list of allowed values; if empty, any value is allowed.
    values: Mapping[str, list[str]] | list[str] = dataclasses.field(default_factory=list)
    repeats: bool = False  # whether the value consists of several words, each passed with its own option
    off: bool = False  # whether the values 0, no and false unset the variable
    always: str | None = None  # value that is passed if the variable is not set
    section: str = ""  # section of the help that lists the variable

    def words(self, name: str, value: str) -> list[str]:
        """Return the command-line arguments; raises ``ValueError`` if the value is invalid."""
        off = value.lower() in OFF
        if isinstance(self.values, Mapping):
            key = "0" if off else "1" if value.lower() in _ON and "1" in self.values else value
            self._check(name, key in self.values, value)
            return self.values[key]
        if off and self.off:
            return []
        if off and self.kind in ("integer", "number"):
            value = "0"
        try:
            parts = shlex.split(value) if self.repeats else [value]
        except ValueError as error:
            raise ValueError(f"Variable {name} must be words as in a shell, not {value!r}: "
                             f"{str(error).lower()}") from None
        for part in parts:
            self._check(name, not self.values or part in self.values, part)
            try:
                {"integer": int, "number": float}.get(self.kind, str)(part)
            except ValueError:
                raise ValueError(f"Variable {name} must be {'an' if self.kind == 'integer' else 'a'} {self.kind}, "
                                 f"not {part!r}") from None
        if not self.option:
            return parts
        return [word for part in parts for word in (
            [f"{self.option}={part}"] if part.startswith("-") else [self.option, part])]

    def _check(self, name: str, known: bool, value: str) -> None:
        if not known:
            raise ValueError(choice_error(f"Variable {name}", self.values, value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A make target, as described in targets.toml."""

    #: Name of the target, with its heading and help text.
    name: str
    subject: str = ""
    text: str = ""
    #: Commands, quoted as in a shell, each preceded by environment settings.
    run: list[str] = dataclasses.field(default_factory=list)
    extras: list[str] = dataclasses.field(default_factory=list)  # extras of pyproject.toml to install
    #: Extras needed if a variable is set and, below, extras needed unless it is switched off; keyed by variable.
    extras_with: dict[str, str] = dataclasses.field(default_factory=dict)
    extras_unless_off: dict[str, str] = dataclasses.field(default_factory=dict)
    variables: dict[str, Variable] = dataclasses.field(default_factory=dict)  # keyed by name
    needs: list[str] = dataclasses.field(default_factory=list)  # names of variables that must be set
    #: Targets that replace this one, keyed by the variable that selects them.
    modes: dict[str, "Target"] = dataclasses.field(default_factory=dict)
    install: bool = True  # whether programs are run from the virtual environment
    note: str = ""  # line printed before the commands

    def mode(self, values: Mapping[str, str]) -> "Target":
        """Return this target, or the target that replaces it if a variable selects one."""
        return next((mode for name, mode in self.modes.items() if _on(values.get(name, ""))), self)

    def commands(self, values: Mapping[str, str]) -> list[list[str]]:
        """Return the arguments of each command; raises ``ValueError`` if a value is invalid or missing."""
        commands = [shlex.split(command) for command in self.run]
        for name in self.needs:
            if not values.get(name):
                raise ValueError(f"Variable {name} must be set for make {self.name}, not left out: 'make "
                                 f"help-{self.name}' shows it")
        for name, variable in self.variables.items():
            if value := values.get(name) or variable.always:
                commands[-1] += variable.words(name, value)
        return commands

    def needed(self, values: Mapping[str, str]) -> list[str]:
        """Return the extras of pyproject.toml that the target needs, given the values of variables."""
        return [*self.extras, *(extra for name, extra in self.extras_with.items() if _on(values.get(name, ""))),
                *(extra for name, extra in self.extras_unless_off.items() if values.get(name, "").lower() not in OFF)]


def _on(value: str) -> bool:
    return value != "" and value.lower() not in OFF


def _variables(table: Mapping[str, Any], options: Mapping[str, dict[str, Any]]) -> dict[str, Variable]:
    """Return the variables of a target: the options of its command, renamed or changed by the target's table."""
    run = table.get("run", ())
    rows = dict(options.get(run[0], {})) if len(run) == 1 else {}
    for name, entry in table.get("variables", {}).items():
        entry = {"option": entry} if isinstance(entry, str) else entry
        same = [key for key, row in rows.items() if row["option"] == entry["option"] != ""] or [name]
        rows[name] = rows.pop(same[0], {}) | entry
    return {name: Variable(**row) for name, row in rows.items()}


def _target(name: str, table: Mapping[str, Any], options: Mapping[str, dict[str, Any]]) -> Target:
    modes = {key: _target(name, mode, options) for key, mode in table.get("modes", {}).items()}
    variables = _variables(table, options) | {key: mode.variables[key] for key, mode in modes.items()}
    for section, names in table.get("sections", {}).items():
        variables |= {key: dataclasses.replace(variables.pop(key), section=section) for key in names.split()}
    variables |= {key: dataclasses.replace(variables[key], off=True) for key in (*modes, *table.get("off", ()))}
    fields = {key: value for key, value in table.items() if key not in ("variables", "modes", "sections", "off")}
    return Target(name=name, modes=modes, variables=variables, **fields)


def read_tables() -> dict[str, Any]:
    """Read the tables in targets.toml."""
    return tomllib.loads((_FOLDER / "targets.toml").read_text(encoding="utf-8"))


@functools.cache
def targets() -> dict[str, Target]:
    """Return all targets that have their own rule, keyed by name."""
    options = json.loads((_FOLDER / "options.json").read_text(encoding="utf-8"))
    return {name: _target(name, table, options) for name, table in read_tables().items()}


def find_target(goal: str) -> Target:
    """Find the target for a goal of make: a target's name, ``help-`` and a name, or ``.venv/.`` and an extra.

    Raises ``ValueError`` if there is no such target. Extras are defined in pyproject.toml.
    """
    if goal.startswith("help-"):
        find_target(goal.removeprefix("help-"))
        return Target(name=goal, install=False)
    if goal.startswith(".venv/."):
        extra = goal.removeprefix(".venv/.")
        project = tomllib.loads((_FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = ["base", *project["optional-dependencies"]]
        if extra not in extras:
            raise ValueError(choice_error("Extra", extras, extra))
        return Target(name=goal, extras=[extra])
    if goal not in targets():
        raise ValueError(choice_error("Target", targets(), goal, listed="'make help'"))
    return targets()[goal]


def check_known(goals: Sequence[str], values: Mapping[str, str]) -> None:
    """Raise ``ValueError`` for a variable that no goal accepts. Other variables can select modes that accept more."""
    chosen = [find_target(goal) for goal in goals]
    known = {name: variable for target in chosen for name, variable in target.mode(values).variables.items()}
    for wrong in (name for name in values if name not in known):
        option = f"--{wrong.lower().replace('_', '-')}"
        meant = next((f": did you mean {name}?" for name, variable in known.items() if variable.option == option),
                     suggestion(known, wrong.upper()))
        for target in chosen:
            for selector, mode in target.modes.items():
                if wrong in target.variables.keys() | mode.variables.keys():
                    word = "without" if target.mode(values) is target else "with"
                    raise ValueError(f"Variable {wrong} must be left out {word} {selector}{meant}")
        message = choice_error(f"Variable of make {' '.join(goals)}", known, wrong, listed=f"'make help-{goals[0]}'")
        raise ValueError(message.partition(": did")[0] + meant)


_WIDTH = 100  # characters per line


def overview() -> str:
    """List all targets in two columns, grouped under headings."""
    lines = ["make TARGET NAME=value ...   installs what a target needs into .venv, and runs it. make help-TARGET",
             "lists its variables. 0, no and false disable an option. Quote blanks: UNIT=\"node floating.add\"."]
    for subject, group in itertools.groupby(targets().values(), key=lambda target: target.subject):
        cells = [f"  {target.name:<16} {target.text:<31}" for target in group]
        half = -(-len(cells) // 2)
        lines += [subject, *("".join(row).rstrip() for row in itertools.zip_longest(
            cells[:half], cells[half:], fillvalue=""))]
    return "\n".join(lines)


def _values(variable: Variable) -> str:
    """Describe the values of a variable: list them if the list is short, otherwise name their kind."""
    values = list(variable.values)
    text = " or ".join(values) if len(values) < 3 else ", ".join(values)
    if values:
        return text if len(text) <= 18 else "name"
    return "words" if variable.repeats else variable.kind


def _rows(target: Target) -> Iterator[str]:
    options = {variable.option: name for name, variable in target.variables.items()}
    sections = dict.fromkeys(variable.section for variable in target.variables.values())
    for section in sections:
        if section:
            yield section
        for name, variable in target.variables.items():
            if variable.section != section:
                continue
            text = variable.text
            if isinstance(variable.values, list) and _values(variable) == "name" and variable.values[-1] not in text:
                text += f" Names: {', '.join(variable.values)}."
            text = re.sub(r"--[a-z][a-z-]*", lambda match: options.get(match[0], match[0]), text)
            yield from textwrap.wrap(text, _WIDTH, initial_indent=f"  {name:<15} {_values(variable):<18} ",
                                     subsequent_indent=" " * 37, break_long_words=False, break_on_hyphens=False)


def manual(name: str) -> str:
    """List the variables of a target, and of each of its modes, grouped by section."""
    target = find_target(name)
    lines = [f"make {name}: {target.text}", *_rows(target)]
    for selector, mode in target.modes.items():
        lines += ["", f"make {name} with {selector}, by {mode.run[0]}", *_rows(mode)]
    return "\n".join(lines if target.variables else [*lines, "It has no variables."])
