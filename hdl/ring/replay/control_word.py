"""Control words: what links and nodes tell each other between the words of packets.

A control word has ``kind`` set on the link. One with ``last`` belongs to the link itself and is laid out as
:func:`restart_layout`; all others are handed on, and the first word of a message is laid out as
:func:`control_layout`. A message of several words says in its first how many follow.
"""

from amaranth.lib import data, enum

__all__ = ["ControlType", "close_layout", "control_layout", "restart_layout", "signal_layout"]


class ControlType(enum.Enum, shape=4):
    """Types of control words."""

    RESTART = 1
    SIGNAL = 2
    KEEPALIVE = 3
    READY = 4
    CLOSE = 5
    SYNC = 6
    START = 14


def control_layout():
    """First word of a message: ``words`` others follow it, and ``tag`` says what it is about."""
    return data.StructLayout({"type": ControlType, "words": 8, "tag": 16, "reserved": 4})


def restart_layout():
    """RESTART: the next word on the link is the one of this number.

    ``id`` counts restarts, and ``zeros`` are zero. The first restart after a reset is START.
    """
    return data.StructLayout({"type": ControlType, "number": 10, "id": 2, "zeros": 16})


def signal_layout():
    """SIGNAL: the source has so many commands done in this queue, modulo 65,536."""
    return data.StructLayout({"type": ControlType, "source": 8, "queue": 2, "done": 16, "reserved": 2})


def close_layout():
    """Second word of CLOSE: nodes whose gradients are in time, and those that are late."""
    return data.StructLayout({"on_time": 16, "late": 16})
