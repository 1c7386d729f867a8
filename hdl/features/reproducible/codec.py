"""Codecs of integer gradients for reproducible sums. See docs/reproducible.md."""

import dataclasses

from hdl.compression.codec import Codebook
from hdl.compression.length import WORD, FixedLength

__all__ = ["IntegerCodec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntegerCodec:
    """Codec of gradients as integers of ``width`` bits. See :class:`~hdl.compression.codec.Codec` for the members."""

    code: int
    width: int

    weights = False
    gradients = True
    exact = False
    repeatable = True
    sums_coded = False
    agreed = True
    drops_zeros = False
    codebook = Codebook.NONE
    centroids = 0
    codebook_words = 0
    two_passes = False
    encoder = None
    decoder = None
    parameters = {}
    block = 1

    def max_words(self, count):
        """Return the number of words that the integers of ``count`` elements take."""
        return -(-count * self.width // WORD)

    def length_counter(self):
        """Return a counter for packet lengths in words."""
        return FixedLength(block=1, block_bits=self.width)
