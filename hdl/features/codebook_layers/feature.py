"""Layers with weights that are indices of centroids: docs/compute/centroids.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "CodebookLayersFeature"]


class CodebookLayersFeature(Feature):
    """The compute engine has centroid layers."""

    requires = ("compute", "codebook")


FEATURE = CodebookLayersFeature()
