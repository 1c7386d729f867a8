"""Records of a node's trace: when each command started, and when it ended."""

import dataclasses

from hdl.control.trace import trace_record_layout
from host.driver.words import Words, fields, places

__all__ = ["TraceRecord", "records"]

_RECORD = places(trace_record_layout())

#: Records that may be in the memory of the trace before its pointer counts them, or be overwritten meanwhile.
_UNDER_WAY = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceRecord:
    """Start or end of a command.

    Members
    -------
    queue : int
    tag : int
        Tag of the command.
    end : bool
        Whether the command ended; else it started.
    time : int
        Cycle of the node, modulo 2**32.
    """

    queue: int
    tag: int
    end: bool
    time: int


def records(words: Words, pointer: int) -> list[TraceRecord]:
    """Decode a trace, oldest record first.

    Parameters
    ----------
    words : array of uint32
        The whole memory space.
    pointer : int
        Register TRACE_POINTER, read after the words.
    """
    kept = words.size // 2
    # With fewer records than places, the pointer has not gone round. One that wraps at 2**32 is not told from that.
    first = max(0, pointer - kept + _UNDER_WAY) if pointer > kept else 0
    found = []
    for number in range(first, pointer):
        low, high = words[2 * (number % kept):2 * (number % kept) + 2].tolist()
        values = fields(_RECORD, low | high << 32)
        found.append(TraceRecord(queue=values["queue"], tag=values["tag"], end=bool(values["end"]),
                                 time=values["time"]))
    return found
