"""Words for the units that sum integers."""

import numpy as np

from hdl.features.reproducible.layout import integers_layout
from sim.payload import pack

__all__ = ["own_rows", "sum_hash"]


def own_rows(width, data, special, last):
    """Payloads of a port with the layout ``integers_layout(width, parity=True)``."""
    data, special = np.asarray(data, np.uint64), np.asarray(special).reshape(len(data), -1)
    parity = (np.bitwise_count(data) + np.bitwise_count(special.astype(np.uint64)).sum(axis=1)) % 2
    return pack(integers_layout(width, parity=True),
                {"data": data, "special": special, "last": last, "parity": parity})


def sum_hash(words):
    """Hash of the words of a complete sum. For each word, the 16-bit hash rotates left by 5 and is combined by XOR
    with both halves of the word, of which the upper half is rotated left by 1.
    """
    value = 0x79B9
    for word in np.asarray(words, np.uint32).tolist():
        low, high = word & 0xFFFF, word >> 16
        value = ((value << 5 | value >> 11) ^ low ^ (high << 1 | high >> 15)) & 0xFFFF
    return value
