"""Zero-value compression as a codec for the ring."""

import dataclasses

from hdl.compression.codec import Codebook
from hdl.compression.zero_value.length import MaskedLength
from hdl.group import GROUP

__all__ = ["ZeroValueCodec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroValueCodec:
    """Gradients without zeros, added in encoded form; members as in :class:`hdl.compression.codec.Codec`.

    Gradients are not decoded on the way, so the units, including an adder, are in the ring's datapath
    (:mod:`hdl.ring.datapath`), and this codec has no encoder or decoder.

    Parameters
    ----------
    code : int
    """

    code: int

    weights = False
    gradients = True
    exact = True
    sums_coded = True
    agreed = False
    drops_zeros = True
    two_passes = False
    repeatable = True
    block = GROUP
    codebook = Codebook.NONE
    centroids = 0
    codebook_words = 0
    encoder = None
    decoder = None

    @property
    def parameters(self):
        """No arguments, since there are no units."""
        return {}

    def max_words(self, count):
        """Return the number of words for ``count`` non-zero elements: the elements and one mask per group."""
        return count + -(-count // GROUP)

    def length_counter(self):
        """Return a length counter that counts groups."""
        return MaskedLength()
