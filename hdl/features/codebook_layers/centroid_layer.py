# amaranth: UnusedElaboratable=no
# Parts are created in the constructor, since their latencies are needed even without elaboration.
"""Matrix products with centroid indices as weights, and centroid gradients, with operands in memory."""

import enum
from types import SimpleNamespace

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Out

from hdl.features.codebook.format import CentroidTable
from hdl.features.codebook_layers.centroid_product import CentroidProduct, Job
from hdl.features.compute.access import unit_members
from hdl.features.compute.drain import above_zero
from hdl.features.compute.jobs import centroid_job_layout
from hdl.features.compute.layer_list import CENTROID_BITS
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.compute.row_fetch import RowFetch
from hdl.streams.rows import RowAssembler
from hdl.streams.stream import Queue, connect_stream

__all__ = ["INDEXED_COLUMNS", "CentroidLayer"]

INDEXED_COLUMNS = 32 // CENTROID_BITS
"""Columns with indices in one row of memory."""

#: Maximum number of operand rows waiting to be used.
_ROWS = SLOTS + 1


class _Row(enum.IntEnum):
    """Meaning of a fetched row."""

    TABLE = 0
    INDICES = 1
    INPUTS = 2
    STARTS = 3
    GATES = 4


class CentroidLayer(wiring.Component):
    """Multiply a matrix by centroid weights, or differentiate the centroids, with all operands in memory.

    A layer is divided into jobs of a :class:`~hdl.features.codebook_layers.centroid_product.CentroidProduct`. Each
    job has eight rows of X and ``lanes`` outputs; all rows for one group of outputs precede the next group. Rows past
    the last one are zeros, as are gradients of outputs past the last one; neither is read, and no results are written
    for them. Indices of outputs past the last one are used as stored in memory.

    A job is accepted if none is running, and ends with a ``done`` pulse when all results are in memory. Sizes and
    addresses are not checked. Rows are requested in advance, in the order in which they are used, at most one per
    cycle. Responses never wait. Requests and ``job.ready`` depend only on registers; writes and ``done`` are
    registered.

    Parameters
    ----------
    centroids : int
        Number of centroids of a table: 4, 8 or 16.
    lanes : int
        Number of elements per memory row, and of outputs computed in parallel: 2, 4 or 8.
    dsps : int
        Number of DSP blocks that each multiplier may use: 4, 2 or 1.
    memory_rows : int
        Number of rows of the largest memory; at least 2.
    owner_bits : int
        Number of bits of a buffer number; 0 without buffer tags.

    Members
    -------
    job : In(stream of centroid_job_layout(memory_rows, owner_bits))
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
    write : Out(stream of write_layout(memory_rows, lanes, owner_bits))
    settled : In(1)
        All writes accepted in earlier cycles are in the memory.
    done : Out(1)
        The results are in the memory.
    multiplied : Out(1)
        Each lane has made one multiplication.
    """

    def __init__(self, *, centroids=16, lanes, dsps=4, memory_rows, owner_bits=0):
        if centroids not in (4, 8, 16):
            raise ValueError(f"Centroid count must be 4, 8 or 16, not {centroids!r}")
        if not isinstance(lanes, int) or lanes not in (2, 4, 8):
            raise ValueError(f"Lane count must be 2, 4 or 8, not {lanes!r}")
        if not isinstance(memory_rows, int) or memory_rows < 2:
            raise ValueError(f"Memory row count must be an integer of at least 2, not {memory_rows!r}")
        self._centroids = centroids
        self._lanes = lanes
        self._lane_bits = lanes.bit_length() - 1
        self._memory_rows = memory_rows
        self._owner_bits = owner_bits
        self._product = CentroidProduct(
            table=CentroidTable(centroids=centroids, loaded=True), lanes=lanes, dsps=dsps)
        super().__init__({
            **unit_members(centroid_job_layout(memory_rows, owner_bits), lanes=lanes, memory_rows=memory_rows,
                           owner_bits=owner_bits),
            "multiplied": Out(1),
        })

    def cycles(self, *, rows, columns, outputs, gradient=False, answer):
        """Number of cycles from accepting a job to ``done``, if sums are cleared and memories never stall.

        Parameters
        ----------
        rows, columns, outputs : int
        gradient : bool
        answer : int
            Latency in cycles from a request to its response.
        """
        kind = Job.GRADIENT if gradient else Job.PRODUCT
        jobs = -(-rows // SLOTS) * -(-outputs // self._lanes) * self._product.cycles(kind, columns)
        if gradient:
            return jobs + self._product.cycles(Job.TOTAL) + answer + 14
        tail = max(0, (rows - 1) % SLOTS - 5)  # cycles for writing the last rows
        return jobs + self._centroids + answer + 12 + tail

    def elaborate(self, platform):
        m = Module()
        m.submodules.product = product = self._product
        job = Signal(self.job.payload.shape(), reset_less=True)
        begin = Signal()
        last = SimpleNamespace(batch=Signal(range(1 << len(job.rows) - 3), name="last_batch"),
                               group=Signal(len(job.outputs), name="last_group"),
                               block=Signal(len(job.columns), name="last_block"),
                               mask=Signal(self._lanes, name="last_mask"))
        edge = (job.outputs - 1)[:self._lane_bits]
        m.d.comb += [
            last.batch.eq((job.rows - 1)[3:]), last.group.eq((job.outputs - 1)[self._lane_bits:]),
            last.block.eq((job.columns - 1)[self._lane_bits:]),
            *(last.mask[lane].eq(edge >= lane) for lane in range(self._lanes)),
            self.multiplied.eq(product.multiplied),
        ]
        gates = self._elaborate_operands(m, job, begin, last)
        finished = self._elaborate_results(m, job, begin, last, gates)
        batch, group = Signal.like(last.batch), Signal.like(last.group)
        m.d.sync += self.done.eq(0)
        with m.FSM():
            with m.State("Idle"):
                m.d.comb += [self.job.ready.eq(1), begin.eq(self.job.valid)]
                m.d.sync += [job.eq(self.job.payload), batch.eq(0), group.eq(0)]
                with m.If(self.job.valid):
                    m.next = "Product"
                    with m.If(~self.job.p.gradient):
                        m.next = "Table"

            with m.State("Table"):
                with m.If(product.table.valid & product.table.ready & product.table.p.last):
                    m.next = "Product"

            with m.State("Product"):
                m.d.comb += [product.job.valid.eq(1),
                             product.job.payload.eq(Mux(job.gradient, Job.GRADIENT, Job.PRODUCT))]
                with m.If(product.job.ready):
                    m.d.sync += batch.eq(batch + 1)
                    with m.If(batch == last.batch):
                        m.d.sync += [batch.eq(0), group.eq(group + 1)]
                        with m.If(group == last.group):
                            m.next = "Write"
                            with m.If(job.gradient):
                                m.next = "Total"

            with m.State("Total"):
                m.d.comb += [product.job.valid.eq(1), product.job.payload.eq(Job.TOTAL)]
                with m.If(product.job.ready):
                    m.next = "Write"

            with m.State("Write"):
                with m.If(finished & ~self.write.valid & self.settled):
                    m.d.sync += self.done.eq(1)
                    m.next = "Idle"
        return m

    def _elaborate_operands(self, m, job, begin, last):
        """Fetch all operands' rows in the order of use, and feed the product; return the queue of gates."""
        product, lanes = self._product, self._lanes
        vector = self.response.payload.elements.shape()
        m.submodules.fetch = fetch = RowFetch(
            rows=self._memory_rows, answer=vector, tag=data.StructLayout({"row": _Row, "edge": 1}),
            owner_bits=self._owner_bits)
        m.submodules.indices = indices = Queue(shape=32 * lanes, depth=4)
        m.submodules.starts = starts = Queue(shape=vector, depth=_ROWS, block=False)
        m.submodules.gates = gates = Queue(shape=lanes, depth=_ROWS, block=False)
        self._elaborate_walk(m, fetch.i, job, begin, last)
        connect_stream(m, fetch.request, self.request)
        m.d.comb += [self.response.ready.eq(1), fetch.response.valid.eq(self.response.valid),
                     fetch.response.payload.eq(self.response.p.elements)]

        fetched = fetch.o.payload
        elements = fetched.answer
        word = Signal(range(self._centroids))
        blocks = self._elaborate_inputs(m, job, fetch.o, indices)
        m.d.comb += [
            product.table.p.data.eq(Array(elements)[word[:self._lane_bits]]),
            product.table.p.last.eq(word == self._centroids - 1),
            indices.i.payload.eq(Cat(elements)), starts.i.payload.eq(elements),
            *(gates.i.payload[lane].eq(above_zero(element)) for lane, element in enumerate(elements)),
        ]
        for lane in range(lanes):
            with m.If(fetched.tag.edge & ~last.mask[lane]):
                m.d.comb += starts.i.payload[lane].eq(0)
        connect_stream(m, starts.o, product.rows)
        with m.Switch(fetched.tag.row):
            with m.Case(_Row.TABLE):
                taken = product.table.valid & product.table.ready
                m.d.comb += [product.table.valid.eq(fetch.o.valid),
                             fetch.o.ready.eq(taken & (word[:self._lane_bits].all() | product.table.p.last))]
                with m.If(taken):
                    m.d.sync += word.eq(word + 1)
            for kind, sink in ((_Row.INDICES, indices.i), (_Row.INPUTS, blocks), (_Row.STARTS, starts.i),
                               (_Row.GATES, gates.i)):
                with m.Case(kind):
                    m.d.comb += [sink.valid.eq(fetch.o.valid), fetch.o.ready.eq(sink.ready)]
        return gates.o

    def _elaborate_walk(self, m, step, job, begin, last):
        """Step through the rows of all operands.

        For each group of outputs and every eight rows of X, inputs come first, block by block; a block that needs a
        new row of indices is preceded by this row. Eight starts and eight gates come after all inputs.
        """
        batch, group, block = (Signal.like(limit, name=name) for name, limit in (
            ("walk_batch", last.batch), ("walk_group", last.group), ("walk_block", last.block)))
        slot = Signal(range(SLOTS), name="walk_slot")
        words = Signal(range(self._centroids), name="walk_words")
        at = {name: Signal(range(self._memory_rows), name=f"walk_{name}", reset_less=True)
                 for name in ("table", "indices", "line", "x", "first", "start", "gate")}
        within, ends, moves = Signal(), Signal(), Signal()
        following = Signal.like(block)
        further = 3 - self._lane_bits  # low bits of a block number: its place in a row of indices
        m.d.comb += [
            within.eq(Cat(slot, batch) < job.rows), ends.eq(slot == SLOTS - 1), moves.eq(step.valid & step.ready),
            following.eq(block + 1), step.p.tag.edge.eq(group == last.group),
        ]

        def ask(kind, matrix, row, read=1):
            m.d.comb += [step.valid.eq(1), step.p.tag.row.eq(kind), step.p.place.eq(matrix.place),
                         step.p.row.eq(row), step.p.read.eq(read)]

        def advance():
            """Continue with the next eight rows or the next group."""
            m.d.sync += [batch.eq(batch + 1), block.eq(0), at["indices"].eq(at["line"]),
                         *(at[name].eq(at["first"] + (job.x.stride << 3)) for name in ("first", "x"))]
            m.next = "Indices"
            with m.If(batch == last.batch):
                line = at["line"] + job.indices.stride
                m.d.sync += [batch.eq(0), group.eq(group + 1), at["indices"].eq(line), at["line"].eq(line),
                             at["x"].eq(job.x.row), at["first"].eq(job.x.row),
                             at["start"].eq(job.start.row + group + 1), at["gate"].eq(job.gate.row + group + 1)]
                with m.If(group == last.group):
                    m.next = "Idle"

        with m.FSM(name="walk"):
            with m.State("Idle"):
                fields = self.job.payload
                m.d.sync += [
                    batch.eq(0), group.eq(0), block.eq(0), words.eq(0), at["table"].eq(fields.table.row),
                    *(at[name].eq(fields.indices.row) for name in ("indices", "line")),
                    *(at[name].eq(fields.x.row) for name in ("x", "first")),
                    at["start"].eq(fields.start.row), at["gate"].eq(fields.gate.row)]
                with m.If(begin):
                    m.next = "Indices"
                    with m.If(~fields.gradient):
                        m.next = "Table"

            with m.State("Table"):
                ask(_Row.TABLE, job.table, at["table"])
                with m.If(moves):
                    m.d.sync += [at["table"].eq(at["table"] + 1), words.eq(words + self._lanes)]
                    with m.If(words >= max(self._centroids - self._lanes, 0)):
                        m.next = "Indices"

            with m.State("Indices"):
                ask(_Row.INDICES, job.indices, at["indices"])
                with m.If(moves):
                    m.d.sync += at["indices"].eq(at["indices"] + 1)
                    m.next = "Inputs"

            with m.State("Inputs"):
                ask(_Row.INPUTS, job.x, at["x"], within)
                with m.If(moves):
                    m.d.sync += [slot.eq(slot + 1), at["x"].eq(at["x"] + job.x.stride)]
                    with m.If(ends):
                        m.d.sync += [block.eq(following), at["x"].eq(at["first"] + following)]
                        with m.If(block == last.block):
                            m.next = "Starts"
                        with m.Elif(following[:further] == 0):
                            m.next = "Indices"

            with m.State("Starts"):
                ask(_Row.STARTS, job.start, at["start"], within & (job.initial | job.gradient))
                with m.If(moves):
                    m.d.sync += [slot.eq(slot + 1), at["start"].eq(at["start"] + job.start.stride)]
                    with m.If(ends):
                        with m.If(job.gated):
                            m.next = "Gates"
                        with m.Else():
                            advance()

            with m.State("Gates"):
                ask(_Row.GATES, job.gate, at["gate"], within)
                with m.If(moves):
                    m.d.sync += [slot.eq(slot + 1), at["gate"].eq(at["gate"] + job.gate.stride)]
                    with m.If(ends):
                        advance()

    def _elaborate_inputs(self, m, job, fetched, indices):
        """Store two blocks of eight rows of X; output their elements column by column, with the indices.

        Returns the handshake with which a row is stored.
        """
        product, lanes = self._product, self._lanes
        m.submodules.blocks = memory = Memory(
            shape=fetched.p.answer.shape(), depth=2 * SLOTS, init=[], attrs={"no_rw_check": 1})
        write, read = memory.write_port(), memory.read_port(domain="comb")
        kept = SimpleNamespace(valid=Signal(name="keeps"), ready=Signal(name="kept"))
        entry, slot, bank = Signal(range(2 * SLOTS)), Signal(range(SLOTS)), Signal()
        full = Signal(2)
        column = Signal(job.columns.shape())
        moves, round_ends, last = Signal(), Signal(), Signal()
        beat = product.i.payload
        row = data.View(data.ArrayLayout(data.ArrayLayout(CENTROID_BITS, lanes), INDEXED_COLUMNS),
                        indices.o.payload)
        m.d.comb += [
            kept.ready.eq(~full.bit_select(entry[3], 1)), write.en.eq(kept.valid & kept.ready), write.addr.eq(entry),
            write.data.eq(fetched.p.answer), read.addr.eq(Cat(slot, bank)),
            product.i.valid.eq(full.bit_select(bank, 1) & indices.o.valid),
            moves.eq(product.i.valid & product.i.ready),
            round_ends.eq(moves & (slot == SLOTS - 1)), last.eq(column == job.columns - 1), beat.last.eq(last),
            beat.input.eq(Array(read.data)[column[:self._lane_bits]]),
            *(beat.indices[lane].eq(row[column[:3]][lane]) for lane in range(lanes)),
            indices.o.ready.eq(round_ends & (column[:3].all() | last)),
        ]
        with m.If(write.en):
            m.d.sync += entry.eq(entry + 1)
            with m.If(entry[:3].all()):
                m.d.sync += full.bit_select(entry[3], 1).eq(1)
        with m.If(moves):
            m.d.sync += slot.eq(slot + 1)
        with m.If(round_ends):
            m.d.sync += column.eq(Mux(last, 0, column + 1))
            with m.If(column[:self._lane_bits].all() | last):
                m.d.sync += [bank.eq(~bank), full.bit_select(bank, 1).eq(0)]
        return kept

    def _elaborate_results(self, m, job, begin, last, gates):
        """Write the results; return whether the last one has reached or left the write register."""
        product = self._product
        m.submodules.assembler = assembler = RowAssembler(lanes=self._lanes)
        connect_stream(m, product.gradients, assembler.i)
        batch, group = Signal.like(last.batch), Signal.like(last.group)
        slot = Signal(range(SLOTS))
        row = Signal(range(self._memory_rows), reset_less=True)
        written = Signal(self.write.payload.shape(), reset_less=True)
        free, take, finished = Signal(), Signal(), Signal()
        m.d.comb += [
            self.write.payload.eq(written), free.eq(~self.write.valid | self.write.ready),
            take.eq(free & product.o.valid & (~job.gated | gates.valid)),
            product.o.ready.eq(take), gates.ready.eq(take & job.gated), assembler.o.ready.eq(free),
        ]
        with m.If(free):
            m.d.sync += [
                self.write.valid.eq((take & (Cat(slot, batch) < job.rows)) | assembler.o.valid),
                written.place.eq(job.target.place), written.row.eq(row),
                written.keep.eq(Mux(group == last.group, last.mask, ~0))]
            for lane in range(self._lanes):
                element = product.o.payload[lane]
                zero = (job.relu & element[-1]) | (job.gated & ~gates.payload[lane])
                m.d.sync += written.elements[lane].eq(Mux(zero, 0, element))
            with m.If(job.gradient):
                m.d.sync += [written.keep.eq(assembler.o.p.keep), written.elements.eq(assembler.o.p.elements)]
        with m.If(take):
            m.d.sync += [slot.eq(slot + 1), row.eq(row + job.target.stride)]
            with m.If(slot == SLOTS - 1):
                m.d.sync += batch.eq(batch + 1)
                with m.If(batch == last.batch):
                    m.d.sync += [batch.eq(0), group.eq(group + 1), row.eq(job.target.row + group + 1),
                                 finished.eq(group == last.group)]
        with m.If(free & assembler.o.valid):
            m.d.sync += [row.eq(row + 1), finished.eq(assembler.o.p.last)]
        with m.If(begin):
            m.d.sync += [slot.eq(0), batch.eq(0), group.eq(0), finished.eq(0), row.eq(self.job.p.target.row)]
        return finished

