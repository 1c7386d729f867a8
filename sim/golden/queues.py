"""Kernel of the timing models: queues of work that process one item after another.

A model provides the cycle from which the next item of a queue may start, and the number of cycles of an item. The
kernel advances from event to event: it starts every item that may start, and then moves on to the next end of an
item, or to the next cycle in which an item may start. Queues may share items: a shared item runs after it has started
in all its queues, and ends in each of them after the cycles that it takes there. Programs of nodes, layers from a
server, and maps that are moved to far memory are modelled this way.
"""

import heapq
import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["Queues"]

#: Function that returns a number for an item, given its queue and its index in the queue.
Of: TypeAlias = Callable[[int, int], int]


class Queues:
    """Queues of items, and the state of their simulation.

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
        #: Start and end cycles of all items so far, by queue.
        self.starts: list[list[int]] = [[] for _ in self.lengths]
        self.ends: list[list[int]] = [[] for _ in self.lengths]
        self._events: list[tuple[int, int]] = []

    def run(self, *, ready: Callable[[int, int], int | None], cycles: Of,
            together: Callable[[int, int], Sequence[int]] | None = None,
            ended: Callable[[Sequence[tuple[int, int]]], None] | None = None, limit: int | None = None) -> bool:
        """Run all items; return False if some do not end, as they wait forever or the limit is reached.

        Raises ``ValueError`` if an item takes less than 0 cycles, or ``together`` omits the item's own queue.

        Parameters
        ----------
        ready : callable
            Cycle from which the next item of a queue may start; None as long as it waits for an event.
        cycles : callable
            Number of cycles of an item.
        together : callable, optional
            Queues that share an item, which has the same index in all of them.
        ended : callable, optional
            Called with the queue and index of all items that end in a cycle, in the order of queues.
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
        """Start all items that may start now; return the cycles from which further items may start."""
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
