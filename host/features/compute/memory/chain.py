"""Chains of saved activation maps that exceed the memory: modelled time, and the fastest policies.

Forward l reads map l - 1 and writes map l; backward l reads both and then frees map l. The loss is computed between
the last forward and the first backward. The input of map 0 is always available. A map is kept, swapped (moved to far
memory and back), or remade (dropped, and recomputed from the nearest earlier map that is kept or swapped). The maps
in between are also recomputed, once each, and remain in memory until their backward has ended. A map may specify that
it reads other maps instead of the previous one.

Near memory is allocated in the order in which it is needed: first for the forward maps, then, for each backward, for
the maps that it needs and that are not in memory. All moves out precede the moves back. A map is moved out as soon as
it is written, and moved back, in allocation order, when words for it are free. A swapped or remade map releases its
words after its last use by forward and its move out, and again after its backward. All times are modelled.

The policies of a chain of up to ten maps are searched exhaustively. Longer chains are searched greedily: starting
from pure plans (all maps swapped, or every n-th map kept and the maps in between recomputed), single policies are
changed as long as this reduces the cycles of the step.

In a program of steps, a map is a buffer of more than one column that is written before the turn, the last step of
the loss, and read after it. Row vectors, which have one column, are always kept as well.
"""

import dataclasses
import enum
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from host.features.compute.memory.steps import StepProgram, product_cycles
from sim.golden.queues import Queues

__all__ = ["AGAIN", "EXHAUSTIVE", "KINDS", "Chain", "Decision", "Event", "Map", "MapPlan", "Policies", "Policy",
           "Run", "Saved", "chain_of", "decide", "exhaustive", "greedy", "layers_chain", "run"]


class Policy(enum.IntEnum):
    """Treatment of an activation map between its forward and backward pass: kept, swapped or recomputed."""

    KEEP = 0
    SWAP = 1
    REMAKE = 2


Policies = Sequence[Policy]


@dataclasses.dataclass(frozen=True)
class Map:
    """An activation map that is saved for the backward pass: its size, and the cost of computing it."""

    words: int
    #: Duration of the forward pass and of the backward pass in cycles.
    forward: int
    backward: int
    #: Multiply-adds needed to recompute the map.
    multiplications: int = 0
    name: str = ""
    #: Cycles needed to recompute the map; by default, the cycles of the forward pass.
    again: int | None = None
    #: Numbers of the earlier maps that the forward and backward passes read, and of the maps needed to recompute the
    #: map; by default only the previous map.
    sources: tuple[int, ...] | None = None
    needs: tuple[int, ...] | None = None
    reads: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain of saved activation maps, in the order of the forward pass."""

    name: str
    maps: tuple[Map, ...]
    #: Duration of the loss computation in cycles, between the last forward and the first backward.
    loss: int = 0
    #: Numbers of the maps that the loss reads; by default, only the last map.
    loss_reads: tuple[int, ...] | None = None

    @property
    def words(self) -> int:
        """Total number of words of all activation maps."""
        return sum(saved.words for saved in self.maps)

    @property
    def cycles(self) -> int:
        """Number of cycles of a training step that keeps all activation maps."""
        return self.loss + sum(saved.forward + saved.backward for saved in self.maps)

    def again(self, number: int) -> int:
        """Cycles needed to recompute an activation map."""
        saved = self.maps[number]
        return saved.forward if saved.again is None else saved.again

    def needs(self, number: int) -> tuple[int, ...]:
        """Numbers of the activation maps needed to recompute a map."""
        return _before(number, self.maps[number].needs)

    def reads(self, number: int) -> tuple[int, ...]:
        """Numbers of the activation maps that the backward pass of a map reads."""
        return (number, *_before(number, self.maps[number].reads))

    def reader(self, number: int) -> tuple[str, int]:
        """Last step before the backward pass that reads a map: a forward step (by default its own) or the loss."""
        last = len(self.maps) - 1
        if number in ((last,) if self.loss_reads is None else self.loss_reads):
            return "loss", last
        return "forward", max((later for later, saved in enumerate(self.maps)
                               if number in _before(later, saved.sources)), default=number)


@dataclasses.dataclass(frozen=True)
class Event:
    """A computation or a move of an activation map, on the timeline of a step."""

    #: ``forward``, ``loss``, ``remake``, ``backward``, ``out`` or ``back``.
    kind: str
    #: Number of the map.
    number: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Run:
    """Timeline of a training step with saved activation maps, and the costs of the step."""

    cycles: int
    #: Maximum number of words in use at the same time.
    peak: int
    #: Words moved to and from far memory.
    far_words: int
    #: Multiply-adds of all activation maps that are recomputed.
    multiplications: int
    #: Events in the order of their starts.
    events: tuple[Event, ...]


def _before(number: int, named: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return ``named`` or, if it is None, only the map before ``number``, if there is one."""
    return named if named is not None else (number - 1,) if number else ()


def _work(chain: Chain, policies: Policies) -> Iterator[tuple[str, int]]:
    """Yield the computations of a training step in order, as pairs (kind, map number)."""
    count = len(policies)
    yield from (("forward", number) for number in range(count))
    yield "loss", count - 1
    made = {number for number, policy in enumerate(policies) if policy is not Policy.REMAKE}

    def make(number: int) -> Iterator[tuple[str, int]]:
        if number not in made:
            made.add(number)
            for needed in chain.needs(number):
                yield from make(needed)
            yield "remake", number

    for number in reversed(range(count)):
        for needed in chain.reads(number):
            yield from make(needed)
        yield "backward", number


class _Places:
    """Allocator for near memory; grants requests in order."""

    def __init__(self, budget: int, wanted: Sequence[tuple[str, int, int]]):
        self._wanted = wanted
        self._next = 0
        self.free = budget
        self.least = budget
        self.given: set[tuple[str, int]] = set()

    def give(self) -> None:
        """Grant memory requests in order for as long as they fit."""
        while self._next < len(self._wanted) and self._wanted[self._next][2] <= self.free:
            kind, number, words = self._wanted[self._next]
            self.free -= words
            self.given.add((kind, number))
            self._next += 1
        self.least = min(self.least, self.free)


class _Step:
    """State of a simulated training step: computations, moves between memories, and the activation maps in memory."""

    def __init__(self, chain: Chain, policies: Policies, budget: int, rate: float):
        self._chain = chain
        self._maps = chain.maps
        self._policies = policies
        self._rate = rate
        self.work = list(_work(chain, policies))
        self._readers = [chain.reader(number) for number in range(len(chain.maps))]
        self._swapped = [number for number, policy in enumerate(policies) if policy is Policy.SWAP]
        wanted = list(self._wanted())
        self.places = _Places(budget, wanted)
        self.moves = [*(("out", number) for number in self._swapped),
                      *(("back", number) for kind, number, _ in wanted if kind == "back")]
        self.done: set[tuple[str, int]] = set()
        self._ready: set[int] = set()  # maps in memory for the backward pass

    def _wanted(self) -> Iterator[tuple[str, int, int]]:
        """Yield memory requests as (purpose, map number, number of words), in the order in which they are needed."""
        back = set(self._swapped)
        for kind, number in self.work:
            for needed in self._needed(kind, number):
                if needed in back:
                    back.remove(needed)
                    yield "back", needed, self._maps[needed].words
            if kind in ("forward", "remake"):
                yield kind, number, self._maps[number].words

    def _needed(self, kind: str, number: int) -> tuple[int, ...]:
        """Return the activation maps needed by a computation that follows the loss."""
        reads = {"backward": self._chain.reads, "remake": self._chain.needs}
        return reads[kind](number) if kind in reads else ()

    def cycles(self, kind: str, number: int) -> int:
        """Return the duration in cycles of a computation, or of moving an activation map."""
        if kind in ("out", "back"):
            return -int(-self._maps[number].words // self._rate)
        saved = self._maps[number]
        return {"forward": saved.forward, "remake": self._chain.again(number), "backward": saved.backward,
                "loss": self._chain.loss}[kind]

    def may_start(self, kind: str, number: int) -> bool:
        """Return whether the activation maps and the memory for an event are available once all earlier work has
        ended."""
        if kind == "out":
            return ("forward", number) in self.done
        if kind == "back":
            return (kind, number) in self.places.given
        if kind in ("forward", "remake") and (kind, number) not in self.places.given:
            return False
        return all(needed in self._ready for needed in self._needed(kind, number))

    def end(self, kind: str, number: int) -> None:
        """Record the end of a computation or a move."""
        self.done.add((kind, number))
        if kind in ("remake", "back") or (kind == "forward" and self._policies[number] is Policy.KEEP):
            self._ready.add(number)
        if kind == "backward":
            self._free(number)
        elif kind in ("forward", "loss"):
            for index, reader in enumerate(self._readers):
                if reader == (kind, number):
                    self._leave(index)
        elif kind == "out":
            self._leave(number)

    def _leave(self, number: int) -> None:
        """Free the memory of an activation map that is not kept, once it has been read and, if it is swapped, moved
        out."""
        policy = self._policies[number]
        if self._readers[number] in self.done and (
                policy is Policy.REMAKE or (policy is Policy.SWAP and ("out", number) in self.done)):
            self._free(number)

    def _free(self, number: int) -> None:
        self.places.free += self._maps[number].words


def run(chain: Chain, policies: Policies, *, budget: int, rate: float = 1.0, most: int | None = None) -> Run | None:
    """Simulate a step; return None if its maps do not fit, or if it takes more than ``most`` cycles.

    Parameters
    ----------
    budget : int
        Number of words of near memory.
    rate : float
        Far-memory bandwidth in words per cycle.
    most : int, optional
        Number of cycles after which the simulation is abandoned.
    """
    if len(policies) != len(chain.maps):
        raise ValueError(f"Policies must be one per map, {len(chain.maps)}, not {len(policies)}")
    if not rate > 0:
        raise ValueError(f"Rate of far memory must be above zero, not {rate!r}")
    step = _Step(chain, policies, budget, rate)
    works = (step.work, step.moves)
    queues = Queues([len(work) for work in works])
    events: list[Event] = []

    def ready(queue: int, index: int) -> int | None:
        return queues.now if step.may_start(*works[queue][index]) else None

    def cycles(queue: int, index: int) -> int:
        kind, number = works[queue][index]
        count = step.cycles(kind, number)
        events.append(Event(kind, number, queues.now, queues.now + count))
        return count

    def ended(items: Sequence[tuple[int, int]]) -> None:
        for queue, index in items:
            step.end(*works[queue][index])
        step.places.give()

    step.places.give()
    if not queues.run(ready=ready, cycles=cycles, ended=ended, limit=most):
        return None
    moved = sum(chain.maps[event.number].words for event in events if event.kind in ("out", "back"))
    again = sum(chain.maps[event.number].multiplications for event in events if event.kind == "remake")
    return Run(cycles=queues.now, peak=budget - step.places.least, far_words=moved, multiplications=again,
               events=tuple(events))


#: Maximum number of activation maps in a chain that is searched exhaustively.
EXHAUSTIVE = 10

#: Policies that may be used, keyed by the kind of plan.
KINDS: Mapping[str, tuple[Policy, ...]] = MappingProxyType({
    "keep": (Policy.KEEP,), "swap": (Policy.KEEP, Policy.SWAP), "recompute": (Policy.KEEP, Policy.REMAKE),
    "mixed": tuple(Policy)})


@dataclasses.dataclass(frozen=True)
class Decision:
    """Policies chosen for all activation maps of a chain, and the resulting timeline."""

    policies: tuple[Policy, ...]
    run: Run


@dataclasses.dataclass(frozen=True)
class MapPlan:
    """Plan that fits a chain's saved activation maps into a budget of words."""

    chain: Chain
    #: Policies of all activation maps, and the resulting timeline.
    decision: Decision
    #: Maximum number of words that activation maps may occupy in the activation memory at any time.
    budget: int

    def __post_init__(self) -> None:
        maps, policies, peak = len(self.chain.maps), len(self.decision.policies), self.decision.run.peak
        if maps != policies:
            raise ValueError(f"Policies must be one for each of {maps} maps, not {policies}")
        if peak > self.budget:
            raise ValueError(f"Timeline must take at most the {self.budget:,} words of the budget, not {peak:,}")


def _best(chain: Chain, candidates: Iterable[Policies], budget: int, rate: float,
          best: Decision | None = None) -> Decision | None:
    """Return ``best`` or, if faster, the fastest candidate that fits; on a tie, the first one."""
    for policies in candidates:
        most = None if best is None else best.run.cycles
        again = sum(chain.again(number) for number, policy in enumerate(policies) if policy is Policy.REMAKE)
        if most is not None and chain.cycles + again >= most:
            continue
        timeline = run(chain, policies, budget=budget, rate=rate, most=most)
        if timeline is not None:
            best = Decision(tuple(policies), timeline)
    return best


def exhaustive(chain: Chain, *, budget: int, rate: float, kind: str = "mixed") -> Decision | None:
    """Try all plans of a kind; return the fastest one that fits, or None if there is none."""
    by_cost = sorted(itertools.product(KINDS[kind], repeat=len(chain.maps)),
                     key=lambda policies: sum(policy is not Policy.KEEP for policy in policies))
    return _best(chain, by_cost, budget, rate)


def _pure(chain: Chain, kind: str) -> Iterator[Policies]:
    """Yield the pure plans of a kind, which treat all activation maps by a single rule."""
    count = len(chain.maps)
    yield [Policy.KEEP] * count
    if Policy.SWAP in KINDS[kind]:
        yield [Policy.SWAP] * count
    if Policy.REMAKE in KINDS[kind]:
        for every in range(2, count + 1):
            for first in range(every):
                yield [Policy.KEEP if number % every == first else Policy.REMAKE for number in range(count)]


def _changed(policies: Policies, allowed: Sequence[Policy]) -> Iterator[Policies]:
    """Yield all plans that change the policy of exactly one activation map compared to ``policies``."""
    for number, policy in enumerate(policies):
        for other in allowed:
            if other is not policy:
                yield [*policies[:number], other, *policies[number + 1:]]


def greedy(chain: Chain, *, budget: int, rate: float, kind: str = "mixed") -> Decision | None:
    """Improve pure plans by changing single policies; return the fastest plan, or None if none fits."""
    best: Decision | None = None
    starts = [decision for policies in _pure(chain, kind)
              if (decision := _best(chain, [policies], budget, rate)) is not None]
    for start in starts:
        current: Decision | None = start
        while current is not None:
            best = current if best is None or current.run.cycles < best.run.cycles else best
            other = _best(chain, _changed(current.policies, KINDS[kind]), budget, rate, current)
            current = None if other is current else other
    return best


def decide(chain: Chain, *, budget: int, rate: float, kind: str = "mixed") -> Decision | None:
    """Choose a policy for each map of a chain: by exhaustive search for up to :data:`EXHAUSTIVE` maps, otherwise
    greedily."""
    search = exhaustive if len(chain.maps) <= EXHAUSTIVE else greedy
    return search(chain, budget=budget, rate=rate, kind=kind)


#: Suffix of a recomputed buffer's name; its contents are bit-identical to the original buffer.
AGAIN = " again"


class _Touches(Protocol):
    """Step or operation that lists the buffers it reads and writes."""

    @property
    def reads(self) -> tuple[str, ...]: ...

    @property
    def writes(self) -> tuple[str, ...]: ...


class Saved:
    """Activation maps that a program saves for the backward pass, and the steps that write and read them.

    Parameters
    ----------
    steps : sequence
        Steps in order; ``reads`` and ``writes`` of a step are buffer names.
    turn : str
        Buffer that is written by the last step of the loss.
    vectors, given : collection of str
        Buffers that do not count as maps; buffers that are always available.
    """

    def __init__(self, steps: Sequence[_Touches], turn: str, *, vectors: Collection[str],
                 given: Iterable[str] = ()):
        self._steps = steps
        #: Index of the last step that computes the loss.
        self.turn = max(number for number, step in enumerate(steps) if turn in step.writes)
        self._writers: dict[str, list[int]] = {}
        last: dict[str, int] = {}
        for number, step in enumerate(steps):
            for name in step.writes:
                self._writers.setdefault(name, []).append(number)
            last |= dict.fromkeys(step.reads, number)
        across = [name for name, numbers in self._writers.items() if numbers[0] < self.turn < last.get(name, 0)]
        ends = {name: max(number for number in self._writers[name] if number < self.turn) for name in across}
        #: Names of the activation maps, in forward order.
        self.maps = sorted((name for name in across if name not in vectors), key=lambda name: ends[name])
        #: Names of the saved buffers that do not count as activation maps.
        self.beside = {name for name in across if name in vectors}
        self._there = {*across, *given}
        self._number = {name: number for number, name in enumerate(self.maps)}
        self._begins = [0, *(ends[name] + 1 for name in self.maps)]
        freed = [last[name] for name in self.maps]
        self._lasts = [len(steps) - 1, *(max(freed[number:]) for number in range(1, len(freed)))]

    @property
    def loss(self) -> range:
        """Steps of the loss, which follow the last forward pass and precede the first backward pass."""
        return range(self._begins[-1], self.turn + 1)

    def forward(self, number: int) -> range:
        """Steps of an activation map's forward pass, which follow the forward steps of the previous map."""
        return range(self._begins[number], self._begins[number + 1])

    def backward(self, number: int) -> range:
        """Steps of an activation map's backward pass, up to the last step that reads the map."""
        behind = self._lasts[number + 1] if number + 1 < len(self._lasts) else self.turn
        return range(behind + 1, self._lasts[number] + 1)

    def again(self, name: str) -> list[int]:
        """Steps that recompute a buffer from saved and given buffers, in an order that respects dependencies."""
        result: list[int] = []
        twin = name + AGAIN
        for writer in self._writers[name if name in self._there or twin not in self._writers else twin]:
            for read in self._steps[writer].reads:
                if read not in self._there and read != name:
                    result += [step for step in self.again(read) if step not in result]
            result.append(writer)
        return result

    def earlier(self, steps: Iterable[int], number: int) -> tuple[int, ...]:
        """Numbers of the activation maps that the given steps read and that precede map ``number``."""
        read = {self._number.get(name, number) for step in steps for name in self._steps[step].reads}
        return tuple(sorted(index for index in read if index < number))

    def chain(self, name: str, *, words: Callable[[str], int], cycles: Callable[[Sequence[int]], int],
              multiplications: Callable[[int], int]) -> Chain:
        """Build the chain of saved activation maps. ``words`` returns the size of a buffer, ``cycles`` the duration
        of consecutive steps, and ``multiplications`` the number of multiply-adds of a step."""
        maps = []
        for number, key in enumerate(self.maps):
            forward, backward, again = self.forward(number), self.backward(number), self.again(key)
            maps.append(Map(
                name=key, words=words(key), forward=cycles(forward), backward=cycles(backward), again=cycles(again),
                multiplications=sum(map(multiplications, again)), sources=self.earlier(forward, number),
                needs=self.earlier(again, number), reads=self.earlier(backward, number)))
        return Chain(name, tuple(maps), loss=cycles(self.loss), loss_reads=self.earlier(self.loss, len(self.maps)))


def chain_of(program: StepProgram, *, name: str, turn: str) -> Chain:
    """Build the chain of buffers that are written before the step that writes ``turn`` and read after it."""
    steps = program.steps
    saved = Saved(steps, turn, given=program.given,
                  vectors=[buffer for buffer, (_, columns) in program.shapes.items() if columns == 1])
    return saved.chain(name, words=program.profile.words.__getitem__,
                       cycles=lambda numbers: sum(steps[step].cycles for step in numbers),
                       multiplications=lambda step: steps[step].multiplications)


def layers_chain(count: int, *, width: int, examples: int, outputs: int = 10) -> Chain:
    """Build a chain of layers of equal size, with one product per layer in the forward pass and two in the backward
    pass. The output layer counts as the loss."""
    forward = product_cycles(examples, width, width)
    layer = Map(examples * width, forward, 2 * forward, examples * width ** 2)
    return Chain(f"{count} maps of {width}, batch {examples}", (layer,) * count,
                 loss=product_cycles(examples, width, outputs, count=3))
