"""Zero-value compression as a codec of the ring."""

import dataclasses

from hdl.compression.codec import Codebook
from hdl.compression.zero_value.length import MaskedLength
from hdl.group import GROUP

__all__ = ["ZeroValueCodec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroValueCodec:
    """Gradients without zeros, added in coded form; members as in :class:`hdl.compression.codec.Codec`.

    The datapath of the ring (:mod:`hdl.ring.datapath`) contains the units, including an adder, since gradients are
    not decoded on the way; so this codec has no encoder or decoder.

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
        """No arguments, since there are no units."""
        return {}

    def max_words(self, count):
        """Return the number of words of ``count`` non-zero elements: the elements, and each group's mask."""
        return count + -(-count // GROUP)

    def length_counter(self):
        """Return a length counter that counts groups."""
        return MaskedLength()
