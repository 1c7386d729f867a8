"""Matrix-vector product of integer weights and inputs, one output after the other."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.quantization.arithmetic import ACCUMULATOR_BITS, INPUT_BITS, LENGTH_MAX, Form
from hdl.streams.stream import check_lanes

__all__ = ["MAX_LANES", "MatrixVector", "latency", "operand_layout", "sum_layout"]

#: Number of lanes of the widest unit.
MAX_LANES = 32

#: Number of bits of the longest sum of inputs, signed or unsigned.
_INPUT_SUM_BITS = (LENGTH_MAX * ((1 << INPUT_BITS) - 1)).bit_length() + 1

#: Number of bits of a sum of inputs that one multiplier handles; a second one handles the rest.
_LOW_BITS = 17


def operand_layout(lanes, bits, offset_bits):
    """Payload of a beat of a matrix row: ``lanes`` codes, and the inputs that they multiply.

    ``signed`` makes inputs int8 instead of uint8, and ``subtract`` makes weights Z - Q instead of Z + Q. All beats of
    an output carry its offset and bias; ``last`` is set on the last beat.
    """
    return data.StructLayout({
        "codes": data.ArrayLayout(unsigned(bits), lanes), "inputs": data.ArrayLayout(unsigned(INPUT_BITS), lanes),
        "offset": signed(offset_bits), "bias": signed(ACCUMULATOR_BITS), "signed": 1, "subtract": 1, "last": 1})


def sum_layout():
    """Payload of the sum of an output."""
    return data.StructLayout({"sum": signed(ACCUMULATOR_BITS)})


def latency(*, lanes, form):
    """Cycles of a :class:`MatrixVector` from the last beat of an output to the offer of its sum."""
    return 3 + (lanes.bit_length() - 1) + (3 if form is Form.SEPARATE else 0)


class MatrixVector(wiring.Component):
    """Multiply weights and inputs, a beat in every cycle, and add up the products of each output.

    In the adjusted form each lane has an adder, which forms the weight A = Z + Q or Z - Q, and multiplies by it. In
    the separate form lanes multiply codes, the inputs are also summed, and their sum is multiplied by Z once per
    output. Both forms give the same numbers if every A has at most ``bits`` + 1 bits. Sums wrap at 32 bits; sums
    bounded as in :mod:`hdl.features.quantization.arithmetic` never do.

    One beat is taken per cycle, without a bubble between outputs, and a sum is offered :attr:`latency` cycles after
    the last beat of its output. All stages move together when the output is free: ``i.ready`` depends combinationally
    on ``o.ready``.

    Parameters
    ----------
    lanes : int
        Multiplications per cycle: 1, 2, 4, 8, 16 or 32.
    bits : int
        Bits per code: 4 or 8.
    offset_bits : int or None
        Bits per offset, at least 2 and at most 16; by default one more than ``bits``.
    form : Form

    Members
    -------
    i : In(stream of operand_layout(lanes, bits, offset_bits))
    o : Out(stream of sum_layout())
    """

    def __init__(self, *, lanes, bits=8, offset_bits=None, form=Form.ADJUSTED):
        check_lanes(lanes, most=MAX_LANES)
        if bits not in (4, 8):
            raise ValueError(f"Bits must be 4 or 8, not {bits!r}")
        if offset_bits is None:
            offset_bits = bits + 1
        if not isinstance(offset_bits, int) or not 2 <= offset_bits <= 16:
            raise ValueError(f"Offset bits must be an integer between 2 and 16, not {offset_bits!r}")
        self._lanes = lanes
        self._bits = bits
        self._form = Form(form)
        super().__init__({
            "i": In(stream.Signature(operand_layout(lanes, bits, offset_bits))),
            "o": Out(stream.Signature(sum_layout())),
        })

    @property
    def lanes(self):
        """Multiplications per cycle."""
        return self._lanes

    @property
    def latency(self):
        """Cycles from the last beat of an output to the offer of its sum."""
        return latency(lanes=self._lanes, form=self._form)

    def elaborate(self, platform):
        m = Module()
        separate = self._form is Form.SEPARATE
        beat = self.i.payload
        free = Signal()
        m.d.comb += [free.eq(self.o.ready | ~self.o.valid), self.i.ready.eq(free)]

        def register(value, name, *, reset_less=True):
            later = Signal(value.shape(), name=name, reset_less=reset_less)
            with m.If(free):
                m.d.sync += later.eq(value)
            return later

        # Flags that accompany the products: a valid beat, the first and the last beat of its sum.
        ended = Signal(init=1)  # the next beat is the first of a sum
        with m.If(free & self.i.valid):
            m.d.sync += ended.eq(beat.last)
        marks = {"valid": self.i.valid, "final": self.i.valid & beat.last, "first": ended, "bias": beat.bias}
        if separate:
            marks |= {"offset": beat.offset, "subtract": beat.subtract}
        stage = 0

        def move():
            nonlocal marks, stage
            marks = {name: register(value, f"{name}_{stage}", reset_less=name not in ("valid", "final"))
                     for name, value in marks.items()}
            stage += 1

        factors, inputs = [], []
        for lane in range(self._lanes):
            code, value = beat.codes[lane], beat.inputs[lane]
            inputs.append(register(Cat(value, value[-1] & beat.signed).as_signed(), f"input_{lane}"))
            if separate:
                factors.append(register(code, f"factor_{lane}"))
                continue
            # One adder for Z + Q and Z - Q: to subtract, add the complement of the code and a carry-in.
            negated = Cat(code, C(0, 1)) ^ beat.subtract.replicate(self._bits + 1)
            total = Cat(beat.subtract, negated) + Cat(beat.subtract, beat.offset)
            factors.append(register(total[1:self._bits + 2].as_signed(), f"factor_{lane}"))
        move()
        products = [register(factor * value, f"product_{lane}")
                    for lane, (factor, value) in enumerate(zip(factors, inputs, strict=True))]
        inputs = [register(value, f"multiplied_{lane}") for lane, value in enumerate(inputs)] if separate else []
        move()

        def halved(values, name):
            """Add each pair of neighbouring values, with a register after each sum."""
            return [register(values[index] + values[index + 1], f"{name}_{len(values)}_{index}")
                    for index in range(0, len(values), 2)]

        while len(products) > 1:
            products, inputs = halved(products, "sum"), halved(inputs, "input_sum") if separate else []
            move()

        if not separate:
            with m.If(free):
                m.d.sync += self.o.valid.eq(marks["final"])
                with m.If(marks["valid"]):
                    m.d.sync += self.o.payload.sum.eq(
                        Mux(marks["first"], marks["bias"], self.o.payload.sum) + products[0])
            return m

        sums = {}
        for name, term, width in (("codes", products[0], ACCUMULATOR_BITS), ("inputs", inputs[0], _INPUT_SUM_BITS)):
            sums[name] = Signal(signed(width), name=f"total_{name}", reset_less=True)
            with m.If(free & marks["valid"]):
                m.d.sync += sums[name].eq(Mux(marks["first"], 0, sums[name]) + term)
        move()
        # The sum of inputs is wider than a multiplier block.
        low, high = Cat(sums["inputs"][:_LOW_BITS], C(0, 1)).as_signed(), sums["inputs"][_LOW_BITS:].as_signed()
        parts = [register(marks["offset"] * part, name) for part, name in ((low, "low"), (high, "high"))]
        flip = marks["subtract"]
        flipped = Cat(flip, sums["codes"] ^ flip.replicate(ACCUMULATOR_BITS))
        codes = register((flipped + Cat(flip, marks["bias"]))[1:ACCUMULATOR_BITS + 1], "codes")
        move()
        offsets = register(parts[0] + parts[1].shift_left(_LOW_BITS), "offsets")
        codes = register(codes, "codes_placed")
        move()
        with m.If(free):
            m.d.sync += [self.o.valid.eq(marks["final"]), self.o.payload.sum.eq(codes + offsets)]
        return m
