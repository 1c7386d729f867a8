"""Programs: the commands of a pass, in queues that wait for each other where they have to.

A :class:`Program` is written as if its commands ran one after the other, pass after pass. Each says which regions of
memory it reads and writes. :meth:`Program.compile` derives the waits with which queues that run at the same time come
to the same result: a command that reads a region waits for the one that wrote it, and one that writes it waits for
those that read or wrote it before, in this pass and in those before it. Queues are in order, so one wait for each
other queue is enough, and a wait that follows from others is left out.

Example
-------
::

    program = Program()
    backward = program.add("backward 1", operation="COMPUTE", queue=Queue.COMPUTE, duration=600,
                           writes=[Region("gradients", 0, 640)])
    program.add("update 1", operation="FUSED_UPDATE", queue=Queue.COMMUNICATE, collective=True,
                reads=[Region("gradients", 0, 640)], writes=[Region("weights", 0, 640)])
    compiled = program.compile()  # the update waits for `backward`, and the next pass's `backward` for the update
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from hdl.control.protocol import Operation
from host.driver.command import Command
from host.program import order
from host.program.order import LAGS, Wait
from host.program.region import Region
from sim.golden.program import Timed
from sim.golden.program_nodes import Placed

__all__ = ["DEPTH", "CompiledProgram", "Instruction", "Program", "ProgramError", "Queue", "RaceError", "Task"]

#: Commands of a queue that a node's program memory has room for, unless it is configured otherwise.
DEPTH = 64

#: Waits compare counts of 16 bits: a queue may be so many commands ahead of one that waits for it.
_AHEAD = (1 << 15) - 1

#: Wait that holds at once.
_NO_WAIT = Wait()

#: Operations of the collective engine, whose packets carry a number that no two neighbours share.
_NUMBERED = ("FUSED_UPDATE", "ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER", "BROADCAST")


class Queue(enum.IntEnum):
    """Queues of a node; each runs its commands in order."""

    COMPUTE = 0
    COMMUNICATE = 1


class ProgramError(ValueError):
    """A program that a node must not be given."""


class RaceError(ProgramError):
    """Two commands that touch the same region, and that no wait puts in order.

    Members
    -------
    first, second : Task
        The command that must end first, and the one that starts too early.
    region : Region
    """

    def __init__(self, first: "Task", second: "Task", region: Region, lag: int):
        self.first = first
        self.second = second
        self.region = region
        before = {0: "", 1: " of the pass before"}.get(lag, f" of {lag} passes before")
        super().__init__(f"{second.name} may start before {first.name}{before} has ended, and both touch {region}: "
                         f"let it wait")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A command of a program.

    Members
    -------
    name : str
        Name in messages, pictures and tables.
    place : int
        Place in the program, from 0.
    queue : int
    operation : str
        Name of the operation.
    reads, writes : tuple of Region
    collective : bool
        Whether all nodes carry it out together.
    duration : int
        Cycles that it takes, as far as they are known beforehand.
    fields : mapping
        Fields of the command's descriptor: a number, or one for each rank.
    """

    name: str
    place: int
    queue: int
    operation: str
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    collective: bool
    duration: int
    fields: Mapping[str, int | Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A command of a program with its waits, one for each other queue, in ascending order of queues."""

    task: Task
    waits: tuple[Wait, ...]

    def fields(self, rank: int) -> dict[str, int]:
        """Fields of the descriptor that a rank is given, those of its waits included."""
        found = {name: value if isinstance(value, int) else value[rank] for name, value in self.task.fields.items()}
        for number, wait in enumerate(self.waits):
            found |= {f"after_{number}": wait.after, f"lag_{number}": wait.lag}
        return found


class Program:
    """The commands of a pass, in the order in which a single queue would carry them out.

    Parameters
    ----------
    queues : int
        Queues of a node.
    depth : int
        Commands that a queue has room for.

    Members
    -------
    tasks : tuple of Task
    """

    def __init__(self, *, queues: int = 2, depth: int = DEPTH):
        if not 1 <= queues <= 3:
            raise ValueError(f"Queues must be 1 to 3, not {queues!r}")
        if not 1 <= depth < _AHEAD // LAGS:
            raise ValueError(f"Depth must be at least 1 and below {_AHEAD // LAGS:,}, not {depth!r}")
        self._queues = queues
        self._depth = depth
        self._tasks: list[Task] = []
        self._by_hand: list[dict[int, Wait]] = []

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self._tasks)

    def add(self, name: str, *, operation: str, queue: int, reads: Iterable[Region] = (),
            writes: Iterable[Region] = (), collective: bool = False, duration: int = 0,
            fields: Mapping[str, int | Sequence[int]] = MappingProxyType({})) -> Task:
        """Add a command behind all others; see :class:`Task`.

        Raises
        ------
        ProgramError
            The queue has no room for it, the name is taken, or the node has no such queue.
        """
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
        return task

    def wait(self, task: Task, other: Task, *, lag: int = 0) -> None:
        """Have a command wait for another, in addition to what :meth:`compile` derives.

        Parameters
        ----------
        task, other : Task
            The command that waits, and the one that it waits for. One of the same queue that comes before, or of an
            earlier pass, has always ended.
        lag : int
            Passes from the other one to this one.

        Raises
        ------
        ProgramError
            A queue would wait for itself.
        """
        for one in (task, other):
            if one.place >= len(self._tasks) or self._tasks[one.place] is not one:
                raise ProgramError(f"Command must be one of this program, not {one.name}")
        if not 0 <= lag < LAGS:
            raise ValueError(f"Lag must be 0 to {LAGS - 1}, not {lag!r}")
        if task.queue == other.queue:
            if lag == 0 and other.place >= task.place:
                raise ProgramError(f"{task.name} must not wait for {other.name}, which its queue starts after it")
            return
        place = order.places([one.queue for one in self._tasks])[other.place]
        waits = self._by_hand[task.place]
        waits[other.queue] = order.later(waits.get(other.queue, _NO_WAIT), Wait(place + 1, lag))

    def compile(self, *, derive: bool = True) -> "CompiledProgram":
        """Derive the waits, and check them.

        Parameters
        ----------
        derive : bool
            Whether to derive waits; without, those alone count that were made by hand.

        Raises
        ------
        ProgramError
            Commands would wait for each other for ever.
        RaceError
            Without derived waits: two commands may touch a region at the same time, or in another order.
        """
        waits: list[dict[int, Wait]] = [dict(mine) for mine in self._by_hand]
        if derive:
            queues = [task.queue for task in self._tasks]
            found = order.conflicts(_touches(self._tasks))
            for mine, derived in zip(waits, order.needed(queues, found), strict=True):
                for queue, wait in derived.items():
                    mine[queue] = order.later(mine.get(queue, _NO_WAIT), wait)
            _refuse_cycle(self._tasks, waits)
            waits = order.reduced(queues, waits, found, self._by_hand)
        compiled = CompiledProgram(tuple(self._tasks), self._queues, tuple(waits))
        compiled.check()
        return compiled


def _touches(tasks: Sequence[Task]) -> list[order.Touch]:
    return [order.Touch(task.queue, task.reads, task.writes) for task in tasks]


def _refuse_cycle(tasks: Sequence[Task], waits: order.Waits) -> None:
    cycle = [tasks[place].name for place in order.find_cycle([task.queue for task in tasks], waits)]
    if cycle:
        circle = " for ".join([*cycle, cycle[0]])
        raise ProgramError(f"Commands must not wait for each other in a circle, not {circle}")


class CompiledProgram:
    """The commands of each queue, with their waits.

    Parameters
    ----------
    tasks : tuple of Task
    queues : int
    waits : sequence of dict
        Waits of each task, by the queue waited for. Nothing is checked; see :meth:`check`.

    Members
    -------
    tasks : tuple of Task
    queues : tuple of tuple of Instruction
        Instructions of each queue.
    """

    def __init__(self, tasks: tuple[Task, ...], queues: int, waits: order.Waits):
        self.tasks = tasks
        self._waits = tuple(waits)
        self.queues = tuple(
            tuple(Instruction(task, tuple(waits[task.place].get(other, _NO_WAIT) for other in range(queues)
                                          if other != queue))
                  for task in tasks if task.queue == queue)
            for queue in range(queues))

    @property
    def collectives(self) -> int:
        """Numbers of collectives that a pass takes: one for each command of the collective engine."""
        return sum(task.operation in _NUMBERED for task in self.tasks)

    @property
    def most_passes(self) -> int | None:
        """Passes that one run may take at most; None if there may be any number.

        Counts of commands have 16 bits, so a queue that others wait for must not run ahead of them without end. It
        cannot where it waits for them in turn.
        """
        edges = {(self.tasks[place].queue, other) for place, other, _ in self.waits()}
        loose = [other for queue, other in edges if queue not in _reachable(other, edges)]
        return min((_AHEAD // len(self.queues[queue]) for queue in loose), default=None)

    def timed(self) -> list[list[Timed]]:
        """Commands of each queue, for the golden model of time."""
        return [[Timed(one.task.name, one.task.duration, one.task.collective, one.waits) for one in queue]
                for queue in self.queues]

    def placed(self, nodes: int) -> list[list[Placed]]:
        """Commands of each queue, for the golden model of nodes."""
        return [[Placed(one.task.operation, [one.fields(rank) for rank in range(nodes)], one.task.collective,
                        one.waits) for one in queue] for queue in self.queues]

    def commands(self, rank: int, nodes: int, *, epoch: int = 0, model: int = 0) -> list[list[Command]]:
        """Commands of each queue for a node's program memory. Tags are places in the program.

        Parameters
        ----------
        rank, nodes : int
            Place of the node, and size of the ring.
        epoch, model : int
            Fields of all commands.

        Raises
        ------
        ProgramError
            There is no operation of that name.
        """
        for task in self.tasks:
            if task.operation not in Operation.__members__:
                raise ProgramError(f"Operation of {task.name} must be one of a node, not {task.operation!r}")
        numbers = {place: number for number, place in enumerate(
            task.place for task in self.tasks if task.operation in _NUMBERED)}
        return [[Command(**{"operation": Operation[one.task.operation], "rank": rank, "size": nodes, "epoch": epoch,
                            "model": model, "tag": one.task.place, "collective": numbers.get(one.task.place, 0),
                            **one.fields(rank)}) for one in queue] for queue in self.queues]

    def waits(self) -> Iterator[tuple[int, int, Wait]]:
        """All waits: the place of the command that waits, the queue that it waits for, and the wait."""
        for place, mine in enumerate(self._waits):
            for queue, wait in sorted(mine.items()):
                if wait.after:
                    yield place, queue, wait

    def replace(self, place: int, queue: int, wait: Wait = _NO_WAIT) -> "CompiledProgram":
        """The same program with another wait of a command for a queue, or without it; not checked."""
        waits = [dict(mine) for mine in self._waits]
        waits[place][queue] = wait
        return CompiledProgram(self.tasks, len(self.queues), waits)

    def check(self) -> None:
        """Check what the waits put in order, over all passes.

        Raises
        ------
        ProgramError
            Commands wait for each other in a circle.
        RaceError
            Two commands may touch a region at the same time, or in another order than that of the program.
        """
        _refuse_cycle(self.tasks, self._waits)
        queues = [task.queue for task in self.tasks]
        found = [conflict for conflict, _ in
                 order.races(queues, self._waits, order.conflicts(_touches(self.tasks)))]
        if found:
            worst = min(found, key=lambda conflict: conflict.lag)
            raise RaceError(self.tasks[worst.first], self.tasks[worst.second], worst.region, worst.lag)


def _reachable(start: int, edges: Iterable[tuple[int, int]]) -> set[int]:
    """Queues that a queue waits for, or that those wait for."""
    found: set[int] = set()
    left = [start]
    while left:
        here = left.pop()
        new = {other for queue, other in edges if queue == here} - found
        found |= new
        left += new
    return found
