"""Zero-value compression as a codec for the ring."""

import dataclasses

from hdl.compression.codec import Codebook
from hdl.compression.zero_value.length import MaskedLength
from hdl.group import GROUP

__all__ = ["ZeroValueCodec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroValueCodec:
    """Codec that omits zeros and adds encoded gradients; members as in :class:`hdl.compression.codec.Codec`.

    Nodes add gradients in this format without decoding them. The units for this, including an adder, are in the
    ring's datapath (:mod:`hdl.ring.datapath`), and this codec has no encoder or decoder of its own.

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
        """Arguments for the encoder and decoder classes: none, since this codec has neither."""
        return {}

    def max_words(self, count):
        """Return the number of words for ``count`` non-zero elements: the elements and one mask per group."""
        return count + -(-count // GROUP)

    def length_counter(self):
        """Return a length counter that counts groups."""
        return MaskedLength()
