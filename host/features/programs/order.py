"""Order of a program's commands: the pairs of commands that must be ordered, and the waits that order them.

The commands of a queue run in order, one at a time. A wait names a command of another queue, in the same pass or an
earlier one, that must have ended before the waiting command starts. A wait for a pass before the first one is
satisfied immediately. Commands must be ordered if the memory regions that they read and write overlap.

Commands are identified by their index in the program; each pass runs each command once. A :class:`Clock` counts, for
each queue, the commands over all passes that have certainly ended before a command starts.
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
    """Range of elements in a memory that a command accesses."""

    #: Memory, such as ``gradients``, ``weights`` or ``state``; any other name is a separate address space.
    space: str
    #: First element; a multiple of 32.
    base: int
    #: Number of elements, stored in groups of 32; only the last group may be incomplete.
    length: int
    #: Distance between successive groups, in groups; 1 means contiguous.
    stride: int = 1
    #: Offset of the region in odd passes, in elements: a multiple of 32, possibly negative.
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
        """Numbers of the region's groups of 32 elements in even (0) or odd (1) passes."""
        first = (self.base + odd * self.alternate) // GROUP
        return range(first, first + self.stride * -(-self.length // GROUP), self.stride)

    def meets(self, other: "Region", odd: int = 0, other_odd: int = 0) -> bool:
        """Whether the two regions share an element. ``odd`` is 1 for an odd pass of this region, and ``other_odd`` is
        1 for an odd pass of the other one."""
        return self.space == other.space and _common(self._groups(odd), other._groups(other_odd))


def _common(first: range, other: range) -> bool:
    """Whether two arithmetic progressions have a number in common."""
    if not first or not other:
        return False
    divisor = math.gcd(first.step, other.step)
    distance = other.start - first.start
    if distance % divisor:
        return False
    # First common number at or after the start of the first progression, assuming unbounded progressions (Chinese
    # remainder theorem).
    modulus = other.step // divisor
    number = first.start + first.step * (distance // divisor * pow(first.step // divisor, -1, modulus) % modulus)
    period = first.step * modulus
    number += max(0, -(-(other.start - number) // period)) * period
    return number <= min(first[-1], other[-1])


#: Number of passes within which commands are compared. Commands of neighbouring passes both occur in the first two
#: passes. If a region alternates, commands two passes apart must be compared in even and in odd passes, which
#: requires four passes. Later passes repeat these cases, with more waits already satisfied.
PASSES = 4

#: Number of possible values of a lag, which has two bits.
LAGS = 4

#: Number of commands that have ended in each queue.
Clock: TypeAlias = list[int]


class Wait(NamedTuple):
    """Wait until the first ``after`` commands of a queue have ended, ``lag`` passes earlier. 0 means no wait."""

    after: int = 0
    lag: int = 0


#: Waits of each command, keyed by the number of the queue that it waits for.
Waits: TypeAlias = Sequence[dict[int, Wait]]

#: For each command, its waits for other nodes: one per rank, or an empty sequence.
Remotes: TypeAlias = Sequence[Sequence[Remote | None]]


class Touch(NamedTuple):
    """Queue of a command, and the regions that it reads and writes."""

    queue: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


@dataclasses.dataclass(frozen=True)
class Conflict:
    """Two commands of different queues; the first one must end before the second one starts."""

    #: Program indices of the two commands.
    first: int
    second: int
    #: Number of passes from the first command to the second.
    lag: int
    #: Whether the second command's pass is odd (1) or even (0); None if it does not matter.
    odd: int | None
    #: Region of the second command that both commands access, at least one of them by writing.
    region: Region


def places(queues: Sequence[int]) -> list[int]:
    """Position of each command within its queue."""
    count: dict[int, int] = {}
    positions = []
    for queue in queues:
        positions.append(count.get(queue, 0))
        count[queue] = positions[-1] + 1
    return positions


def _shared(first: Touch, second: Touch, first_odd: int, second_odd: int) -> Region | None:
    """Region of the second command that both commands access, at least one of them by writing."""
    for regions, other_regions in ((second.reads, first.writes), (second.writes, first.writes),
                                   (second.writes, first.reads)):
        for region in regions:
            if any(region.meets(other, second_odd, first_odd) for other in other_regions):
                return region
    return None


def conflicts(touches: Sequence[Touch]) -> list[Conflict]:
    """Find the latest command of each other queue that a command must follow, for each distance in passes.

    When the latest command has ended, all earlier commands of its queue have ended, too. Commands more than two
    passes apart need not be compared, since the first one runs again in between, two passes later.
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
    """Return the waits of each command: for each other queue, the latest one that its conflicts require."""
    positions = places(queues)
    waits: list[dict[int, Wait]] = [{} for _ in queues]
    for conflict in conflicts:
        wait = Wait(positions[conflict.first] + 1, conflict.lag)
        own_waits, queue = waits[conflict.second], queues[conflict.first]
        own_waits[queue] = later(own_waits.get(queue, Wait()), wait)
    return waits


def later(one: Wait, other: Wait) -> Wait:
    """Return the later of two waits for the same queue."""
    return max(one, other, key=lambda wait: (wait.after > 0, -wait.lag, wait.after))


def _before(queues: Sequence[int], waits: Waits) -> list[list[int]]:
    """For each command, the commands of the same pass that it must follow."""
    members = {queue: [index for index, other in enumerate(queues) if other == queue] for queue in set(queues)}
    number = places(queues)
    return [[*(members[queue][number[index] - 1:number[index]] if number[index] else []),
             *(members[other][wait.after - 1] for other, wait in sorted(waits[index].items())
               if wait.after and wait.lag == 0)]
            for index, queue in enumerate(queues)]


def _sorted(before: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Sort the commands of a pass to satisfy ``before``; also return the commands that cannot be sorted."""
    order: list[int] = []
    left = list(range(len(before)))
    done: set[int] = set()
    while ready := [index for index in left if done.issuperset(before[index])]:
        order += ready
        done.update(ready)
        left = [index for index in left if index not in done]
    return order, left


def find_cycle(queues: Sequence[int], waits: Waits) -> list[int]:
    """Find a cycle of commands that must each follow the next one; empty if there is none.

    Waits with a lag are ignored, since they refer to earlier passes.
    """
    return _cycle(_before(queues, waits))


def find_node_cycle(queues: Sequence[int], waits: Waits, remotes: Remotes, collective: Sequence[bool],
                    nodes: int) -> list[tuple[int | None, int]]:
    """Find a cycle of commands (rank, index) that must each follow the next one; empty if there is none.

    A collective ends on each node only after it has started on all nodes, so its end is listed with rank None. Waits
    with a lag are ignored, since earlier passes have already ended.
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
    """Find a cycle in a graph where each vertex must follow its vertices in ``before``; empty if none exists."""
    _, left = _sorted(before)
    if not left:
        return []
    # Each remaining vertex must follow another remaining one, so the path eventually returns to one of its vertices.
    path = [left[0]]
    while True:
        path.append(next(index for index in before[path[-1]] if index in left))
        if path[-1] in path[:-1]:
            circle = path[path.index(path[-1]) + 1:]
            first = circle.index(min(circle))
            return circle[first:] + circle[:first]


def clocks(queues: Sequence[int], waits: Waits, *, passes: int = PASSES) -> list[list[Clock]]:
    """Compute the vector clock of each command in each pass, indexed by pass and command."""
    number = places(queues)
    width = max(queues, default=-1) + 1
    lengths = [list(queues).count(queue) for queue in range(width)]
    members = [[index for index, other in enumerate(queues) if other == queue] for queue in range(width)]
    order, left = _sorted(_before(queues, waits))
    if left:
        raise ValueError("Program must not have a cycle")
    result: list[list[Clock]] = [[[] for _ in queues] for _ in range(passes)]
    latest = [[0] * width for _ in range(width)]  # clock of the latest command of each queue
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
    """Yield the conflicts that the waits leave unordered, with the pass of the second command."""
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
    """Remove redundant waits; each command keeps at least the waits that ``least`` has for it."""
    result = [dict(own) for own in waits]
    candidates = [(wait.lag, index, queue) for index, own in enumerate(result) for queue, wait in own.items()
                  if wait != least[index].get(queue, Wait())]
    for _, index, queue in sorted(candidates, reverse=True):
        wait = result[index][queue]
        result[index][queue] = least[index].get(queue, Wait())
        if next(races(queues, result, conflicts), None) is not None:
            result[index][queue] = wait
    return result
