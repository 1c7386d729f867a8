"""Header of packets on the ring: three words with the kind of the payload and its position in the vector.

A packet consists of the header, the payload words, and the CRC-32 of all preceding words, marked with ``last``. A
sender that must abort inside a packet ends it with the bitwise inverse of the correct CRC: the packet is *stomped*.
"""

from amaranth.lib import data, enum

from hdl.compression.codec import CODE_BITS
from hdl.compression.length import LENGTH_BITS

__all__ = ["ADDED_WORDS", "HEADER_WORDS", "LONGEST_SEGMENT", "MAX_SEGMENTS", "OVERHEAD_WORDS", "PacketType",
           "expected_layout", "header_layout", "packet_words"]

HEADER_WORDS = 3
"""Number of words of a header."""

OVERHEAD_WORDS = HEADER_WORDS + 1
"""Number of words of a packet without payload: its header and its CRC."""

LONGEST_SEGMENT = 1 << LENGTH_BITS - 1
"""Number of elements of the longest segment, a power of two."""

ADDED_WORDS = range(8)
"""Shape of the number of payload words in addition to the elements."""

_SEGMENT_BITS = 10

MAX_SEGMENTS = 1 << _SEGMENT_BITS
"""Maximum number of segments of a block in the header."""


class PacketType(enum.Enum, shape=4):
    """Purpose of a packet."""

    DATA = 1
    """A segment of a block."""
    ABORT = 2
    """The sender has aborted its command."""


def header_layout():
    """Layout of the header, with the first word in the lowest bits; no field spans two words.

    ``codec`` is the :attr:`~hdl.compression.codec.Codec.code` of the payload. ``tenant`` is the tenant of the
    command, 0 in nodes without tenants. ``length`` is the number of elements; in an ABORT packet, which has no
    payload, it may contain the reason.
    """
    return data.StructLayout({
        "type": PacketType, "codec": CODE_BITS, "tenant": 4, "source": 8, "epoch": 8,
        "sequence": 12, "segment": _SEGMENT_BITS, "length": LENGTH_BITS,
        "collective": 16, "block": 8, "destination": 8,
    })


def expected_layout(*, extended=False):
    """Layout of the header fields, other than the tenant, that an accepted DATA packet must match.

    ``extended`` adds the number of payload words in addition to the elements, which is not in the header.
    """
    return data.StructLayout({
        **({"extra": ADDED_WORDS} if extended else {}),
        "codec": CODE_BITS, "source": 8, "epoch": 8,
        "sequence": 12, "segment": _SEGMENT_BITS, "length": LENGTH_BITS,
        "collective": 16, "block": 8,
    })


def packet_words(segment):
    """Return the number of words in the longest packet of ``segment`` elements.

    In addition to header, elements and CRC, it has either the masks of zero-value compression or, with integer
    sums, a checksum and exponents, which take one word for four groups.
    """
    if not isinstance(segment, int) or not 1 <= segment < 1 << LENGTH_BITS:
        raise ValueError(f"Segment must be between 1 and {(1 << LENGTH_BITS) - 1} elements, not {segment!r}")
    return OVERHEAD_WORDS + segment + max((segment + 31) // 32, (segment + 127) // 128 + 1)
