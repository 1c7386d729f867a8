"""Control words: what links and nodes tell each other between the words of packets.

A control word has ``kind`` set on the link. One with ``last`` belongs to the link itself and is laid out as
:func:`restart_layout`; all others are handed on, and the first word of a message is laid out as
:func:`control_layout`. A message of several words says in its first how many follow.
"""

from amaranth.lib import data, enum

from hdl.control.sequencer import RUN_BITS

__all__ = ["SINGLE", "ControlType", "close_layout", "control_layout", "keepalive_layout", "message_layout",
           "ready_layout", "restart_layout", "signal_layout", "sync_layout"]


class ControlType(enum.Enum, shape=4):
    """Types of control words."""

    RESTART = 1
    SIGNAL = 2
    KEEPALIVE = 3
    READY = 4
    CLOSE = 5
    SYNC = 6
    COLLECT = 7
    GRANT = 8
    START = 14


#: Types whose words have other fields than :func:`control_layout`: no word follows them.
SINGLE = (ControlType.RESTART, ControlType.SIGNAL, ControlType.READY)


def message_layout():
    """A word of a message inside a node, with its place in the message."""
    return data.StructLayout({"data": 32, "first": 1, "last": 1})


def control_layout():
    """First word of a message: ``words`` others follow it, and ``tag`` says what it is about."""
    return data.StructLayout({"type": ControlType, "words": 8, "tag": 16, "reserved": 4})


def restart_layout():
    """RESTART: the next word on the link is the one of this number.

    ``id`` counts restarts, and ``zeros`` are zero. The first restart after a reset is START.
    """
    return data.StructLayout({"type": ControlType, "number": 10, "id": 2, "zeros": 16})


def signal_layout():
    """SIGNAL: in the run of this number the source has so many commands of this queue done, modulo 65,536."""
    return data.StructLayout({"type": ControlType, "source": 4, "queue": 2, "run": RUN_BITS, "done": 16})


def keepalive_layout():
    """KEEPALIVE: a node computes; ``hops`` more nodes are told behind the one that gets this word."""
    return data.StructLayout({"type": ControlType, "words": 8, "hops": 4, "reserved": 16})


def ready_layout():
    """READY: the source has a gradient for the round of this number, in one of its slots."""
    return data.StructLayout({"type": ControlType, "source": 4, "slot": 1, "zeros": 7, "tag": 16})


def close_layout():
    """Second word of CLOSE: nodes whose gradients are in time, and those that are late. The third is the index."""
    return data.StructLayout({"on_time": 16, "late": 16})


def sync_layout():
    """Tag of SYNC, which is one word, and of the FOLLOW of the same number: two words follow its first one, the time
    at which SYNC left, and the sum of round trips of links."""
    return data.StructLayout({"number": 15, "follows": 1})
