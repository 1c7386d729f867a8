"""Feature of the table32 format; see docs/compression/lookup_table.md."""

from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "TableFeature"]


class TableFeature(Feature):
    """Feature that provides the table32 format, which replaces fractions by their nearest centroids."""

    requires = ("codebook",)

    def codecs(self):
        """Ring codecs, keyed by format name."""
        from hdl.features.table.codec import TableCodec

        return {"table32": TableCodec(code=codes("table32").ring, centroids=32)}


FEATURE = TableFeature()
