"""Links that repeat words: docs/ring/link.md."""

from host.feature import Feature

__all__ = ["FEATURE", "ReplayFeature"]


class ReplayFeature(Feature):
    """Only the note about golden nodes."""

    not_golden = "Links that repeat words, or slots,", "its links have no state"


FEATURE = ReplayFeature()
