"""Memory plans that assign addresses to buffers so that buffers alive at the same time do not overlap.

A buffer is alive from the first operation that writes it to the last one that accesses it, inclusive. The host's
writes before a pass and its reads after the pass count as operations. Planning methods:

===========  ================================================================================================
strict       buffers are sorted by words (descending), first use and number; the first one without an address
             opens a segment above the last one, where buffers with lifetimes disjoint from its own are placed
             one after another, as long as their total words are at most its words
shared       as above, but a buffer joins at the lowest address of the segment that is free while it is alive
lowest fit   in a given order, each buffer gets the lowest address that is free while it is alive
search       repeated lowest fits; in each round, a buffer that reaches the top is moved forward in the order
===========  ================================================================================================

Instruction lists are programs on buffers, too (:class:`ListProgram`): independently of the compiler, the golden
engine decodes the words of the lists to find the buffers they access. Operands in the activation memory are mapped
from addresses to buffers, so identical lists at different addresses are the same program.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from hdl.choices import choice_error
from hdl.features.compute.layer_list import BASE_BITS, Place
from host.driver.planned_lists import PlanError
from sim.golden.features.compute.compute import Engine, Instruction, Operand, sources

__all__ = ["ORDERS", "ROUNDS", "Lifetime", "ListProgram", "Operation", "Places", "Plan", "Profile", "ProfileError",
           "Room", "live_words", "lowest_fit", "make_plan", "peak", "planned", "rooms_of", "search", "shared",
           "strict"]


class ProfileError(ValueError):
    """Raised if operations do not form a program: a buffer has no words or is read before it is written."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a program."""

    name: str
    #: Names of the buffers that the operation reads, and of the buffers that it writes.
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """Size of a buffer, and its lifetime."""

    #: Number of the first operation that writes the buffer, and 1 + number of the last one that accesses it.
    first: int
    end: int

    words: int
    name: str = ""

    def __post_init__(self) -> None:
        if self.first < 0 or self.end <= self.first:
            raise ValueError(f"Lifetime must begin at 0 or later and end behind its begin, not "
                             f"{(self.first, self.end)!r}")
        if self.words < 1:
            raise ValueError(f"Words of a buffer must be at least 1, not {self.words!r}")

    def meets(self, other: "Lifetime") -> bool:
        """Return whether both buffers are alive at the same time."""
        return self.first < other.end and other.first < self.end


@dataclasses.dataclass(frozen=True)
class Profile:
    """A program that operates on named buffers.

    Raises ``ProfileError`` if a buffer has no words, is read before it is written, or is never written.
    """

    #: Number of words in each buffer, keyed by name.
    words: Mapping[str, int]
    operations: Sequence[Operation]

    def __post_init__(self) -> None:
        written: set[str] = set()
        for operation in self.operations:
            for name in (*operation.reads, *operation.writes):
                if name not in self.words:
                    raise ProfileError(f"Buffer {name} of {operation.name} must have a number of words")
            for name in operation.reads:
                if name not in written:
                    raise ProfileError(f"Buffer {name} must be written before {operation.name} reads it")
            written |= set(operation.writes)
        for name in self.words:
            if name not in written:
                raise ProfileError(f"Buffer {name} must be written by some operation")

    @functools.cached_property
    def lifetimes(self) -> tuple[Lifetime, ...]:
        """Lifetimes of all buffers, in the order of :attr:`words`."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, operation in enumerate(self.operations):
            for name in operation.writes:
                first.setdefault(name, number)
            last |= dict.fromkeys((*operation.reads, *operation.writes), number)
        return tuple(Lifetime(first[name], last[name] + 1, words, name) for name, words in self.words.items())

    @property
    def naive(self) -> int:
        """Number of words needed if buffers do not share addresses."""
        return sum(self.words.values())

    @property
    def live(self) -> int:
        """Maximum number of words alive at any time, which is a lower bound for every plan."""
        return live_words(self.lifetimes)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of buffers and operations; does not depend on addresses or operation names."""
        text = json.dumps([list(self.words.items()), [[entry.reads, entry.writes] for entry in self.operations]])
        return hashlib.sha256(text.encode()).hexdigest()


def live_words(lifetimes: Sequence[Lifetime]) -> int:
    """Return the maximum number of words alive at any time."""
    begins = {span.first for span in lifetimes}
    return max((sum(span.words for span in lifetimes if span.first <= time < span.end) for time in begins), default=0)


Places = list[int]
Buffers = Sequence[Lifetime]

#: Sort keys for placing buffers one by one at the lowest free address; buffers with equal keys are sorted by number.
ORDERS: Mapping[str, Callable[[Lifetime], tuple[int, ...]]] = MappingProxyType({
    "first use": lambda one: (one.first,),
    "words": lambda one: (-one.words, one.first),
    "words times lifetime": lambda one: (-one.words * (one.end - one.first), one.first),
    "lifetime": lambda one: (one.first - one.end, one.first),
})

#: Number of buffer orders that a search tries.
ROUNDS = 2000


def _ordered(buffers: Buffers, key: Callable[[Lifetime], tuple[int, ...]]) -> list[int]:
    """Return buffer numbers sorted by a key of :data:`ORDERS`."""
    return sorted(range(len(buffers)), key=lambda number: key(buffers[number]))


def peak(buffers: Buffers, places: Sequence[int]) -> int:
    """Return the number of words that buffers at the given addresses need."""
    return max((address + buffer.words for buffer, address in zip(buffers, places, strict=True)), default=0)


def _lowest(buffer: Lifetime, neighbours: Iterable[tuple[Lifetime, int]]) -> int:
    """Return the lowest address that is free throughout a buffer's lifetime."""
    address = 0
    for other, base in sorted((taken for taken in neighbours if taken[0].meets(buffer)), key=lambda taken: taken[1]):
        if address + buffer.words <= base:
            break
        address = max(address, base + other.words)
    return address


def _segments(buffers: Buffers, join: Callable[[Lifetime, Sequence[tuple[Lifetime, int]]], int]) -> Places:
    """Open segments for the largest buffers, and place other buffers in them at the offsets that ``join`` returns."""
    order = _ordered(buffers, ORDERS["words"])
    places: dict[int, int] = {}
    top = 0
    for number in order:
        if number in places:
            continue
        opener, guests = buffers[number], list[tuple[Lifetime, int]]()
        places[number] = top
        for other in (other for other in order if other not in places and not buffers[other].meets(opener)):
            offset = join(buffers[other], guests)
            if offset + buffers[other].words <= opener.words:
                guests.append((buffers[other], offset))
                places[other] = top + offset
        top += opener.words
    return [places[number] for number in range(len(buffers))]


def strict(buffers: Buffers) -> Places:
    """Place buffers by the rule ``strict``."""
    return _segments(buffers, lambda buffer, guests: sum(guest.words for guest, _ in guests))


def shared(buffers: Buffers) -> Places:
    """Place buffers by the rule ``shared``."""
    return _segments(buffers, _lowest)


def lowest_fit(buffers: Buffers, order: Iterable[int]) -> Places:
    """Assign each buffer, in the given ``order``, the lowest free address."""
    placed: list[tuple[Lifetime, int]] = []
    places = [0] * len(buffers)
    for number in order:
        places[number] = _lowest(buffers[number], placed)
        placed.append((buffers[number], places[number]))
    return places


def search(buffers: Buffers, *, rounds: int = ROUNDS) -> Places:
    """Place buffers in the best of many orders.

    In each round, a buffer that reaches the end of the used memory moves forward to a random position in the order;
    the new order is kept if it needs no more words. The search ends early when it reaches the lower bound.
    """
    fits = [(order, lowest_fit(buffers, order)) for order in (_ordered(buffers, key) for key in ORDERS.values())]
    order, places = min(fits, key=lambda fit: peak(buffers, fit[1]))
    best, top = places, peak(buffers, places)
    bound, generator = live_words(buffers), np.random.default_rng(0)
    for _ in range(rounds):
        touching = [rank for rank, number in enumerate(order)
                    if rank and places[number] + buffers[number].words == top]
        if top == bound or not touching:
            break
        rank = int(generator.choice(touching))
        other = [*order]
        other.insert(int(generator.integers(rank)), other.pop(rank))
        tried = lowest_fit(buffers, other)
        if peak(buffers, tried) <= top:
            order, places = other, tried
        if peak(buffers, tried) < top:
            best, top = tried, peak(buffers, tried)
    return best


def planned(buffers: Buffers, *, rounds: int = ROUNDS) -> dict[str, Places]:
    """Place buffers with every method: strict, shared, lowest fits and a search."""
    return {"strict": strict(buffers), "shared": shared(buffers),
            **{f"lowest fit by {name}": lowest_fit(buffers, _ordered(buffers, key)) for name, key in ORDERS.items()},
            "search": search(buffers, rounds=rounds)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Memory plan: buffer addresses for one particular program."""

    #: Digest of the program.
    digest: str
    method: str
    #: Number of words and first word of each buffer, keyed by name.
    words: Mapping[str, int]
    places: Mapping[str, int]

    lifetimes: tuple[Lifetime, ...]

    @property
    def peak(self) -> int:
        """Number of words that the plan needs."""
        return max((self.places[name] + words for name, words in self.words.items()), default=0)

    @property
    def line(self) -> str:
        """One-line description of the plan."""
        naive = sum(self.words.values())
        return (f"activations: planned, {self.peak:,} words ({self.method}), with a place for each buffer {naive:,}: "
                f"{(naive - self.peak) / naive:.1%} fewer")

    def check(self, profile: Profile, *, budget: int | None = None) -> None:
        """Raise ``PlanError`` if the plan is for another program or exceeds the budget."""
        if profile.digest != self.digest:
            raise PlanError(f"Program must be the one of its memory plan, {self.digest[:16]}, not "
                            f"{profile.digest[:16]}{_difference(self.words, profile)}: plan its memory again")
        if budget is not None and self.peak > budget:
            raise PlanError(f"Memory plan must take at most the {budget:,} words there are, not {self.peak:,}")


def _difference(words: Mapping[str, int], profile: Profile) -> str:
    """Describe the first buffer that differs between two programs, for an error message."""
    for name in itertools.chain(words, profile.words):
        if words.get(name) != profile.words.get(name):
            expected, other = (f"{count:,} words" if count else "none" for count in (words.get(name),
                                                                                 profile.words.get(name)))
            return f" (buffer {name}: planned {expected}, used {other})"
    return " (the same buffers, in other operations)"


def make_plan(profile: Profile, *, method: str | None = None, rounds: int = ROUNDS) -> Plan:
    """Plan a program's memory with the given method or, by default, the one that needs the fewest words.

    Ties are broken in this order: lowest fits, search, shared, strict.
    """
    places = planned(profile.lifetimes, rounds=rounds)
    if method is None:
        method = min(places, key=lambda name: (peak(profile.lifetimes, places[name]), name in ("strict", "shared")))
    elif method not in places:
        raise ValueError(choice_error("Method of a plan", places, method))
    return Plan(digest=profile.digest, method=method, words=dict(profile.words), lifetimes=profile.lifetimes,
                places=dict(zip(profile.words, places[method], strict=True)))


_ELEMENTS = 1 << BASE_BITS  # maximum number of weights or gradients an operand can address


@dataclasses.dataclass(frozen=True)
class Room:
    """A buffer's address range and the operations of its lifetime."""

    base: int
    words: int
    #: Range of operations, as in :class:`~host.features.compute.memory.plan.Lifetime`; default: all operations.
    first: int = 0
    end: int | None = None

    def has(self, operand: Operand, number: int) -> bool:
        """Return whether the buffer is alive at operation ``number`` and its address range contains ``operand``."""
        return (self.first <= number and (self.end is None or number < self.end)
                and self.base <= operand.base and operand.end <= self.base + self.words)


def rooms_of(plan: Plan) -> dict[str, Room]:
    """Return address range and lifetime of each of a plan's buffers, keyed by name."""
    return {span.name: Room(plan.places[span.name], span.words, span.first, span.end) for span in plan.lifetimes}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ListProgram:
    """Instruction lists of a pass, as written to the activation memory."""

    words: npt.NDArray[np.uint32]  # words of all instruction lists
    base: int  # address of the first instruction list
    starts: Sequence[int]  # address of each list, in execution order
    examples: int  # maximum number of examples of a command
    #: Buffers that the host writes before the pass, and buffers that it reads after it. The buffers that the host
    #: writes stay intact until the end of the pass, so that the pass can be repeated.
    given: Sequence[str]
    taken: Sequence[str]
    further: int = 0  # offset added to the addresses of ``given``, in elements

    @property
    def end(self) -> int:
        """Address of the first word after the last instruction list."""
        return self.base + len(self.words)

    def lists(self, engine: Engine) -> Iterator[list[Instruction]]:
        """Yield the instructions of each list in execution order. Raises ``PlanError`` for an invalid instruction."""
        activations = np.zeros(self.base + len(self.words), np.uint32)
        activations[self.base:] = self.words
        elsewhere = np.broadcast_to(np.uint32(0), _ELEMENTS)
        memories = {Place.ACTIVATIONS: activations, Place.WEIGHTS: elsewhere, Place.GRADIENTS: elsewhere}
        for start in self.starts:
            instructions, wrong = engine.check(memories, base=start, length=self.examples)
            if wrong is not None:
                raise PlanError(f"List at {start:,} must be one that nodes run, and its instruction {wrong} is wrong")
            yield list(instructions)

    def profile(self, rooms: Mapping[str, Room], engine: Engine) -> Profile:
        """Build the program for buffers at given addresses, omitting instructions that do not access any buffer.

        Raises ``PlanError`` if an instruction is invalid or accesses words outside a single range.
        """
        operations = [Operation("the host gives", writes=tuple(self.given))]
        for instruction in itertools.chain(*self.lists(engine)):
            number = len(operations)
            reads, writes = (tuple(sorted({self._room(op, number, rooms) for op in side if self._is_buffer(op)}))
                             for side in (sources(instruction), instruction.targets))
            if reads or writes:
                operations.append(Operation(f"operation {number}", reads, writes))
        operations.append(Operation("the host takes", reads=(*self.given, *self.taken)))
        return Profile({name: room.words for name, room in rooms.items()}, operations)

    def check(self, plan: Plan, engine: Engine) -> None:
        """Raise ``PlanError`` if the instruction lists are not the plan's program or overlap the plan's words."""
        plan.check(self.profile(rooms_of(plan), engine), budget=self.base - self.further)

    def _is_buffer(self, operand: Operand) -> bool:
        """Return whether an operand is a buffer; codebook indices, which are stored with the lists, are not."""
        return operand.place is Place.ACTIVATIONS and not (self.base <= operand.base and operand.end <= self.end)

    def _room(self, operand: Operand, number: int, rooms: Mapping[str, Room]) -> str:
        """Return the name of the buffer that contains an operand."""
        near = dataclasses.replace(operand, base=operand.base - self.further)
        names = [name for name, room in rooms.items() if room.has(near if name in self.given else operand, number)]
        if len(names) != 1:
            raise PlanError(f"Operation {number} must touch one buffer of the memory plan with words "
                            f"{operand.base:,} to {operand.end:,}, not {' and '.join(names) or 'none'}: plan its "
                            f"memory again")
        return names[0]
