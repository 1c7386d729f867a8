"""Golden model of the compute engine, which runs a list of instructions on a node's memories.

The whole list is checked before any instruction runs, so an invalid list changes nothing. Results follow
:mod:`sim.golden.summation`; they do not depend on how a product is divided into panels.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import EventStatus
from hdl.features.compute.array import TILES
from hdl.features.compute.layer_list import (
    INSTRUCTION_WORDS,
    MAX_INSTRUCTIONS,
    MULTIPLIED_BIT,
    ROW_BIT,
    Initial,
    Kind,
    Place,
    VectorProgram,
    centroid_layout,
    gemm_layout,
    instruction_layout,
    row_layout,
    vector_layout,
)
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.masking.mask import INDEX_BITS, KINDS
from sim.golden import masking
from sim.golden.features.compute.gemm import ScaleMask, epilogue
from sim.golden.features.compute.list_operand import Memories, Operand
from sim.golden.features.compute.list_words import pack, unpack
from sim.golden.features.compute.loop_nest import Job, LoopNest
from sim.golden.features.compute.row_instruction import Rows, rows_instruction
from sim.golden.features.compute.row_owners import RowOwners
from sim.golden.features.compute.vector import cross_entropy, softmax
from sim.golden.nodes import Nodes
from sim.golden.operands import FP32, operands_of, product

__all__ = ["Centroid", "Engine", "Gemm", "Memories", "Operand", "Outcome", "Vector", "pack", "sources",
           "spaces", "unpack"]

Bits = npt.NDArray[np.uint32]

#: Maximum size of an operand, and exclusive upper limit of panel factors.
_MOST, _FACTORS = 4095, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemm:
    """Matrix product instruction with resolved and checked operands."""

    job: Job
    a: Operand
    b: Operand
    c: Operand
    start: Operand | None
    gate: Operand | None
    transpose_a: bool
    transpose_b: bool
    relu: bool
    scale_mask: ScaleMask
    operands: str

    @property
    def targets(self) -> tuple[Operand, ...]:
        return (self.c,)

    def run(self, memories: Memories) -> bool:
        a, b = self.a.read(memories), self.b.read(memories)
        start = None if self.start is None else self.start.read(memories)
        with np.errstate(over="ignore", invalid="ignore"):
            total = product(a.T if self.transpose_a else a, b.T if self.transpose_b else b, start,
                            operands=self.operands)
        gate = None if self.gate is None else self.gate.read(memories)
        total = epilogue(total.astype(np.float32), self.scale_mask, relu=self.relu, gate=gate)
        self.c.write(memories, total)
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vector:
    """Row function instruction with resolved and checked operands; without labels, it is a softmax."""

    source: Operand
    labels: Operand | None
    target: Operand
    loss: Operand | None
    sequences: bool

    @property
    def targets(self) -> tuple[Operand, ...]:
        return (self.target,) if self.loss is None else (self.target, self.loss)

    def run(self, memories: Memories) -> bool:
        """Run the function; return whether all labels are valid."""
        scores = self.source.read(memories).view(np.uint32)
        if self.labels is None or self.loss is None:
            self.target.write(memories, softmax(scores).view(np.float32))
            return True
        labels = memories[self.labels.place][self.labels.index()][:, 0].astype(np.int64)
        result = cross_entropy(scores, labels, sequences=self.sequences)
        self.target.write(memories, result.gradient.view(np.float32))
        self.loss.write(memories, np.array([[result.loss]], np.uint32).view(np.float32))
        return not result.wrong


@dataclasses.dataclass(frozen=True, kw_only=True)
class Centroid:
    """Product with centroid indices as weights, or a centroid gradient, with resolved and checked operands."""

    target: Operand
    x: Operand
    indices: Operand
    start: Operand | None
    table: Operand | None
    gate: Operand | None
    outputs: int
    relu: bool
    lanes: int
    centroids: int

    @property
    def gradient(self) -> bool:
        return self.table is None

    @property
    def targets(self) -> tuple[Operand, ...]:
        return (self.target,)

    @property
    def multiplied(self) -> int:
        """Number of cycles when all lanes multiply: one per output and group of eight examples."""
        groups: int = -(-self.x.rows // SLOTS) * SLOTS
        return self.centroids * self.indices.rows * groups

    def run(self, memories: Memories) -> bool:
        """Run the instruction on the memories of its operands."""
        from sim.golden.features.codebook_layers import centroid_product

        x = self.x.read(memories)
        lines = memories[self.indices.place][self.indices.index()]
        indices = centroid_product.unpack_indices(lines, x.shape[1], self.lanes, self.centroids)
        start = np.zeros((1, 1), np.float32) if self.start is None else self.start.read(memories)
        with np.errstate(all="ignore"):
            if self.table is None:
                result = centroid_product.layer_gradient(indices, x, start, self.centroids, lanes=self.lanes)[None]
            else:
                result = centroid_product.product(indices[:self.outputs], self.table.read(memories)[0], x, start)
        gate = None if self.gate is None else self.gate.read(memories)
        self.target.write(memories, epilogue(result, ScaleMask(), relu=self.relu, gate=gate))
        return True


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of a command: its status and the detail of its event.

    The detail is the number of the invalid instruction or of END, which is the number of instructions that ran. With
    centroids, bits 8 and up are the number of cycles in which all lanes of the centroid unit multiplied. With
    READ_DEAD, bits 8 and up are the row number.
    """

    status: EventStatus
    detail: int


Instruction = Gemm | Vector | Centroid | Rows
"""Instruction with resolved and checked operands."""


def sources(instruction: Instruction) -> list[Operand]:
    """Operands that an instruction reads: all except its targets and the table of SCATTER."""
    if isinstance(instruction, Rows):
        return list(instruction.sources)
    values = (getattr(instruction, field.name) for field in dataclasses.fields(instruction))
    return [operand for operand in values
            if isinstance(operand, Operand) and not any(operand is target for target in instruction.targets)]


class _WrongError(Exception):
    """Raised when an instruction of a list is invalid."""


def _refuse(condition: object) -> None:
    if condition:
        raise _WrongError


def spaces(nodes: Nodes, rank: int) -> Memories:
    """Memories of a golden node that LAYERS lists can access, keyed by place."""
    return {Place.GRADIENTS: nodes.gradients[rank], Place.WEIGHTS: nodes.weights[rank],
            Place.ACTIVATIONS: nodes.activations[rank]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """Golden model of a node's compute engine."""

    #: Size of the array: rows of units, and columns, which is also the number of elements per memory row.
    rows: int
    lanes: int
    blocks: int = 128  # blocks in a panel
    columns: int = 64  # maximum number of columns of a row function
    scale_mask: bool = False  # whether products can be scaled and masked
    operands: str = FP32  # format of the operands of products
    centroids: int = 0  # number of centroids in a table; 0 without centroids
    sequences: bool = False  # supports sequence functions: ROWS, SOFTMAX and padding labels

    def run(self, memories: Memories, *, base: int, length: int, offset: int = 0,
            owners: RowOwners | None = None) -> Outcome:
        """Run a command, and write its results to the memories.

        The list starts at ``base`` in the activation memory. A size of 0 stands for ``length``, the number of rows in
        the microbatch, and ``offset`` is added to the base of relative operands. With ``owners``, written rows are
        tagged with their buffers, and the list ends after the first instruction that reads a row for a different
        buffer than it was written for; the detail contains the lowest of these rows.
        """
        if not length:
            return Outcome(EventStatus.BAD_LENGTH, 1)
        instructions, wrong = self.check(memories, base=base, length=length, offset=offset)
        if wrong is not None:
            return Outcome(EventStatus.BAD_INSTRUCTION, wrong)
        for number, instruction in enumerate(instructions):
            dead = None if owners is None else owners.run(
                *([self._owned(item, instruction, memories) for item in side]
                  for side in (sources(instruction), instruction.targets)))
            good = instruction.run(memories)
            if dead is not None:
                return Outcome(EventStatus.READ_DEAD, dead << ROW_BIT | number)
            if not good:
                return Outcome(EventStatus.BAD_INSTRUCTION, number)
        multiplied = sum(item.multiplied for item in instructions if isinstance(item, Centroid))
        return Outcome(EventStatus.OK, (multiplied << MULTIPLIED_BIT | len(instructions)) % (1 << 32))

    def carry_out(self, nodes: Nodes, rank: int, fields: Mapping[str, int]) -> None:
        """Execute LAYERS on a golden node; raises ``ValueError`` if the list is invalid."""
        outcome = self.run(spaces(nodes, rank), base=fields["weight_base"], length=fields["length"],
                           offset=fields["state_base"])
        if outcome.status is not EventStatus.OK:
            raise ValueError(f"LAYERS must end well, not with {outcome.status.name} {outcome.detail}")

    def _owned(self, operand: Operand, instruction: Instruction,
               memories: Memories) -> tuple[npt.NDArray[np.int64], int]:
        """Rows of activation memory that an instruction accesses through an operand, and the operand's buffer number.
        For a table, only the rows selected by row numbers are included."""
        if operand.place is not Place.ACTIVATIONS:
            return np.zeros(0, np.int64), operand.owner
        named = instruction.named(operand, memories) if isinstance(instruction, Rows) else None
        places = operand.index() if named is None else operand.index()[named]
        return places // self.lanes, operand.owner

    def check(self, memories: Memories, *, base: int, length: int,
              offset: int = 0) -> tuple[list[Instruction], int | None]:
        """Instructions of a list up to its END, and the number of the first invalid instruction, or None."""
        words = memories[Place.ACTIVATIONS]
        sizes = {space: len(memory) for space, memory in memories.items()}
        instructions: list[Instruction] = []
        for number in range(MAX_INSTRUCTIONS):
            first = base + INSTRUCTION_WORDS * number
            own_words = words[first:first + INSTRUCTION_WORDS]
            if len(own_words) < INSTRUCTION_WORDS:
                return instructions, number
            try:
                instruction = self._instruction(own_words, length, offset, sizes)
            except _WrongError:
                return instructions, number
            if instruction is None:
                return instructions, _over(instructions, base, first + INSTRUCTION_WORDS)
            instructions.append(instruction)
        return instructions, MAX_INSTRUCTIONS

    def _instruction(self, words: Bits, length: int, offset: int, sizes: Mapping[Place, int]) -> Instruction | None:
        """Check an instruction and resolve its operands; returns None for END."""
        match unpack(instruction_layout(), words):
            case {"kind": Kind.END, "rest": 0}:
                return None
            case {"kind": Kind.GEMM}:
                return self._gemm(unpack(gemm_layout(), words), length, offset, sizes)
            case {"kind": Kind.VECTOR}:
                return self._vector(unpack(vector_layout(), words), length, offset, sizes)
            case {"kind": Kind.CENTROID} if self.centroids:
                return self._centroid(unpack(centroid_layout(), words), length, offset, sizes)
            case {"kind": Kind.ROWS} if self.sequences:
                return self._rows(unpack(row_layout(), words), length, offset, sizes)
        raise _WrongError

    def _gemm(self, fields: dict[str, Any], length: int, offset: int, sizes: Mapping[Place, int]) -> Gemm:
        _refuse(fields["format"] != operands_of(self.operands).code)
        _refuse(any(value for name, value in fields.items() if name.startswith("reserved")))
        _refuse((fields["scaled"] or fields["masked"]) and not self.scale_mask)
        _refuse(fields["initial"] not in list(Initial) or fields["tile"] >= TILES
                or max(fields["row_tiles"], fields["column_tiles"]) >= _FACTORS)
        m, k, n = (_size(fields[name], length) for name in "mkn")
        transposes = fields["transpose_a"], fields["transpose_b"]
        job = Job(m=m, n=n, k=k, align_m=transposes[0], align_k=int(not transposes[0] or transposes[1]),
                  **{name: fields[name] for name in ("tile", "row_tiles", "column_tiles", "rounds", "order")})
        _refuse(not LoopNest(rows=self.rows, lanes=self.lanes, blocks=self.blocks,
                             terms=operands_of(self.operands).terms).legal(job))

        def operand(name: str, shape: tuple[int, int], **options: bool) -> Operand:
            return self._operand(fields[name], fields[f"stride_{name}"], shape, offset, sizes, **options)

        a = operand("a", (k, m) if fields["transpose_a"] else (m, k), ones=True)
        b = operand("b", (n, k) if fields["transpose_b"] else (k, n), ones=True)
        c = operand("c", (m, n), target=True)
        start = operand("start", (m, n), repeats=True) if fields["initial"] else None
        gate = operand("gate", (m, n)) if fields["gated"] else None
        _refuse(any(c.meets(other) for other in (a, b, gate) if other is not None))
        _refuse(start is not None and start != c and c.meets(start))
        return Gemm(job=job, a=a, b=b, c=c, start=start, gate=gate, transpose_a=bool(fields["transpose_a"]),
                    transpose_b=bool(fields["transpose_b"]), relu=bool(fields["relu"]), operands=self.operands,
                    scale_mask=_scale_mask(fields) if self.scale_mask else ScaleMask())

    def _vector(self, fields: dict[str, Any], length: int, offset: int, sizes: Mapping[Place, int]) -> Vector:
        _refuse(any(value for name, value in fields.items() if name.startswith("reserved")))
        _refuse(fields["function"] > (max(VectorProgram) if self.sequences else VectorProgram.CROSS_ENTROPY))
        rows, columns = _size(fields["rows"], length), _size(fields["columns"], length)
        _refuse(columns > self.columns)

        def operand(name: str, stride: int, shape: tuple[int, int], **options: bool) -> Operand:
            return self._operand(fields[name], stride, shape, offset, sizes, **options)

        source = operand("source", fields["stride_source"], (rows, columns))
        target = operand("target", fields["stride_target"], (rows, columns), target=True)
        labels = loss = None
        if fields["function"] == VectorProgram.CROSS_ENTROPY:
            labels = operand("labels", fields["stride_labels"], (rows, 1), inside=True, repeats=True)
            loss = operand("loss", 1, (1, 1), target=True, inside=True)
            _refuse(target.meets(labels) or any(loss.meets(other) for other in (source, labels, target)))
        _refuse(target.meets(source))
        return Vector(source=source, labels=labels, target=target, loss=loss, sequences=self.sequences)

    def _rows(self, fields: dict[str, Any], length: int, offset: int, sizes: Mapping[Place, int]) -> Rows:
        return rows_instruction(
            fields, size=lambda name: _size(fields[name], length), columns=self.columns, refuse=_refuse,
            operand=lambda name, stride, shape, **options: self._operand(
                fields[name], stride, shape, offset, sizes, **options))

    def _centroid(self, fields: dict[str, Any], length: int, offset: int, sizes: Mapping[Place, int]) -> Centroid:
        from sim.golden.features.codebook_layers import centroid_product

        gradient = fields["gradient"]
        _refuse(any(value for name, value in fields.items() if name.startswith("reserved")))
        _refuse(gradient and (fields["initial"] or fields["relu"] or fields["gated"]))
        rows, columns, outputs = (_size(fields[name], length) for name in ("rows", "columns", "outputs"))
        groups = -(-outputs // self.lanes)
        strides = {name: fields[f"stride_{name}"] for name in ("target", "x", "indices", "start", "gate")}
        strides |= {"table": 0} | ({"target": 0} if gradient else {})  # these operands have one row

        def operand(name: str, shape: tuple[int, int], **options: bool) -> Operand:
            return self._operand(fields[name], strides[name], shape, offset, sizes, **options)

        target = operand("target", (1, self.centroids) if gradient else (rows, outputs), target=True,
                         repeats=bool(gradient))
        x = operand("x", (rows, columns))
        indices = operand("indices", (groups, centroid_product.index_line(columns, self.lanes)))
        start = (operand("start", (rows, outputs), repeats=not gradient)
                 if gradient or fields["initial"] else None)
        table = None if gradient else operand("table", (1, self.centroids), repeats=True)
        gate = operand("gate", (rows, outputs)) if fields["gated"] else None
        _refuse(any(target.meets(other) for other in (x, indices, start, table, gate) if other is not None))
        return Centroid(target=target, x=x, indices=indices, start=start, table=table, gate=gate, outputs=outputs,
                        relu=bool(fields["relu"]), lanes=self.lanes, centroids=self.centroids)

    def _operand(self, field: dict[str, int], stride: int, shape: tuple[int, int], offset: int,
                 sizes: Mapping[Place, int], *, ones: bool = False, target: bool = False, repeats: bool = False,
                 inside: bool = False) -> Operand:
        """Check and resolve an operand. With ``ones``, it may consist of ones; a ``target`` must not be in the
        weights; with ``repeats``, one row may stand for all rows; with ``inside``, it may begin in the middle of a
        memory row."""
        _refuse(field["place"] not in list(Place))
        memory, (rows, columns) = Place(field["place"]), shape
        if memory is Place.ONES:
            _refuse(not ones)
            return Operand(place=memory, base=0, rows=rows, columns=columns, stride=columns, owner=field["owner"])
        base = field["base"] + (offset if field["relative"] else 0)
        _refuse(target and memory is Place.WEIGHTS)
        _refuse(not inside and (base % self.lanes or stride % self.lanes))
        _refuse(stride < columns and not (repeats and stride == 0))
        operand = Operand(place=memory, base=base, rows=rows, columns=columns, stride=stride, owner=field["owner"])
        _refuse(operand.end > sizes[memory])
        return operand


def _scale_mask(fields: dict[str, Any]) -> ScaleMask:
    """Scale and mask of an instruction; the diagonal is signed."""
    sign = 1 << INDEX_BITS
    bounds = {field.name: fields.get(field.name, 0) for field in dataclasses.fields(masking.Mask)}
    bounds |= {name: bool(bounds[name]) for name in KINDS}
    mask = masking.Mask(**bounds | {"diagonal": (fields["diagonal"] ^ sign) - sign})
    return ScaleMask(scaled=fields["scaled"], masked=fields["masked"], scale=fields["scale"],
                     alternative=fields["alternative"], mask=mask)


def _size(field: int, length: int) -> int:
    size = field or length
    _refuse(not 1 <= size <= _MOST)
    return size


def _over(instructions: list[Instruction], base: int, end: int) -> int | None:
    """Number of the instruction with the lowest target address among those that write into the list, or None."""
    listed = Operand(place=Place.ACTIVATIONS, base=base, rows=1, columns=end - base, stride=end - base)
    overlaps = [(target.base, number) for number, item in enumerate(instructions) for target in item.targets
                if target.meets(listed)]
    return min(overlaps)[1] if overlaps else None
