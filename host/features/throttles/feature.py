"""Nodes with throttles."""

from host.feature import Feature

__all__ = ["FEATURE", "ThrottlesFeature"]


class ThrottlesFeature(Feature):
    """Feature that only states why golden nodes do not support throttles."""

    not_golden = "Throttles", "its nodes have no speed"


FEATURE = ThrottlesFeature()
