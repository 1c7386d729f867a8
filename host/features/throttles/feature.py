"""The feature for nodes with throttles."""

from host.feature import Feature

__all__ = ["FEATURE", "ThrottlesFeature"]


class ThrottlesFeature(Feature):
    """Host part of the throttles feature. It only gives the reason why golden nodes do not support throttles."""

    not_golden = "Throttles", "its nodes have no speed"


FEATURE = ThrottlesFeature()
