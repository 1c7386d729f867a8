"""Golden model of the gradient codecs of reproducible sums."""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden.codecs import Span, whole_words
from sim.golden.features.reproducible import packet
from sim.golden.features.reproducible.sums import partial_sums
from sim.golden.root_reduce import GATHER, SCATTER

__all__ = ["SumCodec"]

Bits = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumCodec:
    """Codec for sums of integers of ``width`` bits; see :class:`~sim.golden.codecs.AgreedCodec`.

    The codec encodes and decodes codes, which have no value without their exponent. An element is a 32-bit word that
    contains the sign-extended code.
    """

    code: int
    width: int

    weights = False
    gradients = True
    exact = False
    sums_coded = False
    agreed = True
    block = 1
    codebook_words = 0
    scatter_ahead, gather_ahead = packet.AHEAD[SCATTER], packet.AHEAD[GATHER]
    checksum_words = packet.CHECKSUM_WORDS

    def max_words(self, count: int) -> int:
        """Return the number of words of ``count`` codes."""
        return -(-count * self.width // 32)

    def exponent_words(self, count: int) -> int:
        """Return the number of words of the exponents of ``count`` elements."""
        return packet.exponent_words(count)

    def sums(self, addends: Bits) -> tuple[Flags, Bits]:
        """Sum the rows of ``addends``; return whether each partial sum is nonzero, and the total as binary32."""
        chain = partial_sums(addends, width=self.width)
        nonzero = [(part.integers != 0) | part.positive | part.negative for part in chain.sums]
        return np.array(nonzero), chain.total

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Encode codes as words; raises ValueError if a code has more than ``width`` bits."""
        return packet.pack(np.asarray(bits, np.uint32).view(np.int32).astype(np.int64), self.width)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Decode ``count`` codes, or all codes of the words."""
        packed = np.asarray(words, np.uint32)
        count = len(packed) * 32 // self.width if count is None else count
        return packet.unpack(packed, count, self.width).astype(np.uint32)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the span of ``count`` codes, with missing data counted in words."""
        return whole_words(self.max_words(count), len(np.asarray(words)))

    def bind(self, centroids: npt.ArrayLike) -> "SumCodec":
        """Return this codec, which has no codebook."""
        return self
