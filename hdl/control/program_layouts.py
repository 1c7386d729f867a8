"""Limits of queues and programs, and the layouts that the host port and the queues use for programs."""

from amaranth.lib import data

__all__ = ["DEPTH_MAX", "QUEUES_MAX", "bank_state_layout", "begins_bank", "check_queues", "program_header_layout",
           "program_status_layout", "program_word_layout"]

#: Maximum number of queues of a node.
QUEUES_MAX = 3

#: Maximum length of a program: command counts are compared modulo 2^16, see :mod:`hdl.control.scoreboard`.
DEPTH_MAX = 1024


def check_queues(queues, *, least=1):
    """Raise ValueError unless a node can have ``queues`` queues."""
    if not isinstance(queues, int) or not least <= queues <= QUEUES_MAX:
        raise ValueError(f"Queue count must be between {least} and {QUEUES_MAX}, not {queues!r}")


def program_header_layout(*, banks=1):
    """First word of a load: queue, slot of the first command that follows, and number of the program. In a node with
    two banks, ``idle`` selects the idle bank."""
    return data.StructLayout({"slot": 16, **({"queue": 7, "idle": 1} if banks > 1 else {"queue": 8}), "model": 8})


def begins_bank(header):
    """Whether a load starts a new program in the idle bank."""
    return header.idle & (header.queue == 0) & (header.slot == 0)


def program_word_layout():
    """Word of a program: a :func:`program_header_layout` if ``first``, otherwise part of a command."""
    return data.StructLayout({"data": 32, "first": 1})


def program_status_layout():
    """State of a node's programs.

    ``running`` is high from the start of a run until its last command has ended, ``stopped`` if the last run was
    ended by a command with a status other than OK, and ``loaded`` if any program is not empty. ``model`` is the
    number of the program, and ``passes`` is the number of passes that the last queue has yet to issue.
    """
    return data.StructLayout({"running": 1, "stopped": 1, "loaded": 1, "reserved": 5, "model": 8, "passes": 16})


def bank_state_layout():
    """State of a program bank: the number of its program, and whether it holds commands for any queue."""
    return data.StructLayout({"model": 8, "loaded": 1})
