"""The command `gradring packets`."""

from pathlib import Path
from typing import Annotated

import typer

from host.console import make_console, shown
from host.output import prepare
from host.reports.packets import Wave, column_titles, describe, read_packets, write_packet_wave
from sim.verilated import toolchain
from sim.verilated.names import read_encodings

__all__ = ["packets_command"]


def packets_command(
    wave: Annotated[Path, typer.Argument(help="Waveform file. [default: build/wave/ring.fst]", show_default=False)
                    ] = toolchain.BUILD / "wave" / "ring.fst",
    first: Annotated[int, typer.Option(help="Number of elements to show of each packet.")] = 4,
) -> None:
    """Show the packets in a waveform written by gradring wave, and write them to another waveform."""
    if first < 0:
        raise ValueError(f"Elements to show must be 0 or more, not {first:,}")
    console = make_console()
    waveform = Wave(wave)
    packets = read_packets(waveform)
    for line in [column_titles(), *(describe(packet, first=first) for packet in packets)]:
        console.print(line, soft_wrap=True)
    words = sum(len(packet.words) for packet in packets)
    console.print(f"{len(packets):,} packets, {words:,} words", soft_wrap=True)
    path = wave.with_suffix(".packets.vcd")
    prepare(path.parent, files=(path.name,))
    names = wave.with_suffix(".names")
    save = write_packet_wave(path, waveform, packets, read_encodings(names) if names.is_dir() else [])
    console.print(f"{shown(path)} has packets, words, floats and states in plain: gtkwave {shown(save)}",
                  soft_wrap=True)
