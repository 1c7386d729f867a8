"""Check value of a link word: CRC-8 with polynomial 0x2f (0x97 in Koopman's notation).

It detects up to three wrong bits in up to 119 bits of data, and thus in any link word (34 bits plus check). Bits
enter the register from data bit 0 upwards, followed by ``last`` and ``kind``; the register starts with all ones and
shifts towards bit 7.
"""

from amaranth.hdl import Cat, Mux

from hdl.checksum import few_parities

__all__ = ["INITIAL", "after_bit", "check_of"]

#: Polynomial of the CRC without its highest power.
POLYNOMIAL = 0x2F
INITIAL = 0xFF


def after_bit(register, bit):
    """Return the 8-bit CRC register after one more bit."""
    return (register << 1)[:8] ^ Mux(register[7] ^ bit, POLYNOMIAL, 0)


def check_of(bits):
    """Return the CRC of a value of any width, starting at bit 0, without the word's sequence number.

    Each bit of the CRC is the parity of some bits of the value, which takes two to three logic levels for a word.
    """
    columns, column, constant = [], 0x80, INITIAL
    for _ in range(len(bits)):
        column, constant = _shifted(column), _shifted(constant)
        columns.insert(0, column)
    parities = [{n for n, column in enumerate(columns) if column >> bit & 1} for bit in range(8)]
    return Cat(few_parities(bits, parities)) ^ constant


def _shifted(register):
    """Return the CRC register, as an integer, after one more 0 bit."""
    return (register << 1 & 0xFF) ^ (POLYNOMIAL if register & 0x80 else 0)
