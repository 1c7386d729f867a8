"""Layouts and numbers that units of slots share."""

from amaranth.hdl import Cat
from amaranth.lib import data

from hdl.features.replay.control_word import ControlType

__all__ = [
    "BEGIN_UNIT",
    "GAP",
    "GAP_BITS",
    "GROUP",
    "MAX_SLOTS",
    "MESSAGE_CYCLES",
    "MESSAGE_OPCODE",
    "MESSAGE_TYPE",
    "MESSAGE_WORDS",
    "TARGET_BITS",
    "check_after",
    "lap_layout",
    "message_header_layout",
    "mode_layout",
    "record_layout",
    "record_word_layout",
    "table_layout",
]

#: Slots for packets in a superframe, and those between two for messages.
MAX_SLOTS, GROUP = 16, 4
#: Cycles of a slot for packets beyond the words of the longest, and cycles of a slot for messages: 64 words, a header
#: and a check, and as many cycles beyond.
GAP, MESSAGE_WORDS, MESSAGE_CYCLES = 4, 64, 72
#: Low bits of TIME that tell where slots begin, and bits of the cycles between two superframes.
TARGET_BITS, GAP_BITS = 16, 12
#: Bits of a TIME that are 0 where a lap begins.
BEGIN_UNIT = 3

#: Type of a message, where packets have their :class:`~hdl.ring.header.PacketType`.
MESSAGE_TYPE = 3
#: Opcode of the packets in which a host has messages: none of a request.
MESSAGE_OPCODE = 0x40

_LENGTH_BITS = 12


def record_layout():
    """State of a node: packets that it has for its successor, and room for those of its predecessor, in packets; the
    words of the longest that it sends; whether it has a message."""
    return data.StructLayout({"pending": 5, "room": 5, "longest": _LENGTH_BITS, "wants": 1})


def record_word_layout():
    """RECORD: record of the node of a rank, for a table that is to be ``odd`` or not."""
    return data.StructLayout({"type": ControlType, "rank": 4, "odd": 1, "record": record_layout()})


def lap_layout():
    """LAP: slots, odd or not, of rank 0 are over at this TIME, in eights of cycles, and the next ones begin ``gap``
    cycles behind."""
    return data.StructLayout({"type": ControlType, "odd": 1, "gap": GAP_BITS, "begin": TARGET_BITS - BEGIN_UNIT,
                              "zeros": 2})


def table_layout():
    """Slots of a superframe that follow from the records of all nodes: slots for packets, words of the longest, the
    lowest rank beside 0 that has messages, or 0, and whether that one has the first of the slots for messages."""
    return data.StructLayout({"slots": 5, "longest": _LENGTH_BITS, "other": 4, "odd": 1})


def mode_layout():
    """Part of a node in a slot: it sends a packet of its own, it hands on what comes, and what goes are messages."""
    return data.StructLayout({"drives": 1, "passes": 1, "message": 1})


def message_header_layout():
    """First word of a message: its type, the ranks that it is for and that it is from, its words, the number of the
    message in a request, whether it is the first one and the last one of a request or of an answer, and an opcode,
    with the bit of responses if it is from a node. A node knows neither the words of its message nor the last one."""
    return data.StructLayout({"type": 4, "destination": 4, "source": 4, "count": 7, "number": 3, "begin": 1, "end": 1,
                              "opcode": 8})


def check_after(state, word):
    """Check of a message after one more word, in a LUT per bit but one: from 0 on, and 0 after a message and its
    check, which is the state before it.

    Any wrong bits of one word are found for certain, any two wrong bits, and all but one in 778,000 of three.
    """
    total = state ^ word
    return Cat(total[(27 * n + 30) % 32] ^ total[(3 * n + 23) % 32] ^ (total[12] if n == 0 else 0) for n in range(32))
