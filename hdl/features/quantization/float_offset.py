# amaranth: UnusedElaboratable=no
"""Quantisation with floating-point offsets, as a baseline for integer offsets."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.quantization.arithmetic import ACCUMULATOR_BITS, INPUT_BITS, MULTIPLIER_BITS, SHIFT_BITS
from hdl.features.quantization.matrix_vector import MAX_LANES, MatrixVector
from hdl.features.quantization.requantizer import Requantizer
from hdl.floating.add import FloatAdder
from hdl.floating.convert import FloatToInteger, IntegerToFloat
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.stages import register
from hdl.streams.delay import DelayLine
from hdl.streams.stream import check_lanes

__all__ = ["FloatOffset", "IntegerOffset"]

#: Number of bits of a sum of signed or unsigned inputs.
_INPUT_SUM_BITS = 24

#: Number of bits of a rounded output before clamping.
_ROUNDED_BITS = 10


def _operands(lanes, bits):
    return {"valid": In(1), "last": In(1), "codes": In(bits).array(lanes), "inputs": In(INPUT_BITS).array(lanes),
            "int8": In(1), "bias": In(signed(ACCUMULATOR_BITS)), "relu": In(1),
            "o": Out(signed(9)), "o_valid": Out(1)}


def _delayed(m, name, value, cycles):
    m.submodules[f"{name}_delay"] = line = DelayLine(shape=value.shape(), cycles=cycles)
    m.d.comb += line.i.eq(value)
    return line.o


class FloatOffset(wiring.Component):
    """Compute 8-bit outputs by asymmetric quantisation: S * (bias + sum of Q * X) + W * sum of X.

    Integers are exact until they are converted. Products and their sum are rounded to binary32, to nearest even, as
    is the conversion of the sum to an integer. A beat is taken in every cycle, and the output of the last one is on
    ``o`` :attr:`latency` cycles later. There is no handshake, so the unit cannot be used in a node.

    Parameters
    ----------
    lanes : int
        Number of multiplications per cycle: 1, 2, 4, 8, 16 or 32.
    bits : int
        Number of bits per code.
    offset : bool
        Whether to add the offset term. Without it, weights are just codes times the scale.
    dsps : int
        Number of DSP blocks that each floating-point multiplier may use: 4, 2 or 1.

    Members
    -------
    valid, last : In(1)
        There is a beat in this cycle; it is the last one of its output.
    codes : In(bits).array(lanes)
    inputs : In(8).array(lanes)
    int8 : In(1)
        Inputs are signed.
    bias : In(signed(32))
        Bias of an output; valid with its first beat.
    scale, offset : In(32)
        S and W of an output, as binary32; valid with its last beat.
    relu : In(1)
        Clamp to 0 and 255 instead of -128 and 127; valid with the last beat.
    o : Out(signed(9))
    o_valid : Out(1)
    """

    def __init__(self, *, lanes, bits=8, offset=True, dsps=4):
        check_lanes(lanes, most=MAX_LANES)
        self._lanes = lanes
        self._bits = bits
        self._offset = offset
        self._dsps = dsps
        super().__init__({**_operands(lanes, bits), "scale": In(FP32.width), "offset": In(FP32.width)})

    @property
    def summed(self):
        """Latency in cycles from the last beat of an output to the output's sums."""
        return 2 + self._lanes.bit_length()

    @property
    def latency(self):
        """Latency in cycles from the last beat of an output to the output."""
        multiply = FloatMultiplier(dsps=self._dsps).latency
        add = FloatAdder.latency if self._offset else 0
        return self.summed + IntegerToFloat.latency + multiply + add + FloatToInteger.latency + 1

    def elaborate(self, platform):
        m = Module()
        inputs = [register(m, f"input_{n}", o=Cat(x, x[-1] & self.int8).as_signed()).o
                  for n, x in enumerate(self.inputs)]
        codes = [register(m, f"code_{n}", o=code).o for n, code in enumerate(self.codes)]
        sums = {"codes": [register(m, f"product_{n}", o=code * x).o
                          for n, (code, x) in enumerate(zip(codes, inputs, strict=True))]}
        if self._offset:
            sums["inputs"] = [register(m, f"multiplied_{n}", o=x).o for n, x in enumerate(inputs)]
        while len(sums["codes"]) > 1:
            sums = {name: [register(m, f"{name}_{len(values)}_{n}", o=values[n] + values[n + 1]).o
                           for n in range(0, len(values), 2)] for name, values in sums.items()}
        ended = Signal(init=1)
        with m.If(self.valid):
            m.d.sync += ended.eq(self.last)
        ahead = self.summed - 1
        marks = _delayed(m, "marks", Cat(self.valid, ended, self.bias), ahead)
        totals = {}
        for name, width, start in (("codes", ACCUMULATOR_BITS, marks[2:].as_signed()),
                                   ("inputs", _INPUT_SUM_BITS, C(0, 1))):
            if name in sums:
                totals[name] = Signal(signed(width), name=f"total_{name}")
                with m.If(marks[0]):
                    m.d.sync += totals[name].eq(Mux(marks[1], start, totals[name]) + sums[name][0])

        terms = []
        factors = {"codes": self.scale, "inputs": self.offset}
        for name, total in totals.items():
            m.submodules[f"{name}_float"] = convert = IntegerToFloat(width=len(total))
            m.submodules[f"{name}_multiplier"] = multiply = FloatMultiplier(dsps=self._dsps)
            factor = _delayed(m, f"{name}_factor", factors[name], self.summed + IntegerToFloat.latency)
            m.d.comb += [convert.i.eq(total), multiply.a.eq(convert.o), multiply.b.eq(factor)]
            terms.append(multiply.o)
        if self._offset:
            m.submodules.add = add = FloatAdder()
            m.d.comb += [add.a.eq(terms[0]), add.b.eq(terms[1])]
            terms = [add.o]
        m.submodules.round = rounded = FloatToInteger(width=_ROUNDED_BITS)
        m.d.comb += rounded.i.eq(terms[0])
        relu = _delayed(m, "relu", self.relu, self.latency - 1)
        m.d.sync += self.o.eq(_limited(rounded.o, relu))
        m.d.comb += self.o_valid.eq(_delayed(m, "valid", self.valid & self.last, self.latency))
        return m


def _limited(value, relu):
    low, high = Mux(relu, 0, -128), Mux(relu, 255, 127)
    return Mux(value < low, low, Mux(value > high, high, value))


class IntegerOffset(wiring.Component):
    """Compute the same outputs with integer offsets, for comparison; uses a node's units, without stalls.

    Parameters
    ----------
    lanes, bits : int
        See :class:`FloatOffset`.

    Members
    -------
    valid, last, codes, inputs, int8, bias, relu, o, o_valid
        See :class:`FloatOffset`.
    offset : In(signed(bits + 1))
        Offset of an output; valid with all of its beats.
    multiplier, shift : In(16), In(6)
        Scale of an output; valid with its last beat.
    """

    def __init__(self, *, lanes, bits=8):
        self._product = MatrixVector(lanes=lanes, bits=bits)
        super().__init__({**_operands(lanes, bits), "offset": In(signed(bits + 1)), "multiplier": In(MULTIPLIER_BITS),
                          "shift": In(SHIFT_BITS)})

    @property
    def latency(self):
        """Latency in cycles from the last beat of an output to the output."""
        return self._product.latency + Requantizer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.product = product = self._product
        m.submodules.requantizer = requantizer = Requantizer()
        operands, scaled = product.i.payload, requantizer.i.payload
        m.d.comb += [
            product.i.valid.eq(self.valid),
            *(operands.codes[n].eq(code) for n, code in enumerate(self.codes)),
            *(operands.inputs[n].eq(x) for n, x in enumerate(self.inputs)),
            operands.signed.eq(self.int8),
            *(operands[name].eq(getattr(self, name)) for name in ("bias", "offset", "last")),
            product.o.ready.eq(1),
            requantizer.i.valid.eq(product.o.valid),
            scaled.sum.eq(product.o.payload.sum),
            Cat(scaled.multiplier, scaled.shift, scaled.relu).eq(
                _delayed(m, "scale", Cat(self.multiplier, self.shift, self.relu), product.latency)),
            requantizer.o.ready.eq(1),
            self.o.eq(requantizer.o.payload.value),
            self.o_valid.eq(requantizer.o.valid),
        ]
        return m
