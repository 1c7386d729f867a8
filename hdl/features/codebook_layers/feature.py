"""Layers with weights that are centroid indices, see docs/compute/centroids.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "CodebookLayersFeature"]


class CodebookLayersFeature(Feature):
    """Centroid layers of the compute engine."""

    requires = ("compute", "codebook")


FEATURE = CodebookLayersFeature()
