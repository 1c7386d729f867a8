"""Lists of the text model whose saved maps do not all stay near, and the moves to far memory and back.

Maps, versions and moves are those of :mod:`host.compute.far_lists`. Instructions are those of a sequence's lists
(:mod:`host.compute.text_operations`), cut into a list for each forward, the loss, each backward, and each map that is
made again. A map is made again by the instructions that wrote it, and by those of what they read, up to maps that are
there; all that they write beside the map goes to places of its own. Maps and other buffers are planned together, by
the times in which they live.

One set of lists serves all sequences, with two of backward: the first sequence of a share begins the gradients, each
other one adds to them. Each sequence is a program of three queues.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hdl.compute.layer_list import MOST_INSTRUCTIONS
from hdl.control.protocol import Operation as Code
from host.compute.far_lists import Versions, far_places, move_of
from host.compute.instructions import Words, ended
from host.compute.text_lists import TextLists
from host.compute.text_operations import TextOperations
from host.driver.command import Command
from host.memory.chain import Event, run
from host.memory.plan import PlanError, peak, search
from host.memory.policy_search import Decision, MapPlan, decide
from host.memory.profile import Lifetime
from host.program.program import CompiledProgram, Program, Queue
from host.program.region import Region
from host.program.schedules import Work

__all__ = ["FarText", "compile_far_text", "fit_text"]

#: Buffer that an operation touches, whatever stands in for it: its name, and the version or the event it belongs to.
_Key = tuple[str, int | str]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FarText:
    """Lists and moves of a sequence.

    Members
    -------
    plan : MapPlan
        Plan of the saved maps.
    commands : (list of Work, list of Work)
        Lists and moves of the first sequence of a share and of each other one, in the order of the timeline.
    words : array of uint32
        All lists, and zeros in the place of the sequences' characters, labels and losses.
    base : int
        Address of the first list: words of all buffers.
    whole : TextLists
        Lists that were cut, with the sequences in their place.
    far : int
        Words of far memory that are used.
    cycles : (int, int)
        Modelled cycles of the first sequence of a share, and of each other one.
    steps : dict
        Operations of each event that computes, by the name of its first command.
    """

    plan: MapPlan
    commands: tuple[list[Work], list[Work]]
    words: Words
    base: int
    whole: TextLists
    far: int
    cycles: tuple[int, int]
    steps: Mapping[str, tuple[int, ...]]

    @property
    def end(self) -> int:
        """Words of the activation memory that are used."""
        return self.base + len(self.words)

    @property
    def line(self) -> str:
        """The plan in a line."""
        run, chain = self.plan.decision.run, self.plan.chain
        policies = ", ".join(f"{one.name} {policy.name.lower()}" for one, policy in
                             zip(chain.maps, self.plan.decision.policies, strict=True) if policy)
        return (f"activations: planned, {self.base:,} words, at most {run.peak:,} for {chain.words:,} of saved maps; "
                f"{policies or 'all kept'}; moved {run.far_words:,} words, {run.multiplications:,} more "
                f"multiply-adds a sequence; modelled {run.cycles:,} cycles, {run.cycles / chain.cycles:.3f} of all "
                f"kept")

    def program(self, *, further: bool) -> CompiledProgram:
        """Program of a sequence, without the number of it."""
        program = Program(queues=3)
        for one in self.commands[further]:
            length = {} if one.queue is not Queue.COMPUTE else {"length": self.whole.context}
            program.add(one.name, operation=one.operation, queue=one.queue, reads=one.reads, writes=one.writes,
                        duration=one.duration or 0, fields={**one.fields, **length, "duration": one.duration or 0})
        return program.compile()

    def node_program(self, program: CompiledProgram, number: int, rank: int, nodes: int) -> list[list[Command]]:
        """Commands of each queue of a node for the sequence of a number."""
        place = number * self.whole.stride
        return [[dataclasses.replace(one, state_base=place) if one.operation is Code.LAYERS else one for one in queue]
                for queue in program.commands(rank, nodes)]


@dataclasses.dataclass(frozen=True)
class _Span(Lifetime):
    """Words that a buffer takes, and when, by the times of instructions in the timeline.

    Commands wait for each other, not instructions. So what is moved, which another queue does, shares no words with
    buffers of a list that runs at the same time.

    Members
    -------
    begin, behind : int
        Begin of the first list, and end of the last one, that touches it.
    moved : bool
        Whether it is moved.
    """

    begin: int = 0
    behind: int = 0
    moved: bool = False

    def meets(self, other: Lifetime) -> bool:
        """Whether both must have places of their own."""
        if isinstance(other, _Span) and (self.moved or other.moved):
            return self.begin < other.behind and other.begin < self.behind
        return super().meets(other)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """Operations of an event, and what stands in for the buffers of each."""

    event: Event
    name: str
    numbers: Sequence[int]
    keys: Sequence[Mapping[str, _Key]]


class _Parts:
    """Operations of all events that compute, in the order of the timeline."""

    def __init__(self, operations: TextOperations, decision: Decision, versions: Versions):
        self._operations, self._saved = operations, operations.saved
        self._number = {name: number for number, name in enumerate(self._saved.maps)}
        self._versions = versions
        self.parts = [self._part(event) for event in decision.run.events if event.kind not in ("out", "back")]

    def _part(self, event: Event) -> _Part:
        saved, number = self._saved, event.number
        name = f"{event.kind} {saved.maps[number]}" if event.kind != "loss" else "loss"
        if event.kind == "remake":
            numbers = saved.again(saved.maps[number])
            return _Part(event=event, name=name, numbers=numbers, keys=list(self._remade(number, numbers)))
        ranges = {"forward": saved.forward, "backward": saved.backward}
        found = saved.loss if event.kind == "loss" else ranges[event.kind](number)
        return _Part(event=event, name=name, numbers=found, keys=[
            {one: self._key(one, behind=event.kind == "backward") for one in self._touched(step)} for step in found])

    def _touched(self, step: int) -> list[str]:
        one = self._operations.operations(further=False)[step]
        return list(dict.fromkeys((*one.reads, *one.writes)))

    def _key(self, name: str, *, behind: bool) -> _Key:
        """The version of a map that work in front of the loss, or behind it, touches; of another buffer itself."""
        if name not in self._number:
            return name, 0
        number = self._number[name]
        return name, self._versions.latest(number)[1] if behind else 0

    def _remade(self, number: int, numbers: Sequence[int]) -> Iterator[dict[str, _Key]]:
        """Keys of the operations that make a map again; they scale normal rows as backward does."""
        operations, own = self._operations.operations(further=False), f"remake {number}"
        made: dict[str, _Key] = {}
        for step in numbers:
            one = operations[step]
            found = {name: made.get(name) or self._key(name, behind=True) for name in one.reads}
            for name in one.writes:
                plain = self._operations.plain(name)
                made[plain] = ((plain, 1) if plain == self._saved.maps[number] else
                               (plain, 0) if plain in self._saved.beside else (plain, own))
                found[name] = made[plain]
            yield found

    def lifetimes(self) -> dict[_Key, "_Span"]:
        """Times in which what stands in for buffers is there."""
        touched: dict[_Key, tuple[int, int, int, int]] = {}
        for part in self.parts:
            begin, end = part.event.start, part.event.end
            times = [begin + (end - begin) * number // len(part.keys) for number in range(len(part.keys) + 1)]
            for keys, times_of in zip(part.keys, itertools.pairwise(times), strict=True):
                for key in keys.values():
                    first, _, start, _ = touched.get(key, (times_of[0], 0, begin, 0))
                    touched[key] = first, times_of[1], start, end
        moved = {(self._saved.maps[number], version): one for (number, version), one in
                 self._versions.lifetimes.items() if number in self._versions.swapped}
        return {key: _Span(first=moved[key].first, end=moved[key].end, begin=moved[key].first,
                           behind=moved[key].end, moved=True, **self._sized(key))
                if key in moved else _Span(first=first, end=last, begin=start, behind=end, **self._sized(key))
                for key, (first, last, start, end) in touched.items()}

    def _sized(self, key: _Key) -> dict[str, Any]:
        return {"words": self._operations.words(key[0]), "name": f"{key[0]}, {key[1]}"}


class _Placed:
    """A plan's parts, and the places of all buffers."""

    def __init__(self, operations: TextOperations, plan: MapPlan):
        parts = _Parts(operations, plan.decision, Versions(plan.chain, plan.decision))
        self.parts = parts.parts
        lifetimes = parts.lifetimes()
        found = search(list(lifetimes.values()))
        self.places = dict(zip(lifetimes, found, strict=True))
        self.end = peak(list(lifetimes.values()), found)
        self._operations = operations

    def words(self, part: _Part, *, further: bool, data: int) -> list[Words]:
        """Lists of an event, no longer than nodes can run; sequences lie at an address."""
        variant, most = self._operations.operations(further=further), MOST_INSTRUCTIONS - 1
        found = [words for number, keys in zip(part.numbers, part.keys, strict=True)
                 for words in self._operations.relocated(
                     variant[number], {name: (key[0], self.places[key]) for name, key in keys.items()}, data)]
        return [ended(found[first:first + most]) for first in range(0, len(found), most)]

    def works(self, part: _Part, starts: Sequence[int]) -> list[Work]:
        """Commands of the lists of an event, which begin at some addresses; all touch what the event does."""
        operations = [self._operations.operations(further=False)[number] for number in part.numbers]
        reads, writes = (list(dict.fromkeys(
            Region("activations", self.places[keys[name]], self._operations.words(keys[name][0]))
            for one, keys in zip(operations, part.keys, strict=True) for name in getattr(one, side)))
            for side in ("reads", "writes"))
        return [Work(name=part.name if not number else f"{part.name}, {number + 1}", operation="LAYERS", reads=reads,
                     writes=writes, multiplications=sum(one.multiplications for one in operations),
                     fields={"weight_base": start}, duration=0 if number else part.event.end - part.event.start)
                for number, start in enumerate(starts)]


def compile_far_text(operations: TextOperations, plan: MapPlan, *, rate: float, sequences: int, words: int,
                     far_words: int) -> FarText:
    """Make the lists and the moves of the text model, by a plan of its maps.

    Parameters
    ----------
    plan : MapPlan
        Plan for the chain of :meth:`TextOperations.chain`.
    rate : float
        Words per cycle from and to the far memory.
    sequences : int
        Most sequences of a node in a step.
    words, far_words : int
        Elements of the activation memory, and of the far one.

    Raises
    ------
    PlanError
        Maps, other buffers, lists, or what is swapped, have no room.
    """
    return _compiled(operations, _Placed(operations, plan), plan, rate=rate, sequences=sequences, words=words,
                     far_words=far_words)


def _compiled(operations: TextOperations, placed: _Placed, plan: MapPlan, *, rate: float, sequences: int, words: int,
              far_words: int) -> FarText:
    far, used = far_places(plan, far_words)

    def lists_of(data: int) -> dict[tuple[str, bool], list[Words]]:
        """Lists of each event, and of each backward for further sequences."""
        return {(part.name, further): placed.words(part, further=further, data=data) for part in placed.parts
                for further in (False, True)[:1 + (part.event.kind == "backward")]}

    data = placed.end + sum(len(one) for lists in lists_of(0).values() for one in lists)
    lists = lists_of(data)
    starts: dict[tuple[str, bool], list[int]] = {}
    end = placed.end
    for name, mine in lists.items():
        *starts[name], end = itertools.accumulate(map(len, mine), initial=end)
    commands: tuple[list[Work], list[Work]] = [], []
    for further, works in enumerate(commands):
        parts = iter(placed.parts)
        for event in plan.decision.run.events:
            if event.kind in ("out", "back"):
                one = plan.chain.maps[event.number]
                works.append(move_of(event.kind, event.number, one.words, event.end - event.start, far[event.number],
                                     placed.places[one.name, int(event.kind == "back")]))
            else:
                part = next(parts)
                works += placed.works(part, starts.get((part.name, bool(further)), starts[part.name, False]))
    cycles = [(run(operations.chain(further=further), plan.decision.policies, budget=plan.budget, rate=rate)
               or plan.decision.run).cycles for further in (False, True)]
    whole = dataclasses.replace(operations.lists, data=data, sequences=sequences)
    made = FarText(
        plan=plan, commands=commands, base=placed.end, whole=whole, far=used, cycles=(cycles[0], cycles[1]),
        words=np.concatenate([*itertools.chain(*lists.values()), np.zeros(sequences * whole.stride, np.uint32)]),
        steps={part.name: tuple(part.numbers) for part in placed.parts})
    if made.end > words:
        raise PlanError(f"{sequences} sequences of nodes that compute need {made.end:,} elements of the activation "
                        f"memory, with lists, which has {words:,}: take smaller batches")
    return made


def fit_text(operations: TextOperations, *, activations: int, kind: str, rate: float, sequences: int, words: int,
             far_words: int) -> FarText:
    """Make the lists and the moves of the text model whose buffers take at most so many words.

    Budgets of maps are tried from all words down, and the fastest plan of the first that fits is taken.

    Parameters
    ----------
    activations : int
        Words of all buffers of a sequence.
    kind : str
        One of :data:`host.memory.policy_search.KINDS`.
    rate : float
        Words per cycle from and to the far memory.
    sequences, words, far_words
        As those of :func:`compile_far_text`.

    Raises
    ------
    PlanError
        There is no such plan, or lists, or what is swapped, have no room.
    """
    chain = operations.chain(further=sequences > 1)
    budget, ends = chain.words, list[int]()
    while (decision := decide(chain, budget=budget, rate=rate, kind=kind)) is not None:
        plan = MapPlan(chain, decision, budget)
        placed = _Placed(operations, plan)
        if placed.end <= activations:
            return _compiled(operations, placed, plan, rate=rate, sequences=sequences, words=words,
                             far_words=far_words)
        ends.append(placed.end)
        budget = decision.run.peak - 1
    raise PlanError(f"Activations must be at least {min(ends):,} words for a plan of kind {kind}, not "
                    f"{activations:,}")
