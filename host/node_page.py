"""The page docs/node.md: options of nodes, from the sections of their configurations, and the couplings of these."""

import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from hdl.config import Int16Config, NodeConfig, ServerConfig
from hdl.config.couplings import COUPLINGS
from hdl.config.forms import name_of
from hdl.section import Part, Parts

__all__ = ["node_page"]

_WIDTH = 118

_INTRODUCTION = """\
# Configuration of a node

Made by `python -m host.documents` from the sections in hdl/config/. Do not edit.

A node is a `NodeConfig`, a `ServerConfig` (the server of [layers](relay.md)) or an `Int16Config` (the
[int16 node](int16_node.md)). Each has sections, which are values and check themselves; a section or a field that is
not given is as by default:

```python
from gradring.nodes import Compute, Memories, NodeConfig, Programs, Slots, Weights

NodeConfig(lanes=8, memories=Memories(gradient=65536), weights=Weights(codec="mx9"), gradients="mx9",
           link=Slots(ingress=8), programs=Programs(depth=128))
node.replace(memories={"planes": 1}, compute=Compute(rows=2))  # another node, with one state plane
```

On a command line, options have dotted names: `make verilog UNIT=node OPTIONS="weights.codec=mx9 link=slots
programs.depth=128"`. The name of a section sets its kind, or with True and False whether it is there; a field of one
that is not there adds it. `features=tenants,throttles` are all features.

Nodes of the same configuration have the same hash, and no others do: it is of the text of all sections, and register
CONFIGURATION_HASH has it. A field that is off, as a section that is not there, is no part of the text, so that nodes
without it keep their hash when it is added. `gradring info` prints options and couplings.
"""

_COUPLINGS = """\
Values of one section that another one does not go with, each with its reason. A node with both is refused with this
sentence and what to do. `python -m tests.couplings` searches for all pairs of values that no context allows.
"""


def _wrapped(text: str) -> list[str]:
    """Lines of a list item, from text of a docstring."""
    text = re.sub(r":(?:class|data):`~?(?:[a-z_]+\.)*([A-Za-z_]+)`", r"`\1`", text.replace("``", "`"))
    text = re.sub(r"\bdocs/([a-z0-9_/-]+\.md)", r"[\1](\1)", text)
    return textwrap.wrap(f"- {text}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _meanings(kind: type) -> dict[str, str]:
    """Text of each parameter in a docstring."""
    lines = inspect.cleandoc(kind.__doc__ or "").split("\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in itertools.dropwhile(lambda line: line != "Parameters", lines):
        if " : " in line and not line.startswith(" "):
            names = line.partition(" : ")[0].split(", ")
        elif line.startswith("    "):
            for name in names:
                found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return found


def _summary(kind: type) -> str:
    """First paragraph of a docstring, in one line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


def _fields(kind: type, seen: set[type], prefix: str = "") -> Iterator[str]:
    """List items of the fields of a section, and of its sections that were not ``seen``."""
    meanings = _meanings(kind)
    fields = [(field, field.metadata["domain"]) for field in dataclasses.fields(kind)]
    for (meaning, _), several in itertools.groupby(
            fields, lambda pair: (meanings.get(pair[0].name, pair[0].name), pair[1].text)):
        alike = list(several)
        field, domain = alike[0]
        if isinstance(domain, Part | Parts):
            yield from _sections(f"{prefix}{field.name}", field.default, domain, seen)
        else:
            names = ", ".join(f"`{prefix}{field.name}`" for field, _ in alike)
            usual = ", ".join(f"`{field.default}`" for field, _ in alike)
            yield f"{names}: {domain.text}; {usual} by default. {meaning}"


def _sections(path: str, default: Any, domain: Part | Parts, seen: set[type]) -> Iterator[str]:
    """List items of the sections that a field may have."""
    for kind in domain.types:
        only = isinstance(domain, Part) and len(domain.types) == 1
        name = path if only else f"{path}={name_of(kind)}"
        notes = " Not there by default." if default is None else " The default." if not only and isinstance(
            default, kind) else ""
        yield f"**`{name}`**, `{kind.__name__}`: {_summary(kind)}{notes}{' As above.' if kind in seen else ''}"
        if kind not in seen:
            seen.add(kind)
            yield from _fields(kind, seen, f"{path}.")


def node_page() -> str:
    """The text of docs/node.md."""
    lines, seen = [_INTRODUCTION], set[type]()
    for kind in (NodeConfig, ServerConfig, Int16Config):
        lines += [f"## {kind.__name__}", "", *(line[2:] for line in _wrapped(_summary(kind))), ""]
        lines += [line for item in _fields(kind, seen) for line in _wrapped(item)]
        lines.append("")
    lines += ["## Couplings", "", *textwrap.wrap(_COUPLINGS, _WIDTH), ""]
    for coupling in COUPLINGS:
        lines += _wrapped(f"**{', '.join(coupling.sections)}**: {coupling.rule}, since {coupling.reason}.")
    return "\n".join(lines) + "\n"
