"""Timeline of a set of microbatches whose layers come from a server, one after the other.

A set is one update: forward through all units, backward through all of them, and the new weights at the server. A
unit is a layer, or a part of its outputs. The link carries one thing at a time: FETCH brings a unit's weights into
one of two windows, PUSH takes its gradients to the server out of one of two accumulators. Executions of a unit's
microbatches follow each other.

- FETCH of a unit starts when the window that it overwrites has been used for the last time. That is not the window of
  the execution before. A unit that is still in a window is not fetched.
- An execution starts when the unit's weights are there; backward, also when the accumulator is empty, so behind the
  PUSH of the unit before the one before.
- PUSH of a unit goes before the FETCH for the execution after the next one: backward of layer l, then PUSH(l), then
  FETCH(l - 2).
- A set begins when the last PUSH of the set before has ended.
"""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

from sim.golden.codecs import WEIGHT_CODECS
from sim.golden.relay import Unit, accesses

__all__ = ["Costs", "Event", "Run", "costs_of", "execution_cycles", "link_cycles", "microbatches", "relay_run",
           "uniform", "words_per_parameter"]

#: Cycles of a word on the link with headers and masks, as a chain of nodes takes them; and of each FETCH and PUSH,
#: beside those of each worker.
WORD, BEGIN, HOP = Fraction(33, 32), 111, 31
#: Cycles of an execution beside those of its products: modelled.
EXECUTION = 100
#: Executions that a backward pass takes: the forward pass once more, gradients of inputs, and of weights.
BACKWARD = 3


@dataclasses.dataclass(frozen=True)
class Costs:
    """Cycles of a unit: of FETCH and PUSH, and of one microbatch forward and backward."""

    fetch: int
    push: int
    forward: int
    backward: int


def link_cycles(words: int, *, workers: int, state_words: int = 2, rate: Fraction = Fraction(4),
                words_per_parameter: Fraction = Fraction(1), pushed: Fraction = Fraction(1)) -> tuple[int, int]:
    """Cycles of FETCH and of PUSH by the formula that microbatches are chosen by, which is above those of packets.

    Parameters
    ----------
    words : int
        Parameters of a unit.
    state_words : int
        Words per parameter that the server's far memory moves in PUSH: 2 for SGD, 4 with momentum, 6 for Adam.
    rate : Fraction
        Words per cycle of the server's far memory.
    words_per_parameter, pushed : Fraction
        Words of a parameter in FETCH, by its format, and in PUSH.
    """
    if workers < 1:
        raise ValueError(f"Workers must be 1 or more, not {workers!r}")
    if rate <= 0:
        raise ValueError(f"Rate of the server's far memory must be above zero, not {rate!r}")
    around = BEGIN + HOP * workers
    fetch = max(WORD * words * words_per_parameter, words / rate)
    return math.ceil(fetch) + around, math.ceil(max(WORD * words * pushed, state_words * words / rate)) + around


def words_per_parameter(unit: Unit) -> Fraction:
    """Words of a parameter of a unit in FETCH, by its format."""
    return Fraction(WEIGHT_CODECS[unit.format].most_words(unit.words), unit.words)


def execution_cycles(unit: Unit, *, microbatch: int, macs: int, recompute: bool = True) -> tuple[int, int]:
    """Cycles of a microbatch forward and backward: modelled by full arrays."""
    cycles = -(-microbatch * unit.inputs * unit.outputs // macs) + EXECUTION
    return cycles, (BACKWARD if recompute else BACKWARD - 1) * cycles


def costs_of(units: Sequence[Unit], *, workers: int, microbatch: int, macs: int, state_words: int = 2,
             rate: Fraction = Fraction(4)) -> list[Costs]:
    """Modelled cycles of each unit; see :func:`link_cycles` and :func:`execution_cycles`."""
    return [Costs(*link_cycles(unit.words, workers=workers, state_words=state_words, rate=rate,
                               words_per_parameter=words_per_parameter(unit)),
                  *execution_cycles(unit, microbatch=microbatch, macs=macs)) for unit in units]


def microbatches(costs: Sequence[Costs]) -> int:
    """Smallest number of microbatches that hides the link: at least fetch / forward, and (fetch + push) / backward,
    of the unit that is longest on the link, as if those beside it were the same."""
    if not costs:
        raise ValueError("Units must be one or more, not none")
    one = max(costs, key=lambda cost: cost.fetch + cost.push)
    return max(-(-one.fetch // one.forward), -(-(one.fetch + one.push) // one.backward))


@dataclasses.dataclass(frozen=True)
class Event:
    """``fetch``, ``push``, ``forward`` or ``backward`` of a unit, from its start to its end; in a window or an
    accumulator, which have the same number. By a program also ``in`` and ``out``, moves for an execution of it."""

    kind: str
    unit: int
    start: int
    end: int
    window: int

    @property
    def executes(self) -> bool:
        """Whether it is an execution, and neither on the link nor a move."""
        return self.kind in ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class Run:
    """A set, from 0 on."""

    #: In order of link and executions.
    events: tuple[Event, ...]

    @property
    def end(self) -> int:
        """End of the set, which is that of its last PUSH."""
        return max(event.end for event in self.events)

    @property
    def _executed(self) -> list[Event]:
        return [event for event in self.events if event.executes]

    @property
    def busy(self) -> int:
        """Cycles of executions."""
        return sum(event.end - event.start for event in self._executed)

    @property
    def stalled(self) -> int:
        """Cycles between the first and the last execution in which there is none."""
        executed = self._executed
        return executed[-1].end - executed[0].start - self.busy

    @property
    def stall(self) -> float:
        """Part of the time between the first and the last execution in which there is none."""
        return self.stalled / (self.stalled + self.busy)

    @property
    def idle(self) -> float:
        """Part of the set before its first execution and behind its last one."""
        return 1 - (self.stalled + self.busy) / self.end


class _Windows:
    """Windows of weights, and when they were used for the last time."""

    def __init__(self) -> None:
        self._held: list[int | None] = [None, None]
        self._used = [0, 0]
        self._last = 1

    def take(self, unit: int) -> tuple[int, int | None]:
        """Window of the next execution, and from when on its unit can be fetched; None if it is there."""
        for window in (self._last, 1 - self._last):
            if self._held[window] == unit:
                self._last = window
                return window, None
        self._last = 1 - self._last
        self._held[self._last] = unit
        return self._last, self._used[self._last]

    def use(self, window: int, until: int) -> None:
        self._used[window] = until


def relay_run(units: Sequence[Unit], costs: Sequence[Costs], count: int) -> Run:
    """Timeline of a set of ``count`` microbatches."""
    if count < 1:
        raise ValueError(f"Microbatches must be 1 or more, not {count!r}")
    if not units or len(units) != len(costs):
        raise ValueError(f"Units must be one or more, each with its costs, not {len(units)} with {len(costs)}")
    windows = _Windows()
    events: list[Event] = []
    link = busy = 0
    pushes: list[tuple[int, int, int]] = []
    forward, backward = accesses(units)
    pushed = [0, 0]

    def push() -> None:
        nonlocal link
        unit, ready, window = pushes.pop(0)
        start = max(link, ready)
        link = pushed[window] = start + costs[unit].push
        events.append(Event("push", unit, start, link, window))

    for kind, order in (("forward", forward), ("backward", backward)):
        for unit in order:
            window, free = windows.take(unit)
            while len(pushes) > 1:
                push()
            there = 0
            if free is not None:
                start = max(link, free)
                link = there = start + costs[unit].fetch
                events.append(Event("fetch", unit, start, link, window))
            start = max(busy, there, pushed[window] if kind == "backward" else 0)
            busy = start + count * (costs[unit].forward if kind == "forward" else costs[unit].backward)
            events.append(Event(kind, unit, start, busy, window))
            windows.use(window, busy)
            if kind == "backward":
                pushes.append((unit, busy, window))
    while pushes:
        push()
    return Run(tuple(events))


def uniform(layers: int, costs: Costs, count: int) -> Run:
    """Timeline of layers that all cost the same."""
    return relay_run([Unit(number, 64, 64) for number in range(1, layers + 1)], [costs] * layers, count)
