"""Ring codec for table-based compression."""

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
    gradients = False  # the codebook is computed from weights and does not suit sums of gradients
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
        """Parameters of the table format."""
        return LookupTable(mantissas=self.centroids, centroids=True, loaded=True)

    @property
    def parameters(self):
        """Keyword arguments of the encoder and the decoder."""
        return {"table": self.table}

    @property
    def codebook_words(self):
        """Number of codebook words to load into encoder and decoder."""
        return 2 * self.centroids

    def max_words(self, count):
        """Return the number of words in a packet of ``count`` elements if all exponents differ."""
        return self.table.words(count, min(count, 256)) if count else 0

    def length_counter(self):
        """Return a length counter that counts groups."""
        return TableLength(table=self.table)
