"""Links that repeat words which were damaged or lost: docs/ring/link.md."""

import dataclasses
from typing import ClassVar

from hdl.config.coupling import Coupling
from hdl.config.ring import Link
from hdl.feature import Feature
from hdl.ring.topology import SMALL_RING
from hdl.section import Integer, option

__all__ = ["FEATURE", "MAX_REPLAYED", "Replay", "ReplayFeature", "ReplayLink", "two_queues"]

#: Segments of an ingress whose packets the messages of a link with replay can count.
MAX_REPLAYED = 15


def two_queues(programs):
    """Whether a node has the queues that control words are of."""
    return programs is not None and not programs.move_queue


class ReplayLink(Link):
    """Base of the links with the wires of replay."""

    replay: ClassVar[bool] = True

    def wires(self):
        from hdl.features.replay.signature import ReplayLinkSignature

        return ReplayLinkSignature()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay(ReplayLink):
    """Packets are sent on credit, and words that were damaged or lost are repeated: docs/ring/link.md.

    Such a link has nine more wires. With programs it has control words as well, so that commands can wait for those
    of other nodes: docs/ring/link.md.

    Parameters
    ----------
    ingress : int
        As of :class:`Credits`, at most 15.
    """

    ingress: int = option(4, Integer(2, MAX_REPLAYED))


class ReplayFeature(Feature):
    """A link keeps what it has sent until it has arrived, and measures its latency."""

    couplings = (
        Coupling(sections=("link", "topology", "programs"),
                 clash=lambda link, topology, programs: (
                     link.replay and topology.max_nodes > SMALL_RING and two_queues(programs)),
                 rule=f"link Replay and programs without move_queue need topology.max_nodes of {SMALL_RING} or fewer",
                 reason="they have control words, where ranks have 4 bits",
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
