"""Order of a program's commands: which must end before another starts, and the waits that this takes.

Commands of a queue run in order, one at a time. A wait of a command names the command of another queue, of this pass
or of an earlier one, must have ended before it starts. A wait for a pass before the first one holds at once. Commands
are in order because of the regions of memory that they read and write, where two of these meet.

Commands are counted by their index in the program; a pass takes each once. A :class:`Clock` has a number for each
queue: its commands, over all passes, that have certainly ended before a command starts.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from hdl.group import GROUP
from sim.golden.features.programs.program import Remote

__all__ = ["LAGS", "PASSES", "Clock", "Conflict", "Region", "Remotes", "Touch", "Wait", "Waits", "clocks",
           "conflicts", "find_cycle", "find_node_cycle", "later", "needed", "places", "races", "reduced"]


@dataclasses.dataclass(frozen=True)
class Region:
    """Elements of a memory that a command touches."""

    #: Memory, as ``gradients``, ``weights`` or ``state``; any other name is a separate space.
    space: str
    #: First element; a multiple of 32.
    base: int
    #: Elements. Only the last group may be partial.
    length: int
    #: Distance of a group from the one before, in groups; 1 is contiguous.
    stride: int = 1
    #: Elements by which the region is further on in odd passes: a multiple of 32, negative where it is further back.
    alternate: int = 0

    def __post_init__(self) -> None:
        for name, value in (("base", self.base), ("alternate", self.alternate)):
            if value % GROUP:
                raise ValueError(f"Region's {name} must be a multiple of {GROUP}, not {value!r}")
        if min(self.base, self.base + self.alternate) < 0:
            raise ValueError(f"Region must not begin before element 0, not at {self.base!r} and, in odd passes, "
                             f"{self.base + self.alternate!r}")
        if self.length < 0:
            raise ValueError(f"Region's length must be zero or more, not {self.length!r}")
        if self.stride < 1:
            raise ValueError(f"Region's stride must be at least 1, not {self.stride!r}")

    def __str__(self) -> str:
        end = self.base + self.length
        if self.stride > 1 and self.length > GROUP:
            end = GROUP * (self._groups(0)[-1] + 1)
        every = f", every {self.stride} groups" if self.stride > 1 else ""
        return f"{self.space}[{self.base}:{end}{every}]"

    def _groups(self, odd: int) -> range:
        """Numbers of the groups that the region touches in even passes (0) or odd ones (1)."""
        first = (self.base + odd * self.alternate) // GROUP
        return range(first, first + self.stride * -(-self.length // GROUP), self.stride)

    def meets(self, other: "Region", odd: int = 0, other_odd: int = 0) -> bool:
        """Whether both have an element in common; ``odd`` is 1 where the pass of this region is odd, or of the other
        one."""
        return self.space == other.space and _common(self._groups(odd), other._groups(other_odd))


def _common(first: range, other: range) -> bool:
    """Whether two arithmetic progressions have a number in common."""
    if not first or not other:
        return False
    divisor = math.gcd(first.step, other.step)
    distance = other.start - first.start
    if distance % divisor:
        return False
    # First common number from the start of the first progression on, if neither had an end and the other no beginning
    # (Chinese remainder theorem).
    modulus = other.step // divisor
    number = first.start + first.step * (distance // divisor * pow(first.step // divisor, -1, modulus) % modulus)
    period = first.step * modulus
    number += max(0, -(-(other.start - number) // period)) * period
    return number <= min(first[-1], other[-1])


#: Passes over which commands are compared. Two commands of neighbouring passes meet in the first two. Where a region
#: alternates, commands two passes apart must be compared, in even passes and in odd ones: four passes. Any
#: later pass repeats one of these, with more waits that hold.
PASSES = 4

#: Values of a lag: it has two bits.
LAGS = 4

#: Commands of each queue that have ended.
Clock: TypeAlias = list[int]


class Wait(NamedTuple):
    """Wait for a queue: its first ``after`` commands of the pass ``lag`` before this one have ended; 0 for none."""

    after: int = 0
    lag: int = 0


#: Waits of each command, by the number of the queue that is waited for.
Waits: TypeAlias = Sequence[dict[int, Wait]]

#: Waits of each command for other nodes: one for each rank, or nothing.
Remotes: TypeAlias = Sequence[Sequence[Remote | None]]


class Touch(NamedTuple):
    """Queue of a command, and the regions that it reads and writes."""

    queue: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


@dataclasses.dataclass(frozen=True)
class Conflict:
    """Two commands of different queues: the first must end before the second starts."""

    #: Indices in the program.
    first: int
    second: int
    #: Passes from the first to the second.
    lag: int
    #: Whether the pass of the second is odd (1) or even (0); None where that makes no difference.
    odd: int | None
    #: Region of the second that both touch and at least one writes.
    region: Region


def places(queues: Sequence[int]) -> list[int]:
    """Position of each command in its own queue."""
    count: dict[int, int] = {}
    positions = []
    for queue in queues:
        positions.append(count.get(queue, 0))
        count[queue] = positions[-1] + 1
    return positions


def _shared(first: Touch, second: Touch, first_odd: int, second_odd: int) -> Region | None:
    """Region of the second command that both touch and that at least one of them writes."""
    for regions, other_regions in ((second.reads, first.writes), (second.writes, first.writes),
                                   (second.writes, first.reads)):
        for region in regions:
            if any(region.meets(other, second_odd, first_odd) for other in other_regions):
                return region
    return None


def conflicts(touches: Sequence[Touch]) -> list[Conflict]:
    """The latest command of each other queue that each command must follow, for each distance in passes.

    Earlier commands of that queue have ended when the latest one has. Commands further apart than two passes need
    no look: the same command two passes later is between them.
    """
    result = []
    alternating = any(region.alternate for touch in touches for region in (*touch.reads, *touch.writes))
    for second, touch in enumerate(touches):
        other_queues = sorted({other.queue for other in touches} - {touch.queue})
        for queue in other_queues:
            for lag in range(3 if alternating else 2):
                for odd in (0, 1) if alternating else (None,):
                    for first in reversed(range(second if lag == 0 else len(touches))):
                        if touches[first].queue != queue:
                            continue
                        region = _shared(touches[first], touch, ((odd or 0) + lag) % 2, odd or 0)
                        if region is not None:
                            result.append(Conflict(first, second, lag, odd, region))
                            break
    return result


def needed(queues: Sequence[int], conflicts: Sequence[Conflict]) -> list[dict[int, Wait]]:
    """The latest wait of each command for each other queue that its conflicts require."""
    positions = places(queues)
    waits: list[dict[int, Wait]] = [{} for _ in queues]
    for conflict in conflicts:
        wait = Wait(positions[conflict.first] + 1, conflict.lag)
        own_waits, queue = waits[conflict.second], queues[conflict.first]
        own_waits[queue] = later(own_waits.get(queue, Wait()), wait)
    return waits


def later(one: Wait, other: Wait) -> Wait:
    """The one of two waits for the same queue that holds later."""
    return max(one, other, key=lambda wait: (wait.after > 0, -wait.lag, wait.after))


def _before(queues: Sequence[int], waits: Waits) -> list[list[int]]:
    """Commands of the same pass that each command must follow."""
    members = {queue: [index for index, other in enumerate(queues) if other == queue] for queue in set(queues)}
    number = places(queues)
    return [[*(members[queue][number[index] - 1:number[index]] if number[index] else []),
             *(members[other][wait.after - 1] for other, wait in sorted(waits[index].items())
               if wait.after and wait.lag == 0)]
            for index, queue in enumerate(queues)]


def _sorted(before: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Commands of a pass in an order that respects ``before``; and the commands that have no place in it."""
    order: list[int] = []
    left = list(range(len(before)))
    done: set[int] = set()
    while ready := [index for index in left if done.issuperset(before[index])]:
        order += ready
        done.update(ready)
        left = [index for index in left if index not in done]
    return order, left


def find_cycle(queues: Sequence[int], waits: Waits) -> list[int]:
    """Commands that each must follow the next one, and the last one the first; empty without a cycle.

    Waits with a lag take no part, since they are for passes that come before.
    """
    return _cycle(_before(queues, waits))


def find_node_cycle(queues: Sequence[int], waits: Waits, remotes: Remotes, collective: Sequence[bool],
                    nodes: int) -> list[tuple[int | None, int]]:
    """Commands of nodes, as (rank, index), that each must follow the next one, and the last one the first.

    A collective ends on each node after it has started on all of them; its end belongs to no rank. Waits with a lag
    take no part, since earlier passes have ended before.
    """
    count = len(queues)
    members = {queue: [index for index, other in enumerate(queues) if other == queue] for queue in set(queues)}
    local = _before(queues, waits)

    def start(rank: int, index: int) -> int:
        return rank * count + index

    def end(rank: int, index: int) -> int:
        return nodes * count + index if collective[index] else start(rank, index)

    before = [[end(rank, other) for other in local[index]] for rank in range(nodes) for index in range(count)]
    before += [[start(rank, index) for rank in range(nodes)] for index in range(count)]
    for index, own in enumerate(remotes):
        for rank, remote in enumerate(own):
            if remote is not None and remote.after and remote.lag == 0:
                before[start(rank, index)].append(end(remote.unit, members[remote.queue][remote.after - 1]))
    return [(None if vertex >= nodes * count else vertex // count, vertex % count) for vertex in _cycle(before)]


def _cycle(before: Sequence[Sequence[int]]) -> list[int]:
    """Members that each must follow the next one, and the last one the first; empty without a cycle."""
    _, left = _sorted(before)
    if not left:
        return []
    # Each remaining member has a remaining one before it, so the path back meets a member for the second time.
    path = [left[0]]
    while True:
        path.append(next(index for index in before[path[-1]] if index in left))
        if path[-1] in path[:-1]:
            circle = path[path.index(path[-1]) + 1:]
            first = circle.index(min(circle))
            return circle[first:] + circle[:first]


def clocks(queues: Sequence[int], waits: Waits, *, passes: int = PASSES) -> list[list[Clock]]:
    """Clock of each command of each pass, by pass and index."""
    number = places(queues)
    width = max(queues, default=-1) + 1
    lengths = [list(queues).count(queue) for queue in range(width)]
    members = [[index for index, other in enumerate(queues) if other == queue] for queue in range(width)]
    order, left = _sorted(_before(queues, waits))
    if left:
        raise ValueError("Program must not have a cycle")
    result: list[list[Clock]] = [[[] for _ in queues] for _ in range(passes)]
    latest = [[0] * width for _ in range(width)]  # of the command that each queue had last
    for turn in range(passes):
        for index in order:
            queue = queues[index]
            clock = list(latest[queue])
            clock[queue] = turn * lengths[queue] + number[index]
            for other, wait in waits[index].items():
                if wait.after and wait.lag <= turn:
                    awaited = result[turn - wait.lag][members[other][wait.after - 1]]
                    clock = list(map(max, clock, awaited))
                    clock[other] = max(clock[other], (turn - wait.lag) * lengths[other] + wait.after)
            result[turn][index] = latest[queue] = clock
    return result


def races(queues: Sequence[int], waits: Waits, conflicts: Sequence[Conflict]) -> Iterator[tuple[Conflict, int]]:
    """Conflicts that the waits do not order, with the pass of the second command."""
    number = places(queues)
    lengths = {queue: list(queues).count(queue) for queue in set(queues)}
    clock = clocks(queues, waits)
    for conflict in conflicts:
        queue = queues[conflict.first]
        for turn in range(conflict.lag, PASSES):
            if conflict.odd not in (None, turn % 2):
                continue
            end = (turn - conflict.lag) * lengths[queue] + number[conflict.first] + 1
            if clock[turn][conflict.second][queue] < end:
                yield conflict, turn


def reduced(queues: Sequence[int], waits: Waits, conflicts: Sequence[Conflict],
            least: Waits) -> list[dict[int, Wait]]:
    """The same waits without redundant ones; of each wait, its part in ``least`` stays."""
    result = [dict(own) for own in waits]
    candidates = [(wait.lag, index, queue) for index, own in enumerate(result) for queue, wait in own.items()
                  if wait != least[index].get(queue, Wait())]
    for _, index, queue in sorted(candidates, reverse=True):
        wait = result[index][queue]
        result[index][queue] = least[index].get(queue, Wait())
        if next(races(queues, result, conflicts), None) is not None:
            result[index][queue] = wait
    return result
