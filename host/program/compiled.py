"""Programs whose waits are known: descriptors for nodes, commands for golden models, and the check."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hdl.control.protocol import Operation
from host.driver.command import Command
from host.program import order
from host.program.order import Wait
from host.program.region import Region
from sim.golden.program import Remote, Timed, remote_of
from sim.golden.program_nodes import Placed

__all__ = ["AHEAD", "NO_WAIT", "CompiledProgram", "Instruction", "ProgramError", "RaceError", "Task", "refuse_cycle",
           "touches"]

#: Waits compare counts of 16 bits: a queue may be so many commands ahead of one that waits for it.
AHEAD = (1 << 15) - 1

#: Passes by which queues of two nodes can be apart that have a collective in each pass: each node's queues by 15, the
#: nodes by one, and what a wait with a lag adds.
_APART = 35

#: Wait that holds at once.
NO_WAIT = Wait()

#: Operations of the collective engine, whose packets carry a number that no two neighbours share.
_NUMBERED = ("FUSED_UPDATE", "ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER", "BROADCAST", "PUSH")


class ProgramError(ValueError):
    """A program that a node must not be given."""


class RaceError(ProgramError):
    """Two commands that touch the same region, and that no wait puts in order.

    Members
    -------
    first, second : Task
        The command that must end first, and the one that starts too early.
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
    operation : str
        Name of the operation.
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
    """A command of a program with its waits, one for each other queue, in ascending order of queues.

    Members
    -------
    remotes : tuple of Remote or None
        For each rank its wait for another node; empty if there is none. One for the rank itself is for another queue.
    """

    task: Task
    waits: tuple[Wait, ...]
    remotes: tuple[Remote | None, ...] = ()

    def fields(self, rank: int) -> dict[str, int]:
        """Fields of the descriptor that a rank is given, those of its waits included."""
        found = {name: value if isinstance(value, int) else value[rank] for name, value in self.task.fields.items()}
        waits, remote = list(self.waits), remote_of(self.remotes, rank)
        if remote is not None and remote.unit == rank:
            number = remote.queue - (remote.queue > self.task.queue)
            waits[number] = order.later(waits[number], Wait(remote.after, remote.lag))
        for number, wait in enumerate(waits):
            found |= {f"after_{number}": wait.after, f"lag_{number}": wait.lag}
        if remote is not None and remote.unit != rank:
            found |= {"remote": 1, "unit": remote.unit, "unit_queue": remote.queue, "after_1": remote.after,
                      "lag_1": remote.lag}
        return found


def touches(tasks: Sequence[Task]) -> list[order.Touch]:
    return [order.Touch(task.queue, task.reads, task.writes) for task in tasks]


def refuse_cycle(tasks: Sequence[Task], waits: order.Waits) -> None:
    cycle = [tasks[place].name for place in order.find_cycle([task.queue for task in tasks], waits)]
    if cycle:
        circle = " for ".join([*cycle, cycle[0]])
        raise ProgramError(f"Commands must not wait for each other in a circle, not {circle}")


class CompiledProgram:
    """The commands of each queue, with their waits.

    Parameters
    ----------
    waits : sequence of dict
        Waits of each task, by the queue waited for. Nothing is checked; see :meth:`check`.
    remotes : sequence of sequence
        Waits of each task for other nodes, one for each rank or none at all.
    nodes : int, optional
        Nodes of the ring, where there are such waits.

    Members
    -------
    queues : tuple of tuple of Instruction
        Instructions of each queue.
    """

    def __init__(self, tasks: tuple[Task, ...], queues: int, waits: order.Waits, *, remotes: order.Remotes = (),
                 nodes: int | None = None):
        self.tasks = tasks
        self._waits = tuple(waits)
        self._remotes = [tuple(mine) for mine in remotes] or [()] * len(tasks)
        self._nodes = nodes
        self.queues = tuple(
            tuple(Instruction(task, tuple(waits[task.place].get(other, NO_WAIT) for other in range(queues)
                                          if other != queue), self._remotes[task.place])
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
        far = [len(self.queues[wait.queue]) for _, _, wait in self.remote_waits()]
        together = any(task.collective for task in self.tasks)
        apart = [AHEAD // length for length in far if not together or _APART * length > AHEAD]
        edges = {(self.tasks[place].queue, other) for place, other, _ in self.waits()}
        loose = [other for queue, other in edges if queue not in _reachable(other, edges)]
        return min((*apart, *(AHEAD // len(self.queues[queue]) for queue in loose)), default=None)

    def timed(self) -> list[list[Timed]]:
        """Commands of each queue, for the golden model of time."""
        return [[Timed(one.task.name, one.task.duration, one.task.collective, one.waits, one.remotes)
                 for one in queue] for queue in self.queues]

    def placed(self, nodes: int) -> list[list[Placed]]:
        """Commands of each queue, for the golden model of nodes."""
        return [[Placed(one.task.operation, [one.fields(rank) for rank in range(nodes)], one.task.collective,
                        one.waits, one.remotes) for one in queue] for queue in self.queues]

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
            There is no operation of that name, or the program is for another number of nodes.
        """
        if any(self._remotes) and nodes != self._nodes:
            raise ProgramError(f"Nodes must be the {self._nodes} that commands wait for each other on, not {nodes!r}")
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

    def remote_waits(self) -> Iterator[tuple[int, int, Remote]]:
        """All waits for other nodes: the place of the command that waits, its rank, and the wait."""
        for place, mine in enumerate(self._remotes):
            for rank, remote in enumerate(mine):
                if remote is not None and remote.unit != rank:
                    yield place, rank, remote

    def replace(self, place: int, queue: int, wait: Wait = NO_WAIT) -> "CompiledProgram":
        """The same program with another wait of a command for a queue, or without it; not checked."""
        waits = [dict(mine) for mine in self._waits]
        waits[place][queue] = wait
        return CompiledProgram(self.tasks, len(self.queues), waits, remotes=self._remotes, nodes=self._nodes)

    def check(self) -> None:
        """Check what the waits put in order, over all passes.

        Raises
        ------
        ProgramError
            Commands wait for each other in a circle, of one node or of several.
        RaceError
            Two commands may touch a region at the same time, or in another order than that of the program.
        """
        refuse_cycle(self.tasks, self._waits)
        self._refuse_node_cycle()
        queues = [task.queue for task in self.tasks]
        found = [conflict for conflict, _ in
                 order.races(queues, self._waits, order.conflicts(touches(self.tasks)))]
        if found:
            worst = min(found, key=lambda conflict: conflict.lag)
            raise RaceError(self.tasks[worst.first], self.tasks[worst.second], worst.region, worst.lag)


    def _refuse_node_cycle(self) -> None:
        """Refuse commands that wait for each other over nodes."""
        if self._nodes is None:
            return
        for place, rank, _ in self.remote_waits():
            task = self.tasks[place]
            others = [queue for queue in range(len(self.queues)) if queue != task.queue]
            # Of the two waits of a descriptor, the second is the one for another node.
            if any(self._waits[place].get(queue, NO_WAIT).after for queue in others[1:]):
                raise ProgramError(f"{task.name} of rank {rank} must wait for queue {others[0]} of its node alone, "
                                   f"beside another node: let a QUIESCE before it wait for the other queue")
        found = order.find_node_cycle([task.queue for task in self.tasks], self._waits, self._remotes,
                                      [task.collective for task in self.tasks], self._nodes)
        names = [self.tasks[place].name + ("" if rank is None else f" of rank {rank}") for rank, place in found]
        if names:
            raise ProgramError(f"Commands must not wait for each other in a circle, not "
                               f"{' for '.join([*names, names[0]])}")


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
