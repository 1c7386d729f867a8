"""The format table32, see docs/compression/lookup_table.md."""

from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "TableFeature"]


class TableFeature(Feature):
    """Feature with format table32, which replaces fractions by the nearest centroids."""

    requires = ("codebook",)

    def codecs(self):
        """Ring codecs of the formats, by name."""
        from hdl.features.table.codec import TableCodec

        return {"table32": TableCodec(code=codes("table32").ring, centroids=32)}


FEATURE = TableFeature()
