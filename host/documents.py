"""Generator of the documents that are made from the sources.

``python -m host.documents`` writes them; with ``--check`` it only compares, and fails if one is stale.
"""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from hdl.control.registers import REGISTERS, SLOT_REGISTERS, TENANT_REGISTERS, Access, Kind, Register
from host.make.commands import option_table
from host.node_page import node_page
from host.run.page import run_page
from host.system_rdl import system_rdl

__all__ = ["check", "main", "register_map", "write"]

ROOT = Path(__file__).resolve().parent.parent

_ACCESS = {
    Access.CONSTANT: "constant", Access.STATUS: "status", Access.COUNTER: "counter", Access.SETTING: "setting",
    Access.SET: "set", Access.RESTORED: "restored",
}

_INTRODUCTION = """\
# Registers

Made by `python -m host.documents` from the table in hdl/control/registers.py. Do not edit.

Addresses count 32-bit words. One request reads or writes any number of registers at consecutive addresses;
docs/protocol.md has the packets. Bits that do not exist read as zero. A register has one kind of access:

- *constant*: a parameter of the node, read-only.
- *status*: the state of the node, read-only.
- *counter*: a count in the node, read-only, which wraps after 32 bits. It is zero after reset, and again when bit 1
  of `CONTROL` is written.
- *setting*: read and write. A command uses the value that a setting has when the command starts.
- *set*: a write sets those bits that are 1 in it, and the node clears them.
- *restored*: the state of the node, which continues from what is written on a node with `SettableVersion`, and is
  read-only on any other.

The list has the address, name, access, kind and, where it can be written, reset value of each register. Those from
`TENANT` on are in nodes with [tenants](tenants.md) alone, those from `SLOT_PLACE` on in nodes with
[slots](ring/slots.md) alone.

"""

#: Most characters in a line of a document.
WIDTH = 118


def _kind(entry: Register) -> str:
    return entry.kind.value if entry.width == 32 else f"{entry.kind.value}, {entry.width} bit{'s'[:entry.width > 1]}"


def _item(entry: Register) -> list[str]:
    """Lines of the list item of a register."""
    facts = [_ACCESS[entry.access], _kind(entry)]
    if entry.access.writable:
        facts.append(f"0x{entry.reset:08x}")
    text = f"0x{entry.address:02x} `{entry.name}` ({', '.join(facts)}): {entry.doc}"
    return textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
                         break_on_hyphens=False)


def register_map() -> str:
    """The text of docs/registers.md, in lines of at most :data:`WIDTH` characters."""
    entries = (*REGISTERS, *TENANT_REGISTERS, *SLOT_REGISTERS)
    lines = [line for entry in entries for line in _item(entry)]
    for entry in entries:
        if entry.kind is not Kind.BITFIELD:
            continue
        lines += ["", f"## {entry.name}", "", "| Bits | Field | Meaning |", "|---|---|---|"]
        for field in entry.fields:
            bits = f"{field.bit}" if field.width == 1 else f"{field.bit + field.width - 1}:{field.bit}"
            lines.append(f"| {bits} | `{field.name}` | {field.doc} |")
    return _INTRODUCTION + "\n".join(lines) + "\n"


_DOCUMENTS = {"docs/node.md": node_page, "docs/registers.md": register_map, "docs/run.md": run_page,
              "docs/registers.rdl": system_rdl,
              "host/make/options.json": option_table}


def write(root: Path = ROOT) -> None:
    """Write all documents."""
    for name, text in _DOCUMENTS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(), encoding="utf-8")


def check(root: Path = ROOT) -> list[str]:
    """Names of the documents that are missing or differ from those that the sources make."""
    stale = []
    for name, text in _DOCUMENTS.items():
        path = root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text():
            stale.append(name)
    return stale


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    match list(arguments):
        case []:
            write()
            return 0
        case ["--check"]:
            stale = check()
            for name in stale:
                print(f"{name} is stale: run `python -m host.documents`", file=sys.stderr)
            return 1 if stale else 0
        case _:
            print("usage: python -m host.documents [--check]", file=sys.stderr)
            return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ModuleNotFoundError as missing:
        sys.exit(f"error: {missing.name} must be installed, since a command imports it: run 'make setup'")
