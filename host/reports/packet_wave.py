"""Waveform of a ring whose values are text and numbers: packets and their words, elements as floats, states by name.

It is a VCD file, whose strings and reals a viewer shows as they are. Its time is that of the waveform that it is made
of.
"""

import math
from collections.abc import Sequence
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


def _events(packets: Sequence[Seen]) -> list[tuple[int, str, str | float]]:
    """Changes of the strings and numbers of one link."""
    events: list[tuple[int, str, str | float]] = []
    for packet in packets:
        events.append((packet.cycles[0], "packet", _label(packet)))
        elements = packet.elements
        for cycle, (role, place) in zip(packet.cycles, packet.roles, strict=True):
            value = math.nan if elements is None or place is None else float(elements[place])
            events += [(cycle, "word", role), (cycle, "element", value)]
        events += [(packet.cycles[-1] + 1, name, value) for name, value in
                   (("packet", "-"), ("word", "-"), ("element", math.nan))]
        # A pause within a packet: no word is on the wires.
        events += [(cycle + 1, "word", "-") for cycle, after in zip(packet.cycles, packet.cycles[1:], strict=False)
                   if after > cycle + 1]
    return events


def write_packet_wave(path: Path, wave: Wave, packets: Sequence[Seen], encodings: Sequence[Encoding]) -> Path:
    """Write the waveform, and beside it a save file for GTKWave; the path of this.

    Parameters
    ----------
    path : Path
        The VCD file.
    wave : Wave
        The waveform that the packets are from.
    packets : sequence of Seen
    encodings : sequence of Encoding
        Signals whose values have names; the machines and operations among them are shown for each node.
    """
    links = sorted({packet.link for packet in packets})
    shown = [one for one in encodings if one.machine or one.signal.endswith("operation")]
    save = path.with_suffix(".gtkw")
    changes: list[tuple[int, int, Variable[Any], str | float]] = []
    with path.open("w") as file, save.open("w") as saved, VCDWriter(file, timescale="1 ps") as writer:
        layout = GTKWSave(saved)
        layout.dumpfile(str(path.resolve()))
        for link in links:
            scope = "link{}to{}".format(*link)
            variables = {name: writer.register_var(scope, name, kind, init=init) for name, kind, init in (
                ("packet", "string", "-"), ("word", "string", "-"), ("element", "real", math.nan))}
            with layout.group("link {} to {}".format(*link)):
                layout.trace(f"{scope}.packet", datafmt="ascii")
                layout.trace(f"{scope}.word", datafmt="ascii")
                layout.trace(f"{scope}.element", datafmt="real")
            for cycle, name, value in _events([packet for packet in packets if packet.link == link]):
                changes.append((CYCLE * cycle, len(changes), variables[name], value))
        for node in range(wave.nodes):
            with layout.group(f"node {node}", closed=node > 0):
                for one in shown:
                    source = ".".join((f"node{node}", *SCOPES, *one.path, one.signal))
                    if source not in wave:
                        continue
                    scope, name = ".".join((f"node{node}", *one.path)), one.signal.replace(".", "_")
                    variable = writer.register_var(scope, name, "string", init="-")
                    layout.trace(f"{scope}.{name}", datafmt="ascii")
                    changes += [(time, len(changes), variable, one.values.get(value, f"{value}"))
                                for time, value in wave.changes(source)]
        for time, _, variable, value in sorted(changes, key=lambda change: change[:2]):
            writer.change(variable, time, value)
    return save
