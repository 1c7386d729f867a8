"""Trace of a program's run on a node, read back as the spans of its commands."""

from collections.abc import Sequence

from host.driver.trace import TraceError, TraceRecord
from host.program.program import CompiledProgram
from sim.golden.program import Span

__all__ = ["origin_of", "spans"]

_TIMES = 1 << 32


def origin_of(traces: Sequence[Sequence[TraceRecord]]) -> int:
    """Time of the earliest record of all nodes, whose clocks agree; the least difference counts, as times wrap."""
    times = [record.time for trace in traces for record in trace]
    if not times:
        return 0
    return (times[0] + min((time - times[0] + _TIMES // 2) % _TIMES - _TIMES // 2 for time in times)) % _TIMES


def spans(trace: Sequence[TraceRecord], program: CompiledProgram, *, node: int, origin: int) -> list[Span]:
    """Spans of a run, in order of their starts.

    Parameters
    ----------
    program : CompiledProgram
        Its commands have their places in the program as tags.
    origin : int
        Time that counts as 0.

    Raises
    ------
    TraceError
        Records are not those of commands of this program, each with its start and its end, in the order of its queue.
    """
    found = []
    for queue, commands in enumerate(program.queues):
        mine = [record for record in trace if record.queue == queue]
        for count, (start, end) in enumerate(zip(mine[::2], mine[1::2], strict=False)):
            number, place = divmod(count, max(len(commands), 1))
            expected = commands[place].task.place if commands else None
            if (start.tag, start.end, end.tag, end.end) != (expected, False, expected, True):
                raise TraceError(f"Trace must have start and end of command {expected} of pass {number} in queue "
                                 f"{queue}, not {start} and {end}")
            found.append(Span(node, queue, commands[place].task.name, (start.time - origin) % _TIMES,
                              (end.time - origin) % _TIMES, number, place))
        if len(mine) % 2:
            raise TraceError(f"Trace must have the end of every command, and {mine[-1]} has none")
    return sorted(found, key=lambda span: (span.start, span.queue))
