"""Table-based compression as a codec on the ring."""

import dataclasses

from hdl.compression.codec import Codebook
from hdl.features.table.decoder import Decoder
from hdl.features.table.encoder import Encoder
from hdl.features.table.format import LookupTable
from hdl.features.table.length import TableLength
from hdl.group import GROUP

__all__ = ["TableCodec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableCodec:
    """Codec that keeps signs and exponents, and replaces each fraction by the nearest centroid.

    Members are as in :class:`hdl.compression.codec.Codec`; the format is described in
    :class:`~hdl.features.table.format.LookupTable`. The length of a packet depends on its distinct exponents.

    Parameters
    ----------
    code : int
    centroids : int
        Number of fraction centroids: 8, 16, 32, 64 or 128.
    """

    code: int
    centroids: int

    weights = True
    gradients = False  # the codebook fits the weights from which it was computed, but not sums
    exact = False
    sums_coded = False
    agreed = False
    drops_zeros = False
    two_passes = True
    repeatable = True
    block = GROUP
    codebook = Codebook.FRACTIONS
    encoder = Encoder
    decoder = Decoder

    @property
    def table(self):
        """Parameters of the format."""
        return LookupTable(mantissas=self.centroids, centroids=True, loaded=True)

    @property
    def parameters(self):
        """Arguments of encoder and decoder."""
        return {"table": self.table}

    @property
    def codebook_words(self):
        """Number of words loaded into units."""
        return 2 * self.centroids

    def max_words(self, count):
        """Return the number of words in a packet of ``count`` elements if all exponents differ."""
        return self.table.words(count, min(count, 256)) if count else 0

    def length_counter(self):
        """Return a counter of groups."""
        return TableLength(table=self.table)
