"""Layers with weights stored as centroid indices; see docs/compute/centroids.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "CodebookLayersFeature"]


class CodebookLayersFeature(Feature):
    """Feature that adds centroid-weight layers to the compute engine."""

    requires = ("compute", "codebook")


FEATURE = CodebookLayersFeature()
