"""Generate the documents that are derived from the sources.

``python -m host.documents`` writes them; with ``--check`` it only compares them and fails if one is out of date.
``make registers`` runs PeakRDL to create HTML pages and a C header from docs/registers.rdl.
"""

import dataclasses
import importlib
import inspect
import itertools
import operator
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hdl.config import NodeConfig
from hdl.config.couplings import all_couplings
from hdl.config.forms import name_of
from hdl.control.registers import ALL_REGISTERS, Access, Field, Kind, Register
from hdl.registry import section, section_names
from hdl.section import Part, Parts
from host.make.commands import option_table
from host.options import Section
from host.run.command_line import SECTIONS
from host.run.couplings import COUPLINGS as RUN_COUPLINGS
from host.run.sections import SCHEDULES, Update
from host.run.spec import fields_of
from sim.golden.constants import TABLE

__all__ = ["check", "main", "node_page", "register_map", "run_page", "system_rdl", "write"]

ROOT = Path(__file__).resolve().parent.parent

_REGISTERS_PAGE = """\
# Registers

Made by `python -m host.documents` from the table in hdl/control/registers.py. Do not edit.

Addresses are in 32-bit words. One request reads or writes any number of registers at consecutive addresses;
docs/protocol.md describes the packets. Unused bits read as zero. Each register has one of these types of access:

- *constant*: a parameter of the node, read-only.
- *status*: the state of the node, read-only.
- *counter*: a 32-bit count of events in the node, read-only, which wraps around. It is zero after reset, and after a
  1 is written to bit 1 of `CONTROL`.
- *setting*: read and write. A command uses the values that settings have when it starts.
- *set*: a write sets the bits that are 1 in the written value, and the node clears them.
- *restored*: the state of the node. On a node with `SettableVersion`, it can be written, and the node continues from
  the written value; on any other node it is read-only.

The list contains the address, name, access and data type of each register, the number of bits if it is not 32, and
the reset value if the register is writable. Registers from `TENANT` to `BUDGET` exist only in nodes with
[tenants](tenants.md), registers from `SLOT_POSITION` to `SUPERFRAMES` only in nodes with [slots](ring/slots.md), and
the last two only in nodes with [microbatches](reproducible.md#any-number-of-nodes).

"""

#: Maximum line length of a document in characters.
WIDTH = 118


def _paragraph(text: str, *, item: bool = False) -> list[str]:
    """Format a paragraph or a list item as lines."""
    return textwrap.wrap(text, WIDTH, initial_indent="- " if item else "", subsequent_indent="  " if item else "",
                         break_long_words=False, break_on_hyphens=False)


def _item(entry: Register) -> list[str]:
    """Format a register as the lines of a list item."""
    facts = [entry.access.name.lower(), entry.kind.value]
    if entry.width < 32:
        facts.append(f"{entry.width} bit{'s'[:entry.width > 1]}")
    if entry.access.writable:
        facts.append(f"0x{entry.reset:08x}")
    return _paragraph(f"0x{entry.address:02x} `{entry.name}` ({', '.join(facts)}): {entry.doc}", item=True)


def register_map() -> str:
    """Text of docs/registers.md, in lines of at most :data:`WIDTH` characters."""
    lines = [line for entry in ALL_REGISTERS for line in _item(entry)]
    for entry in (entry for entry in ALL_REGISTERS if entry.kind is Kind.BITFIELD):
        lines += ["", f"## {entry.name}", "", "| Bits | Field | Meaning |", "|---|---|---|"]
        for field in entry.fields:
            bits = f"{field.bit}" if field.width == 1 else f"{field.bit + field.width - 1}:{field.bit}"
            lines.append(f"| {bits} | `{field.name}` | {field.doc} |")
    return _REGISTERS_PAGE + "\n".join(lines) + "\n"


_RDL = """\
// Made by `python -m host.documents` from the table in hdl/control/registers.py. Do not edit.
//
// Addresses are in bytes here; packets of the host port use addresses in 32-bit words.

"""

#: Access types of registers that software can write; all other registers are read-only.
_RDL_ACCESSES = {Access.SETTING: "sw = rw; hw = r;", Access.SET: "sw = rw; hw = rw; onwrite = woset;"}


def _rdl_text(text: str) -> str:
    """Format a text as a string literal of SystemRDL."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _rdl_field(entry: Register, field: Field) -> str:
    access = "sw = w; hw = r; singlepulse;" if field.pulse else _RDL_ACCESSES.get(entry.access, "sw = r; hw = w;")
    reset = entry.reset >> field.bit & (1 << field.width) - 1
    value = f" = {field.width}'h{reset:x}" if entry.access.writable else ""
    about = f"desc = {_rdl_text(field.doc)}; " if field.doc else ""
    return f"        field {{ {about}{access} }} {field.name}[{field.bit + field.width - 1}:{field.bit}]{value};"


def system_rdl() -> str:
    """Text of docs/registers.rdl."""
    lines = ["addrmap gradring_node {", '    name = "gradring node";',
             '    desc = "Registers of a node, described in docs/registers.md.";', "    default regwidth = 32;", ""]
    for entry in ALL_REGISTERS:
        doc = entry.doc + " The value is a binary32 number." * (entry.kind is Kind.FLOAT32)
        fields = entry.fields or (Field(name="value", bit=0, width=entry.width, doc=""),)
        lines += ["    reg {", f"        name = {_rdl_text(entry.name)};", f"        desc = {_rdl_text(doc)};",
                  *(_rdl_field(entry, field) for field in fields),
                  f"    }} {entry.name} @ 0x{4 * entry.address:03x};", ""]
    return _RDL + "\n".join([*lines[:-1], "};"]) + "\n"


_NODE_PAGE = """\
# Configuration of a node

Made by `python -m host.documents` from the sections in hdl/config/. Do not edit.

A node is described by a `NodeConfig`, a `ServerConfig` (the server of [layer streaming](streaming.md)) or an
`Int16Config` (the [int16 node](int16_node.md)). A configuration consists of sections, which are immutable objects
that check their fields. A section or field that is omitted has its default value:

```python
from gradring.nodes import Compute, Memories, NodeConfig, Programs, Slots, Weights

NodeConfig(lanes=8, memories=Memories(gradient=65536), weights=Weights(codec="mx9"), gradients="mx9",
           link=Slots(ingress=8), programs=Programs(depth=128))
node.replace(memories={"planes": 1}, compute=Compute(rows=2))  # another node, with one state plane
```

On a command line, options have dotted names: `make verilog UNIT=node OPTIONS="weights.codec=mx9 link=slots
programs.depth=128"`. The name of a section selects its type, such as `link=slots`; an optional section is added or
removed with True or False, and setting one of its fields adds it as well. `features=tenants,throttles` sets the
complete list of features.

Each configuration has a hash: a digest of the text of all sections, which is also the value of register
CONFIGURATION_HASH. The text omits absent sections and options that are off, so a new option does not change the hash
of nodes that do not use it. `gradring info` prints options and couplings.
"""

_COUPLINGS = """\
Rules that the sections of a configuration must satisfy, each with its reason. A configuration that violates a rule is
rejected; the error message contains the rule, the reason and advice. `python -m tests.couplings` searches for all
pairs of values that no configuration can contain.
"""


def _wrapped(text: str) -> list[str]:
    """Format text from a docstring as the lines of a list item."""
    text = re.sub(r":(?:class|data):`~?(?:[a-z_]+\.)*([A-Za-z_]+)`", r"`\1`", text.replace("``", "`"))
    text = re.sub(r"\bdocs/([a-z0-9_/-]+\.md)", r"[\1](\1)", text)
    return _paragraph(text, item=True)


def _meanings(kind: type) -> dict[str, str]:
    """Descriptions of the parameters in a docstring, keyed by name."""
    lines = inspect.cleandoc(kind.__doc__ or "").split("\n")
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in itertools.dropwhile(lambda line: line != "Parameters", lines):
        if " : " in line and not line.startswith(" "):
            names = line.partition(" : ")[0].split(", ")
        elif line.startswith("    "):
            for name in names:
                texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return texts


def _summary(kind: type) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


def _section_items(kind: type, seen: set[type], prefix: str = "") -> Iterator[str]:
    """List items for the fields of a section and for its subsections, except the ones in ``seen``."""
    meanings = _meanings(kind)
    fields = [(field, field.metadata["domain"]) for field in dataclasses.fields(kind)]
    for (meaning, _), several in itertools.groupby(
            fields, lambda pair: (meanings.get(pair[0].name, pair[0].name), pair[1].text)):
        alike = list(several)
        field, domain = alike[0]
        if isinstance(domain, Part | Parts):
            yield from _sections(f"{prefix}{field.name}", field.default, domain, seen)
        else:
            names, usual = _names(f"{prefix}{field.name}" for field, _ in alike), _names(
                f"{field.default}" for field, _ in alike)
            yield f"{names}: {domain.text}; {usual} by default. {meaning}"


def _sections(path: str, default: Any, domain: Part | Parts, seen: set[type]) -> Iterator[str]:
    """List items for the sections that a field can contain."""
    for kind in domain.types:
        only = isinstance(domain, Part) and len(domain.types) == 1
        name = path if only else f"{path}={name_of(kind)}"
        notes = " Absent by default." if default is None else " The default." if not only and isinstance(
            default, kind) else ""
        yield f"**`{name}`**, `{kind.__name__}`: {_summary(kind)}{notes}{' Described above.' if kind in seen else ''}"
        if kind not in seen:
            seen.add(kind)
            yield from _section_items(kind, seen, f"{path}.")


def node_page() -> str:
    """Text of docs/node.md."""
    lines, seen = [_NODE_PAGE], set[type]()
    for kind in (NodeConfig, *map(section, section_names("configuration"))):
        lines += [f"## {kind.__name__}", "", *(line[2:] for line in _wrapped(_summary(kind))), ""]
        lines += [line for item in _section_items(kind, seen) for line in _wrapped(item)]
        lines.append("")
    lines += ["## Couplings", "", *textwrap.wrap(_COUPLINGS, WIDTH), ""]
    for coupling in all_couplings():
        lines += _wrapped(f"**{', '.join(coupling.sections)}**: {coupling.rule}, since {coupling.reason}.")
    return "\n".join(lines) + "\n"


_RUN_PAGE = """\
# Description of a run

Made by `python -m host.documents` from host/run. Do not edit.

The description of a training run consists of sections. The command line, TOML files, `make`, the library and reports
share it: every field is an option of `gradring train`, a variable of `make sim`, and a key in a TOML file.

    [workload]
    steps = 20

    [optimizer]
    rule = "adam"

    [schedule]
    kind = "program"
    overlap = "layers"

- `gradring train run.toml` trains as described in the file; options after the file name override its fields, as does
  `--set section.field=value`. Each run writes its description to `run.toml` in its output folder, omitting fields
  that have their default values.
- `gradring train build/sim/report.json` repeats the run of a report, and prints whether losses, cycles, words and the
  bits of the trained weights are the same.
- In Python, `gradring.RunSpec` is a description, and `gradring.train` trains as described.

An omitted field has the default value shown. A field that does not apply to a run is rejected before anything is
built.

"""

_SCHEDULES = """\
`kind` is one of {kinds}. If it is omitted, it follows from the fields of the schedule that are set. `update` has no
fields. The schedules `quorum`, `streaming` and `side-by-side` train the perceptron on Verilated nodes with momentum,
and accept only these fields of other sections:

"""


def _option_items(kind: type[Section]) -> list[str]:
    """Lines that list a section's options with flag, type, help text and default."""
    lines, types = [], fields_of(kind)
    words = {int: "integer", float: "number", bool: "true or false"}
    for name, option in kind.options().items():
        default = kind.__dataclass_fields__[name].default
        shown = option.shown_default
        if shown is None and default is not None:
            shown = str(getattr(default, "value", default)).lower()
        text = f"`{name}` ({option.flags[0].partition('/')[0]}, {words.get(types[name], 'text')}): {option.help}"
        lines += _paragraph(text + ("" if shown is None else f" Default: {shown}."), item=True)
    return lines


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def run_page() -> str:
    """Text of docs/run.md."""
    lines = [line for name, part in SECTIONS if name != "schedule"
             for line in (f"## {name}", "", *_option_items(part), "")]
    lines += ["## Schedules", "", *_paragraph(_SCHEDULES.format(kinds=_names(SCHEDULES))), ""]
    for kind, schedule in SCHEDULES.items():
        if schedule.applicable is not None:
            lines += _paragraph(f"`{kind}`: {_names(schedule.applicable)}.", item=True)
    for kind, schedule in SCHEDULES.items():
        if schedule is not Update:
            lines += ["", f"### {kind}", "", *_option_items(schedule)]
    lines += ["", "## Couplings", "", *_paragraph(
        f"{len(RUN_COUPLINGS)} couplings of options, each with the reason why the option does not apply to other "
        "runs:"),
        "", "| Option | only for | Reason |", "|---|---|---|"]
    lines += [f"| `{coupling.left}` | {coupling.condition} | {coupling.reason} |" for coupling in RUN_COUPLINGS]
    return _RUN_PAGE + "\n".join(lines) + "\n"


#: A reference to a definition by file, line and name: `` `file.py:12` `Class.method` ``.
_PLACE = re.compile(r"`([\w/]+\.py):\d+` `([\w.]+)`")


def _line_of(path: str, name: str) -> int:
    """Line number of a class, function or constant in a file; raises ``ValueError`` if it is missing."""
    lines, line = (ROOT / path).read_text(encoding="utf-8").split("\n"), 0
    for depth, part in enumerate(name.split(".")):
        pattern = re.compile(rf" {{{4 * depth}}}(?:class |def |){part}\b(?:\(|:| =)")
        line = next((number for number in range(line, len(lines)) if pattern.match(lines[number])), -1) + 1
        if not line:
            raise ValueError(f"{path} must define {name}, which docs/architecture.md names")
    return line


def architecture_page() -> str:
    """Text of docs/architecture.md, with current line numbers for the definitions that it refers to."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return _PLACE.sub(lambda match: f"`{match[1]}:{_line_of(match[1], match[2])}` `{match[2]}`", text)


#: The generated lists in docs/predict.md, between their introduction and the next heading.
_CONSTANTS = re.compile(r"(?<=constants of all models of time, in cycles:\n\n).*?(?=## )", re.DOTALL)


def predict_page() -> str:
    """Text of docs/predict.md, with the constants of all timing models as given in their modules."""
    for path in sorted(path for tree in ("host", "sim") for path in (ROOT / tree).rglob("*.py")):
        if "from sim.golden.constants import constant\n" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    rows = sorted(set(TABLE), key=lambda row: (row.model, row.meaning))
    lines = []
    for model, constants in itertools.groupby(rows, operator.attrgetter("model")):
        lines += [f"**{model.capitalize()}**", ""]
        for row in constants:
            lines += _paragraph(f"{row.cycles}: {row.meaning} ({row.source})", item=True)
        lines.append("")
    return _CONSTANTS.sub("".join(f"{line}\n" for line in lines),
                          (ROOT / "docs/predict.md").read_text(encoding="utf-8"), count=1)


_DOCUMENTS = {"docs/architecture.md": architecture_page, "docs/node.md": node_page,
              "docs/predict.md": predict_page, "docs/registers.md": register_map,
              "docs/run.md": run_page, "docs/registers.rdl": system_rdl, "host/make/options.json": option_table}


def write(root: Path = ROOT) -> None:
    """Write all documents."""
    for name, text in _DOCUMENTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text(), encoding="utf-8")


def check(root: Path = ROOT) -> list[str]:
    """Names of documents that are missing or differ from the sources."""
    return [name for name, text in _DOCUMENTS.items()
            if not (root / name).exists() or (root / name).read_text(encoding="utf-8") != text()]


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python -m host.documents [--check]", file=sys.stderr)
        return 2
    if not arguments:
        write()
        return 0
    stale = check()
    for name in stale:
        print(f"{name} is stale: run `python -m host.documents`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ModuleNotFoundError as missing:
        sys.exit(f"error: {missing.name} must be installed, since a command imports it: run 'make setup'")
