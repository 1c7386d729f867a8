# amaranth: UnusedElaboratable=no
"""Library of a simulated ring in which registers and memories can be changed between two cycles."""

import dataclasses
import functools
import re
from pathlib import Path

from hdl.board import node_of
from sim.verilated import build, toolchain
from sim.verilated.members import find_members
from sim.verilated.ports import HEADER as PORTS
from sim.verilated.ports import describe_ports
from sim.verilated.verilog import convert

__all__ = ["Item", "flip_library"]

_HARNESS = Path(build.__file__).parent
_SOURCE = Path(__file__).with_name("flips.cpp")
_ITEMS = "items.txt"

#: Path of a node in the Verilated design.
_NODE = "ring_node__DOT__node__DOT__"
#: Declarations of members in Verilator's header: bits, number of memory rows, and name.
_VECTOR = re.compile(r"^\s*(?:[CSIQ]Data|VlWide<\d+>)/\*(?P<high>\d+):0\*/ (?P<name>\w+);$", re.MULTILINE)
_MEMORY = re.compile(r"^\s*VlUnpacked<(?:[CSIQ]Data|VlWide<\d+>)/\*(?P<high>\d+):0\*/, (?P<rows>\d+)> "
                     r"(?P<name>\w+);$", re.MULTILINE)
#: Parts of a Verilog design: modules, registers, instances and their ports.
_MODULE = re.compile(r"^module (\S+) ?\(.*?^endmodule", re.MULTILINE | re.DOTALL)
_REGISTER = re.compile(r"(\S+) *(?:\[[\d:]+\])? <= ")
_INSTANCE = re.compile(r"^  (\S+) +(\S+) +\(\n((?:    \..*\n)+)  \);", re.MULTILINE)
_PORT = re.compile(r"\.(\S+?) ?\((\S+) ?\)")
#: Functions that set initial values; only registers have initial values, other signals do not.
_INITIAL = re.compile(r"void \w+___eval_(?:static|initial)__TOP\w*\(\w+\* vlSelf\) \{\n(?P<body>.*?)\n\}\n",
                      re.DOTALL)
_PATTERNS = (_VECTOR, _MEMORY, _MODULE, _REGISTER, _INSTANCE, _PORT, _INITIAL)


@dataclasses.dataclass(frozen=True)
class Item:
    """A register, or a memory with several rows, in which bits can be flipped.

    Members
    -------
    member : str
        Name of the member in the Verilated class.
    path : str
        Dotted path of the register or memory in the node.
    bits : int
        Number of bits in a row.
    rows : int
    """

    member: str
    path: str
    bits: int
    rows: int


def _owners(verilog: str) -> dict[str, str]:
    """Paths of registers that drive outputs of modules, keyed by the path of the signal connected to the output."""
    modules = {match[1]: match[0] for match in _MODULE.finditer(verilog)}
    owners = {}

    def visit(module: str, path: str, outer: dict[str, str]) -> None:
        for register in set(_REGISTER.findall(modules[module])) & outer.keys():
            owners[outer[register]] = path + register.removeprefix("\\")
        for kind, name, ports in _INSTANCE.findall(modules[module]):
            inner = {port: outer.get(signal, path + signal.removeprefix("\\"))
                     for port, signal in _PORT.findall(ports)}
            visit(kind, f"{path}{name.removeprefix(chr(92))}.", inner)

    visit("node", "", {})
    return owners


def _items(folder: Path, verilog: str) -> list[Item]:
    """List the registers and memories of a Verilated node."""
    owners = _owners(verilog)

    def item(member: str, high: str, rows: int) -> Item:
        path = member.removeprefix(_NODE).replace("__DOT__", ".")
        path = re.sub(r"__0([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), path)
        return Item(member, owners.get(path, path), int(high) + 1, rows)

    header = (folder / "Vnode___024root.h").read_text()
    slow = "".join(path.read_text() for path in sorted(folder.glob("Vnode___024root*Slow.cpp")))
    initial = {name for match in _INITIAL.finditer(slow) for name in re.findall(r"vlSelfRef\.(\w+)", match["body"])}
    vectors = [(match, 1) for match in _VECTOR.finditer(header) if match["name"] in initial]
    memories = [(match, int(match["rows"])) for match in _MEMORY.finditer(header)]
    return [item(match["name"], match["high"], rows) for match, rows in vectors + memories
            if match["name"].startswith(_NODE)]


@functools.cache
def flip_library(config) -> tuple[build.Library, list[Item]]:
    """Build the library of a ring unless it is cached; return the library and the items for ``ring_flip``."""
    design = convert(node_of(config), name="node", identity=f"Node({config})")
    verilog = build._ring_node(design)
    memories = [name for name in node_of(config).memories if isinstance(name, str)]
    harness = toolchain.sources([*sorted(_HARNESS.rglob("ring*.h")), _HARNESS / "ring.cpp", _SOURCE])
    harness[PORTS] = describe_ports({port.name: port.width for port in design.ports})
    verilate = build.options("node", "ring_node", "--savable")
    key = toolchain.digest(verilog, repr(harness), repr((*verilate, *build.FLAGS, *memories)),
                           toolchain.version("verilator"), toolchain.target(),
                           toolchain.source(flip_library, _items, _owners), *(each.pattern for each in _PATTERNS))
    directory = toolchain.cache_folder("verilated") / f"flips-{key}"

    def make(folder: Path) -> None:
        for name, text in {"node.v": verilog, **harness}.items():
            (folder / name).write_text(text)
        toolchain.run([str(toolchain.verilator() / "bin" / "verilator"), *verilate, "-Mdir", "obj", "node.v"],
                      cwd=folder, env=toolchain.environment())
        find_members(folder / "obj", "node", "ring_node.node", memories)
        items = _items(folder / "obj", verilog)
        (folder / _ITEMS).write_text("".join(
            f"{item.member} {item.path} {item.bits} {item.rows}\n" for item in items))
        uses = " ".join(f"f({item.member}, {item.rows})" for item in items)
        (folder / "flips.h").write_text(f"#define FLIP_ITEMS(f) {uses}\n")
        build.compile_library(folder, name="flips", defines=["-DRING_BATCHED=0", "-fno-access-control"])

    toolchain.cached(directory, make)
    items = [Item(member, path, int(bits), int(rows)) for member, path, bits, rows in
             map(str.split, (directory / _ITEMS).read_text().splitlines())]
    spaces = tuple(node_of(config).memories)
    return build.Library(directory / "flips.so", traced=False, built=False, seconds={}, memories=spaces), items
