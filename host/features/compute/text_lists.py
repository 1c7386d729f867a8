"""Instruction lists for the text model (:mod:`host.models.transformer`), by groups of sequences.

Sequences that run together form a group with consecutive rows: a product over all of them is one instruction, and its
sums have the same order as for single sequences. A group is executed by the lists ``forward``, which end with the
cross-entropy, and then by backward lists: ``first`` for the first group of a node's share, which initialises the
gradients, and ``further`` for all other groups, which add to them. All rows of the context are computed. Rows after
the end of a sequence have character 0 and the label PADDING, which sets their gradients to zero.

Tokens, labels and the loss of each sequence are stored after the lists and addressed by the command's ``state_base``,
so one list serves all groups. A group's buffers are planned from the instructions, as for a perceptron
(:mod:`host.features.compute.lists`). Tokens, labels and losses have buffer tag 1; tags of buffers start at 2.

:class:`TextOperations` decodes the words of lists: it finds the buffers that each instruction accesses, and can move
instructions to different addresses. An instruction that accesses no buffer, such as clearing gradients, joins the
next one that does, so the backward lists have the same operations. :class:`ListCycles` models a list's cycles.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.features.compute import layer_list
from hdl.features.compute.engine import COLUMNS
from hdl.features.compute.layer_list import BASE_BITS, OWNER_BITS, Initial, Kind, Place, RowFunction, VectorProgram
from hdl.features.compute.memory_access import MemoryAccess
from hdl.group import GROUP
from host.features.compute import instructions
from host.features.compute.instructions import Array, Buffers, Factors, Matrix, Products, Words, at, numbered, up
from host.features.compute.memory.chain import AGAIN, Chain, Saved
from host.features.compute.memory.plan import ListProgram, Plan, make_plan, rooms_of
from host.models.layers import ALTERNATIVE, EPSILON
from host.models.transformer import Transformer, TransformerConfig
from sim.golden.features.compute import gemm, row_unit
from sim.golden.features.compute.compute import Centroid, Engine, Gemm, Instruction, Operand, Vector, pack, sources
from sim.golden.features.compute.gemm import GemmJob
from sim.golden.features.compute.layer_list import command_cycles, job
from sim.golden.features.compute.row_cycles import RowCycles
from sim.golden.features.compute.vector_cycles import VectorCycles

__all__ = ["ListCycles", "Operation", "TextLists", "TextOperations", "compile_text", "cut_lists", "engine_of"]


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


def _stride(context: int) -> int:
    """Distance in elements between the tokens of consecutive sequences."""
    return up(2 * context + 1, GROUP)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TextLists:
    """Compiled instruction lists of the text model."""

    words: Words  # words of all instruction lists, with zeros in place of the sequences' tokens, labels and losses
    base: int  # address of the first instruction list
    #: Addresses of the instruction lists: forward with loss, backward for the first group of a node's share, and
    #: backward for further groups.
    forward: tuple[int, ...]
    first: tuple[int, ...]
    further: tuple[int, ...]
    data: int  # address of the first sequence's tokens, followed by its labels and its loss
    context: int  # number of tokens, and of labels, per sequence
    sequences: int  # maximum number of sequences in a share
    together: int  # number of sequences in a group
    plan: Plan
    multiplications: int  # multiply-adds per sequence, without column sums

    @property
    def stride(self) -> int:
        """Distance between the tokens of successive sequences, in elements."""
        return _stride(self.context)

    @property
    def end(self) -> int:
        """Words of the activation memory in use."""
        return self.base + len(self.words)

    @property
    def programs(self) -> list[ListProgram]:
        """Return two programs: the instruction lists for the first group of a node's share, and the lists for all
        other groups."""
        return [ListProgram(words=self.words, base=self.base, starts=(*self.forward, *backward),
                            examples=self.context, given=(), taken=())
                for backward in (self.first, self.further)]


class _Compiler:
    """Compiler for the instructions that process a group of sequences."""

    def __init__(self, config: TransformerConfig, *, together: int, buffers: Buffers, product: Products, data: int,
                 further: bool, scaled_again: bool):
        self._config = config
        self._sequences = range(together)
        self._rows = together * config.context
        self._buffers = buffers
        self._product = product
        self._data = data
        self._further = further
        self._again = scaled_again
        model = Transformer(config)
        #: Index of each parameter in the flat vector, as arrays with the parameters' shapes.
        self._numbers = model.views(np.arange(model.size, dtype=np.float64))
        self.listed: list[Words] = []

    # Operands.

    def _weights(self, layer: str, name: str) -> Matrix:
        """Return parameters as an operand; a vector has a stride of 0."""
        numbers = self._numbers[layer][name]
        return at(Place.WEIGHTS, int(numbers.flat[0])), numbers.shape[1] if numbers.ndim > 1 else 0

    def _gradient(self, layer: str, name: str) -> Matrix:
        """Return the gradient of parameters as an operand; a vector's gradient is a single row."""
        numbers = self._numbers[layer][name]
        return at(Place.GRADIENTS, int(numbers.flat[0])), numbers.shape[-1]

    def _given(self, sequence: int, offset: int = 0) -> dict[str, int]:
        """Return an operand at an offset from a sequence's first token."""
        base = self._data + sequence * _stride(self._config.context) + offset
        return at(Place.ACTIVATIONS, base, relative=True, owner=numbered(0))

    # Instructions.

    def _row(self, function: RowFunction, rows: int, columns: int, *, count: int = 0, factor: float = 0,
             epsilon: float = 0, **operands: Matrix) -> None:
        fields = instructions.with_strides(operands)
        for name in ("scale", "shift", "deviation"):  # these operands are vectors, which have no stride
            fields.pop(f"stride_{name}", None)
        self.listed.append(pack(layer_list.row_layout(), {
            "kind": Kind.ROWS, "function": function, "started": int("start" in operands), "rows": rows,
            "columns": columns, "count": count, "factor": _bits(factor), "epsilon": _bits(epsilon), **fields}))

    def _vector(self, function: VectorProgram, rows: int, columns: int, **operands: Matrix) -> None:
        fields = instructions.with_strides(operands)
        fields.pop("stride_loss", None)
        self.listed.append(pack(layer_list.vector_layout(), {
            "kind": Kind.VECTOR, "function": function, "rows": rows, "columns": columns, **fields}))

    def _multiply(self, sizes: tuple[int, int, int], **options: Any) -> None:
        self.listed.append(self._product(sizes, **options))

    def _accumulate(self, sizes: tuple[int, int, int], *, c: Matrix, **options: Any) -> None:
        """Add a product that is stored as a gradient or added to one."""
        more = {"initial": Initial.MATRIX, "start": c} if self._further else {}
        self._multiply(sizes, c=c, **more, **options)

    def _sums(self, x: Matrix, columns: int, layer: str, name: str) -> None:
        """Add the column sums of a matrix, which are the gradient of a vector."""
        self._accumulate((1, self._rows, columns), a=(at(Place.ONES, 0), 0), b=x, c=self._gradient(layer, name))

    def forward(self) -> None:
        """Add all instructions of the forward pass, including the loss."""
        config, buffers, rows = self._config, self._buffers, self._rows
        buffers.new("x 0", rows, config.width)
        for sequence in self._sequences:
            self._row(RowFunction.GATHER, config.context, config.width, count=config.characters,
                      y=(self._given(sequence), 1), x=self._weights("embedding", "character"),
                      start=self._weights("embedding", "position"), target=self._part("x 0", (sequence, 0)))
        self._norm("norm_0", x="x 0")
        for n in range(config.layers):
            self._attend(n)
            self._norm(f"feed_norm_{n}", x=f"outward {n}", start=f"x {2 * n}", third=f"x {2 * n + 1}")
            self._linear(f"rise_{n}", f"scaled feed_norm_{n}", relu=1)
            self._linear(f"fall_{n}", f"rise_{n}")
            self._norm(f"norm_{n + 1}" if n + 1 < config.layers else "norm", x=f"fall_{n}", start=f"x {2 * n + 1}",
                       third=f"x {2 * n + 2}")
        self._linear("output", "scaled norm")
        buffers.new("d output", rows, config.characters)
        for sequence in self._sequences:
            self._vector(VectorProgram.CROSS_ENTROPY, config.context, config.characters,
                         source=self._part("output", (sequence, 0)), target=self._part("d output", (sequence, 0)),
                         labels=(self._given(sequence, config.context), 1),
                         loss=(self._given(sequence, 2 * config.context), 0))

    def _norm(self, name: str, *, x: str, start: str | None = None, third: str | None = None) -> None:
        """Add a layer norm of ``x`` or, given ``start``, of ``x + start``, which is stored in ``third``."""
        rows, width, buffers = self._rows, self._config.width, self._buffers
        operands: dict[str, Any] = {"x": buffers[x], "deviation": buffers.new(f"deviation {name}", 1, rows),
                    "second": buffers.new(f"normal {name}", rows, width),
                    "target": buffers.new(f"scaled {name}", rows, width), "scale": self._weights(name, "scale"),
                    "shift": self._weights(name, "shift")}
        if start is not None and third is not None:
            operands |= {"start": buffers[start], "third": buffers.new(third, rows, width)}
        self._row(RowFunction.NORM, rows, width, epsilon=EPSILON, factor=1 / width, **operands)

    def _linear(self, name: str, x: str, *, relu: int = 0) -> None:
        outputs, inputs = self._numbers[name]["weight"].shape
        self._multiply((self._rows, inputs, outputs), transpose_b=1, initial=Initial.MATRIX, relu=relu,
                       a=self._buffers[x], b=self._weights(name, "weight"), start=self._weights(name, "bias"),
                       c=self._buffers.new(name, self._rows, outputs))

    @property
    def _size(self) -> int:
        """Width of an attention head."""
        return self._config.width // self._config.heads

    @property
    def _gain(self) -> float:
        return 1 / math.sqrt(self._size)

    @property
    def _heads(self) -> list[tuple[int, int]]:
        """Return a pair (sequence, head) for every head of every sequence."""
        return list(itertools.product(self._sequences, range(self._config.heads)))

    def _part(self, name: str, pair: tuple[int, int], part: int = 0) -> Matrix:
        """Return a head's columns in a matrix that contains queries (``part`` 0), keys (1) and values (2), or only
        one of them."""
        (sequence, head), stride = pair, self._buffers[name][1]
        return self._buffers.part(name, sequence * self._config.context * stride + part * self._config.width
                                  + head * self._size)

    def _of(self, name: str, pair: tuple[int, int]) -> Matrix:
        """Return the rows of a head in a matrix that stores the heads' rows consecutively."""
        (sequence, head), stride = pair, self._buffers[name][1]
        return self._buffers.part(name, (sequence * self._config.heads + head) * self._config.context * stride)

    def _attend(self, n: int) -> None:
        """Add the attention of a layer, except for the output projection."""
        config, buffers, rows, name = self._config, self._buffers, self._rows, f"attention_{n}"
        width, size, context = config.width, self._size, config.context
        self._multiply((rows, width, 3 * width), a=buffers[f"scaled norm_{n}"], b=self._weights(name, "inward"),
                       c=buffers.new(f"parts {n}", rows, 3 * width))
        buffers.new(f"scores {n}", config.heads * rows, context)
        for head in self._heads:
            self._multiply((context, size, context), transpose_b=1, a=self._part(f"parts {n}", head),
                           b=self._part(f"parts {n}", head, 1), c=self._of(f"scores {n}", head), scaled=1, masked=1,
                           triangle=1, scale=_bits(self._gain), alternative=_bits(ALTERNATIVE))
        self._vector(VectorProgram.SOFTMAX, config.heads * rows, context, source=buffers[f"scores {n}"],
                     target=buffers.new(f"weights {n}", config.heads * rows, context))
        buffers.new(f"heads {n}", rows, width)
        for head in self._heads:
            self._multiply((context, context, size), a=self._of(f"weights {n}", head),
                           b=self._part(f"parts {n}", head, 2), c=self._part(f"heads {n}", head))
        self._multiply((rows, width, width), a=buffers[f"heads {n}"], b=self._weights(name, "outward"),
                       c=buffers.new(f"outward {n}", rows, width))

    def backward(self) -> None:
        """Add all instructions of the backward pass, which follows the loss."""
        config, embedding = self._config, self._gradient("embedding", "character")
        if not self._further:  # one CLEAR is enough: position gradients directly follow character gradients
            self._row(RowFunction.CLEAR, config.characters + config.context, config.width, target=embedding)
        self._linear_back("output", "scaled norm", "d output", "d scaled norm")
        upstream = f"d x {2 * config.layers}"
        self._norm_back("norm", upstream)
        for n in reversed(range(config.layers)):
            self._linear_back(f"fall_{n}", f"rise_{n}", upstream, f"d rise_{n}", gate=True)
            self._linear_back(f"rise_{n}", f"scaled feed_norm_{n}", f"d rise_{n}", f"d scaled feed_norm_{n}")
            upstream = self._norm_back(f"feed_norm_{n}", f"d x {2 * n + 1}", start=upstream)
            self._attend_back(n, upstream)
            upstream = self._norm_back(f"norm_{n}", f"d x {2 * n}", start=upstream)
        positions = self._gradient("embedding", "position")
        for sequence in self._sequences:
            self._row(RowFunction.SCATTER, config.context, config.width, count=config.characters,
                      y=(self._given(sequence), 1), x=self._part(upstream, (sequence, 0)), target=embedding)
            self._row(RowFunction.ADD, config.context, config.width, x=self._part(upstream, (sequence, 0)),
                      start=positions, target=positions)

    def _scaled(self, x: str) -> str:
        """Return the scaled rows of a layer norm, as stored by the forward pass or rescaled here."""
        if not self._again or not x.startswith("scaled "):
            return x
        name, rows, width = x.removeprefix("scaled "), self._rows, self._config.width
        self._row(RowFunction.SCALE, rows, width, x=self._buffers[f"normal {name}"],
                  scale=self._weights(name, "scale"), shift=self._weights(name, "shift"),
                  target=self._buffers.new(f"{x} again", rows, width))
        return f"{x} again"

    def _linear_back(self, name: str, x: str, upstream: str, inward: str, *, gate: bool = False) -> None:
        """Add the instructions for the gradients of a linear layer and of its input."""
        (outputs, inputs), buffers, rows = self._numbers[name]["weight"].shape, self._buffers, self._rows
        self._accumulate((outputs, rows, inputs), transpose_a=1, a=buffers[upstream], b=buffers[self._scaled(x)],
                         c=self._gradient(name, "weight"))
        self._sums(buffers[upstream], outputs, name, "bias")
        self._multiply((rows, outputs, inputs), a=buffers[upstream], b=self._weights(name, "weight"),
                       c=buffers.new(inward, rows, inputs), gate=buffers[x] if gate else None)

    def _norm_back(self, name: str, target: str, *, start: str | None = None) -> str:
        """Add the gradients of a layer norm and of its input. ``start`` is added to the input's gradient, whose name
        is returned."""
        buffers, rows, width = self._buffers, self._rows, self._config.width
        upstream, products = f"d scaled {name}", f"products {name}"
        added: dict[str, Any] = {} if start is None else {"start": buffers[start]}
        self._row(RowFunction.NORM_BACK, rows, width, x=buffers[upstream], y=buffers[f"normal {name}"],
                  scale=self._weights(name, "scale"), deviation=buffers[f"deviation {name}"], factor=1 / width,
                  second=buffers.new(products, rows, width), target=buffers.new(target, rows, width), **added)
        self._sums(buffers[products], width, name, "scale")
        self._sums(buffers[upstream], width, name, "shift")
        return target

    def _attend_back(self, n: int, upstream: str) -> None:
        """Add the instructions for the gradients of a layer's attention and of its input."""
        config, buffers, rows, name = self._config, self._buffers, self._rows, f"attention_{n}"
        width, size, context = config.width, self._size, config.context
        parts, weights, towards = f"parts {n}", f"weights {n}", f"d heads {n}"
        self._accumulate((width, rows, width), transpose_a=1, a=buffers[f"heads {n}"], b=buffers[upstream],
                         c=self._gradient(name, "outward"))
        self._multiply((rows, width, width), transpose_b=1, a=buffers[upstream], b=self._weights(name, "outward"),
                       c=buffers.new(towards, rows, width))
        buffers.new(f"d weights {n}", config.heads * rows, context)
        for head in self._heads:
            self._multiply((context, size, context), transpose_b=1, a=self._part(towards, head),
                           b=self._part(parts, head, 2), c=self._of(f"d weights {n}", head))
        buffers.new(f"d parts {n}", rows, 3 * width)
        for head in self._heads:
            self._multiply((context, context, size), transpose_a=1, a=self._of(weights, head),
                           b=self._part(towards, head), c=self._part(f"d parts {n}", head, 2))
        scores = f"d scores {n}"
        self._row(RowFunction.SOFTMAX_BACK, config.heads * rows, context, x=buffers[f"d weights {n}"],
                  y=buffers[weights], target=buffers.new(scores, config.heads * rows, context), factor=self._gain)
        for head in self._heads:
            self._multiply((context, context, size), a=self._of(scores, head), b=self._part(parts, head, 1),
                           c=self._part(f"d parts {n}", head))
            self._multiply((context, context, size), transpose_a=1, a=self._of(scores, head),
                           b=self._part(parts, head), c=self._part(f"d parts {n}", head, 1))
        self._accumulate((width, rows, 3 * width), transpose_a=1, a=buffers[self._scaled(f"scaled norm_{n}")],
                         b=buffers[f"d parts {n}"], c=self._gradient(name, "inward"))
        self._multiply((rows, 3 * width, width), transpose_b=1, a=buffers[f"d parts {n}"],
                       b=self._weights(name, "inward"), c=buffers.new(f"d scaled norm_{n}", rows, width))


def _compiled(config: TransformerConfig, product: Products, together: int, places: Mapping[str, int] | None,
              scaled_again: bool, data: int) -> tuple[dict[str, list[Words]], Buffers]:
    """Compile the instruction lists for sequences at an address; return the lists keyed by name, and the buffers."""
    lists: dict[str, list[Words]] = {}
    for further in (False, True):
        buffers = Buffers(product.array.lanes, places)
        compiler = _Compiler(config, together=together, buffers=buffers, product=product, data=data, further=further,
                             scaled_again=scaled_again)
        compiler.forward()
        lists["forward"], compiler.listed = cut_lists(compiler.listed), []
        compiler.backward()
        lists["further" if further else "first"] = cut_lists(compiler.listed)
    return lists, buffers


def cut_lists(listed: Sequence[Words]) -> list[Words]:
    """Split an instruction list into lists that are short enough for the nodes."""
    most = layer_list.MAX_INSTRUCTIONS - 1
    return [instructions.ended(listed[first:first + most]) for first in range(0, len(listed), most)]


def compile_text(config: TransformerConfig, *, array: Array, sequences: int, words: int, together: int = 1,
                 factors: Factors = instructions.best_factors, scaled_again: bool = False) -> TextLists:
    """Compile the lists of the text model.

    Raises ``ValueError`` if nodes cannot compute the model or the sequences do not fit.

    Parameters
    ----------
    sequences, words : int
        Maximum number of sequences per node and step, and number of elements in a node's activation memory.
    together : int
        Number of sequences in a group; the last group of a share is completed with padding.
    scaled_again : bool
        Whether layer norms store only their normalised rows, which are rescaled in the backward pass.
    """
    for name, size in (("Width of a head", config.width // config.heads), ("Hidden width", config.hidden),
                       ("Characters", config.characters)):
        if size % array.lanes:
            raise ValueError(f"{name} must be a multiple of the {array.lanes} lanes of nodes that compute, not "
                             f"{size}")
    for name, size in (("Characters", config.characters), ("Width", config.width), ("Context", config.context)):
        if size > COLUMNS:
            raise ValueError(f"{name} must be at most {COLUMNS} on nodes that compute, not {size}")
    product = Products(array=array, factors=functools.cache(factors), length=config.context)
    compiled = functools.partial(_compiled, config, product, together, scaled_again=scaled_again)

    def placed(plan: Plan, base: int) -> TextLists:
        """Assign address ``base`` to the instruction lists, and the following addresses to the sequences."""
        listed, _ = compiled(plan.places, data=base + length)
        starts = {}
        end = base
        for name, lists in listed.items():
            *ahead, end = itertools.accumulate(map(len, lists), initial=end)
            starts[name] = tuple(ahead)
        words = np.concatenate([*itertools.chain(*listed.values()),
                                np.zeros(up(sequences, together) * _stride(config.context), np.uint32)])
        return TextLists(words=words, base=base, data=end, context=config.context, sequences=sequences,
                         together=together, plan=plan, multiplications=_multiplications(config), **starts)

    sized, buffers = compiled(None, data=0)
    length = sum(map(len, itertools.chain(*sized.values())))
    apart = placed(Plan(digest="", method="apart", words={}, lifetimes=(), places={
        name: room.base for name, room in buffers.rooms.items()}), buffers.end)
    plan = make_plan(apart.programs[0].profile(buffers.rooms, engine_of(array)))
    lists = placed(plan, plan.peak)
    if lists.end > words:
        raise ValueError(f"{sequences} sequences of nodes that compute need {lists.end:,} elements of the activation "
                         f"memory, with lists, which has {words:,}: take smaller batches")
    return lists


def engine_of(array: Array) -> Engine:
    """Create the golden engine of an array that runs the text model's instruction lists."""
    return array.engine(scale_mask=True, sequences=True)


def _multiplications(config: TransformerConfig) -> int:
    """Number of multiply-adds per sequence in matrix products, excluding sums of columns."""
    width, rows = config.width, config.context
    layer = rows * width * (4 * width + 2 * config.hidden) + 2 * rows * rows * width
    return 3 * (config.layers * layer + rows * width * config.characters)


class ListCycles:
    """Cycle model of an engine, for a command length and an activation memory of ``words`` elements.

    GATHER and SCATTER read ``characters``; repeated characters take longer, and by default all are different. The
    default vector unit has one pipeline per lane.
    """

    def __init__(self, array: Array, *, length: int, words: int, characters: Sequence[int] | None = None,
                 scale_mask: bool = True, vector: VectorCycles | None = None):
        self._lanes = array.lanes
        self._length = length
        self._rows = words // array.lanes
        self._characters = np.array(range(length) if characters is None else characters, np.uint32)
        self._product = dataclasses.replace(array.model, scale_mask=scale_mask)
        self._vector = vector or VectorCycles(units=array.lanes)
        self._function = RowCycles(lanes=array.lanes)
        self._known: dict[tuple[Any, ...], int] = {}

    def instruction(self, instruction: Instruction) -> tuple[str, int]:
        """Return the kind of work of an instruction, such as ``products`` or ``softmax``, and its cycles."""
        fields = job(instruction, lanes=self._lanes, memory_rows=self._rows)
        match instruction:
            case Gemm():
                fields.pop("scale_mask")
                sides: dict[str, Any] = {name: gemm.Matrix(**arg) if isinstance(arg, dict) else arg
                                         for name, arg in fields.items()}
                product = GemmJob(**sides)
                key = tuple((name, arg.stride > 0 if isinstance(arg, gemm.Matrix) else arg, getattr(arg, "place", 0))
                            for name, arg in vars(product).items())
                if key not in self._known:
                    self._known[key] = self._product.cycles(product)
                return "products" if product.a.place != Place.ONES else "sums", self._known[key]
            case Vector():
                softmax = instruction.labels is None
                return "softmax" if softmax else "loss", self._vector.job(
                    instruction.source.rows, instruction.source.columns, softmax=softmax)
            case Centroid():
                raise ValueError("Instruction must be one of a sequence, not of centroids")
        strides = {f"stride_{name}": arg["stride"] for name, arg in fields.items()
                   if isinstance(arg, dict) and "stride" in arg}
        known = {arg.name for arg in dataclasses.fields(row_unit.Job)}
        operands: dict[str, Any] = {name: (arg["place"], arg["row"]) if isinstance(arg, dict) else arg
                                    for name, arg in fields.items() if name in known}
        rows = row_unit.Job(**strides, **operands)
        return "rows", self._function.job(rows, row_unit.run(rows, self._memories(instruction)).blocks)

    def _memories(self, instruction: Any) -> list[npt.NDArray[np.uint32]]:
        """Create zeroed memories with characters at the addresses where a row function reads them."""
        memories = [np.zeros((self._rows, self._lanes), np.uint32) for _ in range(3)]
        if instruction.y is not None and instruction.count:
            base = instruction.y.base
            memories[Place.ACTIVATIONS].ravel()[base:base + self._length] = self._characters
        return memories

    def walks(self, words: Sequence[npt.NDArray[np.uint32]]) -> int:
        """Return the cycles of an instruction list, including its END but excluding its jobs."""
        return command_cycles(list(words), self._length, lanes=self._lanes, answer=MemoryAccess.latency)


#: Word indices of the operands within an instruction, keyed by the kind of instruction.
_OPERANDS = {int(kind): [field.offset // 32 for _, field in layout if field.shape == layer_list.operand_layout()]
             for kind, layout in ((Kind.GEMM, layer_list.gemm_layout()), (Kind.VECTOR, layer_list.vector_layout()),
                                  (Kind.ROWS, layer_list.row_layout()))}
_PLACE, _RELATIVE = BASE_BITS + OWNER_BITS, 1 << BASE_BITS + OWNER_BITS + 3
_BASE, _OWNER = (1 << BASE_BITS) - 1, (1 << OWNER_BITS) - 1 << BASE_BITS


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """An instruction, together with directly preceding instructions that access no buffer."""

    #: Names of the buffers that are read, and names of the buffers that are written.
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    words: tuple[Words, ...]  # words of each instruction, with addresses as in the decoded lists
    instructions: tuple[Instruction, ...]
    multiplications: int  # multiply-adds, except for sums of columns


class TextOperations:
    """Operations of a sequence, decoded from instruction lists that rescale normalised rows in the backward pass.

    Cycles are modelled for a sequence without repeated characters.
    """

    def __init__(self, lists: TextLists, array: Array):
        self.lists = lists
        self._rooms = rooms_of(lists.plan)
        self._owners: dict[str, int] = {}
        self._jobs: dict[int, int] = {}  # modelled cycles of instructions, keyed by ``id``
        self._model = ListCycles(array, length=lists.context, words=1 << BASE_BITS)
        self._variants = [self._taken_apart(array, number) for number in range(2)]
        touched = [[(operation.reads, operation.writes) for operation in variant] for variant in self._variants]
        assert touched[0] == touched[1]
        #: Saved activation maps, with the operations that write and read them.
        self.saved = Saved(self._variants[0], "d output",
                           vectors=[name for name, room in self._rooms.items() if room.words <= GROUP])

    def operations(self, *, further: bool) -> Sequence[Operation]:
        """Return the operations of the first sequence in a node's share, or of any further sequence."""
        return self._variants[further]

    def words(self, name: str) -> int:
        """Return the number of words of a buffer."""
        return self._rooms[name].words

    def plain(self, name: str) -> str:
        """Return the name of the forward buffer that is bit-identical to a buffer."""
        other = name.removesuffix(AGAIN)
        return other if other in self._rooms else name

    def _taken_apart(self, array: Array, number: int) -> list[Operation]:
        program = self.lists.programs[number]
        raw: list[Words] = []
        for start in program.starts:
            position = start - self.lists.base
            while self.lists.words[position] & 15:
                raw.append(self.lists.words[position:position + layer_list.INSTRUCTION_WORDS])
                position += layer_list.INSTRUCTION_WORDS
        operations: list[Operation] = []
        waiting: list[tuple[Instruction, Words]] = []
        for entry in zip(itertools.chain(*program.lists(engine_of(array))), raw, strict=True):
            waiting.append(entry)
            reads, writes = (self._named(side, len(operations) + 1) for side in (sources(entry[0]), entry[0].targets))
            if reads or writes:
                listed, words = zip(*waiting, strict=True)
                operations.append(Operation(
                    reads=reads, writes=writes, instructions=listed, words=words,
                    multiplications=sum(entry.job.m * entry.job.n * entry.job.k for entry in listed
                                        if isinstance(entry, Gemm) and entry.a.place is not Place.ONES)))
                waiting = []
        assert not waiting
        return operations

    def _named(self, operands: Sequence[Operand], number: int) -> tuple[str, ...]:
        """Return the names of the buffers accessed by an operation's operands, given its number in the plan."""
        names = set()
        for operand in operands:
            if operand.place is Place.ACTIVATIONS and operand.end <= self.lists.plan.peak:
                (name,) = (name for name, room in self._rooms.items() if room.has(operand, number))
                self._owners[name] = operand.owner
                names.add(name)
        return tuple(sorted(names))

    def relocated(self, operation: Operation, places: Mapping[str, tuple[str, int]], data: int) -> list[Words]:
        """Return an operation's words relocated to new addresses; the first sequence's characters are at ``data``.

        For each buffer of the operation, ``places`` gives the name and first word of its replacement.
        """
        rooms = [(name, self._rooms[name]) for name in {*operation.reads, *operation.writes}]
        relocated = [words.copy() for words in operation.words]
        for words in relocated:
            for word in _OPERANDS[int(words[0]) & 15]:
                bits = int(words[word])
                base = bits & _BASE
                if bits >> _PLACE & 7 != Place.ACTIVATIONS:
                    continue
                if bits & _RELATIVE:
                    words[word] = bits & ~_BASE | base - self.lists.data + data
                    continue
                (name, room), = (pair for pair in rooms if pair[1].base <= base < pair[1].base + pair[1].words)
                other, begin = places[name]
                words[word] = bits & ~(_BASE | _OWNER) | self._owners[other] << BASE_BITS | begin + base - room.base
        return relocated

    def cycles(self, numbers: Sequence[int], *, further: bool) -> int:
        """Return the modelled cycles of a list of operations; 0 if it is empty."""
        operations = [self._variants[further][number] for number in numbers]
        if not operations:
            return 0
        words = [words for operation in operations for words in operation.words]
        return self._model.walks([*words, np.zeros(layer_list.INSTRUCTION_WORDS, np.uint32)]) + sum(
            self._job(instruction) for operation in operations for instruction in operation.instructions)

    def _job(self, instruction: Instruction) -> int:
        if id(instruction) not in self._jobs:
            self._jobs[id(instruction)] = self._model.instruction(instruction)[1]
        return self._jobs[id(instruction)]

    def chain(self, *, further: bool, cycles: Callable[[Sequence[int]], int] | None = None) -> Chain:
        """Build the chain of saved activation maps, with modelled cycles by default."""
        modelled = functools.partial(self.cycles, further=further)
        return self.saved.chain("lists of text", words=self.words, cycles=cycles or modelled,
                                multiplications=lambda number: self._variants[further][number].multiplications)
