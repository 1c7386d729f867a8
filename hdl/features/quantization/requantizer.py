"""Requantisation of sums to inputs of the next layer: multiply, shift with rounding, and clamp."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.quantization.arithmetic import ACCUMULATOR_BITS, MULTIPLIER_BITS, SHIFT_BITS

__all__ = ["Requantizer", "result_layout", "scaled_layout"]

#: Number of bits of a sum handled by one multiplier; a second one handles the rest.
_LOW_BITS = 16


def scaled_layout():
    """Payload of a sum with its multiplier, shift and flags.

    The limits are 0 and 255 with ``relu``, and -128 and 127 without. With ``raw``, the sum is passed through
    unchanged. ``last`` is passed through unchanged.
    """
    return data.StructLayout({
        "sum": signed(ACCUMULATOR_BITS), "multiplier": MULTIPLIER_BITS, "shift": SHIFT_BITS, "relu": 1, "raw": 1,
        "last": 1})


def result_layout():
    """Payload of an output: a 32-bit number; unless ``raw``, its lowest eight bits are sufficient."""
    return data.StructLayout({"value": signed(ACCUMULATOR_BITS), "raw": 1, "last": 1})


class Requantizer(wiring.Component):
    """Multiply a sum, shift it right with rounding half up, and clamp the result.

    The result is (sum * multiplier + 2 ** (shift - 1)) >> shift, or the product itself for a shift of 0, limited to 8
    bits.

    Latency is :attr:`latency` cycles; throughput is one sum per cycle. All stages move together when the output is
    free: ``i.ready`` depends combinationally on ``o.ready``.

    Members
    -------
    i : In(stream of scaled_layout())
    o : Out(stream of result_layout())
    """

    latency = 6

    i: In(stream.Signature(scaled_layout()))
    o: Out(stream.Signature(result_layout()))

    def elaborate(self, platform):
        m = Module()
        source = self.i.payload
        free = Signal()
        m.d.comb += [free.eq(self.o.ready | ~self.o.valid), self.i.ready.eq(free)]

        def register(value, name, *, reset_less=True):
            later = Signal(value.shape(), name=name, reset_less=reset_less)
            with m.If(free):
                m.d.sync += later.eq(value)
            return later

        marks = {"valid": self.i.valid, "relu": source.relu, "raw": source.raw, "last": source.last}
        stage = 0

        def move():
            nonlocal marks, stage
            marks = {name: register(value, f"{name}_{stage}", reset_less=name != "valid")
                     for name, value in marks.items()}
            stage += 1

        # A raw sum is multiplied by one and not shifted.
        multiplier = Mux(source.raw, 1, source.multiplier)
        shift = register(Mux(source.raw, 0, source.shift), "shift")
        low = register(source.sum[:_LOW_BITS] * multiplier, "low")
        high = register(source.sum[_LOW_BITS:].as_signed() * multiplier, "high")
        move()
        # With one guard bit below the product, the half for rounding can be added whatever the shift.
        width = 1 + ACCUMULATOR_BITS + MULTIPLIER_BITS
        product = Signal(signed(width - 1), name="product", reset_less=True)
        with m.If(free):
            m.d.sync += product.eq(Cat(low[:_LOW_BITS], (low[_LOW_BITS:] + high)[:width - 1 - _LOW_BITS]))
        shift = register(shift, "shift_product")
        move()

        def shifted(value, amounts, first, name):
            """Shift right arithmetically, keeping the width of ``value``."""
            for bit in range(len(amounts)):
                step = 1 << first + bit
                result = Signal(signed(len(value)), name=f"{name}_{step}")
                m.d.comb += result.eq(Mux(amounts[bit], value.as_signed() >> min(step, len(value) - 1), value))
                value = result
            return value

        whole = Signal(signed(width), name="whole")
        m.d.comb += whole.eq(Cat(C(0, 1), product))
        coarse = register(shifted(whole, shift[3:], 3, "coarse"), "coarse")
        shift = register(shift[:3], "shift_coarse")
        move()
        # A number that does not fit in 18 bits here exceeds every limit.
        fine = register(shifted(coarse[:18], shift, 0, "fine"), "fine")
        wide = register(~(coarse[17:].all() | ~coarse[17:].any()), "wide")
        negative = register(coarse[-1], "negative")
        raw = register(coarse[1:1 + ACCUMULATOR_BITS], "raw_fine")
        move()
        rounded = register((fine[:10].as_signed() + 1)[1:].as_signed(), "rounded")
        wide = register(wide | ~(fine[9:].all() | ~fine[9:].any()), "wide_rounded")
        negative = register(negative, "negative_rounded")
        raw = register(raw, "raw_rounded")
        move()

        relu = marks["relu"]
        above, below = Signal(), Signal()
        m.d.comb += [
            above.eq(~negative & (wide | (rounded >= Mux(relu, 256, 128)))),
            below.eq(negative & (wide | (rounded < Mux(relu, 0, -128)))),
        ]
        limited = Signal(signed(9))
        m.d.comb += limited.eq(Mux(above, Mux(relu, 255, 127), Mux(below, Mux(relu, 0, -128), rounded)))
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(marks["valid"]),
                self.o.payload.value.eq(Mux(marks["raw"], raw.as_signed(), limited)),
                self.o.payload.raw.eq(marks["raw"]),
                self.o.payload.last.eq(marks["last"]),
            ]
        return m
