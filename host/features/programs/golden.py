"""Programs on golden nodes: command order, events, and traces from the golden timing model."""

import collections
import dataclasses
from collections.abc import Sequence

from hdl.control.protocol import EventStatus
from hdl.memory_map import TRACE_WORDS
from host.driver.command import Command, ProgramRun
from host.driver.errors import ProgramTooLongError
from host.driver.trace import TraceError, TraceRecord
from host.driver.transport import Pending
from host.transports.golden.nodes import GoldenNodes
from host.transports.golden.session import GoldenDevice
from sim.golden.features.programs.program import Remote, Timed, signal_cycles, timeline

__all__ = ["GoldenPrograms", "ProgramDevice"]

#: Cycles between two runs in a trace.
_PAUSE = 1000


@dataclasses.dataclass
class _Run:
    """A run of a node's program."""

    queues: list[list[Command]]
    passes: int
    parity: int
    done: list[int]  # number of completed commands in each queue
    # modelled cycles of each command, keyed by queue and command number
    durations: dict[tuple[int, int], int | None] = dataclasses.field(default_factory=dict)
    versions: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.done == [self.passes * len(queue) for queue in self.queues]

    def next(self, queue: int) -> Command | None:
        """Return the next command of a queue, or None at the end of the run."""
        commands = self.queues[queue]
        return commands[self.done[queue] % len(commands)] if self.done[queue] < self.passes * len(commands) else None


class GoldenPrograms:
    """Programs of all golden nodes and the runs in progress."""

    def __init__(self, nodes: GoldenNodes, *, latency: int):
        self._nodes, self._latency = nodes, latency
        # commands of each queue of each node
        self.loaded: list[list[list[Command]]] = [[[] for _ in range(nodes.config.queues)]
                                                  for _ in range(nodes.nodes)]
        # latest trace records of each node; runs with commands of unknown duration are not recorded
        self.traces: list[collections.deque[TraceRecord]] = [
            collections.deque(maxlen=int(TRACE_WORDS) // 2) for _ in range(nodes.nodes)]
        self.recorded = [0] * nodes.nodes  # total number of records of each node so far
        self._runs: dict[int, _Run] = {}
        self._time = 0

    def running(self, rank: int) -> bool:
        """Whether a node still has commands of a run to execute."""
        return rank in self._runs

    def abandon(self, rank: int) -> None:
        """End the run of a node early."""
        self._runs.pop(rank, None)

    def run(self, rank: int, *, passes: int, parity: int, first: int) -> None:
        """Start a run of a node's program."""
        queues = [list(commands) for commands in self.loaded[rank]]
        self._nodes.latch_registers(rank)
        self._nodes.found.clear()
        if first == 0:
            for key in [key for key in self._nodes.versions if key[0] == rank]:
                del self._nodes.versions[key]
        if passes:
            self._runs[rank] = _Run(queues, passes, parity, [0] * len(queues))
            self.advance()

    def advance(self) -> None:
        """Execute all commands that may start."""
        while any([self._start(rank, queue) for rank in list(self._runs)
                   for queue in range(self._nodes.config.queues)]):
            pass
        if self._runs and all(run.complete for run in self._runs.values()):
            runs, self._runs = self._runs, {}
            self._record(runs)

    def _start(self, rank: int, queue: int) -> bool:
        """Execute the next command of a queue if all participating nodes may start it."""
        run = self._runs.get(rank)
        command = None if run is None else run.next(queue)
        if run is None or command is None:
            return False
        ranks = self._nodes.members(rank, command)
        if not all(self._ready(node, queue, run.done[queue]) for node in ranks):
            return False
        commands: dict[int, Command] = {}
        for node in ranks:
            following = self._runs[node].next(queue)
            assert following is not None
            commands[node] = following
            self._nodes.flags[node] &= ~following.wait
        known = len(self._nodes.found)
        events = self._nodes.carry_out(ranks, commands, odd=(run.done[queue] // len(run.queues[queue])
                                                             + run.parity) % 2)
        for node, event in events.items():
            own = self._runs[node]
            own.durations[queue, own.done[queue]] = event.cycles
            if len(self._nodes.found) > known:
                own.versions[queue, own.done[queue]] = self._nodes.found[-1][2]
            own.done[queue] += 1
            self._nodes.flags[node] |= commands[node].signal
            self._nodes.events[node].append(dataclasses.replace(event, queue=queue))
            if event.status is not EventStatus.OK:
                self.abandon(node)
        return True

    def _ready(self, rank: int, queue: int, count: int) -> bool:
        """Whether a node may now start command ``count`` of a queue."""
        run = self._runs.get(rank)
        command = None if run is None else run.next(queue)
        if run is None or command is None or run.done[queue] != count or command.wait & ~self._nodes.flags[rank]:
            return False
        number = count // len(run.queues[queue])
        other_queues = [other for other in range(len(run.queues)) if other != queue]
        waits = [(rank, other) for other in other_queues]
        if command.remote:
            waits = [*waits[:1], (command.unit, command.unit_queue)]
        for (unit, other), after, lag in zip(waits, (command.after_0, command.after_1),
                                             (command.lag_0, command.lag_1), strict=False):
            watched = self._runs.get(unit)
            if after and number >= lag and watched is not None and (
                    watched.done[other] < (number - lag) * len(watched.queues[other]) + after):
                return False
        return True

    def _record(self, runs: dict[int, _Run]) -> None:
        """Append the start and end times of the runs' commands to the traces, if all durations are known."""
        ranks = sorted(runs)
        timed = _timed([runs[rank].queues for rank in ranks], ranks[0], self._nodes)
        if timed is None or any(cycles is None for run in runs.values() for cycles in run.durations.values()):
            return

        def duration(node: int, number: int, queue: int, index: int) -> int:
            run = runs[ranks[node]]
            return run.durations[queue, number * len(run.queues[queue]) + index] or 0

        spans = timeline(timed, passes=runs[ranks[0]].passes, nodes=len(ranks), duration=duration,
                         signal=lambda hops: signal_cycles(hops, wire=self._latency))
        for node, rank in enumerate(ranks):
            records = []
            for span in (each for each in spans if each.node == node):
                queue = runs[rank].queues[span.queue]
                version = runs[rank].versions.get((span.queue, span.number * len(queue) + span.place), 0)
                tag = queue[span.place].tag
                records += [TraceRecord(span.queue, tag, end, (self._time + time) % (1 << 32), version)
                            for end, time in ((False, span.start), (True, span.end))]
            self.traces[rank] += sorted(records, key=lambda record: (record.time, record.end, record.queue))
            self.recorded[rank] += len(records)
        self._time += max((span.end for span in spans), default=0) + _PAUSE


def _timed(programs: Sequence[list[list[Command]]], rank: int, nodes: GoldenNodes) -> list[list[Timed]] | None:
    """Return each queue's commands for the timing model; None if nodes differ in queue lengths or local waits."""
    if any(list(map(len, program)) != list(map(len, programs[0])) for program in programs):
        return None
    queues = []
    for queue, commands in enumerate(programs[0]):
        timed = []
        for index, command in enumerate(commands):
            own = [program[queue][index] for program in programs]
            waits = {((each.after_0, each.lag_0), *([] if each.remote else [(each.after_1, each.lag_1)]))
                     for each in own}
            if len(waits) > 1:
                return None
            remotes = tuple(Remote(each.unit, each.unit_queue, each.after_1, each.lag_1) if each.remote else None
                            for each in own)
            timed.append(Timed(command.operation.name, 0, len(nodes.members(rank, command)) > 1,
                               next(iter(waits))[:len(programs[0]) - 1], remotes if any(remotes) else ()))
        queues.append(timed)
    return queues


class ProgramDevice(GoldenDevice):
    """Driver of a golden node with programs."""

    def __init__(self, nodes: GoldenNodes, programs: GoldenPrograms, rank: int):
        super().__init__(nodes, rank)
        self._programs = programs

    def register(self, name: str) -> int | float:
        match name:
            case "PROGRAM_STATUS":
                return int(self._programs.running(self._rank))
            case "TRACE_POINTER":
                return self._programs.recorded[self._rank]
        return super().register(name)

    def submit_write_register(self, name: str, value: float) -> Pending[None]:
        answer = super().submit_write_register(name, value)
        if name == "FLAGS":
            self._programs.advance()
        elif name == "CONTROL" and int(value) & 1:
            self._programs.abandon(self._rank)
        return answer

    def submit_load_program(self, queue: int, commands: Sequence[Command], *, slot: int = 0, model: int = 0,
                            idle: bool = False) -> Pending[None]:
        depth = self.config.programs.depth
        if slot + len(commands) > depth:
            raise ProgramTooLongError(f"{self.name}: a program of {slot + len(commands)} commands must have at most "
                                      f"{depth}; load a shorter program, or nodes with a larger depth of programs")
        if idle:
            raise ValueError("Programs of golden nodes must be loaded before a run, not staged while one runs")
        self._programs.loaded[self._rank][queue][slot:] = commands
        return self._answer(None)

    def submit_run(self, run: ProgramRun) -> Pending[None]:
        self.latest_run = run.number
        self._programs.run(self._rank, passes=run.passes, parity=run.parity, first=run.first)
        return self._answer(None)

    def trace(self, since: int | None = None) -> list[TraceRecord]:
        records = list(self._programs.traces[self._rank])
        count = len(records) if since is None else self._programs.recorded[self._rank] - since
        if count > len(records):
            raise TraceError(f"Trace must have at most {len(records)} records, not {count:,}: run fewer passes at a "
                             f"time")
        return records[len(records) - count:]
