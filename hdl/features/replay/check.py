"""Check of a word on a link: CRC-8 with polynomial 0x2f, in Koopman's notation 0x97.

Up to three wrong bits are detected in up to 119 bits of data, and thus in any word of a link (34 bits plus check).
Bits enter from data bit 0 up, then last, then kind; the register starts with all ones and shifts towards bit 7.
"""

from amaranth.hdl import Cat, Mux

from hdl.checksum import few_parities

__all__ = ["INITIAL", "after_bit", "check_of"]

#: Polynomial without the highest power.
POLYNOMIAL = 0x2F
INITIAL = 0xFF


def after_bit(register, bit):
    """Return the check register of 8 bits after one more bit."""
    return (register << 1)[:8] ^ Mux(register[7] ^ bit, POLYNOMIAL, 0)


def check_of(bits):
    """Check of a value of any width, bit 0 first, without the number of the word.

    Each bit of the check is a parity of some bits of the value: two to three levels of logic for a word.
    """
    columns, column, constant = [], 0x80, INITIAL
    for _ in range(len(bits)):
        column, constant = _shifted(column), _shifted(constant)
        columns.insert(0, column)
    parities = [{n for n, column in enumerate(columns) if column >> bit & 1} for bit in range(8)]
    return Cat(few_parities(bits, parities)) ^ constant


def _shifted(register):
    """Return the check register after one more 0 bit, as a number."""
    return (register << 1 & 0xFF) ^ (POLYNOMIAL if register & 0x80 else 0)
