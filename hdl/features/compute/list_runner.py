# amaranth: UnusedElaboratable=no
# The parts are created in the constructor because their ports are needed even without elaboration.
"""Runner for a list of LAYERS instructions: one pass checks the list, and a second executes it."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.features.compute.access import request_layout, response_layout
from hdl.features.compute.feature import FP32
from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.instruction_checker import InstructionChecker
from hdl.features.compute.instruction_reader import InstructionReader
from hdl.features.compute.jobs import centroid_job_layout, row_job_layout, vector_job_layout
from hdl.features.compute.layer_list import MAX_INSTRUCTIONS, Kind, Place
from hdl.streams.stream import connect_stream

__all__ = ["ListRunner"]


class ListRunner(wiring.Component):
    """Check all instructions of a list, then execute them on the units, one at a time.

    Each pass reads the list from memory. A job is offered once all writes of the previous job are in the memories,
    and the next instruction is read when the unit is done. A list with an error therefore writes nothing, and a list
    that is modified while it runs fails at the first instruction that is no longer valid.

    The offers of jobs and ``done`` depend combinationally on ``settled``, and ``passed`` on ``unit_done``; all other
    outputs are functions of registers.

    Parameters
    ----------
    words : tuple of int
        Number of elements in the gradient, weight and activation memories.
    lanes : int
        Number of elements in a row.
    rows, blocks : int
        Number of rows of the array, and number of blocks in its panels.
    columns : int
        Maximum number of columns of a row function.
    scale_mask : bool
        Whether products can be scaled and masked.
    operands : str
        Multiplication format of the operands: a key of :data:`~hdl.features.compute.operands.OPERANDS`.
    centroids : int
        Number of centroids in a table; 0 omits the ports for products with centroids.
    sequences : bool
        Whether sequence functions are supported; otherwise the ports for ROWS are omitted.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.

    Members
    -------
    start : In(1)
        Start a list. Only the first start after a reset has an effect.
    list_base : In(range(elements of the activation memory + 1))
        Must be held from ``start`` on, like the next two inputs.
    state_base, length : In(32)
        Fields of the command.
    settled : In(1)
        High while no write to the memories is pending.
    request, response
        Streams for reading the list from memory.
    gemm : Out(stream of gemm_job_layout(most rows))
    vector : Out(stream of vector_job_layout(most rows, lanes))
    centroid : Out(stream of centroid_job_layout(most rows))
    rows : Out(stream of row_job_layout(most rows, lanes))
    unit_done, unit_bad : In(1)
        The active unit has finished its job, or rejected it as invalid; ``unit_bad`` takes precedence.
    gemm_runs, vector_runs, centroid_runs, rows_runs : Out(1)
        High while the unit has an accepted job.
    passed : Out(1)
        High for one cycle when an instruction has been executed.
    done : Out(1)
        High for one cycle when all instructions have been executed.
    bad : Out(1)
        High from the detection of an invalid instruction until the next reset.
    number : Out(range(MAX_INSTRUCTIONS + 1))
        Number of the invalid instruction.
    """

    def __init__(self, *, words, lanes, rows, blocks=128, columns=64, scale_mask=False, operands=FP32, centroids=0,
                 sequences=False, owner_bits=0):
        self._reader = InstructionReader(
            rows=words[Place.ACTIVATIONS] // lanes, memory_rows=max(words) // lanes, lanes=lanes)
        self._checker = InstructionChecker(
            words=words, lanes=lanes, rows=rows, blocks=blocks, columns=columns, scale_mask=scale_mask,
            operands=operands, centroids=centroids, sequences=sequences, owner_bits=owner_bits)
        self._lanes = lanes
        self._centroids = centroids
        self._sequences = sequences
        memory_rows = max(words) // lanes
        super().__init__({
            "start": In(1),
            "list_base": In(range(words[Place.ACTIVATIONS] + 1)),
            "state_base": In(32),
            "length": In(32),
            "settled": In(1),
            "request": Out(stream.Signature(request_layout(memory_rows))),
            "response": In(stream.Signature(response_layout(lanes))),
            "gemm": Out(stream.Signature(gemm_job_layout(memory_rows, owner_bits))),
            "vector": Out(stream.Signature(vector_job_layout(memory_rows, lanes, owner_bits))),
            "unit_done": In(1),
            "unit_bad": In(1),
            "gemm_runs": Out(1),
            "vector_runs": Out(1),
            **({"centroid": Out(stream.Signature(centroid_job_layout(memory_rows, owner_bits))),
                "centroid_runs": Out(1)} if centroids else {}),
            **({"rows": Out(stream.Signature(row_job_layout(memory_rows, lanes, owner_bits))), "rows_runs": Out(1)}
               if sequences else {}),
            "passed": Out(1),
            "done": Out(1),
            "bad": Out(1),
            "number": Out(range(MAX_INSTRUCTIONS + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.reader = reader = self._reader
        m.submodules.checker = checker = self._checker
        connect_stream(m, reader.request, self.request)
        connect_stream(m, self.response, reader.response)
        connect_stream(m, reader.o, checker.i)
        checked = checker.o.payload
        units = {Kind.GEMM: (self.gemm, self.gemm_runs), Kind.VECTOR: (self.vector, self.vector_runs)}
        if self._centroids:
            units[Kind.CENTROID] = self.centroid, self.centroid_runs
            m.d.comb += self.centroid.payload.eq(checked.centroid)
        if self._sequences:
            units[Kind.ROWS] = self.rows, self.rows_runs
            m.d.comb += self.rows.payload.eq(checked.rows)
        m.d.comb += [
            reader.row.eq(self.list_base >> exact_log2(self._lanes)),
            *(getattr(checker, name).eq(getattr(self, name)) for name in ("list_base", "state_base", "length")),
            self.gemm.payload.eq(checked.gemm),
            self.vector.payload.eq(checked.vector),
        ]

        def refuse(number):
            m.d.sync += self.number.eq(number)
            m.next = "Bad"

        with m.FSM():
            with m.State("Idle"):
                m.d.comb += reader.start.eq(self.start)
                with m.If(self.start):
                    m.next = "Check"

            with m.State("Check"):
                m.d.comb += [checker.check.eq(1), checker.o.ready.eq(1)]
                with m.If(reader.bad):
                    refuse(reader.number)
                with m.Elif(checker.o.valid):
                    with m.If(checked.wrong):
                        refuse(checked.number)
                    with m.Elif(checked.kind == Kind.END):
                        m.next = "Return"

            with m.State("Return"):
                m.d.comb += reader.start.eq(1)
                m.next = "Walk"

            with m.State("Walk"):
                with m.If(reader.bad):
                    refuse(reader.number)
                with m.Elif(checker.o.valid):
                    with m.Switch(checked.kind):
                        for kind, (job, _) in units.items():
                            with m.Case(kind):
                                m.d.comb += job.valid.eq(self.settled)
                                with m.If(job.valid & job.ready):
                                    m.next = kind.name
                        with m.Case(Kind.END):
                            m.d.comb += self.done.eq(self.settled)
                            with m.If(self.settled):
                                m.next = "End"
                        with m.Default():
                            refuse(checked.number)

            for kind, (_, runs) in units.items():
                with m.State(kind.name):
                    m.d.comb += runs.eq(1)
                    with m.If(self.unit_bad):
                        refuse(checked.number)
                    with m.Elif(self.unit_done):
                        m.d.comb += [self.passed.eq(1), checker.o.ready.eq(1)]
                        m.next = "Walk"

            with m.State("Bad"):
                m.d.comb += self.bad.eq(1)

            with m.State("End"):
                pass

        return m
