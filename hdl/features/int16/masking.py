"""MASK on an int16 node: compare the elements of the listed matrices, one by one, with the parameters of masks."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, Operation
from hdl.features.int16.memory import WIDTH, port_signature
from hdl.features.int16.queue import engine_signature
from hdl.masking.job_list import mask_job_layout
from hdl.masking.mask import INDEX_BITS, KINDS

__all__ = ["JOB_ELEMENTS", "Masker", "mask_cycles"]

#: Number of memory elements per job.
JOB_ELEMENTS = mask_job_layout().size // WIDTH


def _field(name):
    """Index of a field's first element within a job."""
    return mask_job_layout()[name].offset // WIDTH


_LAST_FIELD = _field("width")

# For each step: the field; whether it is compared with the column index, instead of the row index; whether the other
# index is subtracted first; and whether equality counts as below.
_STEPS = (
    ("diagonal", True, True, True),
    ("length_rows", False, False, False),
    ("length_columns", True, False, False),
    ("first_row", False, False, False),
    ("end_row", False, False, False),
    ("first_column", True, False, False),
    ("end_column", True, False, False),
    ("width", True, True, True),
    ("width", False, True, True),
)


def mask_cycles(jobs):
    """Number of cycles that MASK reports for valid jobs with shapes ``(rows, columns, count)``."""
    return 2 + sum(_LAST_FIELD + 3 + 2 * count * rows + (len(_STEPS) + 5) * count * rows * columns
                   for rows, columns, count in jobs)


class Masker(wiring.Component):
    """Mask matrices in the gradient memory in place, according to a job list in the weight memory.

    Each job is first checked field by field. A pass over its elements then counts them, which allows comparing
    ``elements`` with rows, columns and matrices, and with the remaining length, without a multiplication. A second
    pass compares each element with every mask parameter, read from memory again: no parameter is kept in registers.

    No element changes before the whole job has been checked. The host can access the weight memory once per masked
    element, but not while a job is being checked and counted.

    Parameters
    ----------
    config : NodeConfig
        An :class:`~hdl.features.int16.feature.Int16Config` with ``masking``.

    Members
    -------
    word, fields, operation, start, done, status, detail
        Ports to :class:`~hdl.features.int16.queue.CommandQueue`. From ``start`` to ``done`` it takes
        :func:`mask_cycles`. The detail is the number of replaced elements, or the number of the invalid job.
    alternative : In(16)
        Replacement for an element that is not kept.
    count : Out(struct of one bit for each of "command_cycles", "elements_masked")
    gradients, weights : Out(port_signature)
    """

    def __init__(self, *, config):
        self._config = config
        super().__init__({
            **engine_signature(config).flip().members,
            "alternative": In(WIDTH),
            "count": Out(data.StructLayout({"command_cycles": 1, "elements_masked": 1})),
            "gradients": Out(port_signature(config.memories.gradient)),
            "weights": Out(port_signature(config.memories.weight)),
        })

    def elaborate(self, platform):
        m = Module()
        config, gradients, weights = self._config, self.gradients, self.weights
        q = weights.q
        job_bits = JOB_ELEMENTS.bit_length() - 1

        alternative = Signal(WIDTH)  # sampled at the start of the command
        left = Signal(range(config.memories.gradient + 1))  # elements not yet taken by a job
        job = Signal(range(config.memories.weight // JOB_ELEMENTS + 1))  # address of the job in the weight memory
        number = Signal(range(config.memories.weight // JOB_ELEMENTS + 1))  # number of the job in the list
        replaced = Signal.like(left)
        field, following = Signal(job_bits), Signal(job_bits)
        kinds = Signal(len(KINDS) - 1)
        matrices, elements = Signal(WIDTH), Signal(WIDTH)  # number left, including the current one
        row, column = Signal(INDEX_BITS), Signal(INDEX_BITS)
        counting = Signal()
        step = Signal(range(len(_STEPS)))
        kept, within = Signal(), Signal()
        fault = Signal()

        # The only comparator: compares a row index, a column index or their difference with a field from memory.
        of_column, difference, equal = Signal(), Signal(), Signal()
        below = Signal()
        index = Mux(of_column, column, row)
        other = Mux(difference, Mux(of_column, row, column), 0)
        m.d.comb += [
            below.eq((index - other) < (q[:INDEX_BITS + 1].as_signed() + equal)),
            weights.address.eq(Cat(following, job)),
            gradients.data.eq(alternative),
            gradients.write.eq(1),
            self.detail.eq(replaced),
        ]
        with m.If(self.fields.gradient_base):
            m.d.sync += gradients.address.eq(self.word)
        with m.If(self.fields.weight_base):
            m.d.sync += job.eq(self.word >> job_bits)
        with m.If(self.fields.length):
            m.d.sync += left.eq(self.word)

        def fetch(name):
            m.d.comb += [weights.en.eq(1), following.eq(_field(name))]

        def advance():
            """Advance to the next element, and fetch the field that decides whether it ends its row."""
            m.d.sync += elements.eq(elements - 1)
            fetch("columns")
            m.d.sync += column.eq(column + 1)
            m.next = "Row"

        def proceed():
            """Continue the current pass, which either counts or masks."""
            m.next = "Count"
            with m.If(~counting):
                m.next = "Element"

        with m.FSM() as fsm:
            with m.State("Idle"):
                m.d.sync += [alternative.eq(self.alternative), number.eq(0), replaced.eq(0)]
                with m.If(self.start & (self.operation == Operation.MASK)):
                    m.next = "Job"

            with m.State("Job"):
                m.d.sync += [field.eq(0), row.eq(0), column.eq(0), counting.eq(1)]
                fetch("kinds")
                m.next = "Field"
                with m.If(left == 0):
                    m.next = "End"
                with m.Elif(job == config.memories.weight // JOB_ELEMENTS):
                    m.next = "Bad"

            with m.State("Field"):
                zero, wide = q == 0, q[INDEX_BITS:].any()
                sign = Signal()
                m.d.comb += [weights.en.eq(1), following.eq(field + 1)]
                m.d.sync += field.eq(field + 1)
                with m.Switch(field):
                    with m.Case(_field("kinds")):
                        m.d.sync += kinds.eq(q)
                        m.d.comb += fault.eq(q[KINDS.index("external")])
                    with m.Case(_field("count")):
                        m.d.sync += matrices.eq(q)
                        m.d.comb += fault.eq(zero)
                    with m.Case(_field("rows"), _field("columns")):
                        m.d.comb += fault.eq(zero | wide)
                    with m.Case(_field("elements")):
                        m.d.sync += elements.eq(q)
                        m.d.comb += fault.eq(zero)
                    with m.Case(_field("elements") + 1):
                        m.d.comb += fault.eq(~zero)
                    with m.Case(_field("diagonal")):
                        m.d.sync += sign.eq(q[-1])
                        m.d.comb += fault.eq(wide & ~q[INDEX_BITS:].all())
                    with m.Case(_field("diagonal") + 1):
                        m.d.comb += fault.eq(q != sign.replicate(WIDTH))
                    with m.Default():
                        m.d.comb += fault.eq(wide)
                with m.If(fault):
                    m.next = "Bad"
                with m.Elif(field == _LAST_FIELD):
                    m.next = "Count"

            # First pass: count a job's elements to check it.
            with m.State("Count"):
                m.d.sync += left.eq(left - 1)
                advance()
                with m.If((left == 0) | (elements == 0)):
                    m.next = "Bad"

            # Second pass: mask the elements.
            with m.State("Element"):
                m.d.sync += [step.eq(0), kept.eq(1), within.eq(1)]
                fetch("diagonal")
                m.next = "Compare"

            with m.State("Compare"):
                kind = {name: kinds[KINDS.index(name)] for name in KINDS[:-1]}
                numbers = [_field(name) for name, *_ in _STEPS]
                m.d.comb += [
                    weights.en.eq(step != len(_STEPS) - 1), following.eq(Array([*numbers[1:], 0])[step]),
                    *(signal.eq(Array(options)[step]) for signal, options in zip(
                        (of_column, difference, equal), list(zip(*_STEPS, strict=True))[1:], strict=True)),
                ]
                m.d.sync += step.eq(step + 1)
                with m.Switch(step):
                    with m.Case(0):
                        m.d.sync += kept.eq(Mux(below, ~kind["triangle_inverse"], ~kind["triangle"]))
                    with m.Case(1, 2):
                        m.d.sync += kept.eq(kept & (below | ~kind["padding"]))
                    with m.Case(3, 5):
                        m.d.sync += within.eq(within & ~below)
                    with m.Case(4, 6):
                        m.d.sync += within.eq(within & below)
                    with m.Default():
                        m.d.sync += kept.eq(kept & (below | ~kind["band"]))
                with m.If(step == len(_STEPS) - 1):
                    m.next = "Write"

            with m.State("Write"):
                drop = ~kept | Mux(within, kind["rectangle_inverse"], kind["rectangle"])
                m.d.comb += [gradients.en.eq(drop), self.count.elements_masked.eq(drop)]
                m.d.sync += [gradients.address.eq(gradients.address + 1), replaced.eq(replaced + drop)]
                advance()

            # Fetches must not depend on comparisons, since they determine which cycles are left for the host.
            with m.State("Row"):
                m.d.comb += of_column.eq(1)
                fetch("rows")
                proceed()
                with m.If(~below):
                    m.d.sync += [column.eq(0), row.eq(row + 1)]
                    m.next = "Matrix"

            with m.State("Matrix"):
                fetch("elements")
                proceed()
                with m.If(~below):
                    m.d.sync += [row.eq(0), matrices.eq(matrices - 1)]
                    with m.If(~counting & (elements == 0)):
                        m.d.sync += [job.eq(job + 1), number.eq(number + 1)]
                        m.next = "Job"
                    with m.Elif(counting & (matrices == 1)):
                        m.next = "Bad"
                        with m.If(elements == 0):
                            m.next = "Begin"

            with m.State("Begin"):
                m.d.sync += [elements.eq(q), counting.eq(0)]
                m.next = "Element"

            with m.State("Bad"):
                m.d.comb += [
                    self.done.eq(1), self.status.eq(EventStatus.BAD_MASK), self.detail.eq(number),
                ]
                m.next = "Idle"

            with m.State("End"):
                m.d.comb += self.done.eq(1)
                m.next = "Idle"

        m.d.comb += self.count.command_cycles.eq(~fsm.ongoing("Idle"))
        return m
