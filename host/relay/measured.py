"""Measured cycles of a set, by the trace of a worker: executions, link, and stalls."""

import dataclasses
import itertools
from collections.abc import Sequence

from host.driver.trace import TraceError, TraceRecord
from host.program.program import Queue
from host.relay.ring import SetOutcome
from host.relay.timeline import Costs, Event, Run

__all__ = ["SetTimes", "set_times"]


@dataclasses.dataclass(frozen=True)
class SetTimes:
    """Cycles of a set on a worker.

    Members
    -------
    run : Run
        FETCH, PUSH and each execution, in cycles from the first start on; without windows.
    executions : dict of (str, int) to list of int
        Cycles of each execution, ``forward`` and ``backward``, by the number of the unit.
    cycles : int
        From the first start of any command to the last end.
    """

    run: Run
    executions: dict[tuple[str, int], list[int]]
    cycles: int

    def costs(self, links: Sequence[tuple[int, int]]) -> list[Costs]:
        """Costs of each unit, with cycles of its FETCH and PUSH that are known otherwise."""
        def mean(kind: str, unit: int) -> int:
            cycles = self.executions[kind, unit]
            return round(sum(cycles) / len(cycles))

        return [Costs(fetch, push, mean("forward", unit), mean("backward", unit))
                for unit, (fetch, push) in enumerate(links)]


def _spans(records: Sequence[TraceRecord]) -> dict[int, tuple[int, int]]:
    """Start and end of each command, by its tag, in cycles from the first record on; times wrap."""
    origin = records[0].time
    starts: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for record in records:
        time = (record.time - origin + (1 << 31)) % (1 << 32) - (1 << 31)
        if record.end:
            found[record.tag] = starts[record.tag], time
        else:
            starts[record.tag] = time
    return found


def set_times(outcome: SetOutcome) -> SetTimes:
    """Cycles of a set that was traced.

    Raises
    ------
    TraceError
        The trace lacks a command.
    """
    if not outcome.records:
        raise TraceError("Set must have been traced")
    spans = _spans(outcome.records)
    missing = [task.name for task in outcome.tasks if task.place not in spans]
    if missing:
        raise TraceError(f"Trace must have all commands of the set, and lacks {len(missing)} of them, such as "
                         f"{missing[0]}")
    events: list[Event] = []
    executions: dict[tuple[str, int], list[int]] = {}
    executed = [(task.name.split(), *spans[task.place]) for task in outcome.tasks if task.queue == Queue.COMPUTE]
    for (kind, unit), group in itertools.groupby(executed, key=lambda one: (one[0][0], int(one[0][1]))):
        parts = list(group)
        executions[kind, unit] = [end - start for _, start, end in parts]
        events += [Event(kind, unit, start, end, 0) for _, start, end in parts]
    for task in outcome.tasks:
        name = task.name.split()
        if name[0] in ("fetch", "push"):
            events.append(Event(name[0], int(name[1]), *spans[task.place], 0))
    return SetTimes(Run(tuple(events)), executions, max(end for _, end in spans.values())
                    - min(start for start, _ in spans.values()))
