"""Timeline of a set by its program: executions, link and moves, each command in its queue and behind its waits.

:mod:`host.relay.timeline` is about layers alone. Here a worker's program says what there is to do and what waits for
what. Executions take the cycles that they are given, FETCH and PUSH those of their packets, and moves those of the
far memory: outputs of a layer must be moved out before they can be moved in as inputs of the next one. Without moves,
and without cycles between commands, both timelines are the same.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from host.program.program import CompiledProgram, Queue, Task
from host.relay.timeline import Costs, Event, Run
from sim.golden import program as golden
from sim.golden.codecs import RAW, WEIGHT_CODECS
from sim.golden.mover import move_cycles
from sim.golden.relay import Unit
from sim.golden.ring import GROUP, PACKET_OVERHEAD

__all__ = ["GAP", "Far", "packet_cycles", "program_run", "run_of"]

#: Cycles from the end of a command to the start of the next one of its queue.
GAP = 4
#: Elements of a packet, and cycles of a FETCH beside those of its words; through a codec, beside those of its rows.
SEGMENT, WORDS, ROWS = 256, 39, 110
#: Cycles of a PUSH beside those of its words, and of each worker; those of a server's far memory beside those of its
#: words; and until gradients come to it, when it has read so many elements of each memory ahead, and not yet written
#: them.
SUM, HOP, UPDATE, READ, AHEAD = 180, 76, 20, 279, 422


@dataclasses.dataclass(frozen=True, kw_only=True)
class Far:
    """Pace of a worker's far memory."""

    #: Elements of a row.
    lanes: int = 4
    #: Words per cycle.
    rate: Fraction = Fraction(1)
    #: Cycles from a request to its answer.
    latency: int = 16

    def cycles(self, length: int, *, back: bool) -> int:
        """Cycles of a move of so many words; ``back`` if it is a MOVE_IN."""
        return move_cycles(length, lanes=self.lanes, rate=float(self.rate), latency=self.latency, back=back)


def packet_cycles(unit: Unit, *, workers: int, state_words: int = 2, rate: Fraction = Fraction(4),
                  zeros: float = 0.0, lanes: int = 4) -> tuple[int, int]:
    """Cycles of FETCH and of PUSH by their packets; constants are fitted to gateware with links of 16 cycles.

    Parameters
    ----------
    state_words : int
        Words per parameter that the server's far memory moves in PUSH: 2 for SGD, 4 with momentum, 6 for Adam.
    rate : Fraction
        Words per cycle of the server's far memory.
    zeros : float
        Part of the sums of gradients that are zeros, which PUSH does not send.
    lanes : int
        Elements of a row.
    """
    words, heads = unit.words, PACKET_OVERHEAD * -(-unit.words // SEGMENT)
    coded = words if unit.format == RAW else WEIGHT_CODECS[unit.format].most_words(words)
    fetch = max(coded + heads + WORDS, math.ceil(words / rate) + WORDS, -(-words // lanes) + ROWS)
    sums = math.ceil(words * (1 - zeros)) + -(-words // GROUP) + heads
    return fetch, max(sums + SUM + HOP * workers, math.ceil(state_words * words / rate) + UPDATE,
                      math.ceil(state_words * (words - AHEAD) / rate) + READ + HOP * workers)


def run_of(tasks: Sequence[Task], spans: Mapping[int, tuple[int, int]]) -> Run:
    """Events of a set, of its commands and their starts and ends by place; executions first, then moves and link."""
    events = []
    for task in sorted(tasks, key=lambda task: (task.queue != Queue.COMPUTE, task.place)):
        kind, *words = task.name.split()
        if kind in ("in", "out"):  # such as: in forward 3 0 1
            words = words[1:]
        if words:  # and not: latch
            events.append(Event(kind, int(words[0]), *spans[task.place], 0))
    return Run(tuple(events))


def program_run(program: CompiledProgram, costs: Sequence[Costs], far: Far | None, *, gap: int = GAP,
                delay: int = golden.DELAY) -> Run:
    """Timeline of a set on a worker, by its program.

    Parameters
    ----------
    costs : sequence of Costs
        Cycles of each unit.
    far : Far or None
        Pace of moves; None for moves that take no time.
    gap, delay : int
        Cycles between two commands of a queue, and from the end of one to the start of another that waited for it.
    """
    tasks = [[one.task for one in queue] for queue in program.queues]

    def cycles(task: Task) -> int:
        kind, *words = task.name.split()
        if kind in ("in", "out"):
            length = task.fields["length"]
            assert isinstance(length, int)
            return 0 if far is None else far.cycles(length, back=kind == "in")
        return int(getattr(costs[int(words[0])], kind)) if words else 0

    spans = golden.timeline(program.timed(), gap=gap, delay=delay,
                            duration=lambda _node, _number, queue, place: cycles(tasks[queue][place]))
    return run_of(program.tasks, {tasks[span.queue][span.place].place: (span.start, span.end) for span in spans})
