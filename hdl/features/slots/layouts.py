"""Layouts and constants shared by the slot units."""

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

#: Maximum number of slots for packets in a superframe, and number of them between two slots for messages.
MAX_SLOTS, GROUP = 16, 4
#: Cycles of a slot for packets beyond the words of the longest packet; words of a message; cycles of a slot for
#: messages: the words, a header and a check, and the same additional cycles.
GAP, MESSAGE_WORDS, MESSAGE_CYCLES = 4, 64, 72
#: Number of low bits of TIME that define the beginning of slots; bits of the gap between two superframes in cycles.
TARGET_BITS, GAP_BITS = 16, 12
#: Number of low bits of TIME that are 0 at the beginning of a lap; LAP words omit them.
BEGIN_UNIT = 3

#: Type field of a message; packets have their :class:`~hdl.ring.header.PacketType` there.
MESSAGE_TYPE = 3
#: Opcode of a host's packets that carry messages; requests do not use it.
MESSAGE_OPCODE = 0x40

_LENGTH_BITS = 12


def record_layout():
    """State of a node: its packets for the successor, and its room for packets from the predecessor; the
    words of the longest packet that it sends; whether it has a message."""
    return data.StructLayout({"pending": 5, "room": 5, "longest": _LENGTH_BITS, "wants": 1})


def record_word_layout():
    """RECORD: record of the node with this rank; ``odd`` alternates from one superframe to the next."""
    return data.StructLayout({"type": ControlType, "rank": 4, "odd": 1, "record": record_layout()})


def lap_layout():
    """LAP: the TIME, in units of eight cycles, when rank 0's slots, odd or even, end (``begin``).
    The next slots begin ``gap`` cycles later."""
    return data.StructLayout({"type": ControlType, "odd": 1, "gap": GAP_BITS, "begin": TARGET_BITS - BEGIN_UNIT,
                              "zeros": 2})


def table_layout():
    """Slots of a superframe, computed from all nodes' records: number of packet slots, words of the longest packet,
    lowest rank above 0 with messages (0 if none), and whether that rank has the first message slot."""
    return data.StructLayout({"slots": 5, "longest": _LENGTH_BITS, "other": 4, "odd": 1})


def mode_layout():
    """Role of a node in a slot: whether it sends a packet or forwards words, and whether they are messages."""
    return data.StructLayout({"drives": 1, "passes": 1, "message": 1})


def message_header_layout():
    """First word of a message: its type, destination and source ranks, number of words, number of the message in a
    request, whether it is the first and the last one of a request or an answer, and an opcode, with the response bit
    set by a node. A node leaves the number of words and the mark of the last message at 0."""
    return data.StructLayout({"type": 4, "destination": 4, "source": 4, "count": 7, "number": 3, "begin": 1, "end": 1,
                              "opcode": 8})


def check_after(state, word):
    """State of a message's check after one more word, in one LUT per bit except one: it starts at 0, becomes the
    check after the last word, and is 0 again after the check.

    All errors in one word and all errors of two bits are detected, and all but one in 778,000 errors of three bits.
    """
    total = state ^ word
    return Cat(total[(27 * n + 30) % 32] ^ total[(3 * n + 23) % 32] ^ (total[12] if n == 0 else 0) for n in range(32))
