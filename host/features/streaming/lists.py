"""Lists and commands of a set for layer streaming workers, at addresses that edits do not change.

Units of the same shape share one list per window. Lists address the first bank of buffers, and a command's offset
moves the addresses to the second bank. Executions alternate between the banks: during each execution, the next one's
inputs are moved in and the previous one's outputs are moved out.

The server is the last node of the ring and is followed by the worker of rank 0, so FETCH is a BROADCAST from the
server, and PUSH ends at the server. Waits are derived from the regions that commands access
(:mod:`host.features.programs.program`).

While a set runs, the next set's data is written to separate addresses. A unit that both sets contain keeps its
address in the server's memories, so its weights and state are not written again.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import FETCH_FORMATS
from hdl.features.compute.layer_list import Initial, Kind, Place, VectorProgram, vector_layout
from hdl.features.streaming.tally import ENTRIES
from host.features.compute.instructions import Array, Factors, Matrix, Products, Words, at, best_factors, ended
from host.features.programs.order import Region
from host.features.programs.program import CompiledProgram, Program, Queue
from host.features.streaming.edits import RefusedError
from host.features.streaming.plan import ListKey, StreamingPlan
from sim.golden.features.compute.compute import pack
from sim.golden.features.streaming.streaming import accesses

__all__ = ["StreamingLists", "compile_streaming", "entry_of", "first_bases", "free_base", "lists_base", "next_bases",
           "streaming_program"]


Bits = npt.NDArray[np.uint32]


def first_bases(lengths: Sequence[int]) -> list[int]:
    """Return the addresses of units that are stored back to back."""
    return list(itertools.accumulate(lengths, initial=0))[:-1]


def free_base(length: int, taken: Sequence[tuple[int, int]], *, first: int = 0) -> int:
    """Lowest address from ``first`` on with ``length`` free elements; ``taken`` lists the used ranges."""
    base = first
    for begin, end in sorted(taken):
        if begin < base + length and base < end:
            base = end
    return base


def next_bases(before: Sequence[Bits], bases: Sequence[int], after: Sequence[Bits], *, words: int) -> list[int]:
    """Return the addresses of the units after an edit. Raises ``RefusedError`` if a new unit does not fit.

    Units are given by their master weights, ``before`` the edit (at addresses ``bases``) and ``after`` it. A unit
    that is kept is the same object in both. Each memory of the server has ``words`` words.
    """
    held = {id(master): base for master, base in zip(before, bases, strict=True)}
    taken = [(base, base + len(master)) for master, base in zip(before, bases, strict=True)]
    for master in after:
        if id(master) in held:
            continue
        base = held[id(master)] = free_base(len(master), taken)
        if base + len(master) > words:
            raise RefusedError(f"Edit must leave a place for a unit of {len(master):,} words among the {words:,} "
                               f"of a server beside the {sum(map(len, before)):,} of the set that runs")
        taken.append((base, base + len(master)))
    return [held[id(master)] for master in after]


def lists_base(plan: StreamingPlan, running: StreamingPlan, base: int) -> int:
    """Address for a plan's lists: after the buffers of both plans, and outside the running plan's lists, which start
    at ``base``. Raises ``RefusedError`` if the lists do not fit."""
    if plan.digest == running.digest:
        return base
    words = plan.end - plan.lists
    free = free_base(words, [(base, base + running.end - running.lists)], first=max(plan.lists, running.lists))
    if free + words > plan.worker.activation_words:
        raise RefusedError(f"Edit must leave a place for {words:,} elements of lists among the "
                           f"{plan.worker.activation_words:,} of a worker's activation memory, beside buffers and "
                           f"lists of the set that runs")
    return free


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamingLists:
    """Compiled instruction lists of a streaming plan."""

    plan: StreamingPlan
    #: Number of words of all instruction lists, which start at element ``base``.
    words: Words
    #: Address of each instruction list.
    places: dict[ListKey, int]
    base: int


class _Compiler:
    """Compiler for the instructions of a plan's lists."""

    def __init__(self, plan: StreamingPlan, array: Array, factors: Factors, *, recompute: bool):
        self._plan = plan
        self._recompute = recompute
        self._product = Products(array=array, factors=factors, length=plan.microbatch)

    def _banked(self, name: str, width: int, first: int = 0) -> Matrix:
        """Return the matrix that starts at column ``first`` of a banked buffer."""
        return at(Place.ACTIVATIONS, self._plan.bank.places[name] + first, relative=True), self._plan.stride(width)

    def _again(self, key: ListKey) -> Matrix:
        return at(Place.ACTIVATIONS, self._plan.again.base), self._plan.stride(key.outputs)

    def _outputs(self, key: ListKey, target: Matrix) -> Words:
        """Encode the product that computes a unit's outputs."""
        base = self._plan.window * key.window
        return self._product((0, key.inputs, key.outputs), transpose_b=1, initial=Initial.MATRIX,
                             relu=int(not key.top), a=self._banked("x", key.inputs),
                             b=(at(Place.WEIGHTS, base), key.inputs), c=target,
                             start=(at(Place.WEIGHTS, base + key.inputs * key.outputs), 0))

    def _loss(self, key: ListKey) -> Words:
        scores, stride = self._again(key)
        gradient, gradient_stride = self._banked("gradient", key.outputs)
        return pack(vector_layout(), {
            "kind": Kind.VECTOR, "function": VectorProgram.CROSS_ENTROPY, "columns": key.outputs, "source": scores,
            "stride_source": stride, "labels": self._banked("labels", 1)[0], "stride_labels": 1, "target": gradient,
            "stride_target": gradient_stride, "loss": self._banked("loss", 1)[0]})

    def _backward(self, key: ListKey) -> Iterator[Words]:
        """Yield the instructions that compute the gradients of the weights, biases and inputs."""
        upstream = (self._banked("gradient", key.outputs) if key.top
                    else self._banked("upstream", key.width, key.first))
        x, base = self._banked("x", key.inputs), self._plan.window * key.window
        follows = {"initial": Initial.MATRIX} if key.follows else {}
        weights = at(Place.GRADIENTS, base), key.inputs
        biases = at(Place.GRADIENTS, base + key.inputs * key.outputs), self._plan.stride(key.outputs)
        yield self._product((key.outputs, 0, key.inputs), transpose_a=1, a=upstream, b=x, c=weights, **follows,
                            start=weights if key.follows else None)
        yield self._product((1, 0, key.outputs), a=(at(Place.ONES, 0), 0), b=upstream, c=biases, **follows,
                            start=biases if key.follows else None)
        if not key.bottom:
            below = self._banked("below", key.inputs)
            begun = {"initial": Initial.MATRIX} if key.first else {}
            yield self._product((0, key.outputs, key.inputs), a=upstream, b=(at(Place.WEIGHTS, base), key.inputs),
                                c=below, gate=x, **begun, start=below if key.first else None)

    def compile(self, key: ListKey) -> Words:
        """Compile one instruction list to words."""
        listed = []
        if key.top:
            listed = [self._outputs(key, self._again(key)), self._loss(key)]
        elif not key.backward:
            listed = [self._outputs(key, self._banked("y", key.width, key.first))]
        elif self._recompute:
            listed = [self._outputs(key, self._again(key))]
        if key.backward:
            listed += self._backward(key)
        return ended(listed)


def compile_streaming(plan: StreamingPlan, *, array: Array, factors: Factors = best_factors,
                  recompute: bool = True, base: int | None = None) -> StreamingLists:
    """Compile the lists of a plan from element ``base`` on, by default ``plan.lists``; ``factors`` chooses the
    factors of the products.

    With ``recompute``, backward recomputes the outputs of all layers, otherwise only the outputs of the last layer,
    which the loss needs. Results are bit-identical, since the outputs of a ReLU are the inputs of the next layer, and
    that layer's backward pass sets the gradients of zero outputs to zero.
    """
    if array.lanes != plan.worker.lanes:
        raise ValueError(f"Array must have the {plan.worker.lanes} lanes of the plan's worker, not {array.lanes}")
    compiler = _Compiler(plan, array, functools.cache(factors), recompute=recompute)
    words = [compiler.compile(key) for key in plan.keys]
    base = plan.lists if base is None else base
    bases = itertools.accumulate(map(len, words), initial=base)
    return StreamingLists(plan=plan, words=np.concatenate(words), places=dict(zip(plan.keys, bases, strict=False)),
                      base=base)


@dataclasses.dataclass(frozen=True)
class _Execution:
    """Execution of one microbatch that accesses a unit, and its position in the sequence of executions."""

    number: int
    backward: bool
    access: int
    microbatch: int
    place: int

    @property
    def name(self) -> str:
        return f"{'backward' if self.backward else 'forward'} {self.number} {self.microbatch}"


def entry_of(number: int) -> int:
    """Index of a unit's entry in the server's table of counts, or the end of the table if it is full."""
    return int(min(number, ENTRIES))


class _Builder:
    """Builder for the commands of a set of microbatches."""

    def __init__(self, lists: StreamingLists, lengths: Sequence[Sequence[int]], depth: int, bases: Sequence[int]):
        self._lists, self._plan = lists, lists.plan
        self._lengths = lengths
        self._workers = len(lengths)
        self._program = Program(queues=3, depth=depth, nodes=self._workers + 1)
        forward, backward = accesses(self._plan.units)
        self._accesses = [*((number, False) for number in forward), *((number, True) for number in backward)]
        self._bases = bases

    def _near(self, name: str, words: int, position: int) -> Region:
        return Region("activations", self._plan.bank.places[name] + position % 2 * self._plan.distance, words)

    def _moves(self, execution: _Execution, *, back: bool) -> list[tuple[Region, Region]]:
        """Return the near and the far region of each move: inputs from far memory (``back``) or outputs to it."""
        plan, unit = self._plan, self._plan.units[execution.number]
        layer, top = unit.layer, unit.layer == plan.last
        read, made = [("x", "x", layer)], []
        if not execution.backward:
            made.append(("loss", "loss", 0) if top else ("y", "x", layer + 1))
        elif layer > 1:
            made.append(("below", "upstream", layer - 1))
        if execution.backward and not top:
            read.append(("upstream", "upstream", layer))
        if top:
            read.append(("labels", "labels", 0))
        if unit.first:
            read += made  # also move in the outputs that the layer's previous parts have written
        moves = []
        for near, far, number in read if back else made:
            region = plan.far(far, execution.microbatch, number)
            words = region.length
            if far == "upstream":  # its regions have the size of the widest layer
                words = plan.size(plan.widths[number])
                region = dataclasses.replace(region, length=words)
            moves.append((self._near(near, words, execution.place), region))
        return moves

    def _move(self, execution: _Execution, *, back: bool) -> None:
        for number, (near, far) in enumerate(self._moves(execution, back=back)):
            self._program.add(
                f"{'in' if back else 'out'} {execution.name} {number}", operation="MOVE_IN" if back else "MOVE_OUT",
                queue=Queue.MOVE, reads=[far if back else near], writes=[near if back else far],
                fields={"weight_base": near.base, "state_base": far.base, "length": near.length})

    def _window(self, window: tuple[int, bool], space: str) -> Region:
        number, backward = window
        return Region(space, self._plan.window * self._plan.windows[backward][number],
                      self._plan.units[number].words)

    def _fetched(self, access: int) -> bool:
        """Whether the unit must be fetched for this access, because its window does not contain it yet."""
        number, backward = self._accesses[access]
        window, earlier = self._plan.windows[backward][number], reversed(self._accesses[:access])
        return next((unit for unit, way in earlier if self._plan.windows[way][unit] == window), None) != number

    def _fetch(self, access: int) -> None:
        """Add the FETCH for an access, unless there is no such access or its window already contains the unit."""
        if access >= len(self._accesses) or not self._fetched(access):
            return
        number, backward = self._accesses[access]
        near, served = self._window((number, backward), "weights"), self._served(number)
        self._program.add(
            f"fetch {number}{' again' if backward else ''}", operation="BROADCAST", queue=Queue.COMMUNICATE,
            collective=True, reads=[served], writes=[near],
            fields={"weight_base": [near.base] * self._workers + [served.base], "length": near.length,
                    "root": self._workers, "format": FETCH_FORMATS.index(self._plan.units[number].format),
                    "entry": entry_of(number)})

    def _served(self, number: int) -> Region:
        return Region("served", self._bases[number], self._plan.units[number].words)

    def _push(self, number: int) -> None:
        near, served = self._window((number, True), "gradients"), self._served(number)
        self._program.add(
            f"push {number}", operation="PUSH", queue=Queue.COMMUNICATE, collective=True,
            reads=[near, Region("settings", 0, 1)], writes=[served],
            fields={"gradient_base": near.base, "weight_base": served.base, "state_base": served.base,
                    "length": near.length, "root": self._workers, "entry": entry_of(number)})

    def _execute(self, work: _Execution) -> None:
        plan = self._plan
        key = plan.key(work.number, backward=work.backward, follows=work.backward and work.microbatch > 0)
        near = [region for region, _ in self._moves(work, back=True)]
        made = [region for region, _ in self._moves(work, back=False)]
        writes = [*made, *([plan.again] if work.backward or key.top else [])]
        if key.top:
            writes += [self._near("gradient", plan.size(key.outputs), work.place),
                       self._near("loss", plan.profile.words["loss"], work.place)]
        if work.backward:
            writes.append(self._window((work.number, True), "gradients"))
        self._program.add(
            work.name, operation="LAYERS", queue=Queue.COMPUTE, writes=writes,
            reads=[*near, self._window((work.number, work.backward), "weights")],
            fields={"weight_base": self._lists.places[key], "state_base": work.place % 2 * plan.distance,
                    "length": [*(lengths[work.microbatch] for lengths in self._lengths), 1]})

    def build(self) -> CompiledProgram:
        """Build all commands in the order of a single queue."""
        self._program.add("latch", operation="LATCH", queue=Queue.COMMUNICATE, writes=[Region("settings", 0, 1)])
        count = self._plan.count
        sequence = [_Execution(number, backward, access, microbatch, access * count + microbatch)
                    for access, (number, backward) in enumerate(self._accesses) for microbatch in range(count)]
        self._fetch(0)
        self._fetch(1)
        self._move(sequence[0], back=True)
        for execution, following in itertools.zip_longest(sequence, sequence[1:]):
            early = following is not None and not self._depends(following, execution)
            if early:
                self._move(following, back=True)
            self._execute(execution)
            self._move(execution, back=False)
            if following is not None and not early:
                self._move(following, back=True)
            if execution.microbatch == count - 1:
                if execution.backward:
                    self._push(execution.number)
                self._fetch(execution.access + 2)
        return self._program.compile()

    def _depends(self, following: _Execution, execution: _Execution) -> bool:
        """Whether an execution reads outputs of the execution before it."""
        return any(far.meets(made) for _, far in self._moves(following, back=True)
                   for _, made in self._moves(execution, back=False))


def streaming_program(lists: StreamingLists, *, lengths: Sequence[Sequence[int]], depth: int = 64,
                  bases: Sequence[int] | None = None) -> CompiledProgram:
    """Build the program of a set for all workers and for the server, which has the last rank. Queues hold up to
    ``depth`` commands.

    ``lengths`` gives the number of examples in each microbatch of each worker, from 1 to the plan's number. ``bases``
    gives the units' addresses on the server; by default they are stored back to back.
    """
    plan = lists.plan
    bases = first_bases([unit.length for unit in plan.units]) if bases is None else bases
    for shares in lengths:
        if len(shares) != plan.count or not all(1 <= length <= plan.microbatch for length in shares):
            raise ValueError(f"Lengths of a worker must be {plan.count} of 1 to {plan.microbatch} examples, not "
                             f"{list(shares)!r}")
    return _Builder(lists, lengths, depth, bases).build()
