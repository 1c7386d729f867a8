"""The format table32, see docs/compression/lookup_table.md."""

from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "TableFeature"]


class TableFeature(Feature):
    """Format table32: fractions are replaced by the nearest centroids."""

    requires = ("codebook",)

    def codecs(self):
        """Ring codecs of the formats, by name."""
        from hdl.features.table.codec import TableCodec

        return {"table32": TableCodec(code=codes("table32").ring, centroids=32)}


FEATURE = TableFeature()
