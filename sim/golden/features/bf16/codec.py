"""Golden model of packets of elements as bfloat16."""

import numpy as np
import numpy.typing as npt

from sim.golden import moments

__all__ = ["BF16", "BFloat16"]

Bits = npt.NDArray[np.uint32]


class BFloat16:
    """Elements as bfloat16, rounded to nearest even, two per word with the even element in the low half."""

    block = 2

    def words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""
        return (count + 1) // 2

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements."""
        return moments.pack(bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet of words: ``count``, or all elements of whole words."""
        return moments.unpack(words, count)


BF16 = BFloat16()
