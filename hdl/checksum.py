"""Parities of words, and the CRC-32 of IEEE 802.3. The CRC is zlib's if words are stored as little-endian bytes."""

import collections
import itertools

from amaranth.hdl import Cat

__all__ = ["crc_after", "few_parities", "parities"]

_POLYNOMIAL = 0xEDB88320  # of the CRC-32, in reflected bit order


def crc_after(mixed, bits=32):
    """Return the next value of the CRC register, from ``mixed``, the exclusive-or of its value and a word. Each bit
    of the result is the parity of some bits of ``mixed``.

    This is the bit-serial CRC unrolled over the ``bits`` of a word, least significant bit first.
    """
    columns = []
    for position in range(32):
        column = 1 << position
        for _ in range(bits):
            column = (column >> 1) ^ (_POLYNOMIAL if column & 1 else 0)
        columns.append(column)
    return Cat(parities(mixed, [{n for n in range(32) if columns[n] >> bit & 1} for bit in range(32)]))


def parities(bits, chosen):
    """Return parities of ``bits``; each set in ``chosen`` gives the bit positions that one parity covers.

    The exclusive-or of the pair of bits that occurs in most parities is computed once and shared, and so on until no
    pair occurs twice. This saves a third of the LUTs of a CRC-32.
    """
    terms, left = list(bits), [set(places) for places in chosen]
    while True:
        pairs = collections.Counter(pair for parity in left for pair in itertools.combinations(sorted(parity), 2))
        pair, count = max(pairs.items(), key=lambda item: (item[1], item[0]), default=(None, 0))
        if count < 2:
            break
        for parity in left:
            if parity.issuperset(pair):
                parity -= set(pair)
                parity.add(len(terms))
        terms.append(terms[pair[0]] ^ terms[pair[1]])
    return [Cat(terms[n] for n in sorted(parity)).xor() for parity in left]


def few_parities(bits, chosen):
    """Compute a few parities of many bits. Like :func:`parities`, but instead of pairs, sets of four bits that
    several parities share are factored out, each into one LUT, beginning with the set that is shared most. A link
    check needs a fifth fewer LUTs than with pairs."""
    terms, left = list(bits), [set(places) for places in chosen]
    for size in range(len(left), 1, -1):
        for group in itertools.combinations(left, size):
            while len(common := set.intersection(*group)) >= 4:
                four = sorted(common)[:4]
                for parity in group:
                    parity -= set(four)
                    parity.add(len(terms))
                terms.append(Cat(terms[n] for n in four).xor())
    return [Cat(terms[n] for n in sorted(parity)).xor() for parity in left]
