"""Quorum updates: docs/late.md."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from host.feature import Feature

if TYPE_CHECKING:
    from host.driver.ring import Ring
    from host.features.quorum.quorum_updates import QuorumUpdates
    from host.run.schedule import Schedule

__all__ = ["FEATURE", "QuorumFeature"]


class QuorumFeature(Feature):
    """Feature for weight updates that do not wait for stragglers."""

    not_golden = "Quorum updates", "gradients are late or not by measured cycles"

    def part(self, ring: "Ring") -> "QuorumUpdates":
        from host.features.quorum.quorum_updates import QuorumUpdates

        return QuorumUpdates(ring.devices, ring.memory)

    def schedules(self) -> "Iterable[type[Schedule]]":
        from host.features.quorum.schedule_section import Quorum

        return (Quorum,)


FEATURE = QuorumFeature()
