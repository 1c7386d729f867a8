"""Layers with centroid indices as weights, see docs/compute/centroids.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "CodebookLayersFeature"]


class CodebookLayersFeature(Feature):
    """Feature that adds layers with centroid weights to the compute engine."""

    requires = ("compute", "codebook")


FEATURE = CodebookLayersFeature()
