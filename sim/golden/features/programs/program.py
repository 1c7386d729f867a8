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
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from sim.golden.constants import constant
from sim.golden.queues import Queues

__all__ = ["DELAY", "GAP", "HOP", "TOLD", "Duration", "Remote", "Span", "Timed", "makespan", "remote_of",
           "signal_cycles", "timeline"]

_TRACES = "traces of Verilated nodes"
GAP = constant("programs", 8, "the end of a command to the start of the next one in its queue, at most", _TRACES)
DELAY = constant("programs", 3, "the end of a command to the start of one that waits for it in another queue, "
                 "at most", _TRACES)
HOP = constant("programs", 8, "a control word in a node that passes it on, without the wire, at least", _TRACES)
TOLD = constant("programs", 4, "the end of a command to the start of one that waits for it on another node, in "
                "addition to the hops, at least", _TRACES)

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


class _Model:
    """Queues of all nodes, in the order of nodes, and what their commands wait for."""

    def __init__(self, commands: Sequence[Sequence[Timed]], *, passes: int, nodes: int):
        self._commands, self._nodes = commands, nodes
        self.queues = Queues([passes * len(queue) for queue in commands] * nodes)

    def at(self, queue: int, index: int) -> tuple[int, int, int, int]:
        """Node, pass, queue and place of an item."""
        node, own = divmod(queue, len(self._commands))
        number, place = divmod(index, len(self._commands[own]))
        return node, number, own, place

    def command(self, queue: int, index: int) -> Timed:
        """Command of an item."""
        _, _, own, place = self.at(queue, index)
        return self._commands[own][place]

    def together(self, queue: int, index: int) -> Sequence[int]:
        """Queues of the nodes that start a command together."""
        count = len(self._commands)
        return range(queue % count, self._nodes * count, count) if self.command(queue, index).collective else [queue]

    def waits(self, queue: int, index: int) -> Iterator[tuple[int, int, int]]:
        """Commands of other queues that one waits for: node, queue and number of the last, from 1 on; 0 for none."""
        node, number, own, place = self.at(queue, index)
        command = self._commands[own][place]
        others = [other for other in range(len(self._commands)) if other != own]
        waits = [(node, other, *wait) for other, wait in zip(others, command.waits, strict=False)]
        remote = remote_of(command.remotes, node)
        for unit, other, after, lag in waits if remote is None else [*waits, remote]:
            if after and number >= lag:
                yield unit, other, (number - lag) * len(self._commands[other]) + after


def timeline(queues: Sequence[Sequence[Timed]], *, passes: int = 1, nodes: int = 1, gap: int = GAP,
             delay: int = DELAY, duration: Duration | None = None,
             signal: Callable[[int], int] = signal_cycles) -> list[Span]:
    """Spans of all commands, in order of their starts, of queues that are the same in each pass and on all nodes.

    There are ``gap`` cycles between two commands of a queue, and ``delay`` from the end of one to the start of
    another that waited for it, or the cycles of a ``signal`` over so many links. ``duration`` takes the place of the
    commands' own. Raises ``ValueError``: commands wait forever.
    """
    model = _Model(queues, passes=passes, nodes=nodes)
    ends = model.queues.ends

    def ready(queue: int, index: int) -> int | None:
        start = ends[queue][-1] + gap if index else 0
        node = queue // len(queues)
        for unit, other, target in model.waits(queue, index):
            known = ends[unit * len(queues) + other]
            if len(known) < target:
                return None
            hops = (node - unit) % nodes
            start = max(start, known[target - 1] + (signal(hops) if hops else delay))
        return start

    def cycles(queue: int, index: int) -> int:
        return model.command(queue, index).duration if duration is None else duration(*model.at(queue, index))

    if not model.queues.run(ready=ready, cycles=cycles, together=model.together):
        queue = next(queue for queue, length in enumerate(model.queues.lengths) if len(ends[queue]) < length)
        node, number, own, _ = model.at(queue, len(ends[queue]))
        raise ValueError(f"Commands must not wait for ever, not {model.command(queue, len(ends[queue])).name} of "
                         f"pass {number}, queue {own} of node {node}")
    spans = []
    for queue, starts in enumerate(model.queues.starts):
        for index, start in enumerate(starts):
            node, number, own, place = model.at(queue, index)
            spans.append(Span(node, own, queues[own][place].name, start, ends[queue][index], number, place))
    return sorted(spans, key=lambda span: (span.start, span.node, span.queue, span.number, span.place))


def makespan(spans: Sequence[Span]) -> int:
    """Cycles from 0 to the last end."""
    return max((span.end for span in spans), default=0)
