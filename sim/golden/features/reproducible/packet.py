"""Golden model of packets of reproducible sums: exponents, codes of integers, and checksums.

With T segments in a block, the scatter-reduce of a collective with sums has rounds 0 to T, and the all-gather has
rounds 0 to T + 1. They alternate: SR(0), AG(0), SR(1), AG(1), … SR(T), AG(T), AG(T+1). The payload of a packet of
round r consists of these words:

1. *prefix*: exponent fields of the groups of segment r, if r < T. A field has 8 bits, and a word contains four
   fields, with the first in the lowest byte. In the scatter-reduce, the fields are the maxima over the nodes so far;
   in the all-gather, they are the fields that all nodes have agreed on.
2. *data* of segment r - 1 in the scatter-reduce and of segment r - 2 in the all-gather (:data:`AHEAD`), if there is
   such a segment. In the scatter-reduce: codes of the partial sums and, if there are any, a checksum of these codes
   and of the agreed fields (:func:`packet_checksum`). In the all-gather of an ALL_REDUCE: codes of the complete sums,
   which each node rounds. In the all-gather of a FUSED_UPDATE: the new weights. The all-gather of a REDUCE_SCATTER
   has no data.

The ``segment`` of a packet is the segment of its data, r - 1 or r - 2, even if there is no data; a negative number is
stored in the header modulo a power of two. ``length`` is the number of elements in the data.

**Codes.** A code has ``width`` bits; the first code is in the lowest bits of a word, and unused bits are zero. Sums
of two or more addends do not reach the limits of their width, so three codes are free: the largest code is +infinity,
the smallest is NaN, and the second smallest is -infinity.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim.golden.codecs import CODECS, RAW, Codec
from sim.golden.features.reproducible.sums import GROUP, Addend, PartialSums, checksum, partial_sums
from sim.golden.ring import canonical, segment_indices
from sim.golden.root_reduce import GATHER, SCATTER

__all__ = ["AHEAD", "CHECKSUM_WORDS", "OPERATIONS", "WIDTHS", "SumPacket", "addend_of", "codes_of",
           "collective_packets", "exponent_words", "field_hash", "order", "pack", "pack_fields", "packet_checksum",
           "unpack", "unpack_fields"]

Bits = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]

#: Supported widths of codes, in bits.
WIDTHS = (16, 32)
#: Number of segments by which exponents precede the data in packets of each phase.
AHEAD = {SCATTER: 1, GATHER: 2}
#: Number of words of a checksum.
CHECKSUM_WORDS = 1
#: Collectives that support reproducible sums.
OPERATIONS = ("ALL_REDUCE", "REDUCE_SCATTER", "FUSED_UPDATE")

_FIELDS = 4
#: Initial value of a hash, and number of bits by which the hash is rotated for each word.
_START, _ROTATION = 0x9E37_79B9, 5


class SumPacket(NamedTuple):
    """Packet that a rank sends in a collective with reproducible sums."""

    phase: str  # SCATTER or GATHER of sim.golden.root_reduce
    segment: int  # segment of the data; negative in rounds before the first data
    block: int
    length: int  # number of elements of the data
    words: Words  # payload


def order(segments: int, steps: int) -> list[tuple[str, int, int]]:
    """Yield phase, round and step of each packet that a rank sends, in order; each phase has ``steps`` steps."""
    return [(phase, number, step) for number in range(segments + max(AHEAD.values()) if segments else 0)
            for phase, ahead in AHEAD.items() if number < segments + ahead for step in range(steps)]


def _check_width(width: int) -> None:
    if width not in WIDTHS:
        raise ValueError(f"Width of codes must be {' or '.join(map(str, WIDTHS))}, not {width!r}")


def codes_of(part: Addend, width: int) -> Integers:
    """Encode a partial sum, or the complete sum, of two or more addends."""
    largest = 2 ** (width - 1) - 1
    special = np.where(part.negative, np.where(part.positive, -largest - 1, -largest), largest)
    return np.asarray(np.where(part.positive | part.negative, special, part.integers))


def addend_of(codes: Integers, width: int) -> Addend:
    """Decode codes to integers and flags; the integer of an infinity or a NaN is zero."""
    largest = 2 ** (width - 1) - 1
    nan = codes == -largest - 1
    positive, negative = nan | (codes == largest), nan | (codes == -largest)
    return Addend(np.where(positive | negative, 0, codes), positive, negative)


def pack(codes: Integers, width: int) -> Words:
    """Pack codes into words, 32 // ``width`` per word; raises ValueError if a code has more than ``width`` bits."""
    _check_width(width)
    limit = 2 ** (width - 1)
    if ((codes < -limit) | (codes >= limit)).any():
        raise ValueError(f"Codes must have at most {width} bits")
    lanes = 32 // width
    padded = np.zeros(-(-len(codes) // lanes) * lanes, dtype=f"<i{width // 8}")
    padded[:len(codes)] = codes
    return padded.view("<u4")


def unpack(words: Words, count: int, width: int) -> Integers:
    """Unpack the first ``count`` codes from words."""
    _check_width(width)
    return np.asarray(words, "<u4").view(f"<i{width // 8}")[:count].astype(np.int64)


def field_hash(fields: Integers) -> int:
    """Hash of the exponent fields of a packet's groups.

    The hash of the preceding words is rotated left by 5 bits and then XORed with the next word of fields, so that
    each bit of the fields affects the hash.
    """
    value = _START
    for word in pack_fields(fields).tolist():
        value = (value << _ROTATION | value >> 32 - _ROTATION) % 2 ** 32 ^ word
    return value


def packet_checksum(words: Words, fields: Integers, width: int) -> int:
    """Checksum of words with codes, and of the exponent fields on which all nodes have agreed: the sum of the codes,
    plus twice the sum of their prefix sums, plus the hash of the fields, modulo 2**32.

    Codes are signed integers, including the codes of infinities and NaNs. Code i of n, counted from zero, has the
    weight 1 + 2 * (n - i), where n includes unused codes of the last word. Because weights are odd, each bit of the
    words affects the checksum. Without the hash, the checksum of a sum is the sum of the checksums if no element is
    infinite or NaN.
    """
    total, prefixes = checksum(unpack(words, len(words) * 32 // width, width))
    return (total + 2 * prefixes + field_hash(fields)) % 2 ** 32


def exponent_words(count: int) -> int:
    """Number of words that the exponent fields of ``count`` elements occupy."""
    return -(-count // (_FIELDS * GROUP))


def pack_fields(fields: Integers) -> Words:
    """Pack the exponent fields of groups into words."""
    padded = np.zeros(-(-len(fields) // _FIELDS) * _FIELDS, np.uint8)
    padded[:len(fields)] = fields
    return padded.view("<u4")


def unpack_fields(words: Words, count: int) -> Integers:
    """Unpack the first ``count`` exponent fields from words."""
    return np.asarray(words, "<u4").view(np.uint8)[:count].astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rounds:
    """Payloads of the packets of one block.

    Parameters
    ----------
    width : int
    segments : list of PartialSums
        Partial sums of each segment, in the order in which the nodes add to the block.
    gathered : list of array
        Words that the all-gather sends for each segment; empty for a REDUCE_SCATTER.
    """

    width: int
    segments: list[PartialSums]
    gathered: list[Words]

    def _prefix(self, number: int, hop: int) -> Words:
        fields = self.segments[number].fields[hop] if number < len(self.segments) else np.zeros(0, np.int64)
        return pack_fields(fields)

    def scatter(self, number: int, hop: int) -> tuple[int, Words]:
        """Element count and payload of the packet that contains the sums of the first ``hop`` + 1 nodes."""
        prefix, segment = self._prefix(number, hop), number - AHEAD[SCATTER]
        if segment < 0:
            return 0, prefix
        sums = self.segments[segment]
        codes = codes_of(sums.sums[hop], self.width)
        words = pack(codes, self.width)
        check = [packet_checksum(words, sums.fields[-1], self.width)] if len(words) else []
        return len(codes), np.concatenate([prefix, words, np.array(check, np.uint32)])

    def gather(self, number: int) -> tuple[int, Words]:
        """Element count and payload of a packet in the all-gather, in which all hops send the same packet."""
        prefix, segment = self._prefix(number, -1), number - AHEAD[GATHER]
        if segment < 0 or not self.gathered:
            return 0, prefix
        return len(self.segments[segment].sums[0].integers), np.concatenate([prefix, self.gathered[segment]])


def collective_packets(gradients: Bits, *, width: int, operation: str, segment: int = 256, block_offset: int = 0,
                       gathered: Bits | None = None, weight_codec: Codec = CODECS[RAW]) -> list[list[SumPacket]]:
    """List the packets that each rank sends in a collective, in order.

    Parameters
    ----------
    gradients : array of shape (nodes, length)
        Elements of each rank.
    width : int
        Number of bits of a code.
    operation : str
        One of :data:`OPERATIONS`.
    segment, block_offset : int
        See :func:`sim.golden.ring.segment_indices`.
    gathered : array of shape (length,)
        Weights after a FUSED_UPDATE, before the codec; None for other operations.
    weight_codec : Codec
    """
    _check_width(width)
    if operation not in OPERATIONS:
        raise ValueError(f"Operation must be {', '.join(OPERATIONS[:-1])} or {OPERATIONS[-1]}, not {operation!r}")
    if (gathered is None) is (operation == "FUSED_UPDATE"):
        raise ValueError("Gathered weights must be there for a FUSED_UPDATE, and for no other operation")
    nodes, length = gradients.shape
    blocks = []
    for block, segments in enumerate(segment_indices(length, nodes, segment, block_offset=block_offset)):
        addends = np.roll(canonical(gradients), -block, axis=0)  # the first addend is that of rank ``block``
        sums = [partial_sums(addends[:, index], width=width) for index in segments]
        words = []
        if gathered is not None:
            words = [weight_codec.encode(gathered[index]) for index in segments]
        elif operation == "ALL_REDUCE":
            words = [pack(codes_of(part.sums[-1], width), width) for part in sums]
        blocks.append(_Rounds(width=width, segments=sums, gathered=words))
    packets = order(len(blocks[0].segments), nodes - 1)
    return [[_packet(blocks, rank, *packet) for packet in packets] for rank in range(nodes)]


def _packet(blocks: list[_Rounds], rank: int, phase: str, number: int, hop: int) -> SumPacket:
    """Packet that a rank sends in a round, at a hop of a phase."""
    segment = number - AHEAD[phase]
    if phase == SCATTER:
        block = (rank - hop) % len(blocks)
        return SumPacket(phase, segment, block, *blocks[block].scatter(number, hop))
    block = (rank + 1 - hop) % len(blocks)
    return SumPacket(phase, segment, block, *blocks[block].gather(number))
