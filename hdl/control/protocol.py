"""Protocol between the host and a node: opcodes, status codes, descriptors and events.

This module is the only source of truth for both sides; docs/protocol.md explains it in prose. Requests and responses
are packets of 32-bit words. The struct layouts below list a packet's words in order, with the first word lowest.
"""

import enum

from amaranth.lib import data

from hdl.memory_map import Space

__all__ = [
    "DESCRIPTOR_WORDS", "EDIT_WORDS", "EVENT_WORDS", "PING_WORDS", "QUEUE_DEPTH", "RESPONSE", "RUN_WORDS",
    "EventFlag", "EventStatus", "Opcode", "Operation", "Space", "Status", "access_layout", "command_layout",
    "descriptor_layout", "event_layout", "header_layout",
]

DESCRIPTOR_WORDS = 16
"""Number of words of a command descriptor (:func:`command_layout`)."""

EVENT_WORDS = 4
"""Number of words of an event (:func:`event_layout`)."""

QUEUE_DEPTH = 8
"""Capacity of a node's queues in commands, and of its event queue."""

PING_WORDS = 64
"""Maximum number of words that a PING echoes: a node must hold them until the packet is known to be well formed."""

RUN_WORDS = 3
"""Number of words of a run (:func:`hdl.control.sequencer.run_layout`)."""

EDIT_WORDS = 2
"""Number of words of an edit (:func:`hdl.features.programs.program_banks.edit_layout`)."""

RESPONSE = 0x80
"""Bit that is set in the opcode of every response."""


class Opcode(enum.IntEnum):
    """Type of a request from the host."""

    PING = 1
    READ_REGISTER = 2
    WRITE_REGISTER = 3
    READ_MEMORY = 4
    WRITE_MEMORY = 5
    PUSH_COMMAND = 6
    POP_EVENT = 7
    LOAD_PROGRAM = 8
    RUN = 9
    EDIT = 10


class Status(enum.IntEnum):
    """Result of a request, in the second word of the response."""

    OK = 0
    UNKNOWN_OPCODE = 1
    BAD_LENGTH = 2
    BAD_ADDRESS = 3
    READ_ONLY = 4
    QUEUE_FULL = 5
    EMPTY = 6
    TOO_LONG = 7
    BUSY = 8
    NOT_LOADED = 9
    WRONG_SET = 10
    OLD_EDIT = 11
    WRONG_PROGRAM = 12
    OUT_OF_WINDOW = 13
    FOREIGN_TENANT = 14


class Operation(enum.IntEnum):
    """Operation of a command."""

    QUIESCE = 0
    FUSED_UPDATE = 1
    ALL_REDUCE = 2
    REDUCE_SCATTER = 3
    ALL_GATHER = 4
    BROADCAST = 5
    MASK = 6
    SPARSIFY = 7
    INFER = 8
    COMPUTE = 9
    LATCH = 10
    LAYERS = 11
    SWITCH = 12
    APPLY_LATE = 13
    MOVE_OUT = 14
    MOVE_IN = 15
    PUSH = 16


class EventStatus(enum.IntEnum):
    """Result of a command."""

    OK = 0
    UNKNOWN_OPERATION = 1
    BAD_BASE = 2
    BAD_LENGTH = 3
    BAD_RANK = 4
    WRONG_COLLECTIVE = 5
    WRONG_BLOCK = 6
    WRONG_LENGTH = 7
    BAD_CRC = 8
    WRONG_SEQUENCE = 9
    WRONG_SOURCE = 10
    WRONG_CODEC = 11
    PEER_ABORT = 12
    INGRESS_TIMEOUT = 13
    EGRESS_TIMEOUT = 14
    WAIT_TIMEOUT = 15
    OVERRUN = 16
    LINK_RESET = 17
    BAD_RULE = 18
    BAD_MASK = 19
    BAD_LAYER = 20
    AFTER_TIMEOUT = 21
    REPEATED = 22
    BAD_STRIDE = 23
    BAD_INSTRUCTION = 24
    BUSY = 25
    BAD_UNIT = 26
    STALE = 27
    CLOSE_TIMEOUT = 28
    READ_DEAD = 29
    FAR_TIMEOUT = 30
    BAD_FORMAT = 31
    OUT_OF_WINDOW = 32
    FOREIGN_TENANT = 33
    OVER_BUDGET = 34
    WRONG_SUM = 35


class EventFlag(enum.IntFlag):
    """Observations about a command that do not make it fail."""

    LOCAL_NAN = 1
    """There was a NaN among the local gradients."""
    NOT_FINITE = 2
    """A reduced gradient, or a sum, was NaN or infinite."""


def header_layout():
    """First word of a request or response: number of payload words, tag, opcode."""
    return data.StructLayout({"count": 16, "tag": 8, "opcode": 8})


def access_layout():
    """Memory access to ``count`` elements of memory ``space``, starting at element ``address``."""
    return data.StructLayout({"address": 28, "space": 4, "count": 16})


def command_layout():
    """The sixteen words of a command descriptor.

    Bases are element addresses and multiples of 32; ``length`` counts elements. ``wait`` selects the flags that the
    command takes before it starts, ``signal`` the flags that it sets when it ends with OK. ``port`` selects the ring;
    a node with one port has ring 0. ``collective`` is the collective's number, which its packets carry. Group j of 32
    elements belongs to block (j + ``block_offset``) modulo ``size`` and starts j · ``stride`` groups after the base.
    With ``remote``, the second pair of ``after`` and ``lag`` refers to queue ``unit_queue`` of the node with rank
    ``unit``. ``region`` is the region of weights that a program's command computes with or updates, and ``apart``
    means that the region has two copies (:mod:`hdl.features.programs.region_versions`). ``round`` makes a command
    part of a quorum update; the update's number is the pass plus ``number``. ``format`` selects the weight format of
    a BROADCAST in a node with several formats, and ``entry`` an entry in its table of counts
    (docs/ring/collective/formats.md). With ``root_reduce``, all groups belong to ``root``. SWITCH takes its setting
    from ``gradient_base`` (:func:`hdl.features.grid.switched_link.seats_layout`).
    """
    return data.StructLayout({
        "operation": 8, "rank": 8, "size": 8, "port": 8,
        "gradient_base": 32,
        "weight_base": 32,
        "state_base": 32,
        "length": 32,
        "epoch": 8, "root": 8, "collective": 16,
        "wait": 16, "signal": 16,
        "tag": 16, "tenant": 16,
        "after_0": 16, "after_1": 16,
        "lag_0": 2, "lag_1": 2, "unit_queue": 2, "remote": 1, "round": 1, "alternate": 1, "region": 6, "model": 8,
        "unit": 8, "apart": 1,
        "block_offset": 8, "stride": 8, "number": 16,
        "duration": 32,
        "format": 4, "entry": 8, "root_reduce": 1, "reserved_12": 19,
        "reserved_13": 96,
    })


def descriptor_layout():
    """Word of a command descriptor. A word with ``first`` always starts a new descriptor, and one with ``last``
    completes it."""
    return data.StructLayout({"data": 32, "first": 1, "last": 1})


def event_layout():
    """The four words of an event; ``tag`` and ``queue`` are the command's, ``cycles`` is its duration."""
    return data.StructLayout({
        "tag": 16, "status": 8, "flags": 6, "queue": 2,
        "detail": 32,
        "cycles": 32,
        "weight_version": 32,
    })
