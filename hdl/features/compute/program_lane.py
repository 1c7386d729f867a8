# amaranth: UnusedElaboratable=no
# The constructor creates the arithmetic because its latency is needed even without elaboration.
"""Lane of the vector unit: registers of sixteen threads around a multiply-add pipeline."""

from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.compute.vector_lane import VectorLane
from hdl.features.compute.vector_program import LEAST, ROOT_HALF_FRACTION, SCALE, THREADS, Addend, Count, Factor, Take
from hdl.floating.format import FP32
from hdl.floating.stages import leading_zeros, register, shift_left

__all__ = ["ProgramLane", "control_layout", "row_values_layout", "step_layout"]

#: Number of bits of a count.
_COUNT_BITS = 8


def step_layout():
    """Layout of a frame's control: a :class:`~hdl.features.compute.vector_program.Step`.

    ``kept`` selects the second factor: if set, the thread's kept number; otherwise, the constant ``b``.
    """
    return data.StructLayout({
        "a": 3, "b": FP32.width, "kept": 1, "c": 3, "constant": FP32.width, "keep": 1, "count": 2, "take": 3})


def control_layout():
    """Layout of the control inputs in a cycle: a step, the thread that runs it, and row numbers.

    The largest element and the total of row ``group`` are read, or the total is written; the difference or loss of
    row ``chosen`` is written or read.
    """
    return data.StructLayout({
        **step_layout().members, "slot": range(THREADS), "group": range(THREADS), "chosen": range(THREADS)})


def row_values_layout():
    """Layout of a value to store for a row: the row's largest element, negated."""
    return data.StructLayout({"group": range(THREADS), "largest": FP32.width, "enable": 1})


class ProgramLane(wiring.Component):
    """Run the steps of a program for sixteen threads, one thread per cycle.

    A step begins :data:`~hdl.features.compute.vector_program.THREADS` cycles after the previous one, when the
    previous result arrives, so the result needs no register. Each thread keeps one number and one count. Each of
    sixteen rows has a largest element, a total, and a difference at its label, which is later replaced by its loss.
    ``control`` selects the row of a thread.

    There is no handshake, and no register is reset. ``total`` and ``chosen`` depend combinationally on ``control``.

    Parameters
    ----------
    dsps : int
        Number of DSP blocks the multiplier may use: 4, 2 or 1.

    Members
    -------
    control : In(control_layout())
    element : In(32)
    labelled : In(1)
        The element of the previous step is at its row's label.
    row : In(row_values_layout())
        Values of a row to store.
    result : Out(32)
        Result of the previous step.
    total : Out(32)
        Total of the row ``control.group``.
    chosen : Out(32)
        Difference or loss of the row ``control.chosen``.
    """

    def __init__(self, *, dsps=4):
        self._lane = VectorLane(dsps=dsps)
        super().__init__({
            "control": In(control_layout()), "element": In(FP32.width), "labelled": In(1),
            "row": In(row_values_layout()),
            "result": Out(FP32.width), "total": Out(FP32.width), "chosen": Out(FP32.width),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.lane = lane = self._lane
        control = self.control
        spare = THREADS - 1 - lane.latency

        # Values that depend only on the result are computed before the result's register, if there is one.
        raw = data.View(FP32.layout, lane.o)
        nan = raw.exponent.all() & raw.fraction.any()
        upper = raw.fraction >= ROOT_HALF_FRACTION
        traits = {
            "bits": lane.o, "nan": nan, "upper": upper,
            "low": raw.sign & ~nan & (lane.o[:-1] > LEAST & ((1 << FP32.width - 1) - 1)),
            "power": (~lane.o[:_COUNT_BITS] + 1)[:_COUNT_BITS],
            "exponent": (raw.exponent + 1 + upper)[:FP32.exponent_bits - 1],
        }
        known = register(m, "known", **traits) if spare else SimpleNamespace(**traits)
        result = data.View(FP32.layout, known.bits)
        m.d.comb += self.result.eq(known.bits)

        kept = self._memory(m, "kept")
        counts = self._memory(m, "counts", width=_COUNT_BITS)
        largest = self._memory(m, "largest")
        chosen = self._memory(m, "chosen")
        totals = self._memory(m, "totals")
        count = Signal(_COUNT_BITS)
        m.d.comb += [
            kept.read.addr.eq(control.slot), counts.read.addr.eq(control.slot), largest.read.addr.eq(control.group),
            chosen.read.addr.eq(control.chosen), totals.read.addr.eq(control.group),
            count.eq(counts.read.data), counts.write.en.eq(control.count != Count.NONE),
            counts.write.addr.eq(control.slot), counts.write.data.eq(count),
            largest.write.addr.eq(self.row.group), largest.write.data.eq(self.row.largest),
            largest.write.en.eq(self.row.enable),
            chosen.write.addr.eq(control.chosen), chosen.write.data.eq(known.bits),
            chosen.write.en.eq(((control.take == Take.CHOSEN) & self.labelled) | (control.take == Take.LOSS)),
            totals.write.addr.eq(control.group), totals.write.data.eq(known.bits),
            totals.write.en.eq(control.take == Take.TOTAL),
            self.total.eq(totals.read.data), self.chosen.eq(chosen.read.data),
        ]
        with m.Switch(control.count):
            with m.Case(Count.POWER):
                m.d.comb += count.eq(known.power)
            with m.Case(Count.EXPONENT):
                m.d.comb += count.eq(known.exponent)

        a = Signal(FP32.layout, reset_less=True)
        b = Signal(FP32.width, reset_less=True)
        c = Signal(FP32.width, reset_less=True)
        m.d.comb += [lane.a.eq(a), lane.b.eq(b), lane.c.eq(c)]
        self._elaborate_first_factor(m, a, result, known, count)
        m.d.sync += b.eq(Mux(control.kept, kept.read.data, control.b))
        difference = data.View(FP32.layout, chosen.read.data)
        with m.Switch(control.c):
            with m.Case(Addend.CONSTANT):
                m.d.sync += c.eq(control.constant)
            with m.Case(Addend.RESULT):
                m.d.sync += c.eq(known.bits)
            with m.Case(Addend.KEPT):
                m.d.sync += c.eq(kept.read.data)
            with m.Case(Addend.LARGEST):
                m.d.sync += c.eq(largest.read.data)
            with m.Default():
                m.d.sync += c.eq(Cat(chosen.read.data[:-1], ~difference.sign))

        # The stored value is factor ``a`` itself, one cycle later.
        keeps = register(m, "keeps", slot=control.slot, enable=control.keep)
        m.d.comb += [kept.write.addr.eq(keeps.slot), kept.write.data.eq(a), kept.write.en.eq(keeps.enable)]
        return m

    def _elaborate_first_factor(self, m, a, result, known, count):
        """Select the fraction, exponent and sign of the first factor."""
        control = self.control
        element = data.View(FP32.layout, self.element)
        zeros, none = leading_zeros(m, count)
        normal = shift_left(m, count, zeros)
        highest = FP32.bias + _COUNT_BITS - 1

        m.d.sync += [a.fraction.eq(result.fraction), a.exponent.eq(result.exponent), a.sign.eq(result.sign)]
        with m.Switch(control.a):
            with m.Case(Factor.LIMITED):
                with m.If(known.low):
                    m.d.sync += a.eq(LEAST)
            with m.Case(Factor.SCALED):
                with m.If(~known.nan):
                    m.d.sync += a.exponent.eq(result.exponent + SCALE - count)
            with m.Case(Factor.SIGNIFICAND):
                with m.If(~known.nan):
                    m.d.sync += a.exponent.eq(FP32.bias - known.upper)
            with m.Case(Factor.COUNT):
                m.d.sync += [
                    a.fraction.eq(Cat(C(0, FP32.fraction_bits - (_COUNT_BITS - 1)), normal[:-1])),
                    a.exponent.eq(Mux(none, 0, highest - zeros)), a.sign.eq(0)]
            with m.Case(Factor.ELEMENT):
                m.d.sync += a.eq(element)

    def _memory(self, m, name, width=FP32.width):
        """Registers of sixteen threads or rows, with one write and one read per cycle."""
        memory = Memory(shape=width, depth=THREADS, init=[], attrs={"no_rw_check": 1, "ram_style": "distributed"})
        m.submodules[name] = memory
        return SimpleNamespace(write=memory.write_port(), read=memory.read_port(domain="comb"))
