"""Memories and counters of a Verilated node, found by the names Verilator gives them.

When Verilator flattens a design, each memory becomes a member of a single class, with a name derived from its path.
The rows and the elements within each row are contiguous, so a memory is an array of elements. Registers also become
members.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from hdl.control.registers import COUNTERS

__all__ = ["HEADER", "find_members"]

#: Name of the generated header, which the harness includes.
HEADER = "members.h"

#: Declaration of a memory member: row type, number of rows, name.
_MEMBER = re.compile(r"^\s*VlUnpacked<([\w<>]+)/\*[\d:]+\*/, (\d+)> (\w+);$", re.MULTILINE)


#: Declaration of a register member: highest bit, name.
_REGISTER = re.compile(r"^\s*[CSI]Data/\*(\d+):0\*/ (\w+);$", re.MULTILINE)


def find_members(folder: Path, model: str, path: str, memories: Sequence[str]) -> None:
    """Write ``members.h`` for the memories and counters of a node.

    ``RING_MEMORIES(f)`` expands to ``f(name)`` for each memory. ``RING_COUNTERS(f)`` expands to
    ``f(address, low, mask)`` for each counter of :class:`~hdl.control.register_file.RegisterFile`, with the address
    of its row, and the low bits that run ahead of the row. Both macros are empty unless the class has all required
    members. ``RING_OWNERS(f)`` expands to ``f(name)`` for the memory of row owners
    (:class:`~hdl.features.compute.row_owners.RowOwners`), if there is one.

    Parameters
    ----------
    folder : Path
        Folder that contains the Verilated class V``model``, where the header is written.
    model : str
    path : str
        Dotted path of the instance with the memories, starting at the top module.
    memories : sequence of str
        Names of the submodules that contain a memory.
    """
    text = (folder / f"V{model}___024root.h").read_text()
    (folder / HEADER).write_text(_memories(text, path, memories) + _counters(text, path))


def _name(path: str, *rest: str) -> str:
    """C++ member name for an item of the instance at ``path``."""
    return "__DOT__".join([*path.split("."), *rest])


def _memories(text: str, path: str, memories: Sequence[str]) -> str:
    members = {name for _, _, name in _MEMBER.findall(text)}
    names = [_name(path, memory, "memory") for memory in memories]
    uses = " ".join(f"f({name})" for name in names) if members.issuperset(names) else ""
    owners = _name(path, "compute", "owners", "memory")
    stamps = f"f({owners})" if owners in members else ""
    return f"#define RING_MEMORIES(f) {uses}\n#define RING_OWNERS(f) {stamps}\n"


def _counters(text: str, path: str) -> str:
    memory = _name(path, "registers", "memory")
    bits = {name: int(high) + 1 for high, name in _REGISTER.findall(text)}
    busy = [_name(path, "registers", name) for name in ("beginning", "clear_counters")]
    lows = [_name(path, "registers", f"low_{entry.port}") for entry in COUNTERS]
    rows = {name for _, _, name in _MEMBER.findall(text)}
    if memory not in rows or not bits.keys() >= set(busy) or not bits.keys() & set(lows):
        return "#define RING_COUNTERS(f)\n"
    # If a node lacks a counter, there is no signal for its low bits, and its row in memory is zero.
    uses = " ".join(f"f({entry.address}, {f'root.{low}' if low in bits else '0u'}, {(1 << bits.get(low, 0)) - 1}u)"
                    for entry, low in zip(COUNTERS, lows, strict=True))
    return (f"#define RING_COUNTERS(f) {uses}\n#define RING_REGISTERS {memory}\n"
            f"#define RING_REGISTERS_BUSY(root) ({' || '.join(f'root.{name}' for name in busy)})\n")
