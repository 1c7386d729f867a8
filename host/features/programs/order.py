"""Order of a program's commands: which must end before which, and which waits that takes.

Commands of a queue run in order, one at a time. A wait of a command says which command of another queue, of this pass
or of an earlier one, must have ended before it starts. A wait for a pass before the first one holds at once. Commands
are in order because of the regions of memory that they read and write, where two of these meet.

Everything here counts commands by their place in the program; a pass takes all of them once. A :class:`Clock` has a
number for each queue: the commands of it, over all passes, that have ended for certain before a command starts.
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

    #: Memory, as ``gradients``, ``weights`` or ``state``; any name stands for a space of its own.
    space: str
    #: First element; a multiple of 32.
    base: int
    #: Elements. Only the last group may be partial.
    length: int
    #: Distance of a group from the one before, in groups; 1 is contiguous.
    stride: int = 1
    #: Elements by which the region lies further on in odd passes: a multiple of 32, negative where the region lies
    #: further back.
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


def _common(one: range, other: range) -> bool:
    """Whether two arithmetic progressions have a number in common."""
    if not one or not other:
        return False
    divisor = math.gcd(one.step, other.step)
    distance = other.start - one.start
    if distance % divisor:
        return False
    # The first number from the start of the first progression on that is in both, if neither had an end or the other
    # one a beginning (Chinese remainder theorem).
    modulus = other.step // divisor
    number = one.start + one.step * (distance // divisor * pow(one.step // divisor, -1, modulus) % modulus)
    period = one.step * modulus
    number += max(0, -(-(other.start - number) // period)) * period
    return number <= min(one[-1], other[-1])


#: Passes over which commands are compared. Two commands of neighbouring passes meet in the first two. Where a region
#: alternates, two that are two passes apart have to be looked at, in even passes and in odd ones: four passes. Any
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
    """Two commands of different queues, of which the first must end before the second starts."""

    #: Places in the program.
    first: int
    second: int
    #: Passes from the first to the second.
    lag: int
    #: Whether the pass of the second is odd (1) or even (0); None where that makes no difference.
    odd: int | None
    #: Region of the second that both touch and at least one writes.
    region: Region


def places(queues: Sequence[int]) -> list[int]:
    """Place of each command in its own queue."""
    count: dict[int, int] = {}
    found = []
    for queue in queues:
        found.append(count.get(queue, 0))
        count[queue] = found[-1] + 1
    return found


def _shared(first: Touch, second: Touch, first_odd: int, second_odd: int) -> Region | None:
    """Region of the second command that both touch and that at least one of them writes."""
    for regions, others in ((second.reads, first.writes), (second.writes, first.writes),
                            (second.writes, first.reads)):
        for region in regions:
            if any(region.meets(other, second_odd, first_odd) for other in others):
                return region
    return None


def conflicts(touches: Sequence[Touch]) -> list[Conflict]:
    """The latest command of each other queue that each command must follow, for each distance in passes.

    Earlier commands of that queue have ended when the latest one has. Commands further apart than two passes need
    no look: the same command two passes later is between them.
    """
    found = []
    alternating = any(region.alternate for touch in touches for region in (*touch.reads, *touch.writes))
    for second, touch in enumerate(touches):
        others = sorted({other.queue for other in touches} - {touch.queue})
        for queue in others:
            for lag in range(3 if alternating else 2):
                for odd in (0, 1) if alternating else (None,):
                    for first in reversed(range(second if lag == 0 else len(touches))):
                        if touches[first].queue != queue:
                            continue
                        region = _shared(touches[first], touch, ((odd or 0) + lag) % 2, odd or 0)
                        if region is not None:
                            found.append(Conflict(first, second, lag, odd, region))
                            break
    return found


def needed(queues: Sequence[int], found: Sequence[Conflict]) -> list[dict[int, Wait]]:
    """The latest wait of each command for each other queue that its conflicts ask for."""
    place = places(queues)
    waits: list[dict[int, Wait]] = [{} for _ in queues]
    for conflict in found:
        wait = Wait(place[conflict.first] + 1, conflict.lag)
        mine, queue = waits[conflict.second], queues[conflict.first]
        mine[queue] = later(mine.get(queue, Wait()), wait)
    return waits


def later(one: Wait, other: Wait) -> Wait:
    """The one of two waits for the same queue that holds later."""
    return max(one, other, key=lambda wait: (wait.after > 0, -wait.lag, wait.after))


def _before(queues: Sequence[int], waits: Waits) -> list[list[int]]:
    """Commands of the same pass that each command has to follow."""
    members = {queue: [place for place, other in enumerate(queues) if other == queue] for queue in set(queues)}
    number = places(queues)
    return [[*(members[queue][number[place] - 1:number[place]] if number[place] else []),
             *(members[other][wait.after - 1] for other, wait in sorted(waits[place].items())
               if wait.after and wait.lag == 0)]
            for place, queue in enumerate(queues)]


def _sorted(before: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Commands of a pass in an order in which each follows those it has to; and those that have no place in it."""
    order: list[int] = []
    left = list(range(len(before)))
    done: set[int] = set()
    while ready := [place for place in left if done.issuperset(before[place])]:
        order += ready
        done.update(ready)
        left = [place for place in left if place not in done]
    return order, left


def find_cycle(queues: Sequence[int], waits: Waits) -> list[int]:
    """Commands each of which has to follow the next one, and the last one the first; empty if there are none.

    Waits with a lag take no part, since they are for passes that come before.
    """
    return _cycle(_before(queues, waits))


def find_node_cycle(queues: Sequence[int], waits: Waits, remotes: Remotes, collective: Sequence[bool],
                    nodes: int) -> list[tuple[int | None, int]]:
    """Commands of nodes each of which has to follow the next one, as (rank, place), and the last one the first.

    A collective ends on each node after it has started on all of them; its end is that of no rank. Waits with a lag
    take no part, since all that is to end in earlier passes does so before.
    """
    count = len(queues)
    members = {queue: [place for place, other in enumerate(queues) if other == queue] for queue in set(queues)}
    local = _before(queues, waits)

    def start(rank: int, place: int) -> int:
        return rank * count + place

    def end(rank: int, place: int) -> int:
        return nodes * count + place if collective[place] else start(rank, place)

    before = [[end(rank, other) for other in local[place]] for rank in range(nodes) for place in range(count)]
    before += [[start(rank, place) for rank in range(nodes)] for place in range(count)]
    for place, mine in enumerate(remotes):
        for rank, remote in enumerate(mine):
            if remote is not None and remote.after and remote.lag == 0:
                before[start(rank, place)].append(end(remote.unit, members[remote.queue][remote.after - 1]))
    return [(None if vertex >= nodes * count else vertex // count, vertex % count) for vertex in _cycle(before)]


def _cycle(before: Sequence[Sequence[int]]) -> list[int]:
    """Members each of which has to follow the next one, and the last one the first; empty if there are none."""
    _, left = _sorted(before)
    if not left:
        return []
    # Each of those that are left has one before it that is left too: some way back there is one for the second time.
    path = [left[0]]
    while True:
        path.append(next(place for place in before[path[-1]] if place in left))
        if path[-1] in path[:-1]:
            circle = path[path.index(path[-1]) + 1:]
            first = circle.index(min(circle))
            return circle[first:] + circle[:first]


def clocks(queues: Sequence[int], waits: Waits, *, passes: int = PASSES) -> list[list[Clock]]:
    """Clock of each command of each pass, by pass and place."""
    number = places(queues)
    width = max(queues, default=-1) + 1
    lengths = [list(queues).count(queue) for queue in range(width)]
    members = [[place for place, other in enumerate(queues) if other == queue] for queue in range(width)]
    order, left = _sorted(_before(queues, waits))
    if left:
        raise ValueError("Program must not have a cycle")
    found: list[list[Clock]] = [[[] for _ in queues] for _ in range(passes)]
    latest = [[0] * width for _ in range(width)]  # of the command that each queue had last
    for turn in range(passes):
        for place in order:
            queue = queues[place]
            clock = list(latest[queue])
            clock[queue] = turn * lengths[queue] + number[place]
            for other, wait in waits[place].items():
                if wait.after and wait.lag <= turn:
                    awaited = found[turn - wait.lag][members[other][wait.after - 1]]
                    clock = list(map(max, clock, awaited))
                    clock[other] = max(clock[other], (turn - wait.lag) * lengths[other] + wait.after)
            found[turn][place] = latest[queue] = clock
    return found


def races(queues: Sequence[int], waits: Waits, found: Sequence[Conflict]) -> Iterator[tuple[Conflict, int]]:
    """Conflicts that the waits do not order, with the pass of the second command."""
    number = places(queues)
    lengths = {queue: list(queues).count(queue) for queue in set(queues)}
    clock = clocks(queues, waits)
    for conflict in found:
        queue = queues[conflict.first]
        for turn in range(conflict.lag, PASSES):
            if conflict.odd not in (None, turn % 2):
                continue
            end = (turn - conflict.lag) * lengths[queue] + number[conflict.first] + 1
            if clock[turn][conflict.second][queue] < end:
                yield conflict, turn


def reduced(queues: Sequence[int], waits: Waits, found: Sequence[Conflict], least: Waits) -> list[dict[int, Wait]]:
    """The same waits without those that the others see to. Of each wait, that in ``least`` stays."""
    result = [dict(mine) for mine in waits]
    candidates = [(wait.lag, place, queue) for place, mine in enumerate(result) for queue, wait in mine.items()
                  if wait != least[place].get(queue, Wait())]
    for _, place, queue in sorted(candidates, reverse=True):
        wait = result[place][queue]
        result[place][queue] = least[place].get(queue, Wait())
        if next(races(queues, result, found), None) is not None:
            result[place][queue] = wait
    return result
