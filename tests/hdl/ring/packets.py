"""Packets for tests of the packetizer and depacketizer, with conversion to and from stream words."""

import dataclasses

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, RisingEdge

from hdl.ring.header import expected_layout, header_layout
from sim.golden.codecs import CODECS
from sim.golden.packet import Header, checksum, codec_of, packet
from sim.payload import to_int

PATIENCE = 20_000
EPOCH = 5
RAW, ZERO_VALUE = CODECS["raw"].code, CODECS["zero_value"].code
#: Code of a table format, or None if the format's feature is missing.
TABLE = CODECS["table32"].code if "table32" in CODECS else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extended(Header):
    """Header of an expected packet that has ``extra`` payload words in addition to its elements."""

    extra: int = 0


def extra_of(header):
    """Number of payload words of a packet in addition to its elements."""
    return header.extra if isinstance(header, Extended) else 0


def random_header(generator, *, codecs=(RAW, ZERO_VALUE), extended=False, **fields):
    header = Header(
        codec=generator.choice(codecs), source=generator.randrange(256),
        destination=generator.randrange(256), epoch=EPOCH,
        sequence=generator.randrange(1 << 12), collective=generator.randrange(1 << 16),
        block=generator.randrange(256), segment=generator.randrange(1 << 10),
        length=generator.choice([0, 1, 31, 32, 33, 64, generator.randrange(70)]),
    )
    if extended:
        extra = generator.choice([0, 1, 2, generator.randrange(8)])
        header = Extended(**dataclasses.asdict(header), extra=extra)
    return dataclasses.replace(header, **fields)


def random_payload(generator, header):
    codec = codec_of(header)
    if header.codec == TABLE:
        kinds = generator.choice([1, 2, 8, 17, 256])
        exponents = [generator.randrange(256) for _ in range(kinds)]
        elements = [generator.choice(exponents) << 23 | generator.getrandbits(1) << 31 for _ in range(header.length)]
        return codec.encode(np.array(elements, np.uint32)).tolist()
    if header.codec != ZERO_VALUE:
        words = codec.max_words(header.length) + extra_of(header)
        return [generator.getrandbits(32) for _ in range(words)]
    words, density = [], generator.choice([0.0, 0.1, 0.5, 1.0])
    for first in range(0, header.length, 32):
        mask = sum((generator.random() < density) << n for n in range(min(32, header.length - first)))
        words += [mask, *(generator.getrandbits(32) for _ in range(mask.bit_count()))]
    return words


def random_packets(generator, count, **fields):
    headers = [random_header(generator, **fields) for _ in range(count)]
    return [(header, random_payload(generator, header)) for header in headers]


def framed(words):
    return [{"data": word, "last": int(n == len(words) - 1)} for n, word in enumerate(words)]


def split(beats):
    """Return the packets of a stream and the words after the last packet."""
    packets, words = [], []
    for beat in beats:
        words.append(beat["data"])
        if beat["last"]:
            packets.append(words)
            words = []
    return packets, words


def record(header, *, extended=False):
    """Return the record that a depacketizer expects for a packet with this header."""
    fields = {name: getattr(header, name) for name, _ in expected_layout()}
    return {**fields, "extra": extra_of(header)} if extended else fields


def header_bits(header):
    return to_int(header_layout(), dataclasses.asdict(header))


async def wait_for(dut, condition, what):
    edge = RisingEdge(dut.clk)
    for _ in range(PATIENCE):
        if condition():
            return
        await edge
    raise AssertionError(f"Not within {PATIENCE} cycles: {what}")


class Trace:
    """Samples some ports of a unit in every cycle, after their values have settled."""

    def __init__(self, dut, *names):
        self.rows = []
        self._edge = FallingEdge(dut.clk)
        self._ports = {name: getattr(dut, name) for name in names}
        cocotb.start_soon(self._watch())

    async def _watch(self):
        while True:
            await self._edge
            self.rows.append({name: int(port.value) for name, port in self._ports.items()})

    def cycles(self, name):
        """Return the cycles in which a port is nonzero."""
        return [cycle for cycle, row in enumerate(self.rows) if row[name]]


def accepted_log(packets):
    """Return the expected log of valid packets, without ``done`` entries, which may precede or follow the last
    word."""
    log = []
    for _, payload in packets:
        log += [("accepted",), *(("word", beat["data"], beat["last"]) for beat in framed(payload))]
    return log


HEADER = Header(codec=ZERO_VALUE, source=4, epoch=EPOCH, sequence=77, collective=1000, block=3, segment=9, length=40)
PAYLOAD = (0b101, 11, 12, 0x81, 13, 14)
RAW_HEADER = dataclasses.replace(HEADER, codec=RAW, length=3)
LONG_HEADER = dataclasses.replace(HEADER, codec=RAW, length=1023)


def resealed(words, **changes):
    """Change some words of a packet and correct its CRC."""
    words = list(words[:-1])
    for index, word in changes.items():
        words[int(index[1:])] = word
    return [*words, checksum(words)]


def corrupted(words, index, bit):
    return [word ^ (1 << bit if n == index else 0) for n, word in enumerate(words)]


GOOD = packet(HEADER, PAYLOAD)
GOOD_RAW = packet(RAW_HEADER, (1, 2, 3))
