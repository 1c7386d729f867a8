# amaranth: UnusedElaboratable=no
# The constructor creates the multiplier, since ``latency`` needs it even without elaboration.
"""Lane of the row unit: stores one in every ``lanes`` columns, and performs the arithmetic of all passes."""

from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.compute.row_pass import A, B, C, D, Load
from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.stages import register
from hdl.streams.delay import DelayLine

__all__ = ["RowLane", "control_layout", "loaded_layout"]

_ONE = FP32.bias << FP32.fraction_bits
_NEGATIVE_ZERO = 1 << (FP32.width - 1)
#: Latency in cycles from the control word of an element to its operands.
_FETCH = 2


def loaded_layout(rows, groups):
    """Layout of a loaded element: a valid flag, the operand it is loaded into, its row and its column group."""
    return data.StructLayout({"valid": 1, "load": Load, "row": range(rows), "group": range(groups),
                              "element": FP32.width})


def control_layout(rows, groups):
    """Control word of one element: its position, its operands, and the use of its result.

    ``half`` selects the second of two sums. ``edge`` marks the last column block. ``kept``, ``stored``, ``scalar``
    and ``root`` are uses of the result.
    """
    return data.StructLayout({
        "row": range(rows), "group": range(groups), "half": 1, "edge": 1, "a": A, "b": B, "c": C, "d": D,
        "summed": 1, "kept": 1, "stored": 1, "scalar": 1, "root": 1})


class RowLane(wiring.Component):
    """Compute ``(a + b) * c + d`` of an element in each cycle, every operation rounded to nearest even.

    Elements are in four buffers: x, y, start and work; scale and shift are in smaller ones. In a ``summed`` pass, the
    last addition is to the sum of the row, which comes from the previous lane and is passed to the next one; controls
    are delayed by :attr:`step` cycles from lane to lane. A column ``outside`` leaves the sum unchanged.

    The result for a control word is on ``o`` and ``result`` :attr:`latency` cycles later. Control words that arrive
    at least :attr:`latency` + 1 cycles later can use the result from the work buffer. No register is reset.

    Parameters
    ----------
    rows, groups : int
        Number of rows in a block, and of column blocks in a row.
    dsps : int
        DSP blocks the multiplier may use: 4, 2 or 1.

    Members
    -------
    loaded : In(loaded_layout(rows, groups))
    control : In(control_layout(rows, groups))
    scalar, deviation : In(32)
        Sum or scalar of the row, and reciprocal of its deviation, one cycle after its control.
    factor, epsilon : In(32)
        Held throughout a job.
    started, outside : In(1)
        There is a start; the lane has no column in the last column block. Both are held throughout a job.
    partial : In(32)
        Sum of the previous columns, :attr:`latency` - 7 cycles after the control.
    live : In(1)
        Whether this cycle's result belongs to an element.
    middle : Out(control_layout(rows, groups))
        Control, :attr:`latency` - 8 cycles later.
    late : Out(control_layout(rows, groups))
        Control, :attr:`latency` cycles later.
    o : Out(32)
        Sum, or result.
    result : Out(32)
        Result; the product, if the pass is ``summed``.
    """

    #: Number of cycles by which each lane's sum follows the previous lane's.
    step = FloatAdder.latency

    def __init__(self, *, rows, groups, dsps=4):
        self._multiplier = FloatMultiplier(dsps=dsps)
        self._rows, self._groups = rows, groups
        control = control_layout(rows, groups)
        super().__init__({
            "loaded": In(loaded_layout(rows, groups)), "control": In(control),
            **{name: In(FP32.width) for name in ("scalar", "deviation", "factor", "epsilon", "partial")},
            "started": In(1), "outside": In(1), "live": In(1), "middle": Out(control), "late": Out(control),
            "o": Out(FP32.width), "result": Out(FP32.width),
        })

    @property
    def latency(self):
        """Latency in cycles from an element's control word to its result."""
        return _FETCH + FloatAdder.latency + self._multiplier.latency + 1 + FloatAdder.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.first = first = FloatAdder()
        m.submodules.multiplier = multiplier = self._multiplier
        m.submodules.last = last = FloatAdder()
        m.submodules.to_middle = to_middle = DelayLine(
            shape=self.control.shape(), cycles=self.latency - FloatAdder.latency - 1)
        m.submodules.to_late = to_late = DelayLine(shape=self.control.shape(), cycles=FloatAdder.latency + 1)
        m.d.comb += [to_middle.i.eq(self.control), self.middle.eq(to_middle.o),
                     to_late.i.eq(self.middle), self.late.eq(to_late.o)]

        operands = self._elaborate_operands(m)
        m.submodules.factor_line = factor = DelayLine(shape=FP32.width + 1, cycles=FloatAdder.latency)
        m.submodules.addend_line = addend = DelayLine(
            shape=FP32.width, cycles=FloatAdder.latency + multiplier.latency + 1)
        m.submodules.product_line = kept = DelayLine(shape=FP32.width, cycles=FloatAdder.latency)
        middle = self.middle
        product = register(m, "product", o=Mux(
            middle.summed & middle.edge & self.outside, _NEGATIVE_ZERO, multiplier.o)).o
        summed = register(m, "adds", summed=middle.summed).summed
        m.d.comb += [
            first.a.eq(operands.a), first.b.eq(operands.b), factor.i.eq(Cat(operands.c, operands.same)),
            addend.i.eq(operands.d), multiplier.a.eq(first.o),
            multiplier.b.eq(Mux(factor.o[-1], first.o, factor.o[:-1])), kept.i.eq(product),
            last.a.eq(product), last.b.eq(Mux(summed, self.partial, addend.o)),
            self.o.eq(last.o), self.result.eq(Mux(self.late.summed, kept.o, last.o)),
        ]
        return m

    def _elaborate_operands(self, m):
        """Create the buffers, and choose the operands."""
        loaded, control = self.loaded, self.control
        buffered = {}
        for name, load in (("x", Load.X), ("y", Load.Y), ("start", Load.START), ("work", None),
                           ("scale", Load.SCALE), ("shift", Load.SHIFT)):
            vector = load in (Load.SCALE, Load.SHIFT)
            memory = Memory(shape=FP32.width, depth=self._groups * (1 if vector else self._rows), init=[], attrs={
                "no_rw_check": 1, "ram_style": "distributed" if vector else "block"})
            m.submodules[name] = memory
            write, read = memory.write_port(), memory.read_port(transparent_for=())
            if load is None:
                m.d.comb += [write.en.eq(self.live & self.late.kept), write.data.eq(self.result),
                             write.addr.eq(Cat(self.late.row, self.late.group))]
            else:
                m.d.comb += [write.en.eq(loaded.valid & (loaded.load == load)), write.data.eq(loaded.element),
                             write.addr.eq(loaded.group if vector else Cat(loaded.row, loaded.group))]
            m.d.comb += read.addr.eq(control.group if vector else Cat(control.row, control.group))
            buffered[name] = read.data
        chosen = register(m, "chosen", a=control.a, b=control.b, c=control.c, d=control.d, half=control.half)
        nothing = Const(_NEGATIVE_ZERO, FP32.width)
        one = Const(_ONE, FP32.width)
        negated = self.scalar ^ _NEGATIVE_ZERO
        start = Mux(self.started, buffered["start"], nothing)

        def choose(name, selector, choices, other):
            value = Signal(FP32.width, name=f"operand_{name}", reset_less=True)
            with m.Switch(selector):
                for number, choice in choices.items():
                    with m.Case(number):
                        m.d.sync += value.eq(choice)
                with m.Default():
                    m.d.sync += value.eq(other)
            return value

        return SimpleNamespace(
            a=choose("a", chosen.a, {A.X: buffered["x"], A.Y: buffered["y"], A.WORK: buffered["work"]}, self.scalar),
            b=choose("b", chosen.b, {B.NOTHING: nothing, B.START: start}, negated),
            c=choose("c", chosen.c, {
                C.ONE: one, C.Y: buffered["y"], C.SCALE: buffered["scale"], C.FACTOR: self.factor,
                C.DEVIATION: self.deviation, C.ONE_AND_Y: Mux(chosen.half, buffered["y"], one)}, negated),
            d=choose("d", chosen.d, {D.START: start, D.WORK: buffered["work"], D.SHIFT: buffered["shift"],
                                     D.EPSILON: self.epsilon}, nothing),
            same=register(m, "operand", same=chosen.c == C.SAME).same)
