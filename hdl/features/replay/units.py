# amaranth: UnusedElaboratable=no
"""Control-word units of nodes with replay links."""

from hdl.features.replay.control_word import ControlType
from hdl.features.replay.control_words import ControlUnit
from hdl.features.replay.keepalive import KeepAlive
from hdl.features.replay.signals import SignalRelay

__all__ = ["describe"]


def _signal_relay(config):
    return SignalRelay(queues=config.queues)


def _keepalive(config):
    return KeepAlive()


def describe(config):
    """Units that report finished commands and activity from node to node.

    On a ring that two jobs share, nodes report nothing to each other.
    """
    if config.link.jobs > 1:
        return ()
    return (ControlUnit("relay", (ControlType.SIGNAL,), _signal_relay),
            ControlUnit("keepalive", (ControlType.KEEPALIVE,), _keepalive))
