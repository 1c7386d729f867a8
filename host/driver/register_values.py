"""Values of registers and their bits."""

import numpy as np

from hdl.control.registers import Kind, Register
from host.driver.words import Words

__all__ = ["from_bits", "to_bits"]


def to_bits(entry: Register, value: float, *, integers: bool) -> int:
    """Bits of a value for a register; ``integers``: numbers of the node are integers.

    Raises
    ------
    TypeError, ValueError
        The value is no number that the register holds.
    """
    signed = entry.kind is Kind.FLOAT32
    if signed and not integers:
        return int(np.float32(value).view(np.uint32))
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"Value of register {entry.name} must be an integer, not {value!r}")
    least = -(1 << entry.width - 1) if signed else 0
    if not least <= value < least + (1 << entry.width):
        kind = "signed number" if signed else "number"
        raise ValueError(f"Value of register {entry.name} must be a {kind} of {entry.width} bits, not {value!r}")
    bits: int = int(value) & (1 << entry.width) - 1
    return bits


def from_bits(entry: Register, payload: Words, *, integers: bool) -> int | float:
    """Value of a register's bits, the inverse of :func:`to_bits`."""
    if entry.kind is not Kind.FLOAT32:
        return int(payload[0])
    return int(payload.view(np.int32)[0]) if integers else float(payload.view(np.float32)[0])
