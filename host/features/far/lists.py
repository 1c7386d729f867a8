"""Lists whose saved maps do not all stay in the activation memory, and the moves to far memory and back.

A map is kept, swapped or made again, as its plan says (:mod:`host.features.compute.memory.chain`): its first version
lives from its forward list on; that which comes back, or is made again, is a version of its own, with a place of its
own. The order of lists and moves, and the times in which versions live, are those of the timeline; places follow from
these (:mod:`host.features.compute.memory.plan`). Lists are commands of the computing queue and moves of the moving
one, and their waits follow from the regions that they touch: so a program whose times are others than those of the
timeline has the same bits. For row owners a map has one number for all its versions, and rows that a move has written
are those of any buffer.

Maps of a perceptron are the outputs of all layers but the last.

Instructions of the text model are those of a sequence's lists (:mod:`host.features.compute.text_lists`), cut into a
list for each forward, the loss, each backward, and each map that is made again. A map is made again by the
instructions that wrote it, and by those of what they read, up to maps that are there; all that they write beside the
map goes to places of its own. Maps and other buffers are planned together, by the times in which they live. One set
of lists serves all sequences, with two of backward: the first sequence of a share begins the gradients, each other
one adds to them. Each sequence is a program of three queues.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hdl.control.protocol import Operation as Code
from hdl.group import GROUP
from host.driver.command import Command
from host.driver.planned_lists import PlanError
from host.features.compute.instructions import Array, Factors, Words, best_factors
from host.features.compute.lists import Activations, ListCompiler
from host.features.compute.memory.chain import Chain, Decision, Event, Map, MapPlan, Policy, decide, run
from host.features.compute.memory.plan import Lifetime, Plan, peak, search
from host.features.compute.memory.steps import product_cycles
from host.features.compute.text_lists import TextLists, TextOperations, cut_lists
from host.features.programs.order import Region
from host.features.programs.program import CompiledProgram, Program, Queue
from host.features.programs.schedules import Copies, Work
from host.models.layer_shapes import Dense

__all__ = ["FarLists", "FarText", "Versions", "compile_far", "compile_far_text", "far_places", "fit_text",
           "layers_chain_of", "move_of"]

#: Number of a map, and its version: 0 for the first, 1 for the one that is moved back or made again.
_Version = tuple[int, int]


def layers_chain_of(layers: Sequence[Dense], *, examples: int, lanes: int,
                    cycles: Mapping[str, int] | None = None) -> Chain:
    """Chain of a perceptron's lists, with given cycles, such as of ``forward 1``, or those of :func:`product_cycles`.

    Map n is the output of layer n + 1. It is read by the forward list of the next layer, and freed by the backward
    list of that layer. The first layer's backward list, which reads the inputs, counts to that of map 0, and all
    lists of the last layer are the loss.
    """
    def of(name: str, layer: Dense) -> int:
        if cycles is not None:
            return cycles[f"{name} {layer.number}"]
        count = 1 if name == "forward" or layer.number == 1 else 2
        return product_cycles(examples, layer.inputs, layer.outputs, count=count)

    maps = []
    for number, (layer, following) in enumerate(itertools.pairwise(layers)):
        maps.append(Map(
            name=f"output {layer.number}", forward=of("forward", layer),
            words=Activations(layers=[layer], examples=examples, lanes=lanes).size(layer.outputs),
            backward=of("backward", following) + (of("backward", layer) if number == 0 else 0),
            multiplications=examples * layer.inputs * layer.outputs, reads=()))
    return Chain(f"{len(maps)} maps, batch {examples}", tuple(maps), loss=of("forward", layers[-1]))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FarLists:
    """Lists and moves of a step."""

    #: Plan of the maps, which have the words from 0 on.
    plan: MapPlan
    #: Places of what is not a map: inputs, labels, the loss, and gradients of outputs.
    places: Activations
    #: Words of all lists, which are written from ``places.lists`` on.
    words: Words
    #: Lists and moves of a pass, in the order of the timeline.
    commands: list[Work]
    #: Words of far memory that are used.
    far: int

    @property
    def end(self) -> int:
        """Words of the activation memory that are used."""
        return self.places.lists + len(self.words)


class Versions:
    """Versions of maps, when they live, and their places."""

    def __init__(self, chain: Chain, decision: Decision):
        self._policies = decision.policies
        #: Numbers of the maps that are moved.
        self.swapped = {number for number, policy in enumerate(decision.policies) if policy is Policy.SWAP}
        self._times = {(event.kind, event.number): event for event in decision.run.events}
        #: Lifetime of each version, in cycles of the timeline.
        self.lifetimes: dict[_Version, Lifetime] = {}
        for number, one in enumerate(chain.maps):
            policy, freed = self._policies[number], self._times["backward", number].end
            left = self._times[chain.reader(number)].end
            if policy is Policy.SWAP:
                left = max(left, self._times["out", number].end)
            self._add(number, 0, self._times["forward", number].start, freed if policy is Policy.KEEP else left, one)
            if policy is not Policy.KEEP:
                kind = "back" if policy is Policy.SWAP else "remake"
                self._add(number, 1, self._times[kind, number].start, freed, one)

    def _add(self, number: int, version: int, first: int, end: int, one: Map) -> None:
        self.lifetimes[number, version] = Lifetime(first, end, one.words, f"{one.name}, version {version}")

    def latest(self, number: int) -> _Version:
        """The version that backward lists read."""
        return number, int(self._policies[number] is not Policy.KEEP)

    def places(self, budget: int) -> dict[_Version, int]:
        """First word of each version; ``PlanError`` if no places were found within the budget."""
        found = search(list(self.lifetimes.values()))
        top = max((place + one.words for place, one in zip(found, self.lifetimes.values(), strict=True)), default=0)
        if top > budget:
            raise PlanError(f"Saved maps must have places within {budget:,} words, not {top:,}: take a larger budget")
        return dict(zip(self.lifetimes, found, strict=True))


class _FarCompiler:
    """Lists and moves, event by event of the timeline; swapped maps have places in the far memory."""

    def __init__(self, layers: Sequence[Dense], plan: MapPlan, *, array: Array, examples: int,
                 far: Mapping[int, int], factors: Factors):
        self._layers, self._chain, self._far = layers, plan.chain, far
        self._examples, self._lanes = examples, array.lanes
        self._versions = Versions(plan.chain, plan.decision)
        self._near = self._versions.places(plan.budget)
        self._fixed = _fixed(layers, examples, array.lanes, -(-plan.budget // GROUP) * GROUP)
        #: Places of what is not a map.
        self.places = self._activations()
        self._lists = ListCompiler(array=array, places=self.places, copies=Copies(), odd=0,
                                   factors=functools.cache(factors))
        self.commands: list[Work] = []

    @property
    def words(self) -> Words:
        """Words of all lists."""
        return np.concatenate(self._lists.words)

    def _activations(self, *versions: _Version) -> Activations:
        """Places, with those of some versions of maps; of others they mean nothing."""
        places = {**self._fixed, **{f"output {version[0] + 1}": self._near[version] for version in versions}}
        return Activations(layers=self._layers, examples=self._examples, lanes=self._lanes,
                           plan=Plan(digest="", method="timeline", words={}, places=places, lifetimes=()))

    def _list(self, name: str, number: int, duration: int, *versions: _Version) -> None:
        """Add the list of a layer, with some versions of maps."""
        self._lists.move(self._activations(*versions))
        (self._lists.backward if name == "backward" else self._lists.forward)(self._layers[number])
        self.commands.append(dataclasses.replace(self._lists.commands[-1], name=f"{name} {number + 1}",
                                                 duration=duration))

    def add(self, event: Event) -> None:
        """Add the list, or the move, of an event."""
        number, duration, latest = event.number, event.end - event.start, self._versions.latest
        before = range(max(number - 1, 0), number)  # the map that a forward list reads, if it reads one
        match event.kind:
            case "forward":
                self._list("forward", number, duration, *((read, 0) for read in before), (number, 0))
            case "loss":
                self._list("forward", number + 1, duration, (number, 0))
            case "remake":
                self._list("remake", number, duration, *map(latest, before), (number, 1))
            case "backward":
                self._list("backward", number + 1, duration, latest(number))
                if number == 0:
                    self._list("backward", 0, 0)
            case kind:
                self.commands.append(move_of(kind, number, self._chain.maps[number].words, duration,
                                             self._far[number], self._near[number, int(kind == "back")]))


def compile_far(layers: Sequence[Dense], plan: MapPlan, *, array: Array, examples: int, words: int, far_words: int,
                factors: Factors = best_factors) -> FarLists:
    """Make the lists and the moves of a perceptron of two or more layers, by a plan of its maps for the chain of
    :func:`layers_chain_of`; ``PlanError`` if these, or what is swapped, have no room.

    A node has at most so many examples in a step, and so many elements of the activation memory, and of the far one.
    """
    far, used = far_places(plan, far_words)
    compiler = _FarCompiler(layers, plan, array=array, examples=examples, far=far, factors=factors)
    for event in plan.decision.run.events:
        compiler.add(event)
    lists = FarLists(plan=plan, places=compiler.places, words=compiler.words, commands=compiler.commands, far=used)
    if lists.end > words:
        raise PlanError(f"Maps, other buffers and lists must take at most the {words:,} elements of a node's "
                        f"activation memory, not {lists.end:,}")
    return lists


def far_places(plan: MapPlan, far_words: int) -> tuple[dict[int, int], int]:
    """Places of swapped maps in the far memory, by number, and the words that they take; ``PlanError`` if there are
    fewer words."""
    swapped = [number for number, policy in enumerate(plan.decision.policies) if policy is Policy.SWAP]
    ends = list(itertools.accumulate((plan.chain.maps[one].words for one in swapped), initial=0))
    if ends[-1] > far_words:
        raise PlanError(f"Maps that are swapped must fit into the {far_words:,} words of the far memory, not take "
                        f"{ends[-1]:,}")
    return dict(zip(swapped, ends, strict=False)), ends[-1]


def move_of(kind: str, number: int, words: int, duration: int, far: int, near: int) -> Work:
    """A move of a map, out or back."""
    places = [Region("activations", near, words), Region("far", far, words)]
    if kind == "back":
        places.reverse()
    return Work(name=f"{kind} {number + 1}", operation="MOVE_OUT" if kind == "out" else "MOVE_IN", reads=places[:1],
                writes=places[1:], multiplications=0, queue=Queue.MOVE, duration=duration,
                fields={"weight_base": near, "state_base": far, "length": words})


def _fixed(layers: Sequence[Dense], examples: int, lanes: int, base: int) -> dict[str, int]:
    """Places of what is not a map, from an address on: gradients of outputs take turns in two of them."""
    apart = Activations(layers=layers, examples=examples, lanes=lanes)
    largest = max(apart.rooms[f"gradient {layer.number}"].words for layer in layers)
    last = f"output {layers[-1].number}"
    places = {f"output {layer.number}": 0 for layer in layers[:-1]}
    for name in ("inputs", "labels", "loss", last):
        places[name] = base
        base += apart.rooms[name].words
    return places | {f"gradient {layer.number}": base + layer.number % 2 * largest for layer in layers}


#: Buffer that an operation touches, whatever stands in for it: its name, and the version or the event it belongs to.
_Key = tuple[str, int | str]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FarText:
    """Lists and moves of a sequence."""

    #: Plan of the saved maps.
    plan: MapPlan
    #: Lists and moves of the first sequence of a share and of each other one, in the order of the timeline.
    commands: tuple[list[Work], list[Work]]
    #: All lists, and zeros in the place of the sequences' characters, labels and losses.
    words: Words
    #: Address of the first list: words of all buffers.
    base: int
    #: Lists that were cut, with the sequences in their place.
    whole: TextLists
    #: Words of far memory that are used.
    far: int
    #: Modelled cycles of the first sequence of a share, and of each other one.
    cycles: tuple[int, int]
    #: Operations of each event that computes, by the name of its first command.
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
    """

    #: Begin of the first list, and end of the last one, that touches it.
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
        variant = self._operations.operations(further=further)
        return cut_lists([
            words for number, keys in zip(part.numbers, part.keys, strict=True)
            for words in self._operations.relocated(
                variant[number], {name: (key[0], self.places[key]) for name, key in keys.items()}, data)])

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
    """Make the lists and the moves of the text model, by a plan of its maps for the chain of
    :meth:`TextOperations.chain`; ``PlanError`` if these, other buffers, lists, or what is swapped, have no room.

    A node has at most so many sequences in a step, and so many elements of the activation memory, and of the far one,
    from and to which ``rate`` words per cycle are moved.
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
    """Make the lists and the moves of the text model whose buffers of a sequence take at most so many words.

    Budgets of maps are tried from all words down, and the fastest plan of a kind of
    :data:`host.features.compute.memory.chain.KINDS` of the first that fits is taken. Other parameters are those of
    :func:`compile_far_text`. ``PlanError`` is raised if there is no such plan, or lists, or what is swapped, have no
    room.
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
