"""Links that repeat words: docs/ring/link.md."""

from host.feature import Feature

__all__ = ["FEATURE", "ReplayFeature"]


class ReplayFeature(Feature):
    """Nothing but what golden nodes lack."""

    not_golden = "Links that repeat words, or slots,", "its links have no state"


FEATURE = ReplayFeature()
