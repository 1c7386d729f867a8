"""Golden model of program timing: the start and end of every command in all queues of all nodes.

The commands of a queue run in order. A command starts ``gap`` cycles after the end of the previous command or
``delay`` cycles after the end of the last command it waits for, whichever is later:

    start = max(end of the previous command + gap, ends of awaited commands + delay)
    end   = start + duration

An awaited command may run on another node, which reports its end with a control word. The delay is then the word's
latency over all links in between (:func:`signal_cycles`). The word may arrive later, if a link repeats it or the
node's previous word is still on the ring, but never earlier.

The first command of a queue may start at 0. A collective ends ``duration`` cycles after the last node has started it.
Durations are inputs of the model.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from sim.golden.constants import constant
from sim.golden.queues import Queues

__all__ = ["DELAY", "GAP", "HOP", "TOLD", "Duration", "Remote", "Span", "Timed", "makespan", "remote_of",
           "signal_cycles", "timeline"]

_TRACES = "traces of Verilated nodes"
GAP = constant("programs", 8, "from the end of a command to the start of the next one in its queue, at most", _TRACES)
DELAY = constant("programs", 3, "from the end of a command to the start of a command in another queue that "
                 "waits for it, at most", _TRACES)
HOP = constant("programs", 8, "latency of a control word in a node that forwards it, without the wires, at "
               "least", _TRACES)
TOLD = constant("programs", 4, "from the end of a command to the start of a command on another node that waits "
                "for it, in addition to the hops, at least", _TRACES)

#: Function that gives the duration of a command in cycles from its node, pass, queue and position in the queue.
Duration: TypeAlias = Callable[[int, int, int, int], int]


class Remote(NamedTuple):
    """Wait until node ``unit`` has run ``after`` commands of a queue in an earlier pass, ``lag`` passes before."""

    unit: int
    queue: int
    after: int
    lag: int = 0


def remote_of(remotes: Sequence[Remote | None], node: int) -> Remote | None:
    """Return the wait for another node that a command has on ``node``, or None if the command has no such waits."""
    return remotes[node] if remotes else None


def signal_cycles(hops: int, *, wire: int = 16) -> int:
    """Latency in cycles from the end of a command until a command waiting for it, ``hops`` links away, starts."""
    return DELAY if hops == 0 else hops * (HOP + wire) + TOLD


@dataclasses.dataclass(frozen=True)
class Timed:
    """Command of a program, as seen by the timing model."""

    name: str
    duration: int
    collective: bool = False
    #: (``after``, ``lag``) for each other queue, in ascending order: the queue's first ``after`` commands must have
    #: ended in the pass ``lag`` passes earlier; 0 means no wait. In passes that have no such earlier pass, the
    #: command does not wait.
    waits: tuple[tuple[int, int], ...] = ()
    remotes: tuple[Remote | None, ...] = ()  # each node's wait for another node; empty without waits


@dataclasses.dataclass(frozen=True)
class Span:
    """Start and end cycles of a command on a node."""

    node: int
    queue: int
    name: str
    start: int
    end: int
    number: int = 0  # number of the pass, counted from 0
    place: int = 0  # position in the queue


class _Model:
    """Queues of all nodes, in node order, and what each of their commands waits for."""

    def __init__(self, commands: Sequence[Sequence[Timed]], *, passes: int, nodes: int):
        self._commands, self._nodes = commands, nodes
        self.queues = Queues([passes * len(queue) for queue in commands] * nodes)

    def at(self, queue: int, index: int) -> tuple[int, int, int, int]:
        """Return the node, the pass, the node's queue and the position in this queue for an item of a model queue."""
        node, own = divmod(queue, len(self._commands))
        number, position = divmod(index, len(self._commands[own]))
        return node, number, own, position

    def command(self, queue: int, index: int) -> Timed:
        """Return the command that an item of a queue executes."""
        _, _, own, position = self.at(queue, index)
        return self._commands[own][position]

    def together(self, queue: int, index: int) -> Sequence[int]:
        """Return the queues that start an item together: for a collective, one per node, else its own queue."""
        count = len(self._commands)
        return range(queue % count, self._nodes * count, count) if self.command(queue, index).collective else [queue]

    def waits(self, queue: int, index: int) -> Iterator[tuple[int, int, int]]:
        """Yield what a command waits for: node, queue, and how many commands of that queue must have ended."""
        node, number, own, position = self.at(queue, index)
        command = self._commands[own][position]
        rest = [other for other in range(len(self._commands)) if other != own]
        waits = [(node, other, *wait) for other, wait in zip(rest, command.waits, strict=False)]
        remote = remote_of(command.remotes, node)
        for unit, other, after, lag in waits if remote is None else [*waits, remote]:
            if after and number >= lag:
                yield unit, other, (number - lag) * len(self._commands[other]) + after


def timeline(queues: Sequence[Sequence[Timed]], *, passes: int = 1, nodes: int = 1, gap: int = GAP,
             delay: int = DELAY, duration: Duration | None = None,
             signal: Callable[[int], int] = signal_cycles) -> list[Span]:
    """Return the spans of all commands, ordered by start; all passes and nodes have the same queues.

    Consecutive commands of a queue are ``gap`` cycles apart. A command starts ``delay`` cycles after the end of a
    command it waits for, or ``signal(hops)`` cycles if that command's node is ``hops`` links away. ``duration``
    overrides the commands' durations. Raises ``ValueError`` on deadlock.
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
            node, number, own, position = model.at(queue, index)
            spans.append(Span(node, own, queues[own][position].name, start, ends[queue][index], number, position))
    return sorted(spans, key=lambda span: (span.start, span.node, span.queue, span.number, span.place))


def makespan(spans: Sequence[Span]) -> int:
    """Return the cycle at which the last command ends."""
    return max((span.end for span in spans), default=0)
