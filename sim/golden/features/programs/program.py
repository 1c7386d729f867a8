"""Golden model of a program's time: when every command of every queue of every node starts and ends.

Commands of a queue run in order. A command starts ``gap`` cycles after the one before it has ended, at the earliest,
and ``delay`` cycles after the commands of other queues that it waits for:

    start = max(end of the one before + gap, end of what it waits for + delay)
    end   = start + duration

What it waits for may be a command of another node, of which it knows by a control word: then the delay is that of the
word over all links from there (:func:`signal_cycles`). The word may be later, if an earlier one of the same node is
still on its way round, or a link repeats it, but never earlier.

The first command of a queue may start at 0. A collective ends on a node by its duration after all nodes have started
it. Durations are given; how long a collective takes is not the model's concern.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["DELAY", "GAP", "HOP", "TOLD", "Duration", "Remote", "Span", "Timed", "makespan", "remote_of",
           "signal_cycles", "timeline"]

#: Cycles from the end of a command to the start of the next one in its queue, and to the start of one that waited for
#: it in another, which a node takes at the most.
GAP, DELAY = 8, 3

#: Cycles of a control word in a node that hands it on, beside those of the wires, and those from the end of a command
#: to the start of one that waited for it on another node, beside the hops: the least of both.
HOP, TOLD = 8, 4

#: Cycles of a command, of the node, pass, queue and place in it.
Duration: TypeAlias = Callable[[int, int, int, int], int]


class Remote(NamedTuple):
    """Wait for another node: the first ``after`` commands of a queue of node ``unit``, of the pass ``lag`` before."""

    unit: int
    queue: int
    after: int
    lag: int = 0


def remote_of(remotes: Sequence[Remote | None], node: int) -> Remote | None:
    """A node's wait for another one, of a command with one for each node, or with none at all."""
    return remotes[node] if remotes else None


def signal_cycles(hops: int, *, wire: int = 16) -> int:
    """Cycles from the end of a command to the start of one that waits for it, so many links further on."""
    return DELAY if hops == 0 else hops * (HOP + wire) + TOLD


@dataclasses.dataclass(frozen=True)
class Timed:
    """A command, as far as time goes."""

    name: str
    duration: int
    collective: bool = False
    #: For each other queue, in ascending order, (``after``, ``lag``): so many of its commands must have ended, of the
    #: pass ``lag`` before this one; 0 for none. A pass before the first one holds at once.
    waits: tuple[tuple[int, int], ...] = ()
    remotes: tuple[Remote | None, ...] = ()  # for each node its wait for another one; empty if there is none


@dataclasses.dataclass(frozen=True)
class Span:
    """Time of a command on a node, from its start to its end."""

    node: int
    queue: int
    name: str
    start: int
    end: int
    number: int = 0  # number of the pass, from 0
    place: int = 0  # place in the queue


class _Clocks:
    """Starts and ends of all commands, as far as they are known: by node, queue and number over all passes."""

    def __init__(self, queues: Sequence[Sequence[Timed]], nodes: int, gap: int, delay: int,
                 signal: Callable[[int], int]):
        self._queues = queues
        self._signal = signal
        self._gap = gap
        self._delay = delay
        self.starts: list[list[list[int]]] = [[[] for _ in queues] for _ in range(nodes)]
        self.ends: list[list[list[int]]] = [[[] for _ in queues] for _ in range(nodes)]

    def start(self, node: int, queue: int) -> int | None:
        """Start of the queue's next command; None as long as it is not known."""
        count, ends = len(self.starts[node][queue]), self.ends[node]
        if len(ends[queue]) < count:
            return None
        number, place = divmod(count, len(self._queues[queue]))
        earliest = ends[queue][-1] + self._gap if count else 0
        others = [other for other in range(len(self._queues)) if other != queue]
        for other, (after, lag) in zip(others, self._queues[queue][place].waits, strict=False):
            if after and number >= lag:
                target = (number - lag) * len(self._queues[other]) + after
                if len(ends[other]) < target:
                    return None
                earliest = max(earliest, ends[other][target - 1] + self._delay)
        remote = remote_of(self._queues[queue][place].remotes, node)
        if remote is not None and remote.after and number >= remote.lag:
            target = (number - remote.lag) * len(self._queues[remote.queue]) + remote.after
            there = self.ends[remote.unit][remote.queue]
            if len(there) < target:
                return None
            hops = (node - remote.unit) % len(self.ends)
            earliest = max(earliest, there[target - 1] + (self._signal(hops) if hops else self._delay))
        return earliest


def timeline(queues: Sequence[Sequence[Timed]], *, passes: int = 1, nodes: int = 1, gap: int = GAP,
             delay: int = DELAY, duration: Duration | None = None,
             signal: Callable[[int], int] = signal_cycles) -> list[Span]:
    """Spans of all commands, in order of their starts, of queues that are the same in each pass and on all nodes.

    There are ``gap`` cycles between two commands of a queue, and ``delay`` from the end of one to the start of
    another that waited for it, or those of a ``signal`` over so many links. ``duration`` takes the place of the
    commands' own. A ValueError tells of commands that wait for ever.
    """
    clocks = _Clocks(queues, nodes, gap, delay, signal)
    spans: list[Span] = []

    def cycles(node: int, queue: int, count: int) -> int:
        number, place = divmod(count, len(queues[queue]))
        return queues[queue][place].duration if duration is None else duration(node, number, queue, place)

    def enter(node: int, queue: int) -> bool:
        """Start the next command of a queue, if it may; end it, unless other nodes have to start it too."""
        count = len(clocks.starts[node][queue])
        if count == passes * len(queues[queue]) or (start := clocks.start(node, queue)) is None:
            return False
        clocks.starts[node][queue].append(start)
        together = range(nodes) if queues[queue][count % len(queues[queue])].collective else [node]
        if all(len(clocks.starts[other][queue]) > count for other in together):
            begun = max(clocks.starts[other][queue][count] for other in together)
            for other in together:
                clocks.ends[other][queue].append(begun + cycles(other, queue, count))
        return True

    while any([enter(node, queue) for node in range(nodes) for queue in range(len(queues))]):
        pass
    for node, queue, commands in ((node, queue, commands) for node in range(nodes)
                                  for queue, commands in enumerate(queues)):
        starts, ends = clocks.starts[node][queue], clocks.ends[node][queue]
        if len(ends) < passes * len(commands):
            number, place = divmod(len(ends), len(commands))
            raise ValueError(f"Commands must not wait for ever, not {commands[place].name} of pass {number}, queue "
                             f"{queue} of node {node}")
        spans += [Span(node, queue, commands[count % len(commands)].name, start, end, *divmod(count, len(commands)))
                  for count, (start, end) in enumerate(zip(starts, ends, strict=True))]
    return sorted(spans, key=lambda span: (span.start, span.node, span.queue, span.number, span.place))


def makespan(spans: Sequence[Span]) -> int:
    """Cycles from 0 to the last end."""
    return max((span.end for span in spans), default=0)
