"""Names of signal values: states of finite state machines and members of enumerations.

Waveforms contain only numbers, because the names that Amaranth knows are lost in the Verilog for Verilator.
"""

import dataclasses
import json
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from amaranth.hdl import Fragment, Value
from amaranth.hdl._ir import build_netlist
from amaranth.lib.wiring import Component
from vcd.gtkw import GTKWSave, make_translation_filter

from hdl.control.protocol import Operation
from sim import json_files
from sim.fields import integer, mapping, record, several, text
from sim.verilated import toolchain
from sim.verilated.verilog import Design, sources

__all__ = ["SCOPES", "Encoding", "encodings", "read_encodings", "write_gtkw"]


#: Width in bits of a command's operation, which is not an enumeration since commands may contain any number.
_OPERATION_BITS = 8
#: Scopes between a node's scope and its component in a waveform.
SCOPES = ("ring_node", "node")


_name = text(r"[^\0]{1,1024}")
_ROWS = several(record(path=several(_name, 0, 64), signal=_name, width=integer(1, 4096),
                       values=mapping(text("[0-9]{1,1300}"), text(r"[^\0]{0,1024}"), 1 << 16),
                       machine=lambda value: isinstance(value, bool)), 0, 1 << 16)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Names of the values of one signal.

    Members
    -------
    path : tuple of str
        Module path to the signal, without the top module.
    signal : str
        Name of the signal in its module; the name of a structure member contains a dot.
    width : int
        Number of bits.
    values : dict
        Names keyed by value.
    machine : bool
        Whether the signal holds the state of a finite state machine.
    """

    path: tuple[str, ...]
    signal: str
    width: int
    values: dict[int, str]
    machine: bool


def encodings(component: Component, design: Design, *, identity: str | None = None) -> tuple[Encoding, ...]:
    """Find all signals of a component that have named values, in module order.

    Parameters
    ----------
    component : Component
    design : Design
        The component as Verilog; signals that have no wire in it are omitted.
    identity : str or None
        Identity for :func:`~sim.verilated.verilog.convert`; if given, the names are stored for later runs.
    """
    known = sources() if identity is not None else None
    if identity is None or known is None:
        result = _encodings(component, design)
    else:
        key = toolchain.digest("names", identity, known, platform.python_version(), toolchain.version("amaranth"),
                               design.text, Path(__file__).read_bytes())

        def build(folder: Path) -> None:
            _save(folder, _encodings(component, design))

        result = read_encodings(toolchain.cached(
            toolchain.cache_folder("verilog") / f"{design.name}-names-{key}", build))
    return tuple(result)


def _save(folder: Path, items: Iterable[Encoding]) -> Path:
    path = folder / "names.json"
    path.write_text(json.dumps([dataclasses.asdict(item) for item in items]))
    return path


def read_encodings(folder: Path) -> list[Encoding]:
    """Read the encodings from the ``.names`` folder that :func:`write_gtkw` created.

    Raises
    ------
    ValueError
        The file is damaged or of a different kind; the message names the file.
    """
    path = folder / "names.json"
    rows = json_files.read(path)
    if not _ROWS(rows):
        raise ValueError(f"{path} must be names of states and fields, not damaged or another file: remove {folder}")
    return [Encoding(**{**row, "path": tuple(row["path"]),
                        "values": {int(value): name for value, name in row["values"].items()}})
            for row in rows]


def _encodings(component: Component, design: Design) -> list[Encoding]:
    netlist = build_netlist(Fragment.get(component, None), ports=_ports(component), name=design.name)
    wires = _wires(design)
    result = []
    for module in netlist.modules:
        path = tuple(module.name[1:])
        here = wires.get(".".join(module.name), frozenset())
        for signal, name in module.signal_names.items():
            if name not in here:
                continue
            states = _states(signal)
            if states:
                result.append(Encoding(path, name, len(signal), states, True))
            for parts, field in netlist.signal_fields[signal].items():
                full = "".join([name, *(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)])
                width = len(field.value) if parts else len(signal)
                values = dict(field.enum_variants or {})
                if not values and width == _OPERATION_BITS and _leaf(name, parts) == "operation":
                    values = {operation.value: operation.name for operation in Operation}
                if values and full in here:
                    result.append(Encoding(path, full, width, values, False))
    return result


def _leaf(name: str, parts: tuple[object, ...]) -> str:
    """Unprefixed name of a signal: the structure member, or the last part of the signal's name."""
    return str(parts[-1]) if parts else name.partition("$")[0].rpartition("__")[2]


def _ports(component: Component) -> list[tuple[str, object, None]]:
    return [("__".join(map(str, path)), Value.cast(value), None)
            for path, _, value in component.signature.flatten(component)]


def _states(signal: object) -> dict[int, str]:
    """State names of a state machine's state signal, keyed by number; empty for any other signal."""
    decoder = getattr(signal, "decoder", None)
    if not callable(decoder) or isinstance(decoder, type):
        return {}
    states = {}
    for value in range(1 << len(signal)):  # type: ignore[arg-type]
        try:
            name, _, number = decoder(value).rpartition("/")
        except KeyError:  # the number of states is not a power of two
            continue
        if number != f"{value}":
            return {}
        states[value] = name
    return states


def _wires(design: Design) -> dict[str, frozenset[str]]:
    """Wire names of each module, keyed by module name."""
    result = {}
    for part in re.split(r"^module ", design.text, flags=re.MULTILINE)[1:]:
        name = part[:part.index("(")].strip().lstrip("\\")
        result[name] = frozenset(match.lstrip("\\") for match in re.findall(
            r"^  (?:(?:input|output|wire|reg) )+(?:\[\d+:\d+\] )?(\S+?)(?: ?;| = )", part, flags=re.MULTILINE))
    return result


def _filter(encoding: Encoding) -> str:
    """GTKWave filter file: each line contains a binary value and its name."""
    return str(make_translation_filter(sorted(encoding.values.items()), datafmt="bin", size=encoding.width)) + "\n"


def write_gtkw(path: Path, wave: Path, found: Iterable[Encoding], *, nodes: int) -> list[Path]:
    """Write a GTKWave save file that shows the state machines of all nodes with named states. Also write the filter
    files with the names, and return the paths of all files.

    Parameters
    ----------
    path : Path
        Path of the save file.
    wave : Path
        Path of the waveform.
    found : iterable of Encoding
    nodes : int
        Ring size.
    """
    every = sorted(found, key=lambda encoding: (not encoding.machine, encoding.path, encoding.signal))
    folder = path.with_suffix(".names")
    folder.mkdir(parents=True, exist_ok=True)
    filters: dict[str, Path] = {}
    for encoding in every:
        text = _filter(encoding)
        if text not in filters:
            name = re.sub(r"\W+", "_", ".".join((*encoding.path, encoding.signal)))
            filters[text] = folder / f"{name}.txt"
            filters[text].write_text(text)
    with path.open("w") as file:
        save = GTKWSave(file)
        save.dumpfile(str(wave.resolve()))
        for node in range(nodes):
            with save.group(f"node {node}", closed=node > 0):
                for encoding in every:
                    text = _filter(encoding)
                    scope = ".".join((f"node{node}", *SCOPES, *encoding.path, encoding.signal))
                    bits = f"[{encoding.width - 1}:0]" if encoding.width > 1 else ""
                    save.trace(scope + bits, alias=".".join((*encoding.path, encoding.signal)), datafmt="bin",
                               translate_filter_file=str(filters[text].resolve()))
    return [path, *filters.values(), _save(folder, every)]
