"""Plans of memory: a place for each buffer, so that buffers which are alive at the same time do not overlap.

A buffer is alive from the first operation that writes it to the last one that touches it, inclusive. Writes of the
host before a pass, and its reads after it, are operations as well. Places follow from lifetimes:

===========  ================================================================================================
strict       by words descending, first use and number, the largest buffer without a place opens a segment
             above the last; each buffer with a lifetime disjoint from the opener's joins after the buffers
             that have joined, as long as their words together are at most the opener's
shared       the same, but a buffer joins at the lowest address of the segment that is free while it is alive
lowest fit   in some order, each buffer goes to the lowest address that is free while it is alive
search       the best lowest fit, where buffers that touch the top are moved forward in the order
===========  ================================================================================================

Lists of instructions are programs of buffers as well (:class:`ListProgram`): the golden engine decodes the buffers
that they touch from their words, without the code that made them. Operands in the activation memory become buffers by
a map of places, so that the same lists at other places are the same program.
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
    """Operations are not a program: a buffer is read before it is written, or has no words."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """Operation of a program."""

    name: str
    #: Names of buffers.
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """Words of a buffer, and its lifetime."""

    #: Number of the operation that writes the buffer first, and of the one after the last that touches it.
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
        """Whether both buffers are alive at some operation."""
        return self.first < other.end and other.first < self.end


@dataclasses.dataclass(frozen=True)
class Profile:
    """Program with named buffers.

    Raises ``ProfileError``: a buffer has no words, is read before it is written, or is never written.
    """

    #: Words of each buffer, by name.
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
        """Words of all buffers without shared places."""
        return sum(self.words.values())

    @property
    def live(self) -> int:
        """Maximum number of live words: no plan takes fewer."""
        return live_words(self.lifetimes)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of buffers and operations, without places and without names of operations."""
        text = json.dumps([list(self.words.items()), [[entry.reads, entry.writes] for entry in self.operations]])
        return hashlib.sha256(text.encode()).hexdigest()


def live_words(lifetimes: Sequence[Lifetime]) -> int:
    """Maximum number of live words."""
    begins = {span.first for span in lifetimes}
    return max((sum(span.words for span in lifetimes if span.first <= time < span.end) for time in begins), default=0)


Places = list[int]
Buffers = Sequence[Lifetime]

#: Orders of lowest fits: keys that buffers are sorted by. Equal buffers keep the order of their numbers.
ORDERS: Mapping[str, Callable[[Lifetime], tuple[int, ...]]] = MappingProxyType({
    "first use": lambda one: (one.first,),
    "words": lambda one: (-one.words, one.first),
    "words times lifetime": lambda one: (-one.words * (one.end - one.first), one.first),
    "lifetime": lambda one: (one.first - one.end, one.first),
})

#: Orders that a search tries.
ROUNDS = 2000


def _ordered(buffers: Buffers, key: Callable[[Lifetime], tuple[int, ...]]) -> list[int]:
    """Numbers of buffers, in an order of :data:`ORDERS`."""
    return sorted(range(len(buffers)), key=lambda number: key(buffers[number]))


def peak(buffers: Buffers, places: Sequence[int]) -> int:
    """Words that a plan takes."""
    return max((address + buffer.words for buffer, address in zip(buffers, places, strict=True)), default=0)


def _lowest(buffer: Lifetime, neighbours: Iterable[tuple[Lifetime, int]]) -> int:
    """Lowest address of a buffer that is free of other buffers which are alive with it."""
    address = 0
    for other, base in sorted((taken for taken in neighbours if taken[0].meets(buffer)), key=lambda taken: taken[1]):
        if address + buffer.words <= base:
            break
        address = max(address, base + other.words)
    return address


def _segments(buffers: Buffers, join: Callable[[Lifetime, Sequence[tuple[Lifetime, int]]], int]) -> Places:
    """Places in segments that the largest buffers open; ``join`` gives the address of a guest in a segment."""
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
    """Places by the rule ``strict``."""
    return _segments(buffers, lambda buffer, guests: sum(guest.words for guest, _ in guests))


def shared(buffers: Buffers) -> Places:
    """Places by the rule ``shared``."""
    return _segments(buffers, _lowest)


def lowest_fit(buffers: Buffers, order: Iterable[int]) -> Places:
    """Lowest free address of each buffer, in an order of their numbers."""
    placed: list[tuple[Lifetime, int]] = []
    places = [0] * len(buffers)
    for number in order:
        places[number] = _lowest(buffers[number], placed)
        placed.append((buffers[number], places[number]))
    return places


def search(buffers: Buffers, *, rounds: int = ROUNDS) -> Places:
    """Places of the best of many orders.

    In each round a buffer that touches the top is moved forward in the order, to a random place; an order that takes
    no more words than the last one is kept. The search ends at the bound; no plan takes fewer words.
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
    """Places by all methods: strict, shared, lowest fits, and a search."""
    return {"strict": strict(buffers), "shared": shared(buffers),
            **{f"lowest fit by {name}": lowest_fit(buffers, _ordered(buffers, key)) for name, key in ORDERS.items()},
            "search": search(buffers, rounds=rounds)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Places of a program's buffers, only for this program."""

    #: Digest of the program.
    digest: str
    method: str
    #: Words and first word of each buffer, by name.
    words: Mapping[str, int]
    places: Mapping[str, int]

    lifetimes: tuple[Lifetime, ...]

    @property
    def peak(self) -> int:
        """Words that the plan takes."""
        return max((self.places[name] + words for name, words in self.words.items()), default=0)

    @property
    def line(self) -> str:
        """The plan in a line."""
        naive = sum(self.words.values())
        return (f"activations: planned, {self.peak:,} words ({self.method}), with a place for each buffer {naive:,}: "
                f"{(naive - self.peak) / naive:.1%} fewer")

    def check(self, profile: Profile, *, budget: int | None = None) -> None:
        """Raise ``PlanError`` if a program is not the plan's, or the plan takes more words than there are."""
        if profile.digest != self.digest:
            raise PlanError(f"Program must be the one of its memory plan, {self.digest[:16]}, not "
                            f"{profile.digest[:16]}{_difference(self.words, profile)}: plan its memory again")
        if budget is not None and self.peak > budget:
            raise PlanError(f"Memory plan must take at most the {budget:,} words there are, not {self.peak:,}")


def _difference(words: Mapping[str, int], profile: Profile) -> str:
    """The first buffer that two programs do not share, for a message."""
    for name in itertools.chain(words, profile.words):
        if words.get(name) != profile.words.get(name):
            expected, other = (f"{count:,} words" if count else "none" for count in (words.get(name),
                                                                                 profile.words.get(name)))
            return f" (buffer {name}: planned {expected}, used {other})"
    return " (the same buffers, in other operations)"


def make_plan(profile: Profile, *, method: str | None = None, rounds: int = ROUNDS) -> Plan:
    """Plan of a program: by one method, or by the one that takes the fewest words.

    Of methods with equal words, lowest fits come first, then the search and the rules of segments.
    """
    places = planned(profile.lifetimes, rounds=rounds)
    if method is None:
        method = min(places, key=lambda name: (peak(profile.lifetimes, places[name]), name in ("strict", "shared")))
    elif method not in places:
        raise ValueError(choice_error("Method of a plan", places, method))
    return Plan(digest=profile.digest, method=method, words=dict(profile.words), lifetimes=profile.lifetimes,
                places=dict(zip(profile.words, places[method], strict=True)))


_ELEMENTS = 1 << BASE_BITS  # elements of weights and of gradients: all that an operand can address


@dataclasses.dataclass(frozen=True)
class Room:
    """Place of a buffer, and the operations of its lifetime."""

    base: int
    words: int
    #: Operations as of :class:`~host.features.compute.memory.plan.Lifetime`; by default all.
    first: int = 0
    end: int | None = None

    def has(self, operand: Operand, number: int) -> bool:
        """Whether an operand of an operation is in it."""
        return (self.first <= number and (self.end is None or number < self.end)
                and self.base <= operand.base and operand.end <= self.base + self.words)


def rooms_of(plan: Plan) -> dict[str, Room]:
    """Places of a plan's buffers while they are alive, by name."""
    return {span.name: Room(plan.places[span.name], span.words, span.first, span.end) for span in plan.lifetimes}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ListProgram:
    """Lists of a pass, as they are written to the activation memory."""

    words: npt.NDArray[np.uint32]  # all lists, in order
    base: int  # address of the first one
    starts: Sequence[int]  # address of each list, in the order of their execution
    examples: int  # maximum examples of a command
    #: Buffers that the host writes before the pass, and buffers that it reads after it. The written buffers still
    #: exist then, so that a pass can be repeated.
    given: Sequence[str]
    taken: Sequence[str]
    further: int = 0  # elements that are added to the addresses of ``given``

    @property
    def end(self) -> int:
        """Address after the last list."""
        return self.base + len(self.words)

    def lists(self, engine: Engine) -> Iterator[list[Instruction]]:
        """Instructions of each list, in the order of their execution; ``PlanError`` if an instruction is wrong."""
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
        """Program of buffers in some rooms; instructions that touch none are left out.

        Raises ``PlanError``: an instruction is wrong, or touches words that are not in one room.
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
        """Raise ``PlanError`` if the lists are not the program of a plan, or the plan takes words of the lists."""
        plan.check(self.profile(rooms_of(plan), engine), budget=self.base - self.further)

    def _is_buffer(self, operand: Operand) -> bool:
        """Whether an operand is of activations, and not stored with the lists, as indices of centroids are."""
        return operand.place is Place.ACTIVATIONS and not (self.base <= operand.base and operand.end <= self.end)

    def _room(self, operand: Operand, number: int, rooms: Mapping[str, Room]) -> str:
        """Name of the buffer that an operand is in."""
        near = dataclasses.replace(operand, base=operand.base - self.further)
        names = [name for name, room in rooms.items() if room.has(near if name in self.given else operand, number)]
        if len(names) != 1:
            raise PlanError(f"Operation {number} must touch one buffer of the memory plan with words "
                            f"{operand.base:,} to {operand.end:,}, not {' and '.join(names) or 'none'}: plan its "
                            f"memory again")
        return names[0]
