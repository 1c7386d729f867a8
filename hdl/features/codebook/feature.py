"""Weights as centroid indices; see docs/compression/centroid.md."""

from hdl.compression.codec import Codebook, FixedCodec
from hdl.feature import Feature
from hdl.group import GROUP
from hdl.registry import codes

__all__ = ["FEATURE", "CodebookFeature"]

#: Number of centroids of each format.
_CENTROIDS = {"centroid16": 16, "centroid64": 64}


class CodebookFeature(Feature):
    """Feature that adds centroid formats to nodes, into which the host loads the centroids."""

    def codecs(self):
        """Ring codecs of the centroid formats, keyed by name."""
        from hdl.features.codebook.format import CentroidTable, Decoder
        from hdl.features.codebook.search import CentroidEncoder

        tables = {name: CentroidTable(centroids=count, loaded=True) for name, count in _CENTROIDS.items()}
        return {name: FixedCodec(
            code=codes(name).ring, block=GROUP, block_bits=GROUP * table.index_bits, encoder=CentroidEncoder,
            decoder=Decoder, parameters={"table": table}, gradients=codes(name).gradients, codebook=Codebook.NUMBERS,
            centroids=table.centroids) for name, table in tables.items()}


FEATURE = CodebookFeature()
