"""Golden model of the check field of words on a replay link: CRC-8, polynomial 0x2f (Koopman's 0x97)."""

from collections.abc import Iterable

_POLYNOMIAL = 0x2F


def crc8(bits: Iterable[int], register: int = 0xFF) -> int:
    """CRC register after the given bits; if the register's own bits follow, bit 7 first, the result is 0."""
    for bit in bits:
        feedback = register >> 7 ^ bit
        register = (register << 1 & 0xFF) ^ (_POLYNOMIAL if feedback else 0)
    return register


def _table(position: int, width: int) -> list[int]:
    """Contribution to the CRC of each value of the ``width``-bit field at bit ``position`` of a word."""
    bits = [[value >> n & 1 for n in range(width)] + [0] * (34 - position - width) for value in range(1 << width)]
    return [crc8(field, 0) for field in bits]


_BYTES = [_table(8 * n, 8) for n in range(4)]
_FLAGS = _table(32, 2)
_NOTHING = crc8([0] * 34)


def word_check(data: int, last: int, kind: int, number: int) -> int:
    """Check field of a word: CRC over data (bit 0 first), last and kind, combined with the word's number by XOR."""
    check = _NOTHING ^ _FLAGS[last | kind << 1] ^ number & 0xFF
    for n, table in enumerate(_BYTES):
        check ^= table[data >> 8 * n & 0xFF]
    return check
