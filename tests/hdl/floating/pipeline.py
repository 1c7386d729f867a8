# amaranth: UnusedElaboratable=no
"""Check units without handshakes: one result per cycle at the stated latency, even after a reset."""

import functools

import cocotb
import ml_dtypes
import numpy as np
import pytest

from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from sim import regression
from sim.streams import cycles, start
from sim.verilated.native import Arithmetic
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def one_result_per_cycle(dut):
    """The result of one cycle's inputs appears for one cycle, after `latency` edges.

    A reset in the middle neither clears nor stops the pipeline.
    """
    parameters = regression.parameters()
    latency, inputs, outputs = (parameters[key] for key in ("latency", "inputs", "outputs"))
    count = len(next(iter(inputs.values())))
    await start(dut)
    for n in range(count + latency):
        if n < count:
            for name, values in inputs.items():
                getattr(dut, name).value = values[n]
        if n == count // 2:
            dut.rst.value = 1
        await cycles(dut, 1)
        if n >= latency:
            for name, values in outputs.items():
                assert int(getattr(dut, name).value) == values[n - latency], f"{name} of cycle {n - latency}"


def check(component, inputs, outputs):
    """Apply one row of the input arrays per cycle, and compare the outputs with the given arrays."""
    def lists(arrays):
        return {name: [int(value) for value in values] for name, values in arrays.items()}

    regression.run(component, module=__name__, parameters={
        "latency": component.latency, "inputs": lists(inputs), "outputs": lists(outputs)})


def in_turns(component, inputs, *, arithmetic=Arithmetic.GATEWARE):
    """Results of a Verilated unit that accepts operands every ``interval`` cycles; its inputs are random in between.
    """
    interval, latency = component.interval, component.latency
    count = len(next(iter(inputs.values())))
    cycles = count * interval + -(-latency // interval) * interval
    generator = np.random.default_rng(count)
    rows = {"load": (np.arange(cycles) % interval == 0).astype(np.uint8)}
    for name, values in inputs.items():
        rows[name] = generator.integers(1 << component.format.width, size=cycles, dtype=np.uint32)
        rows[name][:count * interval:interval] = values
    return Unit(component, arithmetic=arithmetic).run(rows)["o"][latency:][:count * interval:interval]


class Operation:
    """A unit with one result: its operands, golden functions and tests.

    Parameters
    ----------
    make : callable
        Creates the unit from options, including ``format``.
    golden, exact, function : callable
        Return the result in binary32, the result in any format, and numpy's own result for any type.
    ports : str
        Names of the one or two operands.
    """

    def __init__(self, make, golden, exact, function, ports="ab"):
        self._make, self._golden, self._exact, self._function, self._ports = make, golden, exact, function, ports

    def drawn(self, pair):
        """Operands from a pair of arrays; for a unit with a single operand, the arrays are concatenated."""
        return pair if len(self._ports) == 2 else (np.concatenate(pair),)

    def every(self, values):
        """All combinations of the given values as operands."""
        return operands.pairs(values) if len(self._ports) == 2 else (values,)

    def check(self, inputs, want, **options):
        """Compare the unit's results, one per cycle, with the expected results."""
        unit = self._make(**options)
        got = Unit(unit).run(dict(zip(self._ports, inputs, strict=True)), drain=unit.latency)["o"][unit.latency:]
        assert operands.differences(inputs[0], inputs[-1], got, want) == []

    def _of_format(self, inputs, bits, **options):
        want = self._exact(*inputs, exponent_bits=bits[0], fraction_bits=bits[1])
        self.check(inputs, want, format=FloatFormat(exponent_bits=bits[0], fraction_bits=bits[1]), **options)

    def _of_type(self, inputs, dtype, format):
        """Results computed with a numpy type, as bit patterns."""
        unsigned = f"uint{format.width}"
        with np.errstate(all="ignore"):
            result = self._function(*(bits.astype(unsigned).view(dtype) for bits in inputs))
            return np.where(np.isnan(result), format.canonical_nan, result.view(unsigned))

    def formats(self):
        """Create a test that the unit rejects anything other than a format."""
        @pytest.mark.parametrize("format", [None, 32, (8, 23)])
        def test(format):
            with pytest.raises(TypeError, match=r"^Format must be a FloatFormat, not "):
                self._make(format=format)

        return test

    def latencies(self, cases):
        """Create a test of the latency for each format."""
        @pytest.mark.parametrize(("format", "latency"), cases)
        def test(format, latency):
            unit = self._make(format=format)
            assert (unit.latency, unit.format) == (latency, format)

        return test

    def sets(self, *draws, options=({},)):
        """Create a test with binary32 operands drawn by the given functions."""
        @pytest.mark.parametrize("draw", draws)
        @pytest.mark.parametrize("chosen", options)
        def test(draw, chosen):
            inputs = draw()
            self.check(inputs, self._golden(*inputs), **chosen)

        return test

    def random(self, *draws, options=({},), seeds=(1,)):
        """Create a test with random binary32 operands and corner cases."""
        return self.sets(lambda: self.every(operands.corners(FP32)), *(
            functools.partial(lambda draw, seed: self.drawn(draw(FP32, np.random.default_rng(seed))), draw, seed)
            for draw in draws for seed in seeds), options=options)

    def exhaustive(self, formats):
        """Create a test with all possible operands of narrow formats."""
        @pytest.mark.parametrize("bits", formats)
        def test(bits):
            self._of_format(self.every(np.arange(2 << sum(bits), dtype=np.uint32)), bits)

        return test

    def halves(self, *draws):
        """Create a test that compares 16-bit formats with numpy, with random operands or with all possible ones."""
        @pytest.mark.parametrize(("format", "dtype"), [(FP16, np.float16), (BF16, ml_dtypes.bfloat16)])
        @pytest.mark.parametrize("draw", draws or [None])
        def test(format, dtype, draw):
            inputs = draw(format, np.random.default_rng(1), 1 << 18) if draw else self.every(
                np.arange(1 << 16, dtype=np.uint32))
            self.check(inputs, self._of_type(inputs, dtype, format), format=format)

        return test

    def others(self, formats, *draws):
        """Create a test of further formats with random operands."""
        @pytest.mark.parametrize("bits", formats)
        def test(bits):
            format = FloatFormat(exponent_bits=bits[0], fraction_bits=bits[1])
            for draw in draws:
                self._of_format(self.drawn(draw(format, np.random.default_rng(1), 1 << 14)), bits)

        return test

    def by_hand(self, cases):
        """Create a test of the golden functions and the unit on operands with known results."""
        def test():
            *inputs, want = np.array(cases, np.uint32).T
            self.check(inputs, want)
            for result in (self._golden(*inputs), self._exact(*inputs, exponent_bits=8, fraction_bits=23)):
                assert operands.differences(inputs[0], inputs[-1], result, want) == []

        return test

    def golden(self, *draws):
        """Create a test that compares the two golden functions with each other, and the exact one with numpy."""
        def test():
            for draw in draws:
                inputs = draw()
                got = self._exact(*inputs, exponent_bits=8, fraction_bits=23)
                assert operands.differences(inputs[0], inputs[-1], got, self._golden(*inputs)) == []
            for exponent_bits, fraction_bits, dtype in ((4, 3, ml_dtypes.float8_e4m3), (5, 2, ml_dtypes.float8_e5m2),
                                                        (3, 4, ml_dtypes.float8_e3m4)):
                format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
                inputs = self.every(np.arange(256, dtype=np.uint32))
                got = self._exact(*inputs, exponent_bits=exponent_bits, fraction_bits=fraction_bits)
                assert operands.differences(inputs[0], inputs[-1], got, self._of_type(inputs, dtype, format)) == []

        return test

    def in_turns(self, latencies, draw):
        """Create a test that a folded unit gives bit-identical results at the stated latency, for each interval."""
        @pytest.mark.parametrize(("interval", "latency"), latencies.items())
        def test(interval, latency):
            unit, inputs = self._make(interval=interval), draw(np.random.default_rng(interval))
            assert (unit.latency, unit.interval) == (latency, interval)
            got = in_turns(unit, dict(zip(self._ports, inputs, strict=True)))
            assert operands.differences(inputs[0], inputs[-1], got, self._golden(*inputs)) == []

        return test

    def exhaustive_in_turns(self, intervals, formats):
        """Create a test of a folded unit with all possible operands of narrow formats."""
        @pytest.mark.parametrize("interval", intervals)
        @pytest.mark.parametrize("bits", formats)
        def test(interval, bits):
            format = FloatFormat(exponent_bits=bits[0], fraction_bits=bits[1])
            inputs = self.every(np.arange(1 << format.width, dtype=np.uint32))
            got = in_turns(self._make(format=format, interval=interval),
                           dict(zip(self._ports, inputs, strict=True)))
            want = self._exact(*inputs, exponent_bits=bits[0], fraction_bits=bits[1])
            assert operands.differences(inputs[0], inputs[-1], got, want) == []

        return test

    def timing(self, options=({},)):
        """Create a test of latency and resets under cocotb."""
        @pytest.mark.parametrize("chosen", options)
        def test(chosen):
            inputs = operands.uniform(FP32, np.random.default_rng(1), 200)[:len(self._ports)]
            check(self._make(**chosen), dict(zip(self._ports, inputs, strict=True)), {"o": self._golden(*inputs)})

        return test
