"""Matrix-vector product of integer weights and inputs, one output after another."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.quantization.arithmetic import ACCUMULATOR_BITS, INPUT_BITS, LENGTH_MAX, Form
from hdl.streams.stream import check_lanes

__all__ = ["MAX_LANES", "MatrixVector", "latency", "operand_layout", "sum_layout"]

#: Number of lanes of the widest unit.
MAX_LANES = 32

#: Number of bits in the largest sum of inputs, signed or unsigned.
_INPUT_SUM_BITS = (LENGTH_MAX * ((1 << INPUT_BITS) - 1)).bit_length() + 1

#: Number of bits of an input sum that one multiplier handles; a second multiplier handles the rest.
_LOW_BITS = 17


def operand_layout(lanes, bits, offset_bits):
    """Payload of one beat of a matrix row: ``lanes`` codes and the corresponding inputs.

    ``signed`` makes inputs int8 instead of uint8, and ``subtract`` makes weights Z - Q instead of Z + Q. All beats of
    an output carry its offset and bias; ``last`` marks the last beat.
    """
    return data.StructLayout({
        "codes": data.ArrayLayout(unsigned(bits), lanes), "inputs": data.ArrayLayout(unsigned(INPUT_BITS), lanes),
        "offset": signed(offset_bits), "bias": signed(ACCUMULATOR_BITS), "signed": 1, "subtract": 1, "last": 1})


def sum_layout():
    """Payload of the sum of an output."""
    return data.StructLayout({"sum": signed(ACCUMULATOR_BITS)})


def latency(*, lanes, form):
    """Latency of :class:`MatrixVector` in cycles from an output's last beat until its sum is offered."""
    return 3 + (lanes.bit_length() - 1) + (3 if form is Form.SEPARATE else 0)


class MatrixVector(wiring.Component):
    """Multiply weights by inputs, one beat per cycle, and accumulate the products of each output.

    In the adjusted form, each lane first adds to obtain the weight A = Z + Q or Z - Q, then multiplies by it. In the
    separate form, lanes multiply by the codes; the inputs are summed separately, and their sum is multiplied by Z
    once per output. Both forms give the same results if every A fits in ``bits`` + 1 bits. Sums wrap at 32 bits, but
    never do so within the bounds of :mod:`hdl.features.quantization.arithmetic`.

    One beat is accepted per cycle, without bubbles between outputs, and a sum is offered :attr:`latency` cycles after
    its output's last beat. All stages move together when the output is free: ``i.ready`` depends combinationally on
    ``o.ready``.

    Parameters
    ----------
    lanes : int
        Multiplications per cycle: 1, 2, 4, 8, 16 or 32.
    bits : int
        Bits per code: 4 or 8.
    offset_bits : int or None
        Bits per offset, 2 to 16; by default one more than ``bits``.
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
        """Latency in cycles from an output's last beat until its sum is offered."""
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

        # Flags that accompany the products: valid, and first and last beat of a sum.
        ended = Signal(init=1)  # whether the next beat starts a new sum
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
            # A single adder computes Z + Q and Z - Q: it subtracts by adding the code's complement and a carry-in.
            negated = Cat(code, C(0, 1)) ^ beat.subtract.replicate(self._bits + 1)
            total = Cat(beat.subtract, negated) + Cat(beat.subtract, beat.offset)
            factors.append(register(total[1:self._bits + 2].as_signed(), f"factor_{lane}"))
        move()
        products = [register(factor * value, f"product_{lane}")
                    for lane, (factor, value) in enumerate(zip(factors, inputs, strict=True))]
        inputs = [register(value, f"multiplied_{lane}") for lane, value in enumerate(inputs)] if separate else []
        move()

        def halved(values, name):
            """Add neighbouring values in pairs, with a register after each sum."""
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
        # Split the sum of inputs, which is too wide for one multiplier block.
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
