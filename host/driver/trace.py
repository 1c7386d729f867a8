"""Records of a node's trace, which show when each command started and ended."""

from typing import Any, NamedTuple

from hdl.control.trace import trace_record_layout
from host.driver.words import Words, fields, int_of, places

__all__ = ["TraceError", "TraceRecord", "records"]

_RECORD = places(trace_record_layout())

#: Maximum number of records that are written but not yet counted, or overwritten during a read.
_UNDER_WAY = 1


class TraceError(Exception):
    """Raised when a trace is incomplete or does not belong to the program."""


class TraceRecord(NamedTuple):
    """A trace record: the start or end of a command."""

    queue: int
    tag: int  # tag of the command
    end: bool  # True for the end of the command, False for its start
    time: int  # cycle of the node's clock, modulo 2**32
    # number of updates of the weights that the command uses, modulo 2**13; 0 if updates are not counted
    version: int = 0


def records(words: Words, pointer: int, since: int | None = None) -> list[TraceRecord]:
    """Decode a trace, oldest record first; ``words`` is the whole memory space, read before the pointer.

    ``pointer`` is register TRACE_POINTER; ``since`` is its value before the first record to return, by default the
    oldest record. With ``since``, no record may be added meanwhile. Raises ``TraceError`` if records were lost.
    """
    kept = words.size // 2
    if since is None:
        # After 2^32 records the pointer wraps around. While it is small again, it is taken as the number of records
        # since the start.
        since = max(0, pointer - kept + _UNDER_WAY) if pointer > kept else 0
    count = (pointer - since) % (1 << 32)
    if count > kept:
        raise TraceError(f"Trace must have at most {kept} records, not {count:,}: run fewer passes at a time")
    rows = words.reshape(kept, 2)
    return [_record(rows[number % kept]) for number in range(since, since + count)]


def _record(words: Words) -> TraceRecord:
    values: dict[str, Any] = fields(_RECORD, int_of(words))
    return TraceRecord(**{**values, "end": bool(values["end"])})
