"""Event-driven kernel of the timing models: queues of items that are processed in order.

A model provides the earliest start cycle of the next item of each queue and the duration of every item. At each
event, the kernel starts all items that may start, and then advances to the next cycle where an item ends or may
start. Queues can share an item: it runs once it has reached the front of all its queues, and ends in each queue after
the number of cycles that it takes there. Node programs, layer streaming and feature maps that are moved to far memory
are modelled this way.
"""

import heapq
import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["Queues"]

#: Function that returns a number for an item, given its queue and its index in that queue.
Of: TypeAlias = Callable[[int, int], int]


class Queues:
    """Item queues and their simulation state.

    Parameters
    ----------
    lengths : sequence of int
        Number of items in each queue.
    """

    def __init__(self, lengths: Sequence[int]):
        self.lengths = tuple(map(operator.index, lengths))
        if min(self.lengths, default=0) < 0:
            raise ValueError(f"Lengths of queues must be at least 0, not {self.lengths}")
        #: Cycle of the latest event.
        self.now = 0
        #: Start and end cycles of all items so far, one list per queue.
        self.starts: list[list[int]] = [[] for _ in self.lengths]
        self.ends: list[list[int]] = [[] for _ in self.lengths]
        self._events: list[tuple[int, int]] = []

    def run(self, *, ready: Callable[[int, int], int | None], cycles: Of,
            together: Callable[[int, int], Sequence[int]] | None = None,
            ended: Callable[[Sequence[tuple[int, int]]], None] | None = None, limit: int | None = None) -> bool:
        """Run all items; return False on deadlock or when the limit is reached.

        Raises ``ValueError`` if a duration is negative or ``together`` omits the item's own queue.

        Parameters
        ----------
        ready : callable
            Returns the earliest start cycle of a queue's next item, or None while it waits for an event.
        cycles : callable
            Returns the duration of an item in cycles.
        together : callable, optional
            Returns the queues that share an item; its index is the same in all of them.
        ended : callable, optional
            Called for the items that end in a cycle, in queue order, with their queue and index.
        limit : int, optional
            Cycle at which the run is abandoned.
        """
        while True:
            later = self._start(ready, cycles, together)
            if not (self._events or later):
                return all(len(ends) == length for ends, length in zip(self.ends, self.lengths, strict=True))
            self.now = min([event[0] for event in self._events[:1]] + later)
            if limit is not None and self.now >= limit:
                return False
            items = []
            while self._events and self._events[0][0] == self.now:
                _, queue = heapq.heappop(self._events)
                items.append((queue, len(self.ends[queue])))
                self.ends[queue].append(self.now)
            if ended is not None and items:
                ended(items)

    def _start(self, ready: Callable[[int, int], int | None], cycles: Of,
               together: Callable[[int, int], Sequence[int]] | None) -> list[int]:
        """Start all items that may start now; return the earliest start cycles of the remaining items."""
        later = []
        for queue, (starts, ends, items) in enumerate(zip(self.starts, self.ends, self.lengths, strict=True)):
            index = len(starts)
            if index > len(ends) or index == items or (cycle := ready(queue, index)) is None:
                continue
            if cycle > self.now:
                later.append(cycle)
                continue
            starts.append(self.now)
            members = (queue,) if together is None else together(queue, index)
            if queue not in members:
                raise ValueError(f"Queues of item {index} of queue {queue} must have it among them, not be {members}")
            if all(len(self.starts[member]) > index for member in members):
                for member in members:
                    length = cycles(member, index)
                    if not length >= 0:
                        raise ValueError(f"Cycles of item {index} of queue {member} must be at least 0, not {length}")
                    heapq.heappush(self._events, (self.now + length, member))
        return later
