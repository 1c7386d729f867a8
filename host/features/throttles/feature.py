"""Nodes with throttles."""

from host.feature import Feature

__all__ = ["FEATURE", "ThrottlesFeature"]


class ThrottlesFeature(Feature):
    """Only the note about golden nodes."""

    not_golden = "Throttles", "its nodes have no speed"


FEATURE = ThrottlesFeature()
