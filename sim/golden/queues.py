"""Kernel of the timing models: queues of work that process one item after the other.

A model gives the cycle from which on the next item of a queue may start, and the cycles of an item. The kernel goes
from event to event: it starts every item that may start, and moves on to the next end, or to the next cycle that lets
an item start. Queues may have items in common: such an item ends in each of them by its cycles there, after it has
started in the last one. Programs of nodes, layers from a server, and maps that are moved to far memory are models of
this kind.
"""

import heapq
import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["Queues"]

#: Number for an item, from its queue and its index in the queue.
Of: TypeAlias = Callable[[int, int], int]


class Queues:
    """Queues of items.

    Parameters
    ----------
    lengths : sequence of int
        Items of each queue.
    """

    def __init__(self, lengths: Sequence[int]):
        self.lengths = tuple(map(operator.index, lengths))
        if min(self.lengths, default=0) < 0:
            raise ValueError(f"Lengths of queues must be at least 0, not {self.lengths}")
        #: Cycle of the latest event.
        self.now = 0
        #: Start and end cycles of items up to now, by queue.
        self.starts: list[list[int]] = [[] for _ in self.lengths]
        self.ends: list[list[int]] = [[] for _ in self.lengths]
        self._events: list[tuple[int, int]] = []

    def run(self, *, ready: Callable[[int, int], int | None], cycles: Of,
            together: Callable[[int, int], Sequence[int]] | None = None,
            ended: Callable[[Sequence[tuple[int, int]]], None] | None = None, limit: int | None = None) -> bool:
        """Run all items; return whether all have ended, without an endless wait or reaching the limit.

        ``ValueError`` if an item takes less than 0 cycles, or if ``together`` omits the item's own queue.

        Parameters
        ----------
        ready : callable
            Cycle from which on the next item of a queue may start; None as long as it waits for an event.
        cycles : callable
            Cycles of an item.
        together : callable, optional
            Queues that have an item in common, at the same index.
        ended : callable, optional
            Called with the queue and index of all items that end in a cycle, in the order of queues.
        limit : int, optional
            Cycle from which on the run is abandoned.
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
        """Start all items that may start now; return the cycles from which on further items may."""
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
