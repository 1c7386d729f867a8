"""Nodes with throttles."""

from host.feature import Feature

__all__ = ["FEATURE", "ThrottlesFeature"]


class ThrottlesFeature(Feature):
    """Nothing but what golden nodes lack."""

    not_golden = "Throttles", "its nodes have no speed"


FEATURE = ThrottlesFeature()
