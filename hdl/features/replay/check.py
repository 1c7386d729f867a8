"""The check of a word on a link: CRC-8 of polynomial 0x2f, which Koopman writes 0x97.

Three wrong bits are found in up to 119 bits of data, so in any word of a link (34 bits and the check). Bits enter
from data bit 0 on, then last, then kind; the register starts with all ones and shifts towards bit 7.
"""

from amaranth.hdl import Cat, Mux

from hdl.checksum import few_parities

__all__ = ["INITIAL", "after_bit", "check_of"]

#: Without the highest power.
POLYNOMIAL = 0x2F
INITIAL = 0xFF


def after_bit(register, bit):
    """The register of 8 bits after one more bit."""
    return (register << 1)[:8] ^ Mux(register[7] ^ bit, POLYNOMIAL, 0)


def check_of(bits):
    """The check of a value of any width, bit 0 first, without the number of the word.

    It is a parity of some of the bits for each of its own: two to three levels of logic for a word.
    """
    columns, column, constant = [], 0x80, INITIAL
    for _ in range(len(bits)):
        column, constant = _shifted(column), _shifted(constant)
        columns.insert(0, column)
    places = [{n for n, column in enumerate(columns) if column >> bit & 1} for bit in range(8)]
    return Cat(few_parities(bits, places)) ^ constant


def _shifted(register):
    """The register after one more bit of 0, as a number."""
    return (register << 1 & 0xFF) ^ (POLYNOMIAL if register & 0x80 else 0)
