"""Schedules of a training step: which layers share a collective, and when it runs.

A pass has one forward command per layer, first to last, then one backward command per layer, last to first. When a
layer's backward command ends, its gradients are complete and its weights may change. When layers are grouped, the
last layer, which comes first in the backward pass, forms a group of its own.

=========  ============================================================================================
none       one fused update of all layers, after the last backward command
strict     a reduce-scatter for each layer; after the last one, an update of all owned blocks, and one all-gather
layers     a fused update for each layer
chunks:n   a fused update for every n layers
delayed:k  a fused update for each layer; the first k layers compute with weights that lack the previous pass's update
search     chunks of 1, 2, 4, … layers are tried until a size gives no shorter pass
=========  ============================================================================================
"""

import dataclasses
import enum
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hdl.choices import suggestion
from hdl.group import GROUP
from host.cycles.estimate import Collective, Costs
from host.features.programs.order import Region
from host.features.programs.program import DEPTH, CompiledProgram, Program, Queue
from host.models.layer_shapes import Dense
from sim.golden.ring import groups_before

__all__ = ["SETTINGS_FLAG", "STAGED_FLAG", "Computed", "Copies", "Kind", "Schedule", "Trials", "Work",
           "build", "chunks", "fused", "modelled", "search"]

#: Flags that the host sets in each pass of a multi-pass run: one after it has staged the gradients, and one after it
#: has written the settings.
STAGED_FLAG, SETTINGS_FLAG = 1, 2

#: Name of the region that represents the optimizer settings of a pass.
_SETTINGS = "settings"


class Kind(enum.Enum):
    """Kinds of schedules; the values are their names on the command line."""

    NONE = "none"
    STRICT = "strict"
    LAYERS = "layers"
    CHUNKS = "chunks"
    DELAYED = "delayed"
    SEARCH = "search"


#: Minimum number of layers for the kinds of schedules that have such a number, as in ``chunks:2``.
_COUNTED = {Kind.CHUNKS: 1, Kind.DELAYED: 0}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A requested schedule: its kind and number of layers."""

    kind: Kind
    #: Layers per collective (``chunks``), or layers that compute with weights lacking an update (``delayed``).
    layers: int = 1

    def __post_init__(self) -> None:
        if self.kind in _COUNTED and self.layers < _COUNTED[self.kind]:
            raise ValueError(f"Layers of {self.kind.value} must be at least {_COUNTED[self.kind]}, not "
                             f"{self.layers!r}")

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.layers}" if self.kind in _COUNTED else self.kind.value

    @property
    def behind(self) -> int:
        """Number of leading layers that compute with weights lacking the previous pass's update."""
        return self.layers if self.kind is Kind.DELAYED else 0

    def check_state(self, *, packed: bool) -> None:
        """Raise ``ValueError`` if packed (bfloat16) state could start in the middle of a word."""
        if packed and self.kind in (Kind.LAYERS, Kind.CHUNKS, Kind.DELAYED):
            raise ValueError(f"Schedule with state as bfloat16 must be none or strict, not {self}: state of a part "
                             f"may begin inside a word")

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Parse a schedule such as ``strict`` or ``chunks:2``."""
        name, colon, number = text.partition(":")
        try:
            kind = Kind(name)
            if (kind in _COUNTED) != bool(colon):
                raise ValueError
            return cls(kind, int(number)) if colon else cls(kind)
        except ValueError:
            kinds = [kind.value for kind in Kind]
            names = ", ".join(f"{kind.value}:n" if kind in _COUNTED else kind.value for kind in Kind)
            similar = "" if name in kinds else suggestion(kinds, name)
            raise ValueError(f"Overlap must be one of {names} with n of at least 1, or 0 of delayed, not {text!r}"
                             f"{similar}") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copies:
    """Layers at the start of the model that keep two copies of their weights, used in alternate passes.

    Each of these layers computes with weights that lack the previous pass's update. Its own update then overwrites
    the copy it has just used. Each layer is a region, and the node counts its updates.
    """

    #: Number of layers that keep two copies of their weights; None if nodes do not count updates.
    layers: int | None = None
    #: Distance between the two copies of the weights, in elements.
    distance: int = 0

    def weights(self, layer: Dense) -> Region:
        """Return the region that holds a layer's weights."""
        return Region("weights", layer.base, layer.length, alternate=self.distance if self._apart(layer) else 0)

    def fields(self, layer: Dense) -> dict[str, int]:
        """Return the descriptor fields of commands that read or update a layer's weights."""
        apart = int(self._apart(layer))
        return {} if self.layers is None else {"region": layer.number, "alternate": apart, "apart": apart}

    def _apart(self, layer: Dense) -> bool:
        return self.layers is not None and layer.number <= self.layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A command that computes or moves results."""

    #: ``forward`` or ``backward`` followed by the layer's number, or any other name.
    name: str
    operation: str
    reads: list[Region]
    writes: list[Region]
    #: Number of multiply-adds for each example.
    multiplications: int
    #: Descriptor fields that depend on the layer.
    fields: dict[str, int]
    queue: Queue = Queue.COMPUTE
    #: Duration in cycles, unless it follows from the number of multiply-adds.
    duration: int | None = None


@dataclasses.dataclass(frozen=True)
class Computed:
    """Commands of a compute engine, in order."""

    commands: Sequence[Work]
    #: Number of examples on each node, which is the field ``length`` of its commands.
    lengths: Sequence[int] | None = None


def modelled(layers: Sequence[Dense], *, staged: int, copies: Copies | None = None) -> list[Work]:
    """Forward and backward commands for nodes without a compute engine. They copy gradients from the staging
    area, which starts at element ``staged``, after the gradients of all layers."""
    copies = copies or Copies()
    if staged < sum(_extent(layers)):
        raise ValueError(f"Staged gradients must lie behind all {sum(_extent(layers)):,} elements, not at {staged!r}")

    def work(layer: Dense, name: str, reads: list[Region], writes: list[Region]) -> Work:
        return Work(name=f"{name} {layer.number}", operation="COMPUTE", reads=reads, writes=writes,
                    multiplications=layer.multiplications(backward=name == "backward"),
                    fields={"gradient_base": layer.base, "state_base": staged + layer.base,
                            "length": layer.length if writes else 0, **copies.fields(layer)})

    commands = [work(layer, "forward", [copies.weights(layer)], []) for layer in layers]
    for layer in reversed(layers):
        reads = [Region("gradients", staged + layer.base, layer.length)]
        if layer.number > 1:
            reads.append(copies.weights(layer))
        commands.append(work(layer, "backward", reads, [_of("gradients", [layer])]))
    if copies.layers is not None:  # the first backward command waits until gradients are staged
        commands[len(layers)].fields["wait"] = STAGED_FLAG
    return commands


def chunks(layers: Sequence[Dense], size: int) -> list[list[Dense]]:
    """Group layers in backward order: the last layer, then ``size`` layers at a time."""
    backward = list(reversed(layers))
    return [backward[:1], *(backward[n:n + size] for n in range(1, len(backward), size))]


@dataclasses.dataclass(frozen=True)
class _Builder:
    """Builder of one pass's commands for a ring of nodes."""

    program: Program
    layers: Sequence[Dense]
    nodes: int
    costs: Costs
    copies: Copies

    def compute(self, commands: Sequence[Work], lengths: Sequence[int] | None) -> None:
        """Add all forward and backward commands."""
        for work in commands:
            duration = self.costs.compute(work.multiplications) if work.duration is None else work.duration
            length = {} if lengths is None or work.queue is not Queue.COMPUTE else {"length": lengths}
            self.program.add(work.name, operation=work.operation, queue=work.queue, reads=work.reads,
                             writes=work.writes, duration=duration,
                             fields={**work.fields, **length, "duration": duration})

    def communicate(self, schedule: Schedule) -> None:
        """Add a LATCH, which fixes the settings for all updates of the pass, followed by all collectives."""
        flag = {} if self.copies.layers is None else {"wait": SETTINGS_FLAG}
        self.program.add("latch", operation="LATCH", queue=Queue.COMMUNICATE, writes=[Region(_SETTINGS, 0, 1)],
                         duration=self.costs.latch, fields=flag)
        match schedule.kind:
            case Kind.NONE:
                self.update(self.layers)
            case Kind.STRICT:
                self.strict()
            case Kind.LAYERS | Kind.CHUNKS | Kind.DELAYED:
                for part in chunks(self.layers, 1 if schedule.kind is Kind.DELAYED else schedule.layers):
                    self.update(part)
            case Kind.SEARCH:
                raise ValueError("Schedule of a program must be one, not search: measure several and choose")

    def update(self, part: Sequence[Dense]) -> None:
        """Add a fused update of neighbouring layers. If updates are counted, it covers one layer and does not read
        the weights, because the nodes have master weights."""
        counted, state = self.copies.layers is not None, _of("state", part)
        weights = self.copies.weights(part[0]) if counted else _of("weights", part)
        self._collective("update", Collective.FUSED_UPDATE, part, writes=[weights, state], reads=[
            _of("gradients", part), Region(_SETTINGS, 0, 1), *([] if counted else [weights]), state],
                         fields=self.copies.fields(part[0]))

    def strict(self) -> None:
        """Add a reduce-scatter for each layer, then an update of all owned blocks and an all-gather."""
        for layer in reversed(self.layers):
            gradients = [_of("gradients", [layer])]
            self._collective("sum", Collective.REDUCE_SCATTER, [layer], reads=gradients, writes=gradients)
        base, length = _extent(self.layers)
        first = [(rank + 1) % self.nodes for rank in range(self.nodes)]
        groups = [len(range(index, length // GROUP, self.nodes)) for index in first]
        bases = [base + GROUP * index if count else base for index, count in zip(first, groups, strict=True)]
        regions = [_of(space, self.layers) for space in ("weights", "state")]
        self.program.add("update", operation="FUSED_UPDATE", queue=Queue.COMMUNICATE, writes=regions,
                         reads=[_of("gradients", self.layers), Region(_SETTINGS, 0, 1), *regions],
                         duration=self.costs.collective(Collective.FUSED_UPDATE, GROUP * max(groups), nodes=1),
                         fields={"gradient_base": bases, "weight_base": bases, "state_base": 0,
                                 "length": [GROUP * count for count in groups], "rank": 0, "size": 1,
                                 "stride": self.nodes})
        weights = [_of("weights", self.layers)]
        self._collective("gather", Collective.ALL_GATHER, self.layers, reads=weights, writes=weights)

    def _collective(self, name: str, kind: Collective, part: Sequence[Dense], *, reads: list[Region],
                    writes: list[Region], fields: Mapping[str, int] = MappingProxyType({})) -> None:
        base, length = _extent(part)
        block_offset = base // GROUP % self.nodes
        before = [GROUP * groups_before(base // GROUP, self.nodes, (rank + 1) % self.nodes)
                  for rank in range(self.nodes)]
        numbers = sorted(layer.number for layer in part)
        label = name if len(part) == len(self.layers) > 1 else f"{name} {numbers[-1]}"
        if 1 < len(part) < len(self.layers):
            label += f"-{numbers[0]}"
        self.program.add(
            label, operation=kind.name, queue=Queue.COMMUNICATE, reads=reads, writes=writes, collective=True,
            duration=self.costs.collective(kind, length, nodes=self.nodes),
            fields={"gradient_base": base, "weight_base": base, "state_base": before, "length": length,
                    "block_offset": block_offset,
                    **fields})


def _extent(part: Sequence[Dense]) -> tuple[int, int]:
    """First element and total length of neighbouring layers."""
    base = min(layer.base for layer in part)
    return base, max(layer.base + layer.length for layer in part) - base


def _of(space: str, part: Sequence[Dense]) -> Region:
    return Region(space, *_extent(part))


def build(schedule: Schedule, layers: Sequence[Dense], *, nodes: int, costs: Costs, staged: int | None = None,
          computed: Computed | None = None, depth: int = DEPTH, distance: int = 0) -> CompiledProgram:
    """Build a training step's program for any schedule except ``search`` (see :func:`search`). Each queue holds
    ``depth`` commands.

    COMPUTE copies gradients that start at element ``staged`` (see :func:`modelled`), unless ``computed`` provides the
    commands of a compute engine. The two copies of a layer's weights, if any, are ``distance`` elements apart.
    """
    if nodes < 1:
        raise ValueError(f"Node count must be at least 1, not {nodes!r}")
    lengths = None if computed is None else computed.lengths
    if lengths is not None and len(lengths) != nodes:
        raise ValueError(f"Lengths must be one per node, {nodes}, not {len(lengths)}")
    copies = _copies(schedule, layers, distance)
    if computed is not None:
        commands = computed.commands
    elif staged is not None:
        commands = modelled(layers, staged=staged, copies=copies)
    else:
        raise ValueError("Staged gradients must have a place where no engine computes")
    program = Program(queues=1 + max(Queue.COMMUNICATE, *(work.queue for work in commands)), depth=depth)
    builder = _Builder(program, layers, nodes, costs, copies)
    builder.compute(commands, lengths)
    builder.communicate(schedule)
    return program.compile()


def _copies(schedule: Schedule, layers: Sequence[Dense], distance: int) -> Copies:
    """Return the weight copies that a schedule needs; raises ``ValueError`` if they overlap."""
    if schedule.kind is not Kind.DELAYED:
        return Copies()
    if schedule.behind > len(layers):
        raise ValueError(f"Layers one update behind must be at most all {len(layers)}, not {schedule.behind}")
    if schedule.behind and distance < sum(_extent(layers[:schedule.behind])):
        raise ValueError(f"Copies of weights must lie at least {sum(_extent(layers[:schedule.behind])):,} elements "
                         f"apart, not {distance!r}")
    return Copies(layers=schedule.behind, distance=distance)


def fused(length: int, *, owner: int | None = None) -> CompiledProgram:
    """Build the simplest training step: one fused update of a vector whose gradients the host has already written. If
    ``owner`` is given, that rank owns all groups."""
    root = {} if owner is None else {"root": owner, "root_reduce": 1}
    gradients, weights, state = (Region(space, 0, length) for space in ("gradients", "weights", "state"))
    program = Program()
    program.add("update", operation="FUSED_UPDATE", queue=Queue.COMMUNICATE, reads=[gradients, weights, state],
                writes=[weights, state], collective=True, fields={"length": length, **root})
    return program.compile()


class Trials:
    """Search over chunk sizes, continuing from earlier ``trials``. Sizes double until one is at least ``most``, the
    number of layers excluding the last one."""

    def __init__(self, most: int, trials: Sequence[tuple[int, int]] = ()):
        if most < 1:
            raise ValueError(f"Layers to choose chunks from must be at least 1, not {most!r}")
        self._most = most
        #: Sizes tried so far, with their cycles.
        self.trials = list(trials)

    @property
    def over(self) -> bool:
        """Whether the search has ended: the last size did not shorten the pass, or there is no larger size."""
        return bool(self.trials) and (self._longer or self.trials[-1][0] >= self._most)

    @property
    def _longer(self) -> bool:
        return len(self.trials) > 1 and self.trials[-1][1] >= self.trials[-2][1]

    @property
    def size(self) -> int:
        """Chunk size to try next, or the chosen one when the search is over."""
        if self.over:
            return self.trials[-2 if self._longer else -1][0]
        return 2 * self.trials[-1][0] if self.trials else 1

    def note(self, cycles: int) -> None:
        """Record the cycles of a pass with chunk size :attr:`size`."""
        self.trials.append((self.size, cycles))

    @property
    def claimed(self) -> int | None:
        """First chunk size that is faster than the size before it; None if there is none so far."""
        return next((size for (_, before), (size, cycles) in itertools.pairwise(self.trials) if cycles < before),
                    None)

    def lines(self) -> list[str]:
        """Return one line per trial and, once the search is over, a line with the chosen and the claimed size."""
        lines = [f"chunks:{size}  {cycles:,} cycles" for size, cycles in self.trials]
        if self.over:
            literal = "none" if self.claimed is None else f"chunks:{self.claimed}"
            lines.append(f"chosen: chunks:{self.size} (the first that is shorter than the one before: {literal})")
        return lines


def search(most: int, measure: Callable[[int], int]) -> Trials:
    """Try chunks of 1, 2, 4, … layers until the pass no longer gets shorter; ``measure`` returns the cycles of a pass
    for a given chunk size. See :class:`Trials`."""
    trials = Trials(most)
    while not trials.over:
        trials.note(measure(trials.size))
    return trials
