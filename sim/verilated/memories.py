"""Memories of a Verilated node, by the names that Verilator gives them.

A module's memory becomes a member of the one class of a design that Verilator has made flat; its name says where it
was. Its rows lie one after the other, and within them the elements, so that a memory is one array of elements.
"""

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["HEADER", "find_memories"]

#: Name of the header that the harness includes.
HEADER = "memories.h"

#: A memory among the members of the class: type of a row, number of rows, name.
_MEMBER = re.compile(r"^\s*VlUnpacked<([\w<>]+)/\*[\d:]+\*/, (\d+)> (\w+);$", re.MULTILINE)


def find_memories(folder: Path, model: str, path: str, memories: Sequence[str]) -> bool:
    """Write ``memories.h``, which defines ``RING_MEMORIES(f)`` as ``f(name)`` for each memory in order.

    Parameters
    ----------
    folder : Path
        Folder with the Verilated class V``model``; the header is written there.
    model : str
    path : str
        Instance that the memories are in, with its parents from the top module on, joined by dots.
    memories : sequence of str
        Name of each submodule that holds one.

    Returns
    -------
    bool
        False, and none is in the header, if not every one is a member of the class.
    """
    found = {name for _, _, name in _MEMBER.findall((folder / f"V{model}___024root.h").read_text())}
    names = ["__DOT__".join([*path.split("."), memory, "memory"]) for memory in memories]
    complete = found.issuperset(names)
    uses = " ".join(f"f({name})" for name in names) if complete else ""
    (folder / HEADER).write_text(f"#define RING_MEMORIES(f) {uses}\n")
    return complete
