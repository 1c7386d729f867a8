"""Checks the instructions of a list against a node's memories, and translates them into jobs."""

from amaranth.hdl import Array, C, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, exact_log2

from hdl.features.compute.access import place_operands
from hdl.features.compute.feature import FP32
from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.instruction_reader import listed_layout
from hdl.features.compute.jobs import centroid_job_layout, row_job_layout, vector_job_layout
from hdl.features.compute.layer_list import (
    INSTRUCTION_WORDS,
    MAX_INSTRUCTIONS,
    Initial,
    Kind,
    Place,
    VectorProgram,
    centroid_layout,
    gemm_layout,
    operand_layout,
    row_layout,
    vector_layout,
)
from hdl.features.compute.loop_nest import SIZE_BITS, extents, fits, job_layout
from hdl.features.compute.operands import operands_of
from hdl.features.compute.row_instruction import ROW_OPERANDS, ROW_TARGETS, row_job, row_malformed, row_operands

__all__ = ["GEMM_OPERANDS", "VECTOR_OPERANDS", "InstructionChecker", "checked_layout"]

GEMM_OPERANDS = ("c", "a", "b", "start", "gate")
"""Operands of a matrix product in the order of their checks: the target first."""

VECTOR_OPERANDS = ("target", "loss", "source", "labels")
"""Operands of a function of rows in the order of their checks: the targets first."""

#: Width in bits of the sizes and strides in an instruction list.
_FIELD = 16


def _codebook_layers():
    """Module with the instructions of codebook layers, for engines that have them."""
    from hdl.features.codebook_layers import centroid_instruction

    return centroid_instruction


def checked_layout(rows, lanes, centroids=0, sequences=False, owner_bits=0):
    """Layout of a checked instruction: kind, validity, number of the instruction at fault, and job.

    Only the job for the instruction's kind is valid, and only if the instruction is valid. The job for centroids
    exists only in nodes with centroids, and the job for ROWS only with ``sequences``.
    """
    return data.StructLayout({
        "kind": 4, "wrong": 1, "number": range(MAX_INSTRUCTIONS),
        "gemm": gemm_job_layout(rows, owner_bits), "vector": vector_job_layout(rows, lanes, owner_bits),
        **({"centroid": centroid_job_layout(rows, owner_bits)} if centroids else {}),
        **({"rows": row_job_layout(rows, lanes, owner_bits)} if sequences else {})})


def _chosen_layout(column_bits, *, sequences):
    """Layout of one operand to check."""
    return data.StructLayout({
        "operand": operand_layout(), "rows": SIZE_BITS, "columns": column_bits, "stride": _FIELD,
        "used": 1, "target": 1, "free": 1, "ones": 1, "still": 1, "same": 1,
        **({"same_third": 1} if sequences else {})})


class InstructionChecker(wiring.Component):
    """Check whether each instruction of a list can be run, and create a job for it.

    An instruction is invalid

    - if its kind, function, place, ``order`` or ``initial`` is unknown, a reserved bit is set, an END has any bit set
      after the kind, or its ``format`` is not the ``operands`` format; if it is ``scaled`` or ``masked`` without
      ``scale_mask``, a CENTROID without ``centroids``, a CENTROID with ``gradient`` and also ``initial``, ``relu`` or
      ``gated``, or ROWS or a SOFTMAX without ``sequences``; or if ROWS is ``started`` with a function that has no
      start, or not ``started`` where it must be;
    - if a size, or the length that replaces it, is 0 or exceeds 4,095, if panels of these factors do not fit, or if a
      function has more than ``columns`` columns;
    - if a stride, or a base with the command's base added where it is relative, is not a multiple of ``lanes``,
      except for labels, loss and row numbers;
    - if a stride is less than a row of the matrix, except for the strides of labels and numbers, and for 0 as the
      stride of ``start``; tables of centroids and vectors have no stride;
    - if an operand ends past its memory, is a target in the weights, or is ``ONES`` but neither A nor B;
    - if a target overlaps another operand of the instruction, except that ``start`` may be C itself, and ``x`` or
      ``start`` of ROWS may be the target or ``third``, unless it is a table;
    - if a target in the activation memory overlaps the list. This is detected at the END, and the number at fault is
      then the number of the instruction with the lowest target, or of the earlier one of two.

    Operands that an instruction does not use are ignored. A matrix covers all elements from the first of its first
    row to the last of its last row. Without ``check`` nothing is compared, and only the job is created.

    An operand takes three cycles, plus one for each bit of its number of rows minus one (at least one), or a single
    cycle if it is not compared. The first one starts one cycle after the instruction arrives, and the result is
    offered one cycle after the last operand. An END takes two cycles in total. ``i`` and ``o`` are taken together:
    ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    words : tuple of int
        Number of elements in the gradient, weight and activation memories.
    lanes : int
        Number of elements in a row.
    rows, blocks : int
        Number of rows of the array, and of blocks in its panels.
    columns : int
        Maximum number of columns for a row function.
    scale_mask : bool
        Whether products can be scaled and masked.
    operands : str
        Multiplication format of the operands: a name in :data:`~hdl.features.compute.operands.OPERANDS`.
    centroids : int
        Number of centroids in a table; 0 without products with centroid indices.
    sequences : bool
        Whether there are sequence functions.
    owner_bits : int
        Number of bits of a buffer number; 0 without buffer tags.

    Members
    -------
    i : In(stream of listed_layout())
    check : In(1)
        Held while an instruction is offered, as are the next three inputs.
    list_base : In(range(elements of the activation memory + 1))
        Address of the list.
    state_base, length : In(32)
        Fields of the command.
    o : Out(stream of checked_layout(most rows, lanes))
    """

    def __init__(self, *, words, lanes, rows, blocks=128, columns=64, scale_mask=False, operands=FP32, centroids=0,
                 sequences=False, owner_bits=0):
        self._format, self._terms = operands_of(operands).code, operands_of(operands).terms
        self._words = tuple(words)
        self._scale_mask = scale_mask
        self._centroids = centroids
        self._sequences = sequences
        self._lanes = lanes
        self._rows = rows
        self._blocks = blocks
        self._columns = columns
        self._memory_rows = max(self._words) // lanes
        super().__init__({
            "i": In(stream.Signature(listed_layout())),
            "check": In(1),
            "list_base": In(range(self._words[Place.ACTIVATIONS] + 1)),
            "state_base": In(32),
            "length": In(32),
            "o": Out(stream.Signature(checked_layout(self._memory_rows, lanes, centroids, sequences, owner_bits))),
        })

    def elaborate(self, platform):
        m = Module()
        number = self.i.payload.number
        gemm, vector = Signal(gemm_layout()), Signal(vector_layout())
        m.d.comb += [layout.as_value().eq(self.i.payload.instruction.as_value()) for layout in (gemm, vector)]
        centroid, most, column_bits = None, GEMM_OPERANDS, SIZE_BITS
        if self._centroids:
            layers = _codebook_layers()
            centroid, most, column_bits = Signal(centroid_layout()), layers.CENTROID_OPERANDS, layers.LINE_BITS
            m.d.comb += centroid.as_value().eq(self.i.payload.instruction.as_value())
        row = None
        if self._sequences:
            row, most = Signal(row_layout()), ROW_OPERANDS
            m.d.comb += row.as_value().eq(self.i.payload.instruction.as_value())
        sizes, large = self._sizes(m, gemm, vector, centroid, row)
        chosen = Signal(_chosen_layout(column_bits, sequences=self._sequences))
        step = Signal(range(len(most)))
        is_gemm = gemm.kind == Kind.GEMM
        gemm_operands, vector_operands = self._operands(gemm, vector, sizes)
        with m.If(is_gemm):
            self._choose(m, chosen, step, gemm_operands)
        if self._centroids:
            with m.Elif(gemm.kind == Kind.CENTROID):
                self._choose(m, chosen, step, layers.centroid_operands(
                    centroid, sizes, lanes=self._lanes, centroids=self._centroids))
        if self._sequences:
            with m.Elif(gemm.kind == Kind.ROWS):
                self._choose(m, chosen, step, row_operands(row, sizes))
        with m.Else():
            self._choose(m, chosen, step, vector_operands)
        malformed = Signal()
        m.d.comb += malformed.eq(self._malformed(m, gemm, vector, centroid, row, sizes, large))
        count = Mux(is_gemm, len(GEMM_OPERANDS) - 1, len(VECTOR_OPERANDS) - 1)
        unknown, other = ~is_gemm & (gemm.kind != Kind.VECTOR), ~is_gemm  # other: not a product
        if self._centroids:
            is_centroid = gemm.kind == Kind.CENTROID
            count = Mux(is_centroid, len(layers.CENTROID_OPERANDS) - 1, count)
            unknown, other = unknown & ~is_centroid, other & ~is_centroid
        if self._sequences:
            is_rows = gemm.kind == Kind.ROWS
            count, unknown = Mux(is_rows, len(ROW_OPERANDS) - 1, count), unknown & ~is_rows
        last = step == count

        address_bits = bits_for(max(self._words))
        wrong = Signal()
        address = Signal(33)
        factor = Signal(SIZE_BITS)
        addend = Signal(_FIELD + SIZE_BITS)
        reach = Signal(34)
        ranges = [Signal(data.StructLayout({"place": 2, "start": address_bits, "end": address_bits}), name=name)
                  for name in ("target", "loss", "third", "deviation")[:ROW_TARGETS if self._sequences else 2]]
        written = Signal(len(ranges))  # which ranges are targets; only for sequence functions
        bases = [Signal(address_bits, name=f"base_{location}") for location in range(len(most))]
        lowest, lowest_number = Signal(address_bits + 1), Signal.like(number)
        at_fault = Signal.like(number)
        lane_bits = exact_log2(self._lanes)
        capacity = Array([*(Const(words, address_bits) for words in self._words), C(0, address_bits)])
        location = chosen.operand.place[:2]
        overlaps = [(location == other.place) & (address < other.end) & (other.start < reach) for other in ranges]
        list_end = (number + 1) * INSTRUCTION_WORDS + self.list_base

        def proceed():
            m.d.sync += step.eq(step + 1)
            m.next = "Take"
            with m.If(last):
                m.next = "Offer"

        with m.FSM():
            with m.State("Idle"):
                m.d.sync += [step.eq(0), wrong.eq(0), written.eq(0), at_fault.eq(number)]
                with m.If(self.i.valid):
                    with m.If(self.check & (number == 0)):
                        m.d.sync += lowest.eq(~0)
                    m.d.sync += wrong.eq(self.check & malformed)
                    m.next = "Take"
                    with m.If(gemm.kind == Kind.END):
                        m.next = "End"
                    with m.Elif(unknown):
                        m.next = "Offer"

            with m.State("Take"):
                sum_ = chosen.operand.base + Mux(chosen.operand.relative, self.state_base, 0)
                short = (chosen.stride < chosen.columns) & ~(chosen.still & (chosen.stride == 0))
                ones = chosen.operand.place == Place.ONES
                m.d.sync += [
                    address.eq(sum_),
                    factor.eq(chosen.rows - 1),
                    addend.eq(chosen.stride),
                    reach.eq(chosen.columns),
                ]
                with m.Switch(step):
                    for number_, base in enumerate(bases):
                        with m.Case(number_):
                            m.d.sync += base.eq(sum_)
                m.next = "Multiply"
                with m.If(~self.check | ~chosen.used | (ones & chosen.ones)):
                    proceed()
                with m.Elif(ones | chosen.operand.place[2] | (chosen.target & (location == Place.WEIGHTS))
                            | (~chosen.free & (short | chosen.stride[:lane_bits].any()))):
                    m.d.sync += wrong.eq(1)

            with m.State("Multiply"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += reach.eq(reach + addend)
                with m.If(factor[1:] == 0):
                    m.next = "Add"

            with m.State("Add"):
                m.d.sync += reach.eq(reach + address)
                m.next = "Compare"

            with m.State("Compare"):
                same = chosen.same & (address == ranges[0].start) & (location == ranges[0].place)
                # Operand 0 is the first target; operand 1 of a row function is its second target.
                clashes = ((step != 0) & overlaps[0] & ~same) | (other & step[1:].any() & overlaps[1])
                if self._sequences:
                    third = chosen.same_third & (address == ranges[2].start) & (location == ranges[2].place)
                    clashes = (written & Cat(overlaps) & ~Cat(same, 0, third, 0)).any()
                with m.If((reach > capacity[location]) | (~chosen.free & address[:lane_bits].any()) | clashes):
                    m.d.sync += wrong.eq(1)
                for index, target in enumerate(ranges):
                    with m.If(step == index):
                        m.d.sync += [target.place.eq(location), target.start.eq(address), target.end.eq(reach),
                                     written[index].eq(chosen.target)]
                with m.If(chosen.target & (location == Place.ACTIVATIONS) & (reach > self.list_base)
                          & (address < lowest)):
                    m.d.sync += [lowest.eq(address), lowest_number.eq(number)]
                proceed()

            with m.State("End"):
                with m.If(self.check & ~wrong & (lowest < list_end)):
                    m.d.sync += [wrong.eq(1), at_fault.eq(lowest_number)]
                m.next = "Offer"

            with m.State("Offer"):
                m.d.comb += [self.o.valid.eq(1), self.i.ready.eq(self.o.ready)]
                with m.If(self.o.ready):
                    m.next = "Idle"

        m.d.comb += [
            self.o.payload.kind.eq(gemm.kind),
            self.o.payload.wrong.eq(wrong),
            self.o.payload.number.eq(at_fault),
        ]
        self._jobs(m, gemm, vector, sizes, bases)
        if self._centroids:
            layers.centroid_job(m, self.o.payload.centroid, centroid, sizes, bases[:len(layers.CENTROID_OPERANDS)],
                                lanes=self._lanes)
        if self._sequences:
            row_job(m, self.o.payload.rows, row, sizes, bases, lanes=self._lanes)
        return m

    def _sizes(self, m, gemm, vector, centroid, row):
        """Return the sizes of an instruction, with 0 replaced by the command's length; and for each size, whether it
        is too large."""
        sizes, large = {}, {}
        fields = {"m": gemm.m, "k": gemm.k, "n": gemm.n, "rows": vector.rows, "columns": vector.columns}
        fields |= _codebook_layers().centroid_sizes(centroid) if self._centroids else {}
        fields |= {"count": row.count} if self._sequences else {}  # all other sizes are as in a row function
        for name, field in fields.items():
            is_length = field == 0
            sizes[name] = Signal(SIZE_BITS, name=f"size_{name}")
            large[name] = Signal(name=f"large_{name}")
            m.d.comb += [sizes[name].eq(Mux(is_length, self.length, field)),
                         large[name].eq(Mux(is_length, self.length[SIZE_BITS:].any(), field[SIZE_BITS:].any()))]
        return sizes, large

    def _malformed(self, m, gemm, vector, centroid, row, sizes, large):
        """Whether an instruction is malformed, regardless of its operands."""
        job = Signal(job_layout())
        factors = ("tile", "row_tiles", "column_tiles", "rounds")
        m.d.comb += [
            *(job[name].eq(sizes[name]) for name in "mnk"), job.order.eq(gemm.order),
            job.align_m.eq(gemm.transpose_a), job.align_k.eq(~gemm.transpose_a | gemm.transpose_b),
            *(job[name].eq(gemm[name]) for name in factors)]
        fitting = fits(job, extents(job, rows=self._rows, lanes=self._lanes), lanes=self._lanes, blocks=self._blocks,
                       terms=self._terms)
        reserved = Cat(gemm[name] for name in gemm.shape().members if name.startswith("reserved"))
        refused = () if self._scale_mask else (gemm.scaled, gemm.masked)
        wrong_gemm = (
            Cat(gemm.format ^ self._format, reserved, *refused).any() | (gemm.initial > max(Initial).value)
            | Cat(gemm[name][len(job[name]):] for name in factors).any() | Cat(large[name] for name in "mnk").any()
            | ~fitting)
        reserved = Cat(vector[name] for name in vector.shape().members if name.startswith("reserved"))
        functions = VectorProgram.SOFTMAX if self._sequences else VectorProgram.CROSS_ENTROPY
        wrong_vector = (
            reserved.any() | (vector.function > functions.value) | large["rows"] | large["columns"]
            | (sizes["columns"] > self._columns) | (sizes["rows"] == 0) | (sizes["columns"] == 0))
        # An unknown kind is always an error.
        rest = gemm.as_value().any()
        if self._centroids:
            malformed = _codebook_layers().centroid_malformed(centroid, sizes, large)
            rest = Mux(gemm.kind == Kind.CENTROID, malformed, rest)
        if self._sequences:
            rest = Mux(gemm.kind == Kind.ROWS, row_malformed(row, sizes, large, columns=self._columns), rest)
        return Mux(gemm.kind == Kind.GEMM, wrong_gemm, Mux(gemm.kind == Kind.VECTOR, wrong_vector, rest))

    def _operands(self, gemm, vector, sizes):
        """Operands of matrix products and row functions, in the order in which they are checked."""
        rows = {"c": sizes["m"], "a": Mux(gemm.transpose_a, sizes["k"], sizes["m"]),
                "b": Mux(gemm.transpose_b, sizes["n"], sizes["k"]), "start": sizes["m"], "gate": sizes["m"]}
        columns = {"c": sizes["n"], "a": Mux(gemm.transpose_a, sizes["m"], sizes["k"]),
                   "b": Mux(gemm.transpose_b, sizes["k"], sizes["n"]), "start": sizes["n"], "gate": sizes["n"]}
        used = {"start": gemm.initial == Initial.MATRIX, "gate": gemm.gated}
        products = [{
            "operand": gemm[name], "rows": rows[name], "columns": columns[name], "stride": gemm[f"stride_{name}"],
            "used": used.get(name, 1), "target": name == "c", "free": 0, "ones": name in "ab",
            "still": name == "start", "same": (gemm.stride_start == gemm.stride_c) if name == "start" else 0,
        } for name in GEMM_OPERANDS]
        strides = {name: vector[f"stride_{name}"] for name in VECTOR_OPERANDS if name != "loss"}
        labelled = (vector.function != VectorProgram.SOFTMAX) if self._sequences else 1
        functions = [{
            "operand": vector[name], "rows": 1 if name == "loss" else sizes["rows"],
            "columns": sizes["columns"] if name in ("target", "source") else 1, "stride": strides.get(name, 0),
            "used": labelled if name in ("loss", "labels") else 1, "target": name in ("target", "loss"),
            "free": name in ("loss", "labels"), "ones": 0,
            "still": 0, "same": 0,
        } for name in VECTOR_OPERANDS]
        return products, functions

    def _choose(self, m, chosen, step, operands):
        """Choose the operand of a step."""
        with m.Switch(step):
            for index, operand in enumerate(operands):
                with m.Case(index):
                    m.d.comb += [chosen[name].eq(value) for name, value in operand.items()]

    def _jobs(self, m, gemm, vector, sizes, bases):
        """Create the jobs for matrix products and row functions."""
        lane_bits = exact_log2(self._lanes)
        job = self.o.payload.gemm
        m.d.comb += [
            *(job[name].eq(sizes[name]) for name in "mnk"),
            *(job[name].eq(gemm[name]) for name in ("tile", "row_tiles", "column_tiles", "rounds", "order",
                                                    "transpose_a", "transpose_b", "initial", "relu", "gated"))]
        if self._scale_mask:
            target = job.scale_mask
            m.d.comb += [
                *(target[name].eq(gemm[name]) for name in ("scaled", "masked", "scale", "alternative")),
                *(target.mask[name].eq(gemm[name]) for name in target.mask.shape().members if name != "external")]
        place_operands(m, job, gemm, GEMM_OPERANDS, bases, lanes=self._lanes)
        m.d.comb += [job[name].stride.eq(gemm[f"stride_{name}"] >> lane_bits) for name in GEMM_OPERANDS]
        job = self.o.payload.vector
        m.d.comb += [job.function.eq(vector.function), job.rows.eq(sizes["rows"]), job.columns.eq(sizes["columns"])]
        place_operands(m, job, vector, VECTOR_OPERANDS, bases, lanes=self._lanes)
        for name, base in zip(VECTOR_OPERANDS, bases, strict=False):
            if name in ("loss", "labels"):
                m.d.comb += job[f"{name}_lane"].eq(base[:lane_bits])
            if name != "loss":
                m.d.comb += job[f"stride_{name}"].eq(
                    vector[f"stride_{name}"] if name == "labels" else vector[f"stride_{name}"] >> lane_bits)
