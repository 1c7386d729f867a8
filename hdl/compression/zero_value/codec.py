"""Zero-value compression as a codec of the ring."""

import dataclasses

from hdl.compression.codec import Codebook
from hdl.compression.zero_value.length import MaskedLength
from hdl.group import GROUP

__all__ = ["ZeroValueCodec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroValueCodec:
    """Gradients without their zeros, added in coded form; for the members see :class:`hdl.compression.codec.Codec`.

    The datapath of the ring (:mod:`hdl.ring.datapath`) makes the units, including an adder, since no word of a
    gradient is decoded on the way; so there is no encoder or decoder here.

    Parameters
    ----------
    code : int
    """

    code: int

    weights = False
    gradients = True
    exact = True
    sums_coded = True
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
        """No arguments, since there is no unit."""
        return {}

    def max_words(self, count):
        """Return the words of a packet of ``count`` non-zero elements: the elements, and a mask for each group."""
        return count + -(-count // GROUP)

    def length_counter(self):
        """Return a counter of groups."""
        return MaskedLength()
