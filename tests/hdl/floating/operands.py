"""Operands that are difficult cases for floating-point units."""

import numpy as np

from hdl.floating.format import FP32
from sim.golden import conversion

#: Number of operands per run; a few runs use millions of operands.
COUNT = 1 << 20


def corners(format):
    """Corner cases: zeros, subnormals, extreme normals, ones, infinities, NaNs, powers of two, and neighbours."""
    fraction_bits, ones = format.fraction_bits, format.exponent_ones
    normal, unity = 1 << fraction_bits, format.bias << fraction_bits
    magnitudes = {0, 1, 2, normal - 1, normal, normal + 1, format.infinity - 1, format.infinity - 2,
                  unity - 1, unity, unity + 1, format.infinity, format.infinity + 1, format.canonical_nan,
                  format.canonical_nan + 1, format.infinity + normal - 1}
    # All subnormal powers of two, and powers of two near the limits of the exponent and near one.
    powers = {1 << bit for bit in range(fraction_bits)}
    near = range(-fraction_bits - 3, fraction_bits + 4)
    for center in (1, ones // 4, format.bias, 3 * ones // 4, ones - 1):
        powers |= {field << fraction_bits for field in range(max(center + near[0], 1), min(center + near[-1], ones))}
    magnitudes |= {power + step for power in powers for step in (-1, 0, 1)}
    # Fractions whose products or sums are close to a rounding threshold.
    magnitudes |= {unity | fraction for fraction in (normal // 2 - 1, normal // 2, normal // 2 + 1, normal - 2)}
    values = np.array(sorted(value for value in magnitudes if 0 <= value < normal << format.exponent_bits), np.uint32)
    return np.concatenate([values, values | np.uint32(1 << (format.width - 1))])


def pairs(values):
    """All pairs of values from an array."""
    return tuple(grid.ravel() for grid in np.meshgrid(values, values))


def corner_pairs(format):
    """All pairs of corner cases with every seventh corner case."""
    return tuple(grid.ravel() for grid in np.meshgrid(corners(format), corners(format)[::7]))


def uniform(format, generator, count=COUNT):
    """Draw pairs of numbers whose bit patterns are uniformly distributed."""
    return tuple(generator.integers(0, 1 << format.width, (2, count), dtype=np.uint32))


def near_exponents(format, generator, count=COUNT):
    """Draw pairs with uniform signs and fractions, and close exponents so that sums cancel and carry.

    Every fourth pair has equal or nearly equal fractions.
    """
    a = generator.integers(0, 1 << format.width, count, dtype=np.uint32)
    b = generator.integers(0, 1 << format.width, count, dtype=np.uint32)
    fraction = np.uint32((1 << format.fraction_bits) - 1)
    b[::4] = a[::4] + generator.integers(-2, 3, len(b[::4])).astype(np.uint32)
    field = a >> format.fraction_bits & format.exponent_ones
    reach = format.fraction_bits + 4
    distance = np.where(generator.integers(0, 2, count), generator.integers(-2, 3, count),
                        generator.integers(-reach, reach + 1, count))
    field = np.clip(field.astype(np.int64) + distance, 0, format.exponent_ones).astype(np.uint32)
    sign = generator.integers(0, 2, count).astype(np.uint32) << np.uint32(format.width - 1)
    return a, sign | field << np.uint32(format.fraction_bits) | b & fraction


def near_borders(format, generator, count=COUNT):
    """Draw pairs with products near the smallest subnormal, the smallest normal and the largest number."""
    ones, reach = format.exponent_ones, format.fraction_bits + 3
    fields = generator.integers(0, ones, count)
    center = generator.choice([format.bias, ones + format.bias, format.bias - format.fraction_bits], count)
    other = np.clip(center - fields + generator.integers(-reach, reach + 1, count), 0, ones)
    a, b = generator.integers(0, 1 << format.width, (2, count), dtype=np.uint32)
    # Some fractions have few set bits, so that products are exact or halfway between two numbers.
    for bits in (a, b):
        bits[::3] &= generator.integers(0, 1 << format.width, len(bits[::3]), dtype=np.uint32)
        bits[::3] &= generator.integers(0, 1 << format.width, len(bits[::3]), dtype=np.uint32)
    fraction = np.uint32((1 << format.fraction_bits) - 1)
    sign = np.uint32(1 << (format.width - 1))
    shift = np.uint32(format.fraction_bits)
    return (a & (sign | fraction) | fields.astype(np.uint32) << shift,
            b & (sign | fraction) | other.astype(np.uint32) << shift)


def borders(widen):
    """All numbers of a narrower format in binary32, all midpoints between them, and the neighbours of both."""
    exact = np.sort(widen(np.arange(1 << 15, dtype=np.uint16)).astype(np.int64))
    exact = exact[exact <= FP32.infinity]
    with np.errstate(over="ignore"):
        values = exact.astype(np.uint32).view(np.float32).astype(np.float64)
    # The midpoint above the largest number is at the same distance from it as the midpoint below.
    values[-1] = 2 * values[-2] - values[-3]
    ties = ((values[1:] + values[:-1]) / 2).astype(np.float32).view(np.uint32)
    near = (np.concatenate([exact, ties])[:, np.newaxis] + [-1, 0, 1]).reshape(-1)
    near = np.unique(near[near >= 0]).astype(np.uint32)
    return np.concatenate([near, near | np.uint32(1 << 31)])


def integer_cases(width, generator, count):
    """Integers: powers of two and their neighbours, the limits of the range, and random integers of any length."""
    powers = [(1 << bit) + step for bit in range(width) for step in (-2, -1, 0, 1, 2)]
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    special = [value for power in powers for value in (power, -power) if low <= value <= high]
    random = generator.integers(low, high, count, endpoint=True) >> generator.integers(0, width, count)
    return np.concatenate([[0, low, low + 1, high - 1, high], special, random]).astype(np.int64)


def numbers(generator, count):
    """Binary32 numbers between 1/16 and 2**35, many of them integers or halfway between two.

    They include the values of :func:`integer_cases` and their neighbours.
    """
    fields = generator.integers(FP32.bias - 4, FP32.bias + 35, count)
    fraction = generator.integers(0, 1 << 23, count) & -1 << generator.integers(0, 24, count)
    halves = np.clip(23 - (fields - FP32.bias) - 1, 0, 23)  # position of the bit that stands for one half
    fraction[::4] = (fraction & -1 << halves | 1 << halves)[::4] & (1 << 23) - 1
    sign = generator.integers(0, 2, count)
    some = sign << 31 | fields << 23 | fraction
    whole = conversion.from_integer(integer_cases(35, generator, 1000)).astype(np.int64)
    near = (whole[:, np.newaxis] + [-1, 0, 1]).reshape(-1)
    return np.concatenate([some, near[near >= 0]]).astype(np.uint32)


def differences(a, b, got, want):
    """Describe up to eight wrong results, one per line."""
    wrong = np.flatnonzero(got != want)
    return [f"{a[n]:#x}, {b[n]:#x}: {got[n]:#x}, not {want[n]:#x}" for n in wrong[:8]]
