"""Read the packets of a ring from the link signals in a waveform, and write them as text and as a waveform.

The input is a waveform of ``gradring wave``, in FST or VCD format, read by pywellen. The output waveform shows
packets and their words, elements as floats, and states by name, at the same times. It is a VCD file with strings and
reals, which viewers display as they are.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from vcd import VCDWriter
from vcd.gtkw import GTKWSave
from vcd.writer import Variable

from hdl.ring.header import HEADER_WORDS
from hdl.ring.topology import RingTopology
from host.printable import one_line
from sim.golden.codecs import CODECS
from sim.golden.packet import ABORT, DATA, STOMP, Header, checksum
from sim.golden.ring import floats
from sim.verilated.names import SCOPES, Encoding

__all__ = ["CYCLE", "Changes", "Seen", "Wave", "column_titles", "describe", "read_packets",
           "write_packet_wave"]

#: Duration of a clock cycle in a waveform, in the waveform's time units.
CYCLE = 10

_TYPES = {DATA: "DATA", ABORT: "ABORT"}
_BY_CODE = {codec.code: (name, codec) for name, codec in CODECS.items()}

#: Column widths of the text table, keyed by heading; numbers are right-aligned.
_COLUMNS = {"cycle": 7, "link": 8, "type": 5, "codec": 10, "seq": 5, "block": 6, "segment": 8, "elements": 9,
            "words": 6, "CRC": 7}

#: Type of a signal's changes: times and values, from the start of the waveform.
Changes = list[tuple[int, Any]]


class Wave:
    """Read the signals of a waveform, keyed by name. Raises ``FileNotFoundError`` if there is no file, and
    ``ValueError`` if pywellen is not installed or cannot read the file."""

    def __init__(self, path: Path):
        try:
            from pywellen import Waveform
        except ModuleNotFoundError:
            raise ValueError("Waveforms are read by pywellen, which is not installed: run "
                             "'pip install gradring[wave]', or 'make .venv/.wave' in a clone") from None
        if not path.is_file():
            raise FileNotFoundError(f"{path} must be a waveform, and is not there; 'gradring wave' writes one")
        self._path = path
        with self._errors():
            self._signals = {str(signal.full_name): signal for signal in Waveform(str(path)).all_vars()}

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert pywellen's errors and panics, which share no base class, to a one-line error."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"{self._path} must be a waveform that pywellen reads: {one_line(error)}") from None

    @property
    def nodes(self) -> int:
        """Return the number of nodes in the ring of a waveform; raise ``ValueError`` if it contains no ring."""
        count = next(count for count in itertools.count() if f"node{count}.ring_o__valid" not in self._signals)
        if not count:
            raise ValueError("Waveform must be one of a ring, and has no signal node0.ring_o__valid")
        return count

    def __contains__(self, name: str) -> bool:
        return name in self._signals

    def changes(self, name: str) -> Changes:
        """Return the changes of a signal as (time, value) pairs. The first pair is the initial value."""
        with self._errors():
            return [(int(time), value) for time, value in self._signals[name].tv]

    def cycles(self, name: str, count: int) -> npt.NDArray[np.uint32]:
        """Return a signal's value before the rising edge of each cycle, from cycle 0; unknown values are 0."""
        known = [(time, value) for time, value in self.changes(name) if isinstance(value, int)]
        times = np.array([time for time, _ in known])
        values = np.array([0, *(value for _, value in known)], dtype=np.uint32)
        return values[np.searchsorted(times, CYCLE * np.arange(count), side="right")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """A packet sent by a node on its link."""

    #: Ranks of the sender and its successor.
    link: tuple[int, int]
    #: Cycle in which the sender drives each word on its wires.
    cycles: tuple[int, ...]
    words: tuple[int, ...]

    @property
    def header(self) -> Header:
        """Header of the packet, parsed from the first three words."""
        return Header.parse(self.words)

    @property
    def payload(self) -> tuple[int, ...]:
        """Payload of the packet: the words between header and CRC."""
        return self.words[HEADER_WORDS:-1]

    @property
    def crc(self) -> str:
        """Result of the packet's CRC check: ``right``, ``stomped`` or ``wrong``."""
        due = checksum(self.words[:-1])
        return {due: "right", due ^ STOMP: "stomped"}.get(self.words[-1], "wrong")

    @property
    def type(self) -> str:
        """Name of the packet's type."""
        return _TYPES.get(self.header.type, f"{self.header.type}")

    @property
    def codec(self) -> str:
        """Name of the payload's codec."""
        return _BY_CODE[self.header.codec][0] if self.header.codec in _BY_CODE else f"{self.header.codec}"

    @property
    def intact(self) -> bool:
        """Whether the packet contains data in a known format and its CRC is right."""
        return self.header.codec in _BY_CODE and self.header.type == DATA and self.crc == "right"

    @property
    def integers(self) -> bool:
        """Whether the packet contains integers with exponents that earlier packets have transferred."""
        return self.intact and _BY_CODE[self.header.codec][1].agreed and self.header.length > 0

    @property
    def exponent_words(self) -> int:
        """Number of exponent words at the start of the payload, in packets of commands that sum integers.

        It is 0 if the packet's elements are integers, since a header does not show whether a checksum follows them.
        """
        if not self.intact or self.integers:
            return 0
        return max(len(self.payload) - _BY_CODE[self.header.codec][1].max_words(self.header.length), 0)

    @property
    def elements(self) -> npt.NDArray[np.float32] | None:
        """Decoded elements of the payload; None if the packet is damaged, has no data, contains integers or needs a
        codebook."""
        if not self.intact or self.integers:
            return None
        codec, length, words = _BY_CODE[self.header.codec][1], self.header.length, self.payload[self.exponent_words:]
        if codec.codebook_words or codec.span(words, length) != (len(words), 0, False):
            return None
        return floats(codec.decode(words, length))

    @property
    def roles(self) -> list[tuple[str, int | None]]:
        """Role of each word of the packet, and the index of the element it contains, if any."""
        roles: list[tuple[str, int | None]] = [(f"header{word}", None) for word in range(HEADER_WORDS)]
        if self.codec == "zero_value":
            indices: Iterator[int] = iter(())
            groups = itertools.count()
            for word in self.payload:
                index = next(indices, None)
                if index is None:
                    group = next(groups)
                    roles.append((f"mask{group}", None))
                    indices = iter([32 * group + bit for bit in range(32) if word >> bit & 1])
                else:
                    roles.append((f"element{index}", index))
        else:
            is_raw, count = self.codec == "raw", self.exponent_words
            roles += [(f"exponents{word}", None) for word in range(count)]
            roles += [(f"element{word}", word) if is_raw else (f"payload{word}", None)
                      for word in range(len(self.payload) - count)]
        return [*roles, (f"CRC_{self.crc}", None)]


def read_packets(wave: Wave) -> list[Seen]:
    """Return all complete packets in a waveform, in the order of their first words."""
    packets = []
    for sender, receiver in RingTopology(wave.nodes).links:
        names = [f"node{sender}.ring_o__{wire}" for wire in ("valid", "data", "last")]
        count = 2 + max(wave.changes(name)[-1][0] for name in names) // CYCLE
        valid, data, last = (wave.cycles(name, count) for name in names)
        (when,) = np.nonzero(valid)
        ends = 1 + np.flatnonzero(last[when])
        packets += [Seen(link=(sender, receiver), cycles=tuple(cycles.tolist()), words=tuple(data[cycles].tolist()))
                    for cycles in np.split(when, ends)[:len(ends)]]
    return sorted(packets, key=lambda packet: (packet.cycles[0], packet.link))


def _line(values: Sequence[object]) -> str:
    return "".join(f"  {value:<{width}}" if name in ("type", "codec", "CRC") else f"{value:>{width}}"
                   for value, (name, width) in zip(values, _COLUMNS.items(), strict=True)) + "  "


def column_titles() -> str:
    """Return the titles of the columns in the lines of :func:`describe`."""
    return _line(tuple(_COLUMNS)) + "first elements"


def describe(packet: Seen, *, first: int = 4) -> str:
    """Describe a packet in one line of text, including its ``first`` elements."""
    header, elements = packet.header, packet.elements
    if elements is None:
        shown = "integers, not decoded" if packet.integers else "unknown"
    else:
        shown = "  ".join(f"{element:.4g}" for element in elements[:first].tolist())
    return _line((packet.cycles[0], "{} > {}".format(*packet.link), packet.type, packet.codec, header.sequence,
                  header.block, header.segment, header.length, len(packet.words), packet.crc)) + shown


def _label(packet: Seen) -> str:
    """Return the label of a packet. It has no spaces, because many viewers end strings at a space."""
    header = packet.header
    return (f"{packet.type}_{header.sequence}:block{header.block}.{header.segment}:{header.length}_{packet.codec}")


#: Signals of a link, with their types in VCD and in GTKWave, and with their values while the link is idle.
_SIGNALS: dict[str, tuple[str, str, str | float]] = {
    "packet": ("string", "ascii", "-"), "word": ("string", "ascii", "-"), "element": ("real", "real", math.nan),
    "data": ("wire", "hex", "x")}


def _events(packets: Sequence[Seen]) -> Iterator[tuple[int, str, str | float]]:
    """Yield signal changes of one link as (cycle, name, value). The last of a signal's changes in a cycle applies."""
    for packet in packets:
        yield packet.cycles[0], "packet", _label(packet)
        elements = packet.elements
        for cycle, data, (role, index) in zip(packet.cycles, packet.words, packet.roles, strict=True):
            value = math.nan if elements is None or index is None else float(elements[index])
            for name, now in (("word", role), ("element", value), ("data", data)):
                yield cycle, name, now
                yield cycle + 1, name, _SIGNALS[name][2]  # overwritten if a word follows in the next cycle
        yield packet.cycles[-1] + 1, "packet", _SIGNALS["packet"][2]


def write_packet_wave(path: Path, wave: Wave, packets: Sequence[Seen], encodings: Sequence[Encoding]) -> Path:
    """Write ``packets`` of a waveform to the VCD file ``path``, with a save file for GTKWave; return its path. State
    machines and operations of each node are also shown if they have ``encodings``."""
    links = sorted({packet.link for packet in packets})
    shown = [enc for enc in encodings if "$" not in enc.signal and (enc.machine or enc.signal.endswith("operation"))]
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
            last = {(cycle, name): value
                    for cycle, name, value in _events([packet for packet in packets if packet.link == link])}
            # Values change at the rising edge that puts the word on the wires.
            changes += [(CYCLE * cycle - CYCLE // 2, variables[name], value) for (cycle, name), value in last.items()]
        for node in range(wave.nodes):
            with layout.group(f"node {node}", closed=node > 0):
                for enc in shown:
                    source = ".".join((f"node{node}", *SCOPES, *enc.path, enc.signal))
                    if source not in wave:
                        continue
                    scope, name = ".".join((f"node{node}", *enc.path)), enc.signal.replace(".", "_")
                    variable = writer.register_var(scope, name, "string", init="-")
                    layout.trace(f"{scope}.{name}", alias=".".join((*enc.path, name)), datafmt="ascii")
                    changes += [(time, variable, enc.values.get(value, f"{value}"))
                                for time, value in wave.changes(source)]
        for time, variable, value in sorted(changes, key=lambda change: change[0]):
            writer.change(variable, time, value)
    return save
