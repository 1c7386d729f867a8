"""Records of a node's trace: when each command started, and when it ended."""

from typing import Any, NamedTuple

from hdl.control.trace import trace_record_layout
from host.driver.words import Words, fields, int_of, places

__all__ = ["TraceError", "TraceRecord", "records"]

_RECORD = places(trace_record_layout())

#: Records that may be in the memory of the trace before its pointer counts them, or be overwritten meanwhile.
_UNDER_WAY = 1


class TraceError(Exception):
    """A trace that lacks records, or does not belong to the program."""


class TraceRecord(NamedTuple):
    """Start or end of a command."""

    queue: int
    tag: int  # tag of the command
    end: bool  # whether the command ended; else it started
    time: int  # cycle of the node, modulo 2**32
    # updates of the weights that the command computes with, modulo 2**13; 0 where they are not counted
    version: int = 0


def records(words: Words, pointer: int, since: int | None = None) -> list[TraceRecord]:
    """Decode a trace, oldest record first: the words of the whole memory space, and register TRACE_POINTER, which was
    read after them.

    ``since`` is the pointer before the first record to return, where nothing is recorded meanwhile; by default all
    kept records are returned. Raises ``TraceError``: there were more records since then than a node keeps.
    """
    kept = words.size // 2
    if since is None:
        # The pointer wraps after 2^32 records; then, as at the start, a small value means few records.
        since = max(0, pointer - kept + _UNDER_WAY) if pointer > kept else 0
    count = (pointer - since) % (1 << 32)
    if count > kept:
        raise TraceError(f"Trace must have at most {kept} records, not {count:,}: run fewer passes at a time")
    rows = words.reshape(kept, 2)
    return [_record(rows[number % kept]) for number in range(since, since + count)]


def _record(words: Words) -> TraceRecord:
    values: dict[str, Any] = fields(_RECORD, int_of(words))
    return TraceRecord(**{**values, "end": bool(values["end"])})
