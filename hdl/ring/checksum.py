"""CRC-32 of IEEE 802.3, a word at a time. It equals zlib's CRC-32 of the words as little-endian bytes."""

import collections
import itertools

from amaranth.hdl import Cat

__all__ = ["crc_after"]

_POLYNOMIAL = 0xEDB88320  # reflected


def crc_after(mixed, bits=32):
    """The CRC register after one more word, of ``mixed`` = register ^ word: each bit is a parity of some of its bits.

    This is the bit-serial CRC unrolled over the ``bits`` of a word, least significant bit first.
    """
    columns = []
    for position in range(32):
        column = 1 << position
        for _ in range(bits):
            column = (column >> 1) ^ (_POLYNOMIAL if column & 1 else 0)
        columns.append(column)
    parities = [{n for n in range(32) if columns[n] >> bit & 1} for bit in range(32)]
    # The exclusive-or that most parities have in common becomes a term of its own, as long as there is one: a third
    # of the LUTs less than without.
    terms = list(mixed)
    while True:
        pairs = collections.Counter(pair for parity in parities for pair in itertools.combinations(sorted(parity), 2))
        pair, count = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if count < 2:
            break
        for parity in parities:
            if parity.issuperset(pair):
                parity -= set(pair)
                parity.add(len(terms))
        terms.append(terms[pair[0]] ^ terms[pair[1]])
    return Cat(Cat(terms[n] for n in sorted(parity)).xor() for parity in parities)
