# amaranth: UnusedElaboratable=no
import ml_dtypes
import numpy as np
import pytest

from hdl.floating.compare import FloatComparator, MagnitudeLimiter
from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands, pipeline

NARROW = [(4, 3), (5, 2), (2, 5), (2, 1)]
DTYPES = [(FP32, np.float32), (FP16, np.float16), (BF16, ml_dtypes.bfloat16)]


def numbers(format, bits):
    """Exact values of numbers that are encoded in a format."""
    fraction = (bits & ((1 << format.fraction_bits) - 1)).astype(np.float64)
    field = (bits >> format.fraction_bits & format.exponent_ones).astype(np.int64)
    significand = np.where(field == 0, fraction, fraction + (1 << format.fraction_bits))
    values = np.ldexp(significand, np.maximum(field, 1) - format.bias - format.fraction_bits)
    values = np.where(field == format.exponent_ones, np.where(fraction == 0, np.inf, np.nan), values)
    return np.where(bits >> (format.width - 1), -values, values)


def limit(format, i, limits, of=numbers):
    """Golden result of limiting numbers, computed from their exact values."""
    value, bound = np.abs(of(format, i)), np.abs(of(format, limits))
    sign = np.uint32(1 << (format.width - 1))
    with np.errstate(invalid="ignore"):
        limited = np.where(value > bound, i & sign | limits & (sign - np.uint32(1)), i)
    return np.where(np.isnan(value), format.canonical_nan, limited)


def compare(format, a, b, of=numbers):
    """Golden flags of a comparison, computed from the exact values."""
    x, y = of(format, a), of(format, b)
    with np.errstate(invalid="ignore"):
        return {"less": x < y, "equal": x == y, "unordered": np.isnan(x) | np.isnan(y)}


def check_limiter(format, i, limits, want):
    limiter = MagnitudeLimiter(format=format)
    got = Unit(limiter).run({"i": i, "limit": limits}, drain=limiter.latency)["o"][limiter.latency:]
    assert operands.differences(i, limits, got, want) == []


def check(format, a, b, of=numbers):
    """Compare both units with results computed from exact values."""
    comparator = FloatComparator(format=format)
    got = Unit(comparator).run({"a": a, "b": b}, drain=comparator.latency)
    for name, values in compare(format, a, b, of).items():
        assert operands.differences(a, b, got[name][comparator.latency:], values) == [], name
    check_limiter(format, a, b, limit(format, a, b, of))


@pytest.mark.parametrize("unit", [FloatComparator, MagnitudeLimiter])
@pytest.mark.parametrize("format", [None, 32, (8, 23)])
def test_format(unit, format):
    with pytest.raises(TypeError, match=r"^Format must be a FloatFormat, not "):
        unit(format=format)


def test_latency():
    assert FloatComparator().latency == 1
    assert MagnitudeLimiter().latency == 2
    for unit in (FloatComparator(format=FP16), MagnitudeLimiter(format=FP16)):
        assert unit.format == FP16


@pytest.mark.parametrize(("format", "dtype"), DTYPES)
@pytest.mark.parametrize("draw", [None, operands.uniform, operands.near_exponents])
def test_numbers_of_numpy(format, dtype, draw):
    def values(format, bits):
        return bits.astype(f"uint{format.width}").view(dtype).astype(np.float32)

    check(format, *(draw(format, np.random.default_rng(1)) if draw else operands.pairs(operands.corners(format))),
          values)


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), NARROW)
def test_exhaustive(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    check(format, *operands.pairs(np.arange(1 << format.width, dtype=np.uint32)))


@pytest.mark.parametrize(("i", "bound", "want"), [
    (0x3FC00000, 0x3F800000, 0x3F800000),  # 1.5 is limited to 1.0
    (0xBFC00000, 0x3F800000, 0xBF800000),
    (0x3F800000, 0x3F800000, 0x3F800000),
    (0x80000000, 0x00000000, 0x80000000),  # -0.0 passes unchanged
    (0x80000001, 0x00000000, 0x80000000),
    (0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF),
    (0xFF800000, 0x7F800000, 0xFF800000),  # infinity is within a limit of infinity
    (0x7F800000, 0x7FC00000, 0x7F800000),  # infinity is also within a limit of NaN
    (0xFFC12345, 0x3F800000, 0x7FC00000),
    (0xFFC12345, 0x7FC12345, 0x7FC00000),
])
def test_limiter_known(i, bound, want):
    check_limiter(FP32, np.array([i], np.uint32), np.array([bound], np.uint32), np.array([want]))


def test_timing():
    a, b = operands.near_exponents(FP32, np.random.default_rng(1), 200)
    pipeline.check(FloatComparator(), {"a": a, "b": b}, compare(FP32, a, b))
    pipeline.check(MagnitudeLimiter(), {"i": a, "limit": b}, {"o": limit(FP32, a, b)})
