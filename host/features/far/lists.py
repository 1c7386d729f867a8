"""Compile lists and far-memory moves for saved activation maps that do not all stay in activation memory.

A plan keeps, swaps or recomputes each map (:mod:`host.features.compute.memory.chain`). The forward list creates the
first version of a map; moving it back or recomputing it creates a second version at another address. Lists and moves
follow the order of the timeline. Its times determine the lifetimes of the versions, which determine their addresses
(:mod:`host.features.compute.memory.plan`). Lists are commands of the computing queue, moves are commands of the
moving queue. Waits are derived from the regions that commands access, so results do not depend on the timeline's
exact times. All versions of a map have the same buffer tag, and rows written by a move match any tag.

The maps of a perceptron are the outputs of all layers except the last one.

The instructions of the text model come from a sequence (:mod:`host.features.compute.text_lists`), divided into one
list for each forward, the loss, each backward, and each recomputed map. The list of a recomputed map contains the
instructions that wrote the map and, recursively, its operands, back to maps in memory; other results of the list have
separate addresses. Maps and other buffers are planned together, by their lifetimes. One set of lists serves all
sequences, with two versions of backward: for the first sequence of a share, which initialises the gradients, and for
each further one, which adds to them. Each sequence is a program of three queues.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hdl.control.protocol import Operation as Code
from hdl.group import GROUP
from host.driver.command import Command
from host.driver.planned_lists import PlanError
from host.features.compute.instructions import Array, Factors, Words, best_factors
from host.features.compute.lists import Activations, ListCompiler
from host.features.compute.memory.chain import Chain, Decision, Event, Map, MapPlan, Policy, decide, run
from host.features.compute.memory.plan import Lifetime, peak, search
from host.features.compute.memory.steps import product_cycles
from host.features.compute.text_lists import Operation, TextLists, TextOperations, cut_lists
from host.features.programs.order import Region
from host.features.programs.program import CompiledProgram, Program, Queue
from host.features.programs.schedules import Copies, Work
from host.models.layer_shapes import Dense

__all__ = ["FarLists", "FarText", "Versions", "compile_far", "compile_far_text", "far_places", "fit_text",
           "layers_chain_of", "move_of"]

#: Index and version of a map: version 0 is the original, 1 exists after the map is moved back or recomputed.
_Version = tuple[int, int]


def layers_chain_of(layers: Sequence[Dense], *, examples: int, lanes: int,
                    cycles: Mapping[str, int] | None = None) -> Chain:
    """Chain of a perceptron's lists; ``cycles``, keyed by list name, are modelled by default.

    Map n is the output of layer n + 1. The forward list of the next layer reads it, and the backward list of the next
    layer frees it. The first layer's backward list, which reads the inputs, belongs to map 0. All lists of the last
    layer form the loss. :func:`product_cycles` is the model.
    """
    def of(name: str, layer: Dense) -> int:
        if cycles is not None:
            return cycles[f"{name} {layer.number}"]
        count = 1 if name == "forward" or layer.number == 1 else 2
        return product_cycles(examples, layer.inputs, layer.outputs, count=count)

    maps = tuple(Map(
        name=f"output {layer.number}", forward=of("forward", layer),
        words=Activations(layers=[layer], examples=examples, lanes=lanes).size(layer.outputs),
        backward=of("backward", following) + (of("backward", layer) if number == 0 else 0),
        multiplications=examples * layer.inputs * layer.outputs, reads=())
        for number, (layer, following) in enumerate(itertools.pairwise(layers)))
    return Chain(f"{len(maps)} maps, batch {examples}", maps, loss=of("forward", layers[-1]))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FarLists:
    """Instruction lists and far-memory moves of a perceptron's training step."""

    plan: MapPlan  # plan of the activation maps, which start at address 0
    places: Activations  # addresses of the other buffers: inputs, labels, loss and output gradients
    words: Words  # words of all instruction lists, to be written to address ``places.lists``
    commands: list[Work]  # commands that run lists or move data in a pass, in timeline order
    far: int  # words of far memory in use

    @property
    def end(self) -> int:
        """Words of the activation memory in use."""
        return self.places.lists + len(self.words)


class Versions:
    """Versions of saved activation maps, with their lifetimes and addresses."""

    def __init__(self, chain: Chain, decision: Decision):
        self._policies = decision.policies
        #: Numbers of the maps that are moved.
        self.swapped = {number for number, policy in enumerate(decision.policies) if policy is Policy.SWAP}
        times = {(event.kind, event.number): event for event in decision.run.events}
        self.lifetimes: dict[_Version, Lifetime] = {}  # lifetime of each version, in cycles of the timeline
        for number, (item, policy) in enumerate(zip(chain.maps, self._policies, strict=True)):
            begin, left = times["forward", number].start, times[chain.reader(number)].end
            freed = times["backward", number].end
            if policy is Policy.SWAP:
                lives = [(begin, max(left, times["out", number].end)), (times["back", number].start, freed)]
            elif policy is Policy.REMAKE:
                lives = [(begin, left), (times["remake", number].start, freed)]
            else:
                lives = [(begin, freed)]
            for version, (first, end) in enumerate(lives):
                self.lifetimes[number, version] = Lifetime(first, end, item.words, f"{item.name}, version {version}")

    def latest(self, number: int) -> _Version:
        """Return the version of a map that the backward lists read."""
        return number, int(self._policies[number] is not Policy.KEEP)

    def places(self, budget: int) -> dict[_Version, int]:
        """Return the address of each version of a map; raises ``PlanError`` if they exceed the budget."""
        buffers = list(self.lifetimes.values())
        places = search(buffers)
        if (top := peak(buffers, places)) > budget:
            raise PlanError(f"Saved maps must have places within {budget:,} words, not {top:,}: take a larger budget")
        return dict(zip(self.lifetimes, places, strict=True))


class _FarCompiler:
    """Compiles the instruction lists and moves of events; ``far`` has the far-memory addresses of swapped maps."""

    def __init__(self, layers: Sequence[Dense], plan: MapPlan, *, array: Array, examples: int,
                 far: Mapping[int, int], factors: Factors):
        self._layers, self._chain, self._far = layers, plan.chain, far
        self._examples, self._lanes = examples, array.lanes
        self._versions = Versions(plan.chain, plan.decision)
        self._near = self._versions.places(plan.budget)
        self._fixed = _fixed(layers, examples, array.lanes, -(-plan.budget // GROUP) * GROUP)
        self.places = self._activations()  # addresses of all buffers that are not maps
        self.lists = ListCompiler(array=array, places=self.places, copies=Copies(), odd=0,
                                  factors=functools.cache(factors))
        self.commands: list[Work] = []

    def _activations(self, *versions: _Version) -> Activations:
        """Return the buffer addresses for the given versions of maps; all other maps have invalid addresses."""
        places = {**self._fixed, **{f"output {version[0] + 1}": self._near[version] for version in versions}}
        return Activations(layers=self._layers, examples=self._examples, lanes=self._lanes, bases=places)

    def _list(self, name: str, number: int, duration: int, *versions: _Version) -> None:
        """Add the instruction list of a layer, using the given versions of activation maps."""
        self.lists.places = self._activations(*versions)
        (self.lists.backward if name == "backward" else self.lists.forward)(self._layers[number])
        self.commands.append(dataclasses.replace(self.lists.commands[-1], name=f"{name} {number + 1}",
                                                 duration=duration))

    def add(self, event: Event) -> None:
        """Add the instruction list or the move of an event."""
        number, duration, latest = event.number, event.end - event.start, self._versions.latest
        before = range(max(number - 1, 0), number)  # map that a forward list reads, if any
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
    """Compile the lists and moves of a perceptron with at least two layers.

    Raises ``PlanError`` if the activation memory of ``words`` elements or the far memory is too small. The plan must
    be for the chain of :func:`layers_chain_of`, with at most ``examples`` examples per step.
    """
    far, used = far_places(plan, far_words)
    compiler = _FarCompiler(layers, plan, array=array, examples=examples, far=far, factors=factors)
    for event in plan.decision.run.events:
        compiler.add(event)
    lists = FarLists(plan=plan, places=compiler.places, words=np.concatenate(compiler.lists.words),
                     commands=compiler.commands, far=used)
    if lists.end > words:
        raise PlanError(f"Maps, other buffers and lists must take at most the {words:,} elements of a node's "
                        f"activation memory, not {lists.end:,}")
    return lists


def far_places(plan: MapPlan, far_words: int) -> tuple[dict[int, int], int]:
    """Far-memory addresses of swapped maps, and total size; raises ``PlanError`` if they do not fit."""
    swapped = [number for number, policy in enumerate(plan.decision.policies) if policy is Policy.SWAP]
    ends = list(itertools.accumulate((plan.chain.maps[index].words for index in swapped), initial=0))
    if ends[-1] > far_words:
        raise PlanError(f"Maps that are swapped must fit into the {far_words:,} words of the far memory, not take "
                        f"{ends[-1]:,}")
    return dict(zip(swapped, ends, strict=False)), ends[-1]


def move_of(kind: str, number: int, words: int, duration: int, far: int, near: int) -> Work:
    """Create the command that moves a map to far memory or back."""
    places = [Region("activations", near, words), Region("far", far, words)]
    if kind == "back":
        places.reverse()
    return Work(name=f"{kind} {number + 1}", operation="MOVE_OUT" if kind == "out" else "MOVE_IN", reads=places[:1],
                writes=places[1:], multiplications=0, queue=Queue.MOVE, duration=duration,
                fields={"weight_base": near, "state_base": far, "length": words})


def _fixed(layers: Sequence[Dense], examples: int, lanes: int, base: int) -> dict[str, int]:
    """Assign addresses to all buffers except maps; two buffers alternate as output gradients."""
    apart = Activations(layers=layers, examples=examples, lanes=lanes)
    largest = max(apart.rooms[f"gradient {layer.number}"].words for layer in layers)
    last = f"output {layers[-1].number}"
    places = {f"output {layer.number}": 0 for layer in layers[:-1]}
    for name in ("inputs", "labels", "loss", last):
        places[name] = base
        base += apart.rooms[name].words
    return places | {f"gradient {layer.number}": base + layer.number % 2 * largest for layer in layers}


#: Buffer accessed by an operation: its name, and its version or the event that it belongs to.
_Key = tuple[str, int | str]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FarText:
    """Instruction lists and far-memory moves for a sequence of the text model."""

    plan: MapPlan  # plan of the saved maps
    #: Lists and moves for the first sequence of a node's share and for each later sequence, in timeline order.
    commands: tuple[list[Work], list[Work]]
    words: Words  # all instruction lists, with zeros in place of the sequences' characters, labels and losses
    base: int  # address of the first instruction list, after all buffers
    whole: TextLists  # unsplit lists, and the addresses of the sequences' data
    far: int  # words of far memory in use
    cycles: tuple[int, int]  # modelled cycles of the first sequence on a node, and of each further sequence
    steps: Mapping[str, tuple[int, ...]]  # operations of each computing event, keyed by the name of its first command

    @property
    def end(self) -> int:
        """Words of the activation memory in use."""
        return self.base + len(self.words)

    @property
    def line(self) -> str:
        """One-line description of the plan."""
        run, chain = self.plan.decision.run, self.plan.chain
        policies = ", ".join(f"{saved.name} {policy.name.lower()}" for saved, policy in
                             zip(chain.maps, self.plan.decision.policies, strict=True) if policy)
        return (f"activations: planned, {self.base:,} words, at most {run.peak:,} for {chain.words:,} of saved maps; "
                f"{policies or 'all kept'}; moved {run.far_words:,} words, {run.multiplications:,} more "
                f"multiply-adds a sequence; modelled {run.cycles:,} cycles, {run.cycles / chain.cycles:.3f} of all "
                f"kept")

    def program(self, *, further: bool) -> CompiledProgram:
        """Compile the program of a sequence, which is the same for every sequence number."""
        program = Program(queues=3)
        for work in self.commands[further]:
            length = {} if work.queue is not Queue.COMPUTE else {"length": self.whole.context}
            program.add(work.name, operation=work.operation, queue=work.queue, reads=work.reads, writes=work.writes,
                        duration=work.duration or 0, fields={**work.fields, **length, "duration": work.duration or 0})
        return program.compile()

    def node_program(self, program: CompiledProgram, number: int, rank: int, nodes: int) -> list[list[Command]]:
        """Return the commands of each queue of a node for sequence ``number``."""
        base = number * self.whole.stride
        return [[dataclasses.replace(op, state_base=base) if op.operation is Code.LAYERS else op for op in queue]
                for queue in program.commands(rank, nodes)]


@dataclasses.dataclass(frozen=True)
class _Span(Lifetime):
    """Number of words of a buffer, and its lifetime on the timeline.

    Only commands wait for each other, not instructions. Therefore a buffer that another queue moves shares no words
    with the buffers of a list that runs at the same time.
    """

    begin: int = 0  # start of the first list that accesses the buffer
    behind: int = 0  # end of the last list that accesses the buffer
    moved: bool = False

    def meets(self, other: Lifetime) -> bool:
        """Whether the lifetimes of two buffers overlap, so that they must not share addresses."""
        if isinstance(other, _Span) and (self.moved or other.moved):
            return self.begin < other.behind and other.begin < self.behind
        return super().meets(other)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    """Operations of an event and, for each operation, the versions of the buffers that it uses."""

    event: Event
    name: str
    numbers: Sequence[int]
    keys: Sequence[Mapping[str, _Key]]


class _Placed:
    """Operations of all computing events in timeline order, and the addresses of all buffers."""

    def __init__(self, operations: TextOperations, plan: MapPlan):
        self._operations, self._saved = operations, operations.saved
        self._number = {name: number for number, name in enumerate(self._saved.maps)}
        self._versions = Versions(plan.chain, plan.decision)
        self.parts = [self._part(event) for event in plan.decision.run.events if event.kind not in ("out", "back")]
        lifetimes = self._lifetimes()
        places = search(list(lifetimes.values()))
        self.places = dict(zip(lifetimes, places, strict=True))
        self.end = peak(list(lifetimes.values()), places)

    def _part(self, event: Event) -> _Part:
        saved, number = self._saved, event.number
        name = f"{event.kind} {saved.maps[number]}" if event.kind != "loss" else "loss"
        if event.kind == "remake":
            again = saved.again(saved.maps[number])
            return _Part(event=event, name=name, numbers=again, keys=list(self._remade(number, again)))
        ranges = {"forward": saved.forward, "backward": saved.backward, "loss": lambda number: saved.loss}
        numbers = ranges[event.kind](number)
        return _Part(event=event, name=name, numbers=numbers, keys=[
            {buffer: self._key(buffer, after=event.kind == "backward") for buffer in (*step.reads, *step.writes)}
            for step in self._steps(numbers)])

    def _steps(self, numbers: Sequence[int]) -> list[Operation]:
        """Return the operations with these indices, for the first sequence of a node's share."""
        return [self._operations.operations(further=False)[number] for number in numbers]

    def _key(self, name: str, *, after: bool) -> _Key:
        """Name of a buffer, and its version before or ``after`` the loss; only maps have two versions."""
        return name, self._versions.latest(self._number[name])[1] if after and name in self._number else 0

    def _remade(self, number: int, numbers: Sequence[int]) -> Iterator[dict[str, _Key]]:
        """Yield the keys of the buffers that recompute a map; normalised rows are rescaled as in backward."""
        made: dict[str, _Key] = {}
        for operation in self._steps(numbers):
            keys = {name: made.get(name) or self._key(name, after=True) for name in operation.reads}
            for name in operation.writes:
                plain = self._operations.plain(name)
                made[plain] = ((plain, 1) if plain == self._saved.maps[number] else
                               (plain, 0) if plain in self._saved.beside else (plain, f"remake {number}"))
                keys[name] = made[plain]
            yield keys

    def _lifetimes(self) -> dict[_Key, _Span]:
        touched: dict[_Key, tuple[int, int, int, int]] = {}
        for part in self.parts:
            begin, end = part.event.start, part.event.end
            times = [begin + (end - begin) * number // len(part.keys) for number in range(len(part.keys) + 1)]
            for keys, times_of in zip(part.keys, itertools.pairwise(times), strict=True):
                for key in keys.values():
                    first, _, start, _ = touched.get(key, (times_of[0], 0, begin, 0))
                    touched[key] = first, times_of[1], start, end
        moved = {(self._saved.maps[number], version): lifetime for (number, version), lifetime in
                 self._versions.lifetimes.items() if number in self._versions.swapped}
        touched |= {key: (lifetime.first, lifetime.end) * 2 for key, lifetime in moved.items() if key in touched}
        return {key: _Span(first=first, end=last, begin=begin, behind=end, moved=key in moved,
                           words=self._operations.words(key[0]), name=f"{key[0]}, {key[1]}")
                for key, (first, last, begin, end) in touched.items()}

    def words(self, part: _Part, *, further: bool, data: int) -> list[Words]:
        """Return the instruction lists of an event, split to fit a node, for sequences at address ``data``."""
        variant = self._operations.operations(further=further)
        return cut_lists([
            words for number, keys in zip(part.numbers, part.keys, strict=True)
            for words in self._operations.relocated(
                variant[number], {name: (key[0], self.places[key]) for name, key in keys.items()}, data)])

    def works(self, part: _Part, starts: Sequence[int]) -> list[Work]:
        """Commands that run an event's lists at the given addresses; each accesses all buffers of the event."""
        operations = self._steps(part.numbers)
        reads, writes = (list(dict.fromkeys(
            Region("activations", self.places[keys[name]], self._operations.words(keys[name][0]))
            for operation, keys in zip(operations, part.keys, strict=True) for name in getattr(operation, side)))
            for side in ("reads", "writes"))
        return [Work(name=part.name if not number else f"{part.name}, {number + 1}", operation="LAYERS", reads=reads,
                     writes=writes, multiplications=sum(operation.multiplications for operation in operations),
                     fields={"weight_base": start}, duration=0 if number else part.event.end - part.event.start)
                for number, start in enumerate(starts)]


def compile_far_text(operations: TextOperations, plan: MapPlan, *, rate: float, sequences: int, words: int,
                     far_words: int, placed: _Placed | None = None) -> FarText:
    """Compile the text model's lists and moves, for at most ``sequences`` sequences per node and step.

    The plan must be for the chain of :meth:`TextOperations.chain`; ``placed`` contains its addresses, if known. The
    activation memory has ``words`` elements, the far memory ``far_words``, and moves transfer ``rate`` words per
    cycle. Raises ``PlanError`` if a memory is too small.
    """
    placed = placed or _Placed(operations, plan)
    far, used = far_places(plan, far_words)

    def lists_of(data: int) -> dict[tuple[str, bool], list[Words]]:
        """Return the instruction lists of each event, and of each backward event for further sequences."""
        return {(part.name, further): placed.words(part, further=further, data=data) for part in placed.parts
                for further in (False, True)[:1 + (part.event.kind == "backward")]}

    data = placed.end + sum(len(item) for lists in lists_of(0).values() for item in lists)
    lists = lists_of(data)
    starts: dict[tuple[str, bool], list[int]] = {}
    end = placed.end
    for name, own in lists.items():
        *starts[name], end = itertools.accumulate(map(len, own), initial=end)
    commands: tuple[list[Work], list[Work]] = [], []
    for further, works in enumerate(commands):
        parts = iter(placed.parts)
        for event in plan.decision.run.events:
            if event.kind in ("out", "back"):
                item = plan.chain.maps[event.number]
                works.append(move_of(event.kind, event.number, item.words, event.end - event.start, far[event.number],
                                     placed.places[item.name, int(event.kind == "back")]))
            else:
                part = next(parts)
                works += placed.works(part, starts.get((part.name, bool(further)), starts[part.name, False]))
    first, each = ((run(operations.chain(further=further), plan.decision.policies, budget=plan.budget, rate=rate)
                    or plan.decision.run).cycles for further in (False, True))
    whole = dataclasses.replace(operations.lists, data=data, sequences=sequences)
    text = FarText(
        plan=plan, commands=commands, base=placed.end, whole=whole, far=used, cycles=(first, each),
        words=np.concatenate([*itertools.chain(*lists.values()), np.zeros(sequences * whole.stride, np.uint32)]),
        steps={part.name: tuple(part.numbers) for part in placed.parts})
    if text.end > words:
        raise PlanError(f"{sequences} sequences of nodes that compute need {text.end:,} elements of the activation "
                        f"memory, with lists, which has {words:,}: take smaller batches")
    return text


def fit_text(operations: TextOperations, *, activations: int, kind: str, rate: float, sequences: int, words: int,
             far_words: int) -> FarText:
    """Compile the text model's lists and moves so that a sequence's buffers fit in ``activations`` words.

    Map budgets are tried in descending order, starting from the total number of words, until the fastest plan of a
    kind in :data:`host.features.compute.memory.chain.KINDS` fits. Other parameters and errors are as for
    :func:`compile_far_text`; ``PlanError`` is also raised if no plan fits.
    """
    chain = operations.chain(further=sequences > 1)
    budget, ends = chain.words, list[int]()
    while (decision := decide(chain, budget=budget, rate=rate, kind=kind)) is not None:
        plan = MapPlan(chain, decision, budget)
        placed = _Placed(operations, plan)
        if placed.end <= activations:
            return compile_far_text(operations, plan, rate=rate, sequences=sequences, words=words,
                                    far_words=far_words, placed=placed)
        ends.append(placed.end)
        budget = decision.run.peak - 1
    raise PlanError(f"Activations must be at least {min(ends):,} words for a plan of kind {kind}, not "
                    f"{activations:,}")
