"""Timeline of a set of microbatches with layers that a server provides one after another.

A set is one update: forward through all units, backward through all units, and the weight update on the server. A
unit is a layer or a part of its outputs. The link transfers one unit at a time: FETCH brings a unit's weights into
one of two windows, and PUSH sends its gradients from one of two accumulators to the server. All microbatches of a
unit are executed one after another.

- FETCH of a unit starts when the window that it overwrites is no longer needed. This is not the window of the
  previous execution. A unit that is still in a window is not fetched.
- An execution starts when the unit's weights have arrived; backward also requires an empty accumulator, and therefore
  waits for the PUSH of the unit two before.
- PUSH of a unit precedes the FETCH for the execution after the next one: backward of layer l, then PUSH(l), then
  FETCH(l - 2).
- A set begins when the last PUSH of the previous set has ended.

:func:`streaming_timeline` models only layers. In :func:`program_run`, a worker's program determines the operations
and their order. Executions take the given cycles, FETCH and PUSH take the cycles of their packets, and moves take the
cycles of the far memory: outputs of a layer must be moved out before they can be moved in as inputs of the next one.
Without moves and without cycles between commands, both timelines are the same. :func:`set_times` returns the cycles
of a set that a worker has traced.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from host.driver.trace import TraceError, TraceRecord
from host.features.programs.program import CompiledProgram, Queue, Task
from host.features.streaming.ring import SetOutcome
from sim.golden.codecs import RAW, WEIGHT_CODECS
from sim.golden.constants import constant
from sim.golden.features.far.mover import move_cycles
from sim.golden.features.programs import program as golden
from sim.golden.features.streaming.streaming import Unit, accesses
from sim.golden.ring import GROUP, PACKET_OVERHEAD

__all__ = [
    "GAP",
    "Costs",
    "Event",
    "Far",
    "Run",
    "SetTimes",
    "costs_of",
    "execution_cycles",
    "link_cycles",
    "microbatches",
    "packet_cycles",
    "program_run",
    "run_of",
    "set_times",
    "streaming_timeline",
    "uniform",
    "words_per_parameter",
]


#: Number of cycles per word on the link, including headers and masks.
WORD = Fraction(33, 32)
_CHAIN = "chains of nodes with links of 16 cycles"
BEGIN = constant("layer streaming", 111, "overhead of a FETCH or PUSH in the formula, without its words", _CHAIN)
HOP = constant("layer streaming", 31, "overhead of a FETCH or PUSH in the formula, per worker", _CHAIN)
EXECUTION = constant("layer streaming", 100, "overhead of an execution, without its products", "assumed")
#: Cost of a backward pass as a multiple of a forward pass. It repeats the forward pass, and computes two gradients.
BACKWARD = 3


@dataclasses.dataclass(frozen=True)
class Costs:
    """Number of cycles of a unit: for FETCH, for PUSH, and forward and backward for one microbatch."""

    fetch: int
    push: int
    forward: int
    backward: int


def link_cycles(words: int, *, workers: int, state_words: int = 2, rate: Fraction = Fraction(4),
                words_per_parameter: Fraction = Fraction(1), pushed: Fraction = Fraction(1)) -> tuple[int, int]:
    """Cycles of a unit's FETCH and PUSH, by the formula used to choose the number of microbatches. Its results are
    higher than the results of :func:`packet_cycles`.

    During PUSH the server's far memory, at ``rate`` words per cycle, moves 2 state words per parameter for SGD, 4 for
    momentum, and 6 for Adam. A parameter takes ``words_per_parameter`` words in FETCH, depending on the format, and
    ``pushed`` words in PUSH.
    """
    if workers < 1:
        raise ValueError(f"Workers must be 1 or more, not {workers!r}")
    if rate <= 0:
        raise ValueError(f"Rate of the server's far memory must be above zero, not {rate!r}")
    around = BEGIN + HOP * workers
    fetch = max(WORD * words * words_per_parameter, words / rate)
    return math.ceil(fetch) + around, math.ceil(max(WORD * words * pushed, state_words * words / rate)) + around


def words_per_parameter(unit: Unit) -> Fraction:
    """Number of words per parameter of a unit in FETCH, depending on the format."""
    return Fraction(WEIGHT_CODECS[unit.format].max_words(unit.words), unit.words)


def execution_cycles(unit: Unit, *, microbatch: int, macs: int, recompute: bool = True) -> tuple[int, int]:
    """Return the modelled cycles of a microbatch, forward and backward, on an array that is always full."""
    cycles = -(-microbatch * unit.inputs * unit.outputs // macs) + EXECUTION
    return cycles, (BACKWARD if recompute else BACKWARD - 1) * cycles


def costs_of(units: Sequence[Unit], *, workers: int, microbatch: int, macs: int, state_words: int = 2,
             rate: Fraction = Fraction(4)) -> list[Costs]:
    """Modelled cycles of each unit; see :func:`link_cycles` and :func:`execution_cycles`."""
    return [Costs(*link_cycles(unit.words, workers=workers, state_words=state_words, rate=rate,
                               words_per_parameter=words_per_parameter(unit)),
                  *execution_cycles(unit, microbatch=microbatch, macs=macs)) for unit in units]


def microbatches(costs: Sequence[Costs]) -> int:
    """Smallest number of microbatches that hides the link time: at least fetch / forward and (fetch + push) /
    backward for the unit that takes longest on the link, assuming that its neighbours take the same time."""
    if not costs:
        raise ValueError("Units must be one or more, not none")
    longest = max(costs, key=lambda cost: cost.fetch + cost.push)
    return max(-(-longest.fetch // longest.forward), -(-(longest.fetch + longest.push) // longest.backward))


@dataclasses.dataclass(frozen=True)
class Event:
    """A unit's ``fetch``, ``push``, ``forward`` or ``backward``, with start, end, and the number of its window or
    accumulator. In programs, ``in`` and ``out`` events are the moves for an execution of the unit."""

    kind: str
    unit: int
    start: int
    end: int
    window: int

    @property
    def executes(self) -> bool:
        """Whether the event is an execution, not a link transfer or a move."""
        return self.kind in ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class Run:
    """Timeline of a set, starting at cycle 0."""

    #: Events. Executions are in the order of execution, and transfers are in their order on the link.
    events: tuple[Event, ...]

    @property
    def end(self) -> int:
        """End of the set, which is when its last PUSH ends."""
        return max(event.end for event in self.events)

    @property
    def _executed(self) -> list[Event]:
        return [event for event in self.events if event.executes]

    @property
    def busy(self) -> int:
        """Total number of cycles spent in executions."""
        return sum(event.end - event.start for event in self._executed)

    @property
    def stalled(self) -> int:
        """Number of cycles between the first and the last execution in which nothing is executed."""
        executed = self._executed
        return executed[-1].end - executed[0].start - self.busy

    @property
    def stall(self) -> float:
        """Fraction of the time between the first and the last execution in which nothing is executed."""
        return self.stalled / (self.stalled + self.busy)

    @property
    def idle(self) -> float:
        """Fraction of the set's time before its first execution or after its last one."""
        return 1 - (self.stalled + self.busy) / self.end


class _Windows:
    """State of the weight windows: the unit in each, and the number of executions up to its last use."""

    def __init__(self) -> None:
        self._held: list[int | None] = [None, None]
        self.used = [0, 0]
        self._last = 1

    def take(self, unit: int) -> tuple[int, bool]:
        """Return the next execution's window, and whether its unit must be fetched."""
        for window in (self._last, 1 - self._last):
            if self._held[window] == unit:
                self._last = window
                return window, False
        self._last = 1 - self._last
        self._held[self._last] = unit
        return self._last, True


class _Set:
    """Commands of a set in two queues, for the link and for execution, with their waits."""

    def __init__(self) -> None:
        self.queues: tuple[list[golden.Timed], list[golden.Timed]] = ([], [])
        #: Queue, kind, unit and window of each command, in command order.
        self.order: list[tuple[int, str, int, int]] = []

    def append(self, queue: int, kind: str, unit: int, window: int, *, cycles: int, after: int) -> int:
        """Append a command that waits for ``after`` commands of the other queue; return its number in its queue."""
        self.queues[queue].append(golden.Timed(kind, cycles, waits=((after, 0),)))
        self.order.append((queue, kind, unit, window))
        return len(self.queues[queue])

    def run(self) -> Run:
        """Compute the timeline of the commands."""
        spans = {(span.queue, span.place): span for span in golden.timeline(self.queues, gap=0, delay=0)}
        places = [itertools.count(), itertools.count()]
        events = []
        for queue, kind, unit, window in self.order:
            span = spans[queue, next(places[queue])]
            events.append(Event(kind, unit, span.start, span.end, window))
        return Run(tuple(events))


def streaming_timeline(units: Sequence[Unit], costs: Sequence[Costs], count: int) -> Run:
    """Compute the timeline of a set of ``count`` microbatches."""
    if count < 1:
        raise ValueError(f"Microbatches must be 1 or more, not {count!r}")
    if not units or len(units) != len(costs):
        raise ValueError(f"Units must be one or more, each with its costs, not {len(units)} with {len(costs)}")
    link, execution = 0, 1
    commands, windows = _Set(), _Windows()
    pushes: list[tuple[int, int, int]] = []
    pushed = [0, 0]

    def push() -> None:
        unit, after, window = pushes.pop(0)
        pushed[window] = commands.append(link, "push", unit, window, cycles=costs[unit].push, after=after)

    for kind, order in zip(("forward", "backward"), accesses(units), strict=True):
        for unit in order:
            window, fetched = windows.take(unit)
            while len(pushes) > 1:
                push()
            after = pushed[window] if kind == "backward" else 0
            if fetched:
                after = commands.append(link, "fetch", unit, window, cycles=costs[unit].fetch,
                                        after=windows.used[window])
            windows.used[window] = done = commands.append(
                execution, kind, unit, window, cycles=count * getattr(costs[unit], kind), after=after)
            if kind == "backward":
                pushes.append((unit, done, window))
    while pushes:
        push()
    return commands.run()


def uniform(layers: int, costs: Costs, count: int) -> Run:
    """Compute the timeline of ``layers`` layers of equal cost."""
    return streaming_timeline([Unit(number, 64, 64) for number in range(1, layers + 1)], [costs] * layers, count)


_TRACES = "traces of workers with links of 16 cycles: docs/streaming.md"
GAP = constant("layer streaming", 4, "from the end of a command to the start of the next one in its queue", _TRACES)
#: Number of elements in a packet.
SEGMENT = 256
WORDS = constant("layer streaming", 39, "overhead of a FETCH, without its words", _TRACES)
ROWS = constant("layer streaming", 110, "overhead of a FETCH through a codec, without its rows", _TRACES)
SUM = constant("layer streaming", 180, "overhead of a PUSH, without its words", _TRACES)
PUSH_HOP = constant("layer streaming", 76, "overhead of a PUSH, per worker", _TRACES)
UPDATE = constant("layer streaming", 20, "overhead of an update in a server's far memory, without its words", _TRACES)
READ = constant("layer streaming", 279, "from the start of a PUSH to its gradients at the server", _TRACES)
#: Number of elements that a server prefetches from each far memory before gradients arrive.
AHEAD = 422


@dataclasses.dataclass(frozen=True, kw_only=True)
class Far:
    """Speed of a worker's far memory."""

    #: Number of elements in a row.
    lanes: int = 4
    #: Words per cycle.
    rate: Fraction = Fraction(1)
    #: Cycles from a request until its answer.
    latency: int = 16

    def cycles(self, length: int, *, back: bool) -> int:
        """Number of cycles to move ``length`` words. ``back`` is true for MOVE_IN."""
        return move_cycles(length, lanes=self.lanes, rate=float(self.rate), latency=self.latency, back=back)


def packet_cycles(unit: Unit, *, workers: int, state_words: int = 2, rate: Fraction = Fraction(4),
                  zeros: float = 0.0, lanes: int = 4) -> tuple[int, int]:
    """Cycles of a unit's FETCH and PUSH, summed over packets, with ``lanes`` words per memory row. The constants are
    fitted to gateware with a link latency of 16 cycles.

    State words and rate are as in :func:`link_cycles`. ``zeros`` is the fraction of zeros in the summed gradients,
    which PUSH does not send.
    """
    words, heads = unit.words, PACKET_OVERHEAD * -(-unit.words // SEGMENT)
    coded = words if unit.format == RAW else WEIGHT_CODECS[unit.format].max_words(words)
    fetch = max(coded + heads + WORDS, math.ceil(words / rate) + WORDS, -(-words // lanes) + ROWS)
    sums = math.ceil(words * (1 - zeros)) + -(-words // GROUP) + heads
    return fetch, max(sums + SUM + PUSH_HOP * workers, math.ceil(state_words * words / rate) + UPDATE,
                      math.ceil(state_words * (words - AHEAD) / rate) + READ + PUSH_HOP * workers)


def run_of(tasks: Sequence[Task], spans: Mapping[int, tuple[int, int]]) -> Run:
    """Return the events of a set, given each command's start and end: executions first, then moves and transfers."""
    events = []
    for task in sorted(tasks, key=lambda task: (task.queue != Queue.COMPUTE, task.place)):
        kind, *words = task.name.split()
        if kind in ("in", "out"):  # from a name such as "in forward 3 0 1"
            words = words[1:]
        if words:  # leaves out LATCH, which has no unit
            events.append(Event(kind, int(words[0]), *spans[task.place], 0))
    return Run(tuple(events))


def program_run(program: CompiledProgram, costs: Sequence[Costs], far: Far | None, *, gap: int = GAP,
                delay: int = golden.DELAY) -> Run:
    """Timeline of a set on a worker according to its program, given the cycles of each unit and the speed of the far
    memory. Moves take no time if ``far`` is None.

    Two commands of a queue are ``gap`` cycles apart. A command that has waited for another one starts ``delay``
    cycles after the other one ends.
    """
    tasks = [[instruction.task for instruction in queue] for queue in program.queues]

    def cycles(task: Task) -> int:
        kind, *words = task.name.split()
        if kind in ("in", "out"):
            length = task.fields["length"]
            assert isinstance(length, int)
            return 0 if far is None else far.cycles(length, back=kind == "in")
        return int(getattr(costs[int(words[0])], kind)) if words else 0

    spans = golden.timeline(program.timed(), gap=gap, delay=delay,
                            duration=lambda _node, _number, queue, position: cycles(tasks[queue][position]))
    return run_of(program.tasks, {tasks[span.queue][span.place].place: (span.start, span.end) for span in spans})


@dataclasses.dataclass(frozen=True)
class SetTimes:
    """Measured cycles of a set on a worker."""

    #: Timeline of FETCH, PUSH, executions and moves, in cycles since the first start. It has no window numbers.
    run: Run
    #: Cycles of each execution, keyed by ``forward`` or ``backward`` and unit number.
    executions: dict[tuple[str, int], list[int]]
    #: Number of cycles from when the first command starts until the last one ends.
    cycles: int
    #: Commands of the set.
    program: CompiledProgram

    @property
    def links(self) -> dict[tuple[str, int], int]:
        """Cycles of ``fetch`` and ``push``, keyed by unit. A unit's FETCH has the minimum of its measured cycles. A
        worker's PUSH ends before the server has updated its weights. Its cycles therefore last until the end of the
        next FETCH, minus the cycles of that FETCH. Units without a FETCH after their PUSH are omitted."""
        on_link = [event for event in self.run.events if event.kind in ("fetch", "push")]
        result: dict[tuple[str, int], int] = {}
        for event in on_link:
            if event.kind == "fetch":
                cycles = event.end - event.start
                result["fetch", event.unit] = min(cycles, result.get(("fetch", event.unit), cycles))
        for push, fetch in itertools.pairwise(on_link):
            if (push.kind, fetch.kind) == ("push", "fetch") and fetch.start <= push.end + GAP:
                result["push", push.unit] = fetch.end - push.start - GAP - result["fetch", fetch.unit]
        return result

    def costs(self, links: Sequence[tuple[int, int]]) -> list[Costs]:
        """Costs of each unit: FETCH and PUSH cycles from ``links``, and the mean cycles of its executions."""
        def mean(kind: str, unit: int) -> int:
            cycles = self.executions[kind, unit]
            return round(sum(cycles) / len(cycles))

        return [Costs(fetch, push, mean("forward", unit), mean("backward", unit))
                for unit, (fetch, push) in enumerate(links)]


def _spans(records: Sequence[TraceRecord]) -> dict[int, tuple[int, int]]:
    """Start and end of each command, keyed by tag, in cycles since the first record. Recorded times wrap around."""
    origin = records[0].time
    starts: dict[int, int] = {}
    ranges: dict[int, tuple[int, int]] = {}
    for record in records:
        time = (record.time - origin + (1 << 31)) % (1 << 32) - (1 << 31)
        if record.end:
            ranges[record.tag] = starts[record.tag], time
        else:
            starts[record.tag] = time
    return ranges


def set_times(outcome: SetOutcome) -> SetTimes:
    """Measure the cycles of a traced set. Raises ``TraceError`` if the trace lacks a command."""
    if not outcome.records:
        raise TraceError("Set must have been traced")
    spans = _spans(outcome.records)
    missing = [task.name for task in outcome.program.tasks if task.place not in spans]
    if missing:
        raise TraceError(f"Trace must have all commands of the set, and lacks {len(missing)} of them, such as "
                         f"{missing[0]}")
    run = run_of(outcome.program.tasks, spans)
    executions: dict[tuple[str, int], list[int]] = collections.defaultdict(list)
    for event in run.events:
        if event.executes:
            executions[event.kind, event.unit].append(event.end - event.start)
    return SetTimes(run, dict(executions), max(end for _, end in spans.values())
                    - min(start for start, _ in spans.values()), outcome.program)
