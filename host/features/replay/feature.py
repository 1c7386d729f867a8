"""Links that retransmit lost or damaged words: docs/ring/link.md."""

from host.feature import Feature

__all__ = ["FEATURE", "ReplayFeature"]


class ReplayFeature(Feature):
    """Feature that only gives the reason why golden nodes do not support replay links."""

    not_golden = "Links that repeat words, or slots,", "its links have no state"


FEATURE = ReplayFeature()
