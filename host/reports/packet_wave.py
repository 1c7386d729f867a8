"""Waveform of a ring whose values are text and numbers: packets and their words, elements as floats, states by name.

It is a VCD file, whose strings and reals a viewer shows as they are. Its time is that of the waveform that it is made
of.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vcd import VCDWriter
from vcd.gtkw import GTKWSave
from vcd.writer import Variable

from host.reports.packets import CYCLE, Seen, Wave
from sim.verilated.names import SCOPES, Encoding

__all__ = ["write_packet_wave"]


def _label(packet: Seen) -> str:
    """Packet in one word, since many viewers end strings at a space."""
    header = packet.header
    return (f"{packet.type}_{header.sequence}:block{header.block}.{header.segment}:{header.length}_{packet.codec}")


#: Signals of a link with their types in VCD, those in GTKWave, and their values while no word is on the wires.
_SIGNALS: dict[str, tuple[str, str, str | float]] = {
    "packet": ("string", "ascii", "-"), "word": ("string", "ascii", "-"), "element": ("real", "real", math.nan),
    "data": ("wire", "hex", "x")}


def _events(packets: Sequence[Seen]) -> Iterator[tuple[int, str, str | float]]:
    """Changes of the signals of one link, by their cycles; of several in a cycle the last one holds."""
    for packet in packets:
        yield packet.cycles[0], "packet", _label(packet)
        elements = packet.elements
        for cycle, data, (role, place) in zip(packet.cycles, packet.words, packet.roles, strict=True):
            value = math.nan if elements is None or place is None else float(elements[place])
            for name, now in (("word", role), ("element", value), ("data", data)):
                yield cycle, name, now
                yield cycle + 1, name, _SIGNALS[name][2]  # unless another word follows
        yield packet.cycles[-1] + 1, "packet", _SIGNALS["packet"][2]


def write_packet_wave(path: Path, wave: Wave, packets: Sequence[Seen], encodings: Sequence[Encoding]) -> Path:
    """Write the waveform, and beside it a save file for GTKWave; the path of this.

    Parameters
    ----------
    path : Path
        The VCD file.
    wave : Wave
        The waveform that the packets are from.
    encodings : sequence of Encoding
        Signals whose values have names; the machines and operations among them are shown for each node.
    """
    links = sorted({packet.link for packet in packets})
    shown = [one for one in encodings if "$" not in one.signal and (
        one.machine or one.signal.endswith("operation"))]
    save = path.with_suffix(".gtkw")
    changes: list[tuple[int, Variable[Any], str | float]] = []
    with path.open("w") as file, save.open("w") as saved, VCDWriter(file, timescale="1 ps") as writer:
        layout = GTKWSave(saved)
        layout.dumpfile(str(path.resolve()))
        for link in links:
            scope = "link{}to{}".format(*link)
            variables = {}
            with layout.group("link {} to {}".format(*link)):
                for name, (kind, shape, init) in _SIGNALS.items():
                    size = 32 if kind == "wire" else None
                    variables[name] = writer.register_var(scope, name, kind, size=size, init=init)
                    layout.trace(f"{scope}.{name}" + ("[31:0]" if size else ""), datafmt=shape)
            last = {}
            for cycle, name, value in _events([packet for packet in packets if packet.link == link]):
                last[cycle, name] = value
            # From the rising edge on that puts a word on the wires.
            changes += [(CYCLE * cycle - CYCLE // 2, variables[name], value) for (cycle, name), value in last.items()]
        for node in range(wave.nodes):
            with layout.group(f"node {node}", closed=node > 0):
                for one in shown:
                    source = ".".join((f"node{node}", *SCOPES, *one.path, one.signal))
                    if source not in wave:
                        continue
                    scope, name = ".".join((f"node{node}", *one.path)), one.signal.replace(".", "_")
                    variable = writer.register_var(scope, name, "string", init="-")
                    layout.trace(f"{scope}.{name}", alias=".".join((*one.path, name)), datafmt="ascii")
                    changes += [(time, variable, one.values.get(value, f"{value}"))
                                for time, value in wave.changes(source)]
        for time, variable, value in sorted(changes, key=lambda change: change[0]):
            writer.change(variable, time, value)
    return save
