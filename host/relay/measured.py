"""Measured cycles of a set, by the trace of a worker: executions, link, moves, and stalls."""

import collections
import dataclasses
import itertools
from collections.abc import Sequence

from host.driver.trace import TraceError, TraceRecord
from host.program.program import CompiledProgram
from host.relay.program_timeline import GAP, run_of
from host.relay.ring import SetOutcome
from host.relay.timeline import Costs, Run

__all__ = ["SetTimes", "set_times"]


@dataclasses.dataclass(frozen=True)
class SetTimes:
    """Cycles of a set on a worker."""

    #: FETCH, PUSH and each execution and move, in cycles from the first start on; without windows.
    run: Run
    #: Cycles of each execution, ``forward`` and ``backward``, by the number of the unit.
    executions: dict[tuple[str, int], list[int]]
    #: From the first start of any command to the last end.
    cycles: int
    #: Commands of the set.
    program: CompiledProgram

    @property
    def links(self) -> dict[tuple[str, int], int]:
        """Cycles of ``fetch`` and ``push`` by unit: the fewest of a FETCH. A PUSH ends on a worker before the server
        has updated its weights, so it is the time until the next FETCH has ended, less that FETCH; a unit whose PUSH
        none follows is left out."""
        on_link = [event for event in self.run.events if event.kind in ("fetch", "push")]
        found: dict[tuple[str, int], int] = {}
        for event in on_link:
            if event.kind == "fetch":
                cycles = event.end - event.start
                found["fetch", event.unit] = min(cycles, found.get(("fetch", event.unit), cycles))
        for push, fetch in itertools.pairwise(on_link):
            if (push.kind, fetch.kind) == ("push", "fetch") and fetch.start <= push.end + GAP:
                found["push", push.unit] = fetch.end - push.start - GAP - found["fetch", fetch.unit]
        return found

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
    missing = [task.name for task in outcome.program.tasks if task.place not in spans]
    if missing:
        raise TraceError(f"Trace must have all commands of the set, and lacks {len(missing)} of them, such as "
                         f"{missing[0]}")
    run = run_of(outcome.program.tasks, spans)
    executions: dict[tuple[str, int], list[int]] = collections.defaultdict(list)
    for event in run.events:
        if event.executes:
            executions[event.kind, event.unit].append(event.end - event.start)
    return SetTimes(run, dict(executions), max(end for _, end in spans.values())
                    - min(start for start, _ in spans.values()), outcome.program)
