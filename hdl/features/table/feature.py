"""The format table32: docs/compression/lookup_table.md."""

from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "TableFeature"]


class TableFeature(Feature):
    """The nearest centroids are in place of fractions."""

    requires = ("codebook",)

    def codecs(self):
        """Codecs of its formats for the ring, by name."""
        from hdl.features.table.codec import TableCodec

        return {"table32": TableCodec(code=codes("table32").ring, centroids=32)}


FEATURE = TableFeature()
