"""Lists of a perceptron whose outputs do not all stay in the activation memory, and the moves to far memory and back.

Maps are the outputs of all layers but the last. One is kept, swapped or made again, as its plan says
(:mod:`host.memory.chain`): its first version lives from its forward list on; that which comes back, or is made again,
is a version of its own, with a place of its own. The order of lists and moves, and the times in which versions live,
are those of the timeline; places follow from these (:mod:`host.memory.plan`). Lists are commands of the computing
queue and moves of the moving one, and their waits follow from the regions that they touch: so a program whose times
are others than those of the timeline has the same bits.

For row owners a map has one number for all its versions, and rows that a move has written are those of any buffer.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hdl.group import GROUP
from host.compute.factors import Array, best_factors
from host.compute.lists import Activations, ListCompiler
from host.memory.chain import Chain, Event, Map, Policy
from host.memory.plan import Plan, PlanError, search
from host.memory.policy_search import Decision, MapPlan
from host.memory.profile import Lifetime
from host.memory.steps import product_cycles
from host.program.program import Queue
from host.program.region import Region
from host.program.schedules import Copies, Dense, Work

__all__ = ["FarLists", "Versions", "compile_far", "far_places", "layers_chain_of", "move_of"]

Words = npt.NDArray[np.uint32]
#: Number of a map, and its version: 0 for the first, 1 for the one that is moved back or made again.
_Version = tuple[int, int]


def layers_chain_of(layers: Sequence[Dense], *, examples: int, lanes: int,
                    cycles: Mapping[str, int] | None = None) -> Chain:
    """Chain of a perceptron's lists.

    Map n is the output of layer n + 1. It is read by the forward list of the next layer, and freed by the backward
    list of that layer. The first layer's backward list, which reads the inputs, counts to that of map 0, and all
    lists of the last layer are the loss.

    Parameters
    ----------
    cycles : mapping of str to int, optional
        Cycles of lists, such as ``forward 1``; by default those of a model (:func:`product_cycles`).
    """
    def of(name: str, layer: Dense) -> int:
        if cycles is not None:
            return cycles[f"{name} {layer.number}"]
        count = 1 if name == "forward" or layer.number == 1 else 2
        return product_cycles(examples, layer.inputs, layer.outputs, count=count)

    maps = []
    for number, (layer, following) in enumerate(itertools.pairwise(layers)):
        maps.append(Map(
            name=f"output {layer.number}", words=_words(layer, examples, lanes), forward=of("forward", layer),
            backward=of("backward", following) + (of("backward", layer) if number == 0 else 0),
            multiplications=examples * layer.inputs * layer.outputs, reads=()))
    return Chain(f"{len(maps)} maps, batch {examples}", tuple(maps), loss=of("forward", layers[-1]))


def _words(layer: Dense, examples: int, lanes: int) -> int:
    return Activations(layers=[layer], examples=examples, lanes=lanes).size(layer.outputs)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FarLists:
    """Lists and moves of a step.

    Members
    -------
    plan : MapPlan
        Plan of the maps, which have the words from 0 on.
    places : Activations
        Places of what is not a map: inputs, labels, the loss, and gradients of outputs.
    words : array of uint32
        Words of all lists, which are written from ``places.lists`` on.
    commands : list of Work
        Lists and moves of a pass, in the order of the timeline.
    far : int
        Words of far memory that are used.
    """

    plan: MapPlan
    places: Activations
    words: Words
    commands: list[Work]
    far: int

    @property
    def end(self) -> int:
        """Words of the activation memory that are used."""
        return self.places.lists + len(self.words)


class Versions:
    """Versions of maps, when they live, and their places.

    Members
    -------
    lifetimes : dict
        Lifetime of each version, in cycles of the timeline.
    swapped : set of int
        Numbers of the maps that are moved.
    """

    def __init__(self, chain: Chain, decision: Decision):
        self._policies = decision.policies
        self.swapped = {number for number, policy in enumerate(decision.policies) if policy is Policy.SWAP}
        self._times = {(event.kind, event.number): event for event in decision.run.events}
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
        """First word of each version.

        Raises
        ------
        PlanError
            No places were found within the budget.
        """
        found = search(list(self.lifetimes.values()))
        top = max((place + one.words for place, one in zip(found, self.lifetimes.values(), strict=True)), default=0)
        if top > budget:
            raise PlanError(f"Saved maps must have places within {budget:,} words, not {top:,}: take a larger budget")
        return dict(zip(self.lifetimes, found, strict=True))


class _FarCompiler:
    """Lists and moves, event by event of the timeline.

    Parameters
    ----------
    far : mapping of int to int
        Places of swapped maps in the far memory.
    factors : callable

    Members
    -------
    places : Activations
        Places of what is not a map.
    """

    def __init__(self, layers: Sequence[Dense], plan: MapPlan, *, array: Array, examples: int,
                 far: Mapping[int, int], factors: Callable[..., Mapping[str, int]]):
        self._layers, self._chain, self._far = layers, plan.chain, far
        self._examples, self._lanes = examples, array.lanes
        self._versions = Versions(plan.chain, plan.decision)
        self._near = self._versions.places(plan.budget)
        self._fixed = _fixed(layers, examples, array.lanes, -(-plan.budget // GROUP) * GROUP)
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
        return _activations(self._layers, self._examples, self._lanes, {
            **self._fixed, **{f"output {version[0] + 1}": self._near[version] for version in versions}})

    def _forward(self, name: str, number: int, duration: int, *versions: _Version) -> None:
        self._list(name, self._lists.forward, number, duration, *versions)

    def _backward(self, number: int, duration: int, *versions: _Version) -> None:
        self._list("backward", self._lists.backward, number, duration, *versions)

    def _list(self, name: str, direction: Callable[[Dense], None], number: int, duration: int,
              *versions: _Version) -> None:
        self._lists.move(self._activations(*versions))
        direction(self._layers[number])
        self.commands.append(dataclasses.replace(self._lists.commands[-1], name=f"{name} {number + 1}",
                                                 duration=duration))

    def add(self, event: Event) -> None:
        """Add the list, or the move, of an event."""
        number, duration, latest = event.number, event.end - event.start, self._versions.latest
        before = range(max(number - 1, 0), number)  # the map that a forward list reads, if it reads one
        match event.kind:
            case "forward":
                self._forward("forward", number, duration, *((read, 0) for read in before), (number, 0))
            case "loss":
                self._forward("forward", number + 1, duration, (number, 0))
            case "remake":
                self._forward("remake", number, duration, *map(latest, before), (number, 1))
            case "backward":
                self._backward(number + 1, duration, latest(number))
                if number == 0:
                    self._backward(0, 0)
            case kind:
                self.commands.append(move_of(kind, number, self._chain.maps[number].words, duration,
                                             self._far[number], self._near[number, int(kind == "back")]))


def compile_far(layers: Sequence[Dense], plan: MapPlan, *, array: Array, examples: int, words: int, far_words: int,
                factors: Callable[..., Mapping[str, int]] = best_factors) -> FarLists:
    """Make the lists and the moves of a perceptron, by a plan of its maps.

    Parameters
    ----------
    layers : sequence of Dense
        Two or more.
    plan : MapPlan
        Plan for the chain of :func:`layers_chain_of`.
    examples : int
        Most examples of a node in a step.
    words, far_words : int
        Elements of the activation memory, and of the far one.
    factors : callable
        Gives the factors of a product.

    Raises
    ------
    PlanError
        Maps, or what is swapped, have no room.
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
    """Places of swapped maps in the far memory, by number, and the words that they take.

    Raises
    ------
    PlanError
        There are fewer words.
    """
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


def _activations(layers: Sequence[Dense], examples: int, lanes: int, places: Mapping[str, int]) -> Activations:
    return Activations(layers=layers, examples=examples, lanes=lanes,
                       plan=Plan(digest="", method="timeline", words={}, places=places, lifetimes=()))


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
