"""Layouts and constants shared by the units for time slots."""

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

#: Maximum number of packet slots in a superframe; number of packet slots between two message slots.
MAX_SLOTS, GROUP = 16, 4
#: Cycles of a packet slot in excess of the longest packet; number of words in a message; cycles of a message slot:
#: the words, a header and a CRC, and additional cycles as in a packet slot.
GAP, MESSAGE_WORDS, MESSAGE_CYCLES = 4, 64, 72
#: Number of low bits of TIME that determine when slots start; width in bits of the gap between superframes, which is
#: counted in cycles.
TARGET_BITS, GAP_BITS = 16, 12
#: Number of low bits of TIME that are 0 when a superframe starts; LAP words omit them.
BEGIN_UNIT = 3

#: Type field of a message, in the position of a packet's :class:`~hdl.ring.header.PacketType`.
MESSAGE_TYPE = 3
#: Opcode of host packets that carry messages; not used by requests.
MESSAGE_OPCODE = 0x40

_LENGTH_BITS = 12


def record_layout():
    """Layout of a node's record: number of packets for its successor, room for packets from its predecessor, number
    of words of the longest packet that it sends, and whether it has a message."""
    return data.StructLayout({"pending": 5, "room": 5, "longest": _LENGTH_BITS, "wants": 1})


def record_word_layout():
    """Layout of RECORD: the state of node ``rank``; ``odd`` alternates from one superframe to the next."""
    return data.StructLayout({"type": ControlType, "rank": 4, "odd": 1, "record": record_layout()})


def lap_layout():
    """Layout of LAP: the TIME, in units of eight cycles, when rank 0's odd or even slots end (``begin``); the next
    slots begin ``gap`` cycles later."""
    return data.StructLayout({"type": ControlType, "odd": 1, "gap": GAP_BITS, "begin": TARGET_BITS - BEGIN_UNIT,
                              "zeros": 2})


def table_layout():
    """Layout of a superframe's slots, computed from all nodes' records: number of packet slots, number of words of
    the longest packet, lowest rank above 0 with messages (0 if none), and whether that rank has the first message
    slot."""
    return data.StructLayout({"slots": 5, "longest": _LENGTH_BITS, "other": 4, "odd": 1})


def mode_layout():
    """Layout of a node's role in a slot: whether it sends or forwards, and whether the words are messages."""
    return data.StructLayout({"drives": 1, "passes": 1, "message": 1})


def message_header_layout():
    """Layout of a message's first word: its type, destination and source ranks, number of words, index of the
    message in a request, whether it is the first and the last one of a request or an answer, and an opcode, with
    the response bit set by a node. A node leaves the number of words and the last-message flag at 0."""
    return data.StructLayout({"type": 4, "destination": 4, "source": 4, "count": 7, "number": 3, "begin": 1, "end": 1,
                              "opcode": 8})


def check_after(state, word):
    """Return a message's CRC state after one more word. Each bit but the lowest needs only one LUT.

    The state starts at 0, equals the CRC after the last word, and returns to 0 after the CRC itself. All errors
    in one word and all two-bit errors are detected, and all but one in 778,000 of three-bit errors.
    """
    total = state ^ word
    return Cat(total[(27 * n + 30) % 32] ^ total[(3 * n + 23) % 32] ^ (total[12] if n == 0 else 0) for n in range(32))
