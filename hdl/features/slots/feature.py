"""Feature of links that send packets in slots of a common TIME; see docs/ring/slots.md."""

import dataclasses
from typing import ClassVar

from hdl.config.coupling import Coupling
from hdl.config.ring import Peer
from hdl.feature import Feature
from hdl.features.replay.feature import MAX_REPLAYED, ReplayLink, two_queues
from hdl.ring.topology import SMALL_RING
from hdl.section import Flag, Integer, option

__all__ = ["FEATURE", "JobSlots", "Slots", "SlotsFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slots(ReplayLink):
    """Links that send packets in slots of a common TIME, with the wires and control words of :class:`Replay`; see
    docs/ring/slots.md.

    Parameters
    ----------
    ingress : int
        See :class:`Replay`.
    messages : bool
        Whether slots can carry messages to all nodes: docs/ring/slots.md.
    """

    slots: ClassVar[bool] = True

    ingress: int = option(4, Integer(2, MAX_REPLAYED))
    messages: bool = option(False, Flag())



@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSlots(ReplayLink):
    """Links that send the packets of two jobs in separate slots; see docs/ring/slots.md.

    Parameters
    ----------
    ingress : int
        See :class:`Replay`.
    """

    slots: ClassVar[bool] = True
    jobs: ClassVar[int] = 2

    ingress: int = option(4, Integer(2, MAX_REPLAYED))


class SlotsFeature(Feature):
    """Feature that provides a common TIME on all nodes, which determines the node that sends in each slot."""

    requires = ("replay", "programs")
    couplings = (
        Coupling(sections=("role", "link"), clash=lambda role, link: link.slots and not isinstance(role, Peer),
                 rule="links Slots and JobSlots need role Peer",
                 reason="a superframe has equal slots for all nodes, which only peers can use",
                 advice="leave the role out, or take link Credits or Replay"),
        Coupling(sections=("link", "topology"), clash=lambda link, topology: link.slots and topology.ports > 1,
                 rule="links Slots and JobSlots need topology SingleRing", reason="nodes of one ring share TIME",
                 advice="leave topology out, or take link Credits or Replay"),
        Coupling(sections=("link", "topology"),
                 clash=lambda link, topology: link.slots and topology.max_nodes > SMALL_RING,
                 rule=f"links Slots and JobSlots need topology.max_nodes of {SMALL_RING} or fewer",
                 reason="ranks in control words have 4 bits",
                 advice="lower max_nodes, or take link Credits or Replay"),
        Coupling(sections=("link", "programs"), clash=lambda link, programs: link.slots and not two_queues(programs),
                 rule="links Slots and JobSlots need programs without move_queue",
                 reason="their control words support only two queues",
                 advice="add programs=Programs(), leave move_queue out, or take link Credits or Replay"),
        Coupling(sections=("link", "Tenants"), clash=lambda link, tenants: link.slots and tenants is not None,
                 rule="links Slots and JobSlots go without Tenants", reason="slots are shared by all tenants",
                 advice="leave Tenants out, or take link Credits or Replay"),
        Coupling(sections=("link", "Throttles"), clash=lambda link, throttles: link.slots and throttles is not None,
                 rule="links Slots and JobSlots go without Throttles",
                 reason="packets in slots have the full rate of the wires",
                 advice="leave Throttles out, or take link Credits or Replay"),
    )

    def control_units(self, config):
        from hdl.features.slots import units

        return units.describe(config)

    def collective(self, config):
        from hdl.features.slots.collective import SlotsExtension

        return SlotsExtension(config)

    def around(self, config):
        from hdl.features.slots.node import SlotsNode

        return SlotsNode(config)


FEATURE = SlotsFeature()
