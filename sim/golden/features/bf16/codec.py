"""Golden model of packets with bfloat16 elements."""

import numpy as np
import numpy.typing as npt

from sim.golden import moments

__all__ = ["BF16", "BFloat16"]

Bits = npt.NDArray[np.uint32]


class BFloat16:
    """Format of bfloat16 elements, rounded to nearest even and packed in pairs, the even element in the low half."""

    block = 2

    def words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""
        return (count + 1) // 2

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Encode elements as the words of a packet."""
        return moments.pack(bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Decode a packet into ``count`` elements, or into all elements of its words."""
        return moments.unpack(words, count)


BF16 = BFloat16()
