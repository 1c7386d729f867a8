# amaranth: UnusedElaboratable=no
# Arithmetic units are created in the constructor, since their latencies are needed even without elaboration.
"""Binary32 products with centroid indices as weights, and gradients of the centroids.

Inputs that share a centroid are summed first, and only these few sums are multiplied; the matrix is never expanded.
:mod:`hdl.features.codebook.gather_reduce` does the same with integers.
"""

import enum
from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.codebook.format import check_table
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.stages import register
from hdl.streams.delay import DelayLine
from hdl.streams.stream import Queue, check_lanes, connect_stream, word_layout

__all__ = ["CentroidProduct", "Job", "column_layout"]

#: Cycles from addressing a sum to writing it with a term added: one each for memory and operands, plus the adder.
_SUM = FloatAdder.latency + 2


class Job(enum.IntEnum):
    """Kind of a job for :class:`CentroidProduct`."""

    PRODUCT = 0
    """Compute the outputs of eight examples: each is a start plus the products of its sums and the centroids."""
    GRADIENT = 1
    """Compute terms of the centroids' gradients from the same sums, and add them to the terms of earlier jobs."""
    TOTAL = 2
    """Output the centroids' gradients, which then restart at zero."""


def column_layout(lanes, index_bits):
    """Layout of an input: for each lane, the index of its weight; ``last`` marks the last column.

    Inputs come in rounds of eight, one per example; all inputs of a round have the same indices and ``last``.
    """
    return data.StructLayout({
        "input": FP32.width, "indices": data.ArrayLayout(index_bits, lanes), "last": 1})


class CentroidProduct(wiring.Component):
    """Multiply eight examples by rows of centroid weights, or differentiate the centroids.

    Each lane has one adder, one multiplier, and a sum for each of eight examples and each centroid. An input is added
    to the sum of its example and index. After the last column, the sums are read, one per cycle, multiplied, and
    added up: over the centroids in a PRODUCT, and over the examples in a GRADIENT. An output thus takes
    ``table.centroids`` multiplications, whatever the number of columns.
    sim/golden/features/codebook_layers/centroid_product.py states the order of sums.

    Eight sums share an adder with a latency of seven cycles and an operand register, so an input is taken, or a term
    added, in every cycle. A job without pauses takes :meth:`cycles` cycles. After a reset all sums are cleared first,
    which takes eight cycles per centroid, and at least 64 cycles. ``job.ready`` depends combinationally on
    ``table.valid``, so that no job starts with a partial table; every other ``ready`` depends only on registers.

    Parameters
    ----------
    table : CentroidTable
        Centroids are loaded separately from indices, even if packets contain the table.
    lanes : int
        Number of outputs computed in parallel: 1, 2, 4 or 8.
    dsps : int
        Number of DSP blocks that each multiplier may use: 4, 2 or 1.

    Members
    -------
    table : In(stream of {data, last})
        The centroids, ``table.centroids`` of them; taken between jobs.
    job : In(stream of Job)
    i : In(stream of column_layout(lanes, table.index_bits))
        Input of a PRODUCT or GRADIENT.
    rows : In(stream of lanes of 32 bits)
        For each example, in order: the start values of the outputs in a PRODUCT, or their gradients in a GRADIENT.
    o : Out(stream of lanes of 32 bits)
        For each example, in order: the outputs of a PRODUCT.
    gradients : Out(stream of {data, last})
        Output of a TOTAL: the gradient of each centroid.
    multiplied : Out(1)
        Pulse: each lane has made one multiplication.
    error : Out(1)
        Pulse: a table had the wrong length; the next word begins a new table.
    """

    def __init__(self, *, table, lanes, dsps=4):
        check_table(table)
        check_lanes(lanes)
        self._parameters = table
        self._lanes = lanes
        self._multipliers = [FloatMultiplier(dsps=dsps) for _ in range(lanes)]
        vector = data.ArrayLayout(FP32.width, lanes)
        super().__init__({
            "table": In(stream.Signature(word_layout())),
            "job": In(stream.Signature(Job)),
            "i": In(stream.Signature(column_layout(lanes, table.index_bits))),
            "rows": In(stream.Signature(vector)),
            "o": Out(stream.Signature(vector)),
            "gradients": Out(stream.Signature(word_layout())),
            "multiplied": Out(1),
            "error": Out(1),
        })

    @property
    def _product_latency(self):
        """Latency in cycles from the arrival of the factors to their product."""
        return 1 + self._multipliers[0].latency

    @property
    def _walk(self):
        """Number of steps of a pass through the centroids; at least SLOTS, to cover an adder's latency."""
        return max(SLOTS, self._parameters.centroids)

    def cycles(self, job, columns=0):
        """Number of cycles from accepting a job to accepting the next one, if streams never pause.

        Parameters
        ----------
        job : Job
        columns : int
            Number of columns of a PRODUCT or GRADIENT, at least 1.
        """
        latency = self._product_latency
        match job:
            case Job.PRODUCT:
                return SLOTS * (columns + 1 + self._parameters.centroids) + latency + _SUM + 1
            case Job.GRADIENT:
                return SLOTS * (columns + 1 + self._walk) + latency + _SUM + 1
        return (self._lanes - 1) * self._walk + (_SUM if self._lanes > 1 else 0) + 2 * self._parameters.centroids + 1

    def elaborate(self, platform):
        m = Module()
        lanes, count = self._lanes, self._parameters.centroids
        latency = self._product_latency
        kind = Signal(Job)
        slot, index = Signal(range(SLOTS)), Signal(range(self._walk))
        lane = Signal(range(max(2, lanes)))
        idle, clearing, combining, fetching, starting = (
            Signal(name=name) for name in ("idle", "clearing", "combining", "fetching", "starting"))
        used, is_gradient = Signal(), Signal()
        m.d.comb += [used.eq(index < count),  # with few centroids, some steps of a pass are unused
                     is_gradient.eq(kind == Job.GRADIENT)]

        # Shift registers for the valid bits of inputs and terms in the adder pipeline; only these bits are reset.
        gathers, terms = Signal(_SUM), Signal(latency + _SUM)
        gather, drain = Signal(), Signal()
        m.d.sync += [gathers.eq(Cat(gather, gathers)), terms.eq(Cat(drain, terms))]
        with m.If(combining & used):
            m.d.sync += terms[latency].eq(1)
        coming = self._delayed(m, "indices", Cat(slot, self.i.p.indices), _SUM - 1)
        indices = register(m, "landing_indices", value=coming).value
        # In the memory, the sums of outputs follow the sums of gradients.
        layout = data.StructLayout({"place": range(self._walk), "outputs": 1, "complete": 1})
        target, reading = Signal(layout), Signal(layout)
        m.d.comb += [
            target.place.eq(Mux(is_gradient, index, slot)), target.outputs.eq(~is_gradient),
            target.complete.eq(~is_gradient & (index == count - 1)),
            reading.eq(self._delayed(m, "targets", target, latency))]
        with m.If(combining):
            m.d.comb += [reading.place.eq(index), reading.outputs.eq(0), reading.complete.eq(0)]
        nearing, landing = Signal(layout), Signal(layout)
        m.d.comb += nearing.eq(self._delayed(m, "landings", reading, _SUM - 1))
        m.d.sync += landing.eq(nearing)
        # The signal that marks a job's last cycle is delayed as much as the terms, even if there is no term in that
        # cycle.
        ends, closing = Signal(), Signal(latency + _SUM)
        m.d.sync += closing.eq(Cat(ends & ~combining, closing))
        with m.If(combining):
            m.d.sync += closing[latency].eq(ends)

        centroid, loading = self._elaborate_table(m, idle, index)
        m.submodules.results = results = Queue(shape=self.o.payload.shape(), depth=SLOTS, block=False)
        connect_stream(m, results.o, self.o)
        m.d.comb += [results.i.valid.eq(terms[-1] & landing.complete), self.multiplied.eq(terms[0])]
        value = register(m, "input", value=self.i.p.input).value
        # If a sum's next term follows eight cycles later, the sum has not been written yet, so it is forwarded to the
        # adder.
        again = register(m, "again", value=(
            terms[-2] & (nearing.place == reading.place) & (nearing.outputs == reading.outputs))).value
        lane_sums = []
        for number, multiplier in enumerate(self._multipliers):
            m.submodules[f"multiplier_{number}"] = multiplier
            m.submodules[f"adder_{number}"] = adder = FloatAdder()
            sums = self._memory(m, f"sums_{number}", SLOTS * count)
            totals = self._memory(m, f"totals_{number}", 2 * self._walk)

            # Sums of inputs: read and written back with each input added, and zeroed when they are drained.
            bits = self._parameters.index_bits
            drained = register(m, f"drained_{number}", address=sums.read.addr).address
            written, next_written = (places[len(slot) + number * bits:][:bits] for places in (indices, coming))
            same = register(m, f"same_{number}", value=(
                gathers[-2] & (Cat(coming[:len(slot)], next_written) == sums.read.addr))).value
            m.d.comb += [
                sums.read.addr.eq(Cat(slot, Mux(gather, self.i.p.indices[number], index))),
                sums.write.addr.eq(Mux(gathers[-1], Cat(indices[:len(slot)], written),
                                       Mux(clearing, sums.read.addr, drained))),
                sums.write.data.eq(Mux(gathers[-1], adder.o, 0)),
                sums.write.en.eq(gathers[-1] | clearing | terms[0]),
            ]

            # Factors of each term: a sum, and a centroid or the gradient of an output.
            factor = register(m, f"factor_{number}", value=self.rows.payload[number]).value
            factors = register(m, f"factors_{number}", a=Mux(is_gradient, factor, centroid), b=sums.read.data)
            m.d.comb += [multiplier.a.eq(factors.a), multiplier.b.eq(factors.b)]

            # Add the terms to the totals.
            m.d.comb += [
                totals.read.addr.eq(Cat(reading.place, reading.outputs)),
                totals.write.addr.eq(Cat(landing.place, landing.outputs)),
                totals.write.data.eq(adder.o),
                totals.write.en.eq(terms[-1] & ((number == 0) | (kind != Job.TOTAL))),
                results.i.payload[number].eq(adder.o),
            ]
            with m.If(fetching):
                m.d.comb += totals.read.addr.eq(index)
            with m.If(starting):
                m.d.comb += [totals.write.addr.eq(self._walk + slot), totals.write.en.eq(self.rows.valid),
                             totals.write.data.eq(self.rows.payload[number])]
            with m.If(clearing):
                m.d.comb += [totals.write.addr.eq(Cat(slot, index)), totals.write.en.eq(1), totals.write.data.eq(0)]
            addend = Signal(FP32.width, name=f"addend_{number}")
            m.d.comb += addend.eq(Mux(gathers[0], value, multiplier.o))
            operands = register(
                m, f"operands_{number}", addend=addend,
                total=Mux(same | again, adder.o, Mux(gathers[0], sums.read.data, totals.read.data)))
            m.d.comb += [adder.a.eq(operands.total), adder.b.eq(operands.addend)]
            lane_sums.append((addend, totals))
        self._elaborate_combination(m, lane_sums, combining & used, lane, index)
        first = lane_sums[0][1]

        def count_up(counter, most):
            m.d.sync += counter.eq(Mux(counter == most, 0, counter + 1))

        with m.FSM():
            with m.State("Clear"):
                m.d.comb += clearing.eq(1)
                count_up(slot, SLOTS - 1)
                with m.If(slot == SLOTS - 1):
                    count_up(index, self._walk - 1)
                    with m.If(index == self._walk - 1):
                        m.next = "Idle"

            with m.State("Idle"):
                m.d.comb += [idle.eq(1), self.job.ready.eq(~loading & ~self.table.valid)]
                with m.If(self.job.valid & self.job.ready):
                    m.d.sync += [kind.eq(self.job.payload), lane.eq(1)]
                    m.next = "Gather"
                    with m.If(self.job.payload == Job.TOTAL):
                        m.next = "Combine" if lanes > 1 else "Fetch"

            with m.State("Gather"):
                m.d.comb += [self.i.ready.eq(1), gather.eq(self.i.valid)]
                with m.If(gather):
                    count_up(slot, SLOTS - 1)
                    with m.If((slot == SLOTS - 1) & self.i.p.last):
                        m.next = "Start"

            # Start values are stored while the last inputs are added to their sums, which takes the same number of
            # cycles. The queue of results is empty then, so all results of the job fit.
            with m.State("Start"):
                m.d.comb += [starting.eq(~is_gradient & ~results.o.valid), self.rows.ready.eq(starting)]
                with m.If(is_gradient | (starting & self.rows.valid)):
                    count_up(slot, SLOTS - 1)
                    with m.If(slot == SLOTS - 1):
                        m.next = "Drain"

            with m.State("Drain"):
                with m.If(is_gradient):
                    m.d.comb += [drain.eq(self.rows.valid & used),
                                 self.rows.ready.eq(index == self._walk - 1),
                                 ends.eq(self.rows.valid & self.rows.ready & (slot == SLOTS - 1))]
                    with m.If(self.rows.valid):
                        count_up(index, self._walk - 1)
                        with m.If(self.rows.ready):
                            count_up(slot, SLOTS - 1)
                with m.Else():
                    m.d.comb += [drain.eq(1), ends.eq((slot == SLOTS - 1) & (index == count - 1))]
                    count_up(slot, SLOTS - 1)
                    with m.If(slot == SLOTS - 1):
                        count_up(index, count - 1)
                with m.If(ends):
                    m.next = "Land"

            with m.State("Land"):
                with m.If(closing[-1]):
                    m.next = "Idle"
                    with m.If(kind == Job.TOTAL):
                        m.next = "Fetch"

            with m.State("Combine"):
                m.d.comb += [combining.eq(1), ends.eq((index == self._walk - 1) & (lane == lanes - 1))]
                count_up(index, self._walk - 1)
                with m.If(index == self._walk - 1):
                    m.d.sync += lane.eq(lane + 1)
                with m.If(ends):
                    m.next = "Land"

            with m.State("Fetch"):
                m.d.comb += fetching.eq(1)
                m.next = "Offer"

            with m.State("Offer"):
                m.d.comb += [first.read.en.eq(0), self.gradients.valid.eq(1),
                             self.gradients.p.data.eq(first.read.data), self.gradients.p.last.eq(index == count - 1)]
                with m.If(self.gradients.ready):
                    m.d.comb += [first.write.addr.eq(index), first.write.data.eq(0), first.write.en.eq(1)]
                    count_up(index, count - 1)
                    m.next = "Fetch"
                    with m.If(self.gradients.p.last):
                        m.next = "Idle"
        return m

    def _elaborate_table(self, m, idle, index):
        """Load centroids; return the centroid of ``index`` one cycle later, and whether it is still loading."""
        count = self._parameters.centroids
        m.submodules.centroids = memory = Memory(shape=FP32.width, depth=count, init=[])
        write = memory.write_port()
        read = memory.read_port(transparent_for=())
        loaded = Signal(range(count))
        word = self.table.payload
        m.d.comb += [
            self.table.ready.eq(idle), write.en.eq(self.table.valid & idle), write.addr.eq(loaded),
            write.data.eq(word.data), read.addr.eq(index)]
        m.d.sync += self.error.eq(0)
        with m.If(write.en):
            m.d.sync += [loaded.eq(Mux(word.last, 0, loaded + 1)), self.error.eq(word.last ^ loaded.all())]
        return read.data, loaded.any()

    def _elaborate_combination(self, m, lanes, combine, lane, index):
        """Add the sums of another lane to the sums of lane 0, and clear the other lane's sums."""
        (addend, _), *rest = lanes
        began = register(m, "combined", place=index, lane=lane)
        valid = Signal(name="combination")
        m.d.sync += valid.eq(combine)
        for number, (_, totals) in enumerate(rest, start=1):
            with m.If(valid & (began.lane == number)):
                m.d.comb += [addend.eq(totals.read.data), totals.write.addr.eq(began.place),
                             totals.write.data.eq(0), totals.write.en.eq(1)]

    def _delayed(self, m, name, value, cycles):
        """Delay a value by a number of cycles, in parallel to the arithmetic."""
        m.submodules[name] = line = DelayLine(shape=value.shape(), cycles=cycles)
        m.d.comb += line.i.eq(value)
        return line.o

    def _memory(self, m, name, depth):
        """Memory for sums: one read and one write per cycle; a written value can be read immediately."""
        m.submodules[name] = memory = Memory(shape=FP32.width, depth=depth, init=[])
        write = memory.write_port()
        return SimpleNamespace(write=write, read=memory.read_port(transparent_for=(write,)))
