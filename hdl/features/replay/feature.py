"""Feature of links that retransmit damaged or lost words; see docs/ring/link.md."""

import dataclasses
from typing import ClassVar

from hdl.config.coupling import Coupling
from hdl.config.ring import Link
from hdl.feature import Feature
from hdl.ring.topology import SMALL_RING
from hdl.section import Integer, option

__all__ = ["FEATURE", "MAX_REPLAYED", "Replay", "ReplayFeature", "ReplayLink", "two_queues"]

#: Maximum number of segments in an ingress, limited by the width of the packet count in messages on the return line.
MAX_REPLAYED = 15


def two_queues(programs):
    """Return whether a node has the two command queues that control words require."""
    return programs is not None and not programs.move_queue


class ReplayLink(Link):
    """Base class of link types that have the replay wires."""

    replay: ClassVar[bool] = True

    def wires(self):
        from hdl.features.replay.signature import ReplayLinkSignature

        return ReplayLinkSignature()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay(ReplayLink):
    """Links that send packets on credit and retransmit damaged or lost words; see docs/ring/link.md.

    These links have nine more wires. With programs, they also carry control words, which let commands wait for
    commands of other nodes.

    Parameters
    ----------
    ingress : int
        As in :class:`Credits`, at most 15.
    """

    ingress: int = option(4, Integer(2, MAX_REPLAYED))


class ReplayFeature(Feature):
    """Feature with links that store sent words until they have arrived, and that measure their latency."""

    couplings = (
        Coupling(sections=("link", "topology", "programs"),
                 clash=lambda link, topology, programs: (
                     link.replay and topology.max_nodes > SMALL_RING and two_queues(programs)),
                 rule=f"link Replay and programs without move_queue need topology.max_nodes of {SMALL_RING} or fewer",
                 reason="ranks in their control words have 4 bits",
                 advice="lower max_nodes, leave programs out, or take link Credits"),
    )

    def control_units(self, config):
        from hdl.features.replay import units

        return units.describe(config)

    def collective(self, config):
        from hdl.features.replay.collective import ReplayExtension

        return ReplayExtension(config)

    def around(self, config):
        from hdl.features.replay.node import ReplayNode

        return ReplayNode(config)


FEATURE = ReplayFeature()
