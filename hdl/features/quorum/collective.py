# amaranth: UnusedElaboratable=no
"""Rounds of a quorum in the collective engine."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.quorum.layouts import rounds_signature
from hdl.features.quorum.round_relay import RoundRelay
from hdl.features.replay.control_word import ControlType
from hdl.features.replay.control_words import ControlUnit
from hdl.ring.extension import CollectiveExtension

__all__ = ["QuorumExtension", "round_relay"]


def _round_relay(config):
    return RoundRelay()


def round_relay():
    """Unit of control words by which nodes find the quorum."""
    return ControlUnit("rounds", (ControlType.READY, ControlType.CLOSE), _round_relay, "rounds")


class QuorumExtension(CollectiveExtension):
    """Control words of rounds, for the engine of rounds."""

    joins = {"rounds": "rounds"}

    def members(self):
        return {"rounds": In(rounds_signature())}

    def make(self, m, units):
        wiring.connect(m, words=units.words.rounds, rounds=wiring.flipped(units.engine.rounds))
