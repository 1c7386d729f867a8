"""Help of make: all targets by subject, and the variables of a target by section."""

import itertools
import re
import textwrap
from collections.abc import Iterator

from host.make.targets import Target, Variable, find_target, targets

__all__ = ["manual", "overview"]

#: Characters of a line.
_WIDTH = 100


def overview() -> str:
    """All targets, in two columns below their subjects."""
    lines = ["make TARGET NAME=value ...   installs what a target needs into .venv, and runs it. make help-TARGET",
             "lists its variables. 0, no and false switch off. Blanks need quotes: UNIT=\"node floating.add\"."]
    for subject, group in itertools.groupby(targets().values(), key=lambda target: target.subject):
        cells = [f"  {target.name:<16} {target.text:<31}" for target in group]
        half = -(-len(cells) // 2)
        lines += [subject, *("".join(row).rstrip() for row in itertools.zip_longest(
            cells[:half], cells[half:], fillvalue=""))]
    return "\n".join(lines)


def _values(variable: Variable) -> str:
    """The kind of a variable's values, or the list of them."""
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
    """The variables of a target, by section, and of each of its modes."""
    target = find_target(name)
    lines = [f"make {name}: {target.text}", *_rows(target)]
    for selector, mode in target.modes.items():
        lines += ["", f"make {name} with {selector}, by {mode.run[0]}", *_rows(mode)]
    return "\n".join(lines if target.variables else [*lines, "It has no variables."])
