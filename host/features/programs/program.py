"""Programs: the commands of a pass, in queues that wait for each other where necessary.

A :class:`Program` is written as if its commands ran one after another, pass after pass. Each command names the memory
regions that it reads and writes. :meth:`Program.compile` derives the waits that make concurrent queues produce the
same result: a command that reads a region waits for the command that wrote it, and a command that writes a region
waits for the commands that read or wrote it earlier, in this pass or a previous one. Since queues are in order, one
wait per other queue is enough; redundant waits are omitted. The resulting :class:`CompiledProgram` provides
descriptors for nodes, commands for golden models, and the check; :func:`spans` reads the trace of its run.

Example
-------
::

    program = Program()
    backward = program.add("backward 1", operation="COMPUTE", queue=Queue.COMPUTE, duration=600,
                           writes=[Region("gradients", 0, 640)])
    program.add("update 1", operation="FUSED_UPDATE", queue=Queue.COMMUNICATE, collective=True,
                reads=[Region("gradients", 0, 640)], writes=[Region("weights", 0, 640)])
    compiled = program.compile()  # the update waits for `backward`; the next pass's `backward` waits for the update
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from hdl.control.protocol import Operation
from hdl.ring.topology import SMALL_RING
from host.driver.command import Command
from host.driver.trace import TraceError, TraceRecord
from host.features.programs import order
from host.features.programs.order import LAGS, Region, Wait
from sim.golden.features.programs.program import Remote, Span, Timed, remote_of
from sim.golden.features.programs.program_nodes import Placed

__all__ = ["DEPTH", "CompiledProgram", "Instruction", "Program", "ProgramError", "Queue", "RaceError", "Task",
           "origin_of", "spans"]

#: Maximum number of commands that a queue may be ahead of one that waits for it; waits compare 16-bit counts.
_AHEAD = (1 << 15) - 1

#: Maximum number of passes by which queues of two nodes can be apart if each pass has a collective: 15 passes
#: between the queues of each node, one between the nodes, and the lag of a wait.
_APART = 35

#: A wait that is always satisfied.
_NO_WAIT = Wait()

#: Operations of the collective engine. Their packets contain a number that differs between neighbouring collectives.
_NUMBERED = ("FUSED_UPDATE", "ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER", "BROADCAST", "PUSH")


class ProgramError(ValueError):
    """Raised for a program that must not be loaded on a node."""


class RaceError(ProgramError):
    """Raised if two commands access the same region and no wait orders them."""

    def __init__(self, first: "Task", second: "Task", region: Region, lag: int):
        #: The command that must end first, and the one that starts too early.
        self.first, self.second = first, second
        self.region = region
        before = {0: "", 1: " of the pass before"}.get(lag, f" of {lag} passes before")
        super().__init__(f"{second.name} may start before {first.name}{before} has ended, and both touch {region}: "
                         f"let it wait")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A command of a program."""

    #: Name for messages, pictures and tables.
    name: str
    #: Index in the program, from 0.
    place: int
    queue: int
    operation: str
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    #: Whether all nodes execute the command together.
    collective: bool
    #: Duration in cycles, if it is known before a run.
    duration: int
    #: Fields of the command's descriptor: one value for all ranks, or one per rank.
    fields: Mapping[str, int | Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A command of a program with its waits, one per other queue, in ascending queue order."""

    task: Task
    waits: tuple[Wait, ...]
    #: Wait of each node, by rank; empty if no rank waits. A wait with the node's own rank is for another queue.
    remotes: tuple[Remote | None, ...] = ()

    def fields(self, rank: int) -> dict[str, int]:
        """Return the fields of a rank's descriptor, including its waits."""
        values = {name: value if isinstance(value, int) else value[rank] for name, value in self.task.fields.items()}
        waits, remote = list(self.waits), remote_of(self.remotes, rank)
        if remote is not None and remote.unit == rank:
            number = remote.queue - (remote.queue > self.task.queue)
            waits[number] = order.later(waits[number], Wait(remote.after, remote.lag))
        for number, wait in enumerate(waits):
            values |= {f"after_{number}": wait.after, f"lag_{number}": wait.lag}
        if remote is not None and remote.unit != rank:
            values |= {"remote": 1, "unit": remote.unit, "unit_queue": remote.queue, "after_1": remote.after,
                       "lag_1": remote.lag}
        return values


def _touches(tasks: Sequence[Task]) -> list[order.Touch]:
    return [order.Touch(task.queue, task.reads, task.writes) for task in tasks]


def _refuse_cycle(tasks: Sequence[Task], waits: order.Waits) -> None:
    _refuse_circle([tasks[index].name for index in order.find_cycle([task.queue for task in tasks], waits)])


def _refuse_circle(names: Sequence[str]) -> None:
    if names:
        raise ProgramError(f"Commands must not wait for each other in a circle, not "
                           f"{' for '.join([*names, names[0]])}")


class CompiledProgram:
    """Commands of each queue with their waits.

    The waits of each task are keyed by the queue that it waits for. Waits are not checked here; see :meth:`check`.
    ``remotes`` has each command's waits for other nodes, one per rank or none; ``nodes`` is the size of the ring."""

    def __init__(self, tasks: tuple[Task, ...], queues: int, waits: order.Waits, *, remotes: order.Remotes = (),
                 nodes: int | None = None):
        self.tasks = tasks
        self._waits = tuple(waits)
        self._remotes = [tuple(row) for row in remotes] or [()] * len(tasks)
        self._nodes = nodes
        #: Instructions of each queue.
        self.queues = tuple(
            tuple(Instruction(task, tuple(waits[task.place].get(other, _NO_WAIT) for other in range(queues)
                                          if other != queue), self._remotes[task.place])
                  for task in tasks if task.queue == queue)
            for queue in range(queues))

    @property
    def collectives(self) -> int:
        """Number of collective sequence numbers that a pass uses: one per command of the collective engine."""
        return sum(task.operation in _NUMBERED for task in self.tasks)

    @property
    def max_passes(self) -> int | None:
        """Maximum number of passes in one run; None for no limit.

        Command counts have 16 bits, so a queue must not run ahead without limit of a queue that waits for it. This
        cannot happen if the two queues wait for each other.
        """
        far = [len(self.queues[wait.queue]) for _, _, wait in self.remote_waits()]
        together = any(task.collective for task in self.tasks)
        apart = [_AHEAD // length for length in far if not together or _APART * length > _AHEAD]
        edges = {(self.tasks[index].queue, other) for index, other, _ in self.waits()}
        loose = [other for queue, other in edges if queue not in _reachable(other, edges)]
        return min((*apart, *(_AHEAD // len(self.queues[queue]) for queue in loose)), default=None)

    def timed(self) -> list[list[Timed]]:
        """Return the commands of each queue for the golden timing model."""
        return [[Timed(item.task.name, item.task.duration, item.task.collective, item.waits, item.remotes)
                 for item in queue] for queue in self.queues]

    def placed(self, nodes: int) -> list[list[Placed]]:
        """Return the commands of each queue for golden nodes."""
        return [[Placed(item.task.operation, [item.fields(rank) for rank in range(nodes)], item.task.collective,
                        item.waits, item.remotes) for item in queue] for queue in self.queues]

    def commands(self, rank: int, nodes: int, *, epoch: int = 0, model: int = 0) -> list[list[Command]]:
        """Commands of each queue for the program memory of a rank in a ring of ``nodes``, tagged by index. Raises
        ``ProgramError`` if nodes lack an operation or the node count is wrong."""
        if any(self._remotes) and nodes != self._nodes:
            raise ProgramError(f"Nodes must be the {self._nodes} that commands wait for each other on, not {nodes!r}")
        for task in self.tasks:
            if task.operation not in Operation.__members__:
                raise ProgramError(f"Operation of {task.name} must be one of a node, not {task.operation!r}")
        numbers = {index: number for number, index in enumerate(
            task.place for task in self.tasks if task.operation in _NUMBERED)}
        return [[Command(**{"operation": Operation[item.task.operation], "rank": rank, "size": nodes, "epoch": epoch,
                            "model": model, "tag": item.task.place, "collective": numbers.get(item.task.place, 0),
                            **item.fields(rank)}) for item in queue] for queue in self.queues]

    def waits(self) -> Iterator[tuple[int, int, Wait]]:
        """Yield each wait with the index of the waiting command and the queue that it waits for."""
        for index, own in enumerate(self._waits):
            for queue, wait in sorted(own.items()):
                if wait.after:
                    yield index, queue, wait

    def remote_waits(self) -> Iterator[tuple[int, int, Remote]]:
        """Yield each wait for another node, with the index and the rank of the command that waits."""
        for index, own in enumerate(self._remotes):
            for rank, remote in enumerate(own):
                if remote is not None and remote.unit != rank:
                    yield index, rank, remote

    def replace(self, place: int, queue: int, wait: Wait = _NO_WAIT) -> "CompiledProgram":
        """Return a copy of the program with one wait replaced or removed; the copy is not checked."""
        waits = [dict(own) for own in self._waits]
        waits[place][queue] = wait
        return CompiledProgram(self.tasks, len(self.queues), waits, remotes=self._remotes, nodes=self._nodes)

    def check(self) -> None:
        """Check the order set by the waits over all passes. Raises ``ProgramError`` if commands wait for each other
        in a circle, and ``RaceError`` if two commands may access a region at the same time or in a different order
        than in the program."""
        _refuse_cycle(self.tasks, self._waits)
        self._refuse_node_cycle()
        races = order.races([task.queue for task in self.tasks], self._waits, order.conflicts(_touches(self.tasks)))
        worst = min((conflict for conflict, _ in races), key=lambda conflict: conflict.lag, default=None)
        if worst is not None:
            raise RaceError(self.tasks[worst.first], self.tasks[worst.second], worst.region, worst.lag)

    def _refuse_node_cycle(self) -> None:
        """Raise ``ProgramError`` if commands of different nodes wait for each other in a circle."""
        if self._nodes is None:
            return
        for index, rank, _ in self.remote_waits():
            task = self.tasks[index]
            rest = [queue for queue in range(len(self.queues)) if queue != task.queue]
            # A descriptor has two waits, the second of which is needed for the other node.
            if any(self._waits[index].get(queue, _NO_WAIT).after for queue in rest[1:]):
                raise ProgramError(f"{task.name} of rank {rank} must wait for queue {rest[0]} of its node alone, "
                                   f"beside another node: let a QUIESCE before it wait for the other queue")
        cycle = order.find_node_cycle([task.queue for task in self.tasks], self._waits, self._remotes,
                                      [task.collective for task in self.tasks], self._nodes)
        _refuse_circle([self.tasks[index].name + ("" if rank is None else f" of rank {rank}")
                        for rank, index in cycle])


def _reachable(start: int, edges: Iterable[tuple[int, int]]) -> set[int]:
    """Return the queues that a queue waits for, directly or through other queues."""
    reached: set[int] = set()
    left = [start]
    while left:
        here = left.pop()
        new = {other for queue, other in edges if queue == here} - reached
        reached |= new
        left += new
    return reached


#: Default number of commands per queue in a node's program memory.
DEPTH = 64


class Queue(enum.IntEnum):
    """Queues of a node; each runs its commands in order."""

    COMPUTE = 0
    COMMUNICATE = 1
    MOVE = 2


class Program:
    """The commands of a pass, in the order of a single queue. Each queue holds up to ``depth`` commands. Commands can
    wait for other nodes if the number of nodes in the ring is given (``nodes``).
    """

    def __init__(self, *, queues: int = 2, depth: int = DEPTH, nodes: int | None = None):
        if not 1 <= queues <= 3:
            raise ValueError(f"Queues must be 1 to 3, not {queues!r}")
        if not 1 <= depth < _AHEAD // LAGS:
            raise ValueError(f"Depth must be at least 1 and below {_AHEAD // LAGS:,}, not {depth!r}")
        if nodes is not None and not 1 <= nodes <= SMALL_RING:
            raise ValueError(f"Nodes must be 1 to {SMALL_RING}, not {nodes!r}")
        self._queues = queues
        self._depth = depth
        self._nodes = nodes
        self._remotes: list[list[Remote | None]] = []
        self._tasks: list[Task] = []
        self._by_hand: list[dict[int, Wait]] = []

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self._tasks)

    def add(self, name: str, *, operation: str, queue: int, reads: Iterable[Region] = (),
            writes: Iterable[Region] = (), collective: bool = False, duration: int = 0,
            fields: Mapping[str, int | Sequence[int]] = MappingProxyType({})) -> Task:
        """Add the next command; see :class:`Task`. Raises ``ProgramError`` if the queue is full or missing, or the
        name is taken."""
        if not 0 <= queue < self._queues:
            raise ProgramError(f"Queue of {name} must be one of {self._queues}, not {queue!r}")
        if any(task.name == name for task in self._tasks):
            raise ProgramError(f"Names of commands must differ, not twice {name}")
        if sum(task.queue == queue for task in self._tasks) == self._depth:
            raise ProgramError(f"Queue {queue} must have at most {self._depth:,} commands, and {name} is one more: "
                               f"take nodes with a larger program memory")
        if duration < 0:
            raise ValueError(f"Duration of {name} must be zero or more, not {duration!r}")
        task = Task(name=name, place=len(self._tasks), queue=int(queue), operation=operation, reads=tuple(reads),
                    writes=tuple(writes), collective=collective, duration=duration, fields=dict(fields))
        self._tasks.append(task)
        self._by_hand.append({})
        self._remotes.append([])
        return task

    def wait(self, task: Task, other: Task, *, lag: int = 0,
             unit: int | Sequence[int | None] | None = None) -> None:
        """Make a command wait for another, on top of the waits that :meth:`compile` derives. Raises ``ProgramError``
        if a queue would wait for itself, or a command for two other nodes.

        Parameters
        ----------
        task, other : Task
            The waiting command, and the command it waits for. Earlier commands of the same queue, and of its earlier
            passes, have always ended.
        lag : int
            Number of passes from the other command to this one.
        unit : int or sequence, optional
            Rank of the node that runs the other command: one number, or one per rank, with None for a rank that does
            not wait. By default, each node waits for its own command. Nodes report their commands to each other by
            control words, which require links with replay.
        """
        for command in (task, other):
            if command.place >= len(self._tasks) or self._tasks[command.place] is not command:
                raise ProgramError(f"Command must be one of this program, not {command.name}")
        if not 0 <= lag < LAGS:
            raise ValueError(f"Lag must be 0 to {LAGS - 1}, not {lag!r}")
        wait = Wait(sum(command.queue == other.queue for command in self._tasks[:other.place + 1]), lag)
        if unit is not None:
            self._wait_for_nodes(task, other, wait, unit)
        elif task.queue == other.queue:
            _check_earlier(other, task, lag)
        else:
            waits = self._by_hand[task.place]
            waits[other.queue] = order.later(waits.get(other.queue, _NO_WAIT), wait)

    def _wait_for_nodes(self, task: Task, other: Task, wait: Wait, unit: int | Sequence[int | None]) -> None:
        """Make ``task`` wait for ``other`` on the node with rank ``unit``, or on one per rank; see :meth:`wait`."""
        if self._nodes is None:
            raise ProgramError(f"Program must have a number of nodes for {task.name} to wait for one of them")
        units = [unit] * self._nodes if isinstance(unit, int) else list(unit)
        if len(units) != self._nodes or any(target is not None and not 0 <= target < self._nodes for target in units):
            raise ProgramError(f"Units that {task.name} waits for must be ranks of {self._nodes} nodes, one for each "
                               f"of them, not {unit!r}")
        own = list(self._remotes[task.place]) or [None] * self._nodes
        for rank, target in enumerate(units):
            if target == rank and task.queue == other.queue:
                _check_earlier(other, task, wait.lag)
                continue
            if target is None:
                continue
            known = own[rank]
            if known is not None and (known.unit, known.queue) != (target, other.queue):
                raise ProgramError(f"{task.name} of rank {rank} must wait for one queue of one node, not of nodes "
                                   f"{known.unit} and {target}: let a QUIESCE before it wait for the other")
            own[rank] = Remote(target, other.queue, *(
                wait if known is None else order.later(Wait(known.after, known.lag), wait)))
        self._remotes[task.place] = own

    def compile(self, *, derive: bool = True) -> "CompiledProgram":
        """Derive the waits and check them. Without ``derive``, only waits added by :meth:`wait` are used. Raises
        ``ProgramError`` if commands would wait for each other forever, and ``RaceError`` if, without derived waits,
        two commands may access a region at the same time or in a different order."""
        waits: list[dict[int, Wait]] = [dict(own) for own in self._by_hand]
        if derive:
            queues = [task.queue for task in self._tasks]
            conflicts = order.conflicts(_touches(self._tasks))
            for own, derived in zip(waits, order.needed(queues, conflicts), strict=True):
                for queue, wait in derived.items():
                    own[queue] = order.later(own.get(queue, _NO_WAIT), wait)
            _refuse_cycle(self._tasks, waits)
            waits = order.reduced(queues, waits, conflicts, self._by_hand)
        compiled = CompiledProgram(tuple(self._tasks), self._queues, tuple(waits), remotes=self._remotes,
                                   nodes=self._nodes)
        compiled.check()
        return compiled


def _check_earlier(other: Task, task: Task, lag: int) -> None:
    """Check that ``other`` always ends before ``task`` starts ``lag`` passes later. Both are in the same queue."""
    if lag == 0 and other.place >= task.place:
        raise ProgramError(f"{task.name} must not wait for {other.name}, which its queue starts after it")


_TIMES = 1 << 32


def origin_of(traces: Sequence[Sequence[TraceRecord]]) -> int:
    """Return the time of the earliest record of any node. All clocks agree, and times wrap around."""
    times = [record.time for trace in traces for record in trace]
    if not times:
        return 0
    return (times[0] + min((time - times[0] + _TIMES // 2) % _TIMES - _TIMES // 2 for time in times)) % _TIMES


def spans(trace: Sequence[TraceRecord], program: CompiledProgram, *, node: int, origin: int) -> list[Span]:
    """Spans of a run, ordered by start, relative to time ``origin``; tags are indices in the program. Raises
    ``TraceError`` unless the records are starts and ends of this program's commands in queue order."""
    result = []
    for queue, commands in enumerate(program.queues):
        records = [record for record in trace if record.queue == queue]
        for count, (start, end) in enumerate(zip(records[::2], records[1::2], strict=False)):
            number, position = divmod(count, max(len(commands), 1))
            expected = commands[position].task.place if commands else None
            if (start.tag, start.end, end.tag, end.end) != (expected, False, expected, True):
                raise TraceError(f"Trace must have start and end of command {expected} of pass {number} in queue "
                                 f"{queue}, not {start} and {end}")
            result.append(Span(node, queue, commands[position].task.name, (start.time - origin) % _TIMES,
                               (end.time - origin) % _TIMES, number, position))
        if len(records) % 2:
            raise TraceError(f"Trace must have the end of every command, and {records[-1]} has none")
    return sorted(result, key=lambda span: (span.start, span.queue))
