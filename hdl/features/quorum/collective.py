# amaranth: UnusedElaboratable=no
"""Quorum updates in the collective engine: the unit that closes rounds."""

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
    """Control-word unit that closes rounds by quorum."""
    return ControlUnit("rounds", (ControlType.READY, ControlType.CLOSE), _round_relay, "rounds")


class QuorumExtension(CollectiveExtension):
    """Connects the control words for quorum rounds to the quorum engine."""

    joins = {"rounds": "rounds"}

    def members(self):
        return {"rounds": In(quorum_signature())}

    def make(self, m, units):
        wiring.connect(m, words=units.words.rounds, rounds=wiring.flipped(units.engine.rounds))
