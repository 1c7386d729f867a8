# amaranth: UnusedElaboratable=no
"""Rounds of quorum updates in the collective engine."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.quorum.layouts import quorum_signature
from hdl.features.quorum.quorum_relay import QuorumRelay
from hdl.features.replay.control_word import ControlType
from hdl.features.replay.control_words import ControlUnit
from hdl.ring.extension import CollectiveExtension

__all__ = ["QuorumExtension", "quorum_relay"]


def _round_relay(config):
    return QuorumRelay()


def quorum_relay():
    """Unit of control words for closing rounds by a quorum."""
    return ControlUnit("rounds", (ControlType.READY, ControlType.CLOSE), _round_relay, "rounds")


class QuorumExtension(CollectiveExtension):
    """Control words of rounds, for the quorum engine."""

    joins = {"rounds": "rounds"}

    def members(self):
        return {"rounds": In(quorum_signature())}

    def make(self, m, units):
        wiring.connect(m, words=units.words.rounds, rounds=wiring.flipped(units.engine.rounds))
