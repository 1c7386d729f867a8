"""Documents that are made from the sources.

``python -m host.documents`` writes them; with ``--check`` it only compares, and fails if one is stale.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from hdl.control.registers import REGISTERS, Access, Kind, Register

__all__ = ["check", "main", "register_map", "write"]

ROOT = Path(__file__).resolve().parent.parent

_ACCESS = {
    Access.CONSTANT: "constant", Access.STATUS: "status", Access.COUNTER: "counter", Access.SETTING: "setting",
    Access.SET: "set",
}

_INTRODUCTION = """\
# Registers

Made by `python -m host.documents` from the table in hdl/control/registers.py. Do not edit.

Addresses count 32-bit words. Any number of registers at consecutive addresses can be read in one request, and so
written; docs/protocol.md has the packets. Bits that are not there read as zero.

- *constant*: a parameter of the node, read-only.
- *status*: what the node says, read-only.
- *counter*: counts in the node, read-only, wraps after 32 bits. Zero after reset, and again when bit 1 of `CONTROL`
  is written.
- *setting*: read and write. A command uses the values of the moment at which it starts.
- *set*: a write sets those bits that are 1 in it, and the node clears them.

| Address | Name | Access | Kind | Reset | Meaning |
|---|---|---|---|---|---|
"""


def _reset(entry: Register) -> str:
    return f"0x{entry.reset:08x}" if entry.access in (Access.SETTING, Access.SET) else ""


def _kind(entry: Register) -> str:
    return entry.kind.value if entry.width == 32 else f"{entry.kind.value}, {entry.width} bit{'s'[:entry.width > 1]}"


def register_map() -> str:
    """The text of docs/registers.md."""
    lines = [
        f"| 0x{entry.address:02x} | `{entry.name}` | {_ACCESS[entry.access]} | {_kind(entry)} | {_reset(entry)} "
        f"| {entry.doc} |"
        for entry in REGISTERS
    ]
    for entry in REGISTERS:
        if entry.kind is not Kind.BITFIELD:
            continue
        lines += ["", f"## {entry.name}", "", "| Bits | Field | Meaning |", "|---|---|---|"]
        for field in entry.fields:
            bits = f"{field.bit}" if field.width == 1 else f"{field.bit + field.width - 1}:{field.bit}"
            lines.append(f"| {bits} | `{field.name}` | {field.doc} |")
    return _INTRODUCTION + "\n".join(lines) + "\n"


_DOCUMENTS = {"docs/registers.md": register_map}


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
    sys.exit(main(sys.argv[1:]))
