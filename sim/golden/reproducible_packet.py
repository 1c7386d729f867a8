"""Golden model of packets of reproducible sums: integers, whose width grows with the hops, exponents and checksums.

A payload consists of these words:

1. exponents of a segment that follows two segments later, nine bits for each group: the field, and in bit 8 whether
   any addend has an infinity or a NaN in the group. Nine bits follow each other without gaps, lowest first;
2. for each group, the elements that are +infinity or NaN and those that are -infinity or NaN, one word each, if that
   bit was set for the group; then its integers;
3. the :func:`~sim.golden.reproducible.checksum` of the segment's integers, two words.

**Integers.** After hop h of M addends, an integer has :func:`hop_bits` d = b + ceil(log2(h + 1)) bits, and a group
takes d words. For widths of 32 and 16, a lane of that width holds an integer in its lowest d bits. There are only
32 · d / width lanes, so the last elements of a group are distributed among the upper width - d bits of all lanes,
their bits following each other, lowest first. Neither encoder nor decoder needs a shifter for them. Integers of other
widths do not grow, and follow each other without gaps.
"""

import numpy as np
import numpy.typing as npt

from sim.golden.reproducible import GROUP, addend_bits

__all__ = ["CHECKSUM_WORDS", "EXPONENT_BITS", "GROWING", "hop_bits", "pack", "payload_words", "unpack"]

Words = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]

#: Widths of sums whose integers grow from hop to hop.
GROWING = (16, 32)
#: Bits of the exponent of a group, with its flag, and words of a checksum.
EXPONENT_BITS, CHECKSUM_WORDS = 9, 2

_WORD = 32


def hop_bits(width: int, addends: int, count: int) -> int:
    """Number of bits of each integer in a packet with the sum of ``count`` of all ``addends``."""
    bits = addend_bits(width, addends)
    return bits + (count - 1).bit_length() if width in GROWING else width


def _to_words(bits: npt.NDArray[np.bool_]) -> Words:
    return np.packbits(bits, bitorder="little").view("<u4")


def _bits(values: Integers, count: int) -> npt.NDArray[np.bool_]:
    """Lowest ``count`` bits of integers, lowest first; shape (integers, count)."""
    return (values[:, None] >> np.arange(count) & 1).astype(np.bool_)


def pack(integers: Integers, bits: int, width: int) -> Words:
    """Words of a segment's integers of ``bits`` bits, in whole groups."""
    groups = np.zeros((-(-len(integers) // GROUP), GROUP), np.int64)
    groups.reshape(-1)[:len(integers)] = integers
    if width not in GROWING:
        return _to_words(_bits(groups.reshape(-1), bits))
    lanes = GROUP * bits // width
    rows = []
    for group in groups:
        spread = _bits(group[lanes:], bits).reshape(lanes, width - bits)
        rows.append(np.concatenate([_bits(group[:lanes], bits), spread], axis=1))
    return _to_words(np.concatenate(rows)) if rows else np.zeros(0, np.uint32)


def unpack(words: Words, count: int, bits: int, width: int) -> Integers:
    """Integers of a segment of ``count`` elements."""
    stream = np.unpackbits(np.asarray(words, "<u4").view(np.uint8), bitorder="little")
    if width in GROWING:
        lanes = stream.reshape(-1, GROUP * bits // width, width)
        direct, spread = lanes[:, :, :bits], lanes[:, :, bits:]
        stream = np.concatenate([direct, spread.reshape(len(lanes), -1, bits)], axis=1)
    values = (stream.reshape(-1, bits).astype(np.int64) << np.arange(bits)).sum(axis=1)
    return np.asarray((values ^ 1 << bits - 1) - (1 << bits - 1))[:count]


def payload_words(elements: int, ahead: int, bits: int, *, flagged: int = 0) -> int:
    """Words of the payload of a packet.

    Parameters
    ----------
    elements, ahead : int
        Elements of the segment, and of the segment whose exponents the packet contains.
    bits : int
        Bits of each integer, from :func:`hop_bits`.
    flagged : int
        Groups of the segment with an infinity or a NaN.
    """
    groups, exponents = -(-elements // GROUP), -(-ahead // GROUP)
    return (-(-EXPONENT_BITS * exponents // _WORD) + 2 * flagged + groups * bits
            + (CHECKSUM_WORDS if elements else 0))
