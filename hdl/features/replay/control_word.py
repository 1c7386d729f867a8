"""Control words: messages that links and nodes send between the words of packets.

A control word has ``kind`` set on the link. If ``last`` is also set, the word belongs to the link itself and has the
layout :func:`restart_layout`. All other control words are forwarded; the first word of a message has the layout
:func:`control_layout`, and contains the number of further words.
"""

from amaranth.hdl import Cat, Const, Mux
from amaranth.lib import data, enum

from hdl.control.sequencer import RUN_BITS

__all__ = ["SINGLE", "SINGLE_IN_SLOTS", "TENANT_SIGNALS", "ControlType", "close_layout", "control_layout",
           "keepalive_layout", "mark", "marked", "message_layout", "ready_layout", "restart_layout", "signal_layout",
           "sync_layout"]


class ControlType(enum.Enum, shape=4):
    """Types of control words."""

    RESTART = 1
    SIGNAL = 2
    KEEPALIVE = 3
    READY = 4
    CLOSE = 5
    SYNC = 6
    LAP = 7
    RECORD = 8
    COLLECT = 11
    GRANT = 12
    PLACE = 13
    START = 14


#: Types of messages that consist of a single word, with fields that differ from :func:`control_layout`.
SINGLE = (ControlType.RESTART, ControlType.SIGNAL, ControlType.READY)
#: Types of messages that consist of a single word on links with slots.
SINGLE_IN_SLOTS = (*SINGLE, ControlType.LAP, ControlType.RECORD)

#: Types of SIGNALs of tenants 1 and 2 on links, since SIGNALs have no spare bits for a tenant.
TENANT_SIGNALS = (9, 10)


def message_layout():
    """Layout of a word of a message within a node, with flags for the first and the last word."""
    return data.StructLayout({"data": 32, "first": 1, "last": 1})


def control_layout():
    """Layout of the first word of a message. It is followed by ``words`` more words; ``tag`` depends on the type."""
    return data.StructLayout({"type": ControlType, "words": 8, "tag": 16, "reserved": 4})


def restart_layout():
    """Layout of RESTART, which gives the number of the next word on the link.

    ``id`` counts restarts, and ``zeros`` must be zero. The first restart after a reset is START.
    """
    return data.StructLayout({"type": ControlType, "number": 10, "id": 2, "zeros": 16})


def signal_layout():
    """Layout of SIGNAL: commands of a queue that the source has completed in this run, modulo 65,536."""
    return data.StructLayout({"type": ControlType, "source": 4, "queue": 2, "run": RUN_BITS, "done": 16})


def keepalive_layout():
    """Layout of KEEPALIVE: a node is computing. The receiver forwards the word to ``hops`` more nodes."""
    return data.StructLayout({"type": ControlType, "words": 8, "hops": 4, "reserved": 16})


def ready_layout():
    """Layout of READY: one of the source's slots holds a gradient for round ``tag``."""
    return data.StructLayout({"type": ControlType, "source": 4, "slot": 1, "zeros": 7, "tag": 16})


def close_layout():
    """Layout of the second word of CLOSE: masks of on-time and late nodes. The third word is the scale's index."""
    return data.StructLayout({"on_time": 16, "late": 16})


def mark(word):
    """Return the tenant marked in a message's first word on a link, 3 for none. The mark is in the type of a
    SIGNAL, in ``zeros`` of a READY, and in ``reserved`` of other messages."""
    kind = word[:4]
    result = Mux(kind == ControlType.READY, data.View(ready_layout(), word).zeros, word[28:])
    result = Mux(result < 3, result[:2], 3)
    for tenant, number in enumerate((ControlType.SIGNAL.value, *TENANT_SIGNALS)):
        result = Mux(kind == number, tenant, result)
    return result


def marked(word, tenant, own):
    """Return a message's first word with the mark of a tenant or, if ``own``, without its tenant mark."""
    kind, zeros = word[:4], ready_layout()["zeros"]
    is_signal = kind == ControlType.SIGNAL
    number = Mux(tenant == 0, ControlType.SIGNAL, Cat(tenant, Const(TENANT_SIGNALS[0] >> 2, 2)))
    if own:
        is_signal = Cat(kind == option for option in (ControlType.SIGNAL, *TENANT_SIGNALS)).any()
        number, tenant = Const(ControlType.SIGNAL.value, 4), Const(0, 2)
    is_ready = kind == ControlType.READY
    ready = Cat(word[:zeros.offset], tenant, word[zeros.offset + 2:])
    return Mux(is_signal, Cat(number, word[4:]), Mux(is_ready, ready, Cat(word[:28], tenant, word[30:])))


def sync_layout():
    """Layout of the tag of SYNC and FOLLOW messages. A SYNC has one word; the FOLLOW with the same number has two
    more words, with the SYNC's departure time and the sum of link round trips."""
    return data.StructLayout({"number": 15, "follows": 1})
