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

import enum
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from hdl.ring.topology import SMALL_RING
from host.program import order
from host.program.compiled import (
    AHEAD,
    NO_WAIT,
    CompiledProgram,
    Instruction,
    ProgramError,
    RaceError,
    Task,
    refuse_cycle,
    touches,
)
from host.program.order import LAGS, Wait
from host.program.region import Region
from sim.golden.program import Remote

__all__ = ["DEPTH", "CompiledProgram", "Instruction", "Program", "ProgramError", "Queue", "RaceError", "Task"]

#: Commands of a queue that a node's program memory has room for, unless it is configured otherwise.
DEPTH = 64


class Queue(enum.IntEnum):
    """Queues of a node; each runs its commands in order."""

    COMPUTE = 0
    COMMUNICATE = 1
    MOVE = 2


class Program:
    """The commands of a pass, in the order in which a single queue would carry them out.

    Parameters
    ----------
    queues : int
        Queues of a node.
    depth : int
        Commands that a queue has room for.
    nodes : int, optional
        Nodes of the ring, for a program in which commands wait for those of other nodes.
    """

    def __init__(self, *, queues: int = 2, depth: int = DEPTH, nodes: int | None = None):
        if not 1 <= queues <= 3:
            raise ValueError(f"Queues must be 1 to 3, not {queues!r}")
        if not 1 <= depth < AHEAD // LAGS:
            raise ValueError(f"Depth must be at least 1 and below {AHEAD // LAGS:,}, not {depth!r}")
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
        self._remotes.append([])
        return task

    def wait(self, task: Task, other: Task, *, lag: int = 0,
             unit: int | Sequence[int | None] | None = None) -> None:
        """Have a command wait for another, in addition to what :meth:`compile` derives.

        Parameters
        ----------
        task, other : Task
            The command that waits, and the one that it waits for. One of the same queue that comes before, or of an
            earlier pass, has always ended.
        lag : int
            Passes from the other one to this one.
        unit : int or sequence, optional
            Rank of the node whose command is waited for: one number, or one for each rank, with None for a rank that
            does not wait. By default each node waits for its own. Nodes know of commands of others by control words,
            so they must have links with replay.

        Raises
        ------
        ProgramError
            A queue would wait for itself, or a command for two other nodes.
        """
        for one in (task, other):
            if one.place >= len(self._tasks) or self._tasks[one.place] is not one:
                raise ProgramError(f"Command must be one of this program, not {one.name}")
        if not 0 <= lag < LAGS:
            raise ValueError(f"Lag must be 0 to {LAGS - 1}, not {lag!r}")
        if unit is not None:
            self._wait_for_nodes(task, other, lag, unit)
            return
        if task.queue == other.queue:
            if lag == 0 and other.place >= task.place:
                raise ProgramError(f"{task.name} must not wait for {other.name}, which its queue starts after it")
            return
        place = order.places([one.queue for one in self._tasks])[other.place]
        waits = self._by_hand[task.place]
        waits[other.queue] = order.later(waits.get(other.queue, NO_WAIT), Wait(place + 1, lag))

    def _wait_for_nodes(self, task: Task, other: Task, lag: int, unit: int | Sequence[int | None]) -> None:
        """Have a command wait for one of another node, or on that node for the same command there."""
        if self._nodes is None:
            raise ProgramError(f"Program must have a number of nodes for {task.name} to wait for one of them")
        units = [unit] * self._nodes if isinstance(unit, int) else list(unit)
        if len(units) != self._nodes or any(one is not None and not 0 <= one < self._nodes for one in units):
            raise ProgramError(f"Units that {task.name} waits for must be ranks of {self._nodes} nodes, one for each "
                               f"of them, not {unit!r}")
        number = order.places([one.queue for one in self._tasks])[other.place]
        mine = list(self._remotes[task.place]) or [None] * self._nodes
        for rank, one in enumerate(units):
            if one is None or (one == rank and task.queue == other.queue and (lag or other.place < task.place)):
                continue  # it has ended in any case
            if one == rank and task.queue == other.queue:
                raise ProgramError(f"{task.name} must not wait for {other.name}, which its queue starts after it")
            known = mine[rank]
            if known is not None and (known.unit, known.queue) != (one, other.queue):
                raise ProgramError(f"{task.name} of rank {rank} must wait for one queue of one node, not of nodes "
                                   f"{known.unit} and {one}: let a QUIESCE before it wait for the other")
            wait = Wait(number + 1, lag)
            if known is not None:
                wait = order.later(Wait(known.after, known.lag), wait)
            mine[rank] = Remote(one, other.queue, *wait)
        self._remotes[task.place] = mine

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
            found = order.conflicts(touches(self._tasks))
            for mine, derived in zip(waits, order.needed(queues, found), strict=True):
                for queue, wait in derived.items():
                    mine[queue] = order.later(mine.get(queue, NO_WAIT), wait)
            refuse_cycle(self._tasks, waits)
            waits = order.reduced(queues, waits, found, self._by_hand)
        compiled = CompiledProgram(tuple(self._tasks), self._queues, tuple(waits), remotes=self._remotes,
                                   nodes=self._nodes)
        compiled.check()
        return compiled
