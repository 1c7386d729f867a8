"""Operands that are hard for floating-point units."""

import numpy as np

#: Per cycle of a run; a few runs make the millions.
COUNT = 1 << 20


def corners(format):
    """Zeros, subnormals, smallest and largest normals, ones, infinities, NaNs, powers of two and their neighbours."""
    fraction_bits, ones = format.fraction_bits, format.exponent_ones
    normal, one = 1 << fraction_bits, format.bias << fraction_bits
    magnitudes = {0, 1, 2, normal - 1, normal, normal + 1, format.infinity - 1, format.infinity - 2,
                  one - 1, one, one + 1, format.infinity, format.infinity + 1, format.canonical_nan,
                  format.canonical_nan + 1, format.infinity + normal - 1}
    # Powers of two: every subnormal one, those next to the borders of the exponent and around one.
    powers = {1 << bit for bit in range(fraction_bits)}
    near = range(-fraction_bits - 3, fraction_bits + 4)
    for center in (1, ones // 4, format.bias, 3 * ones // 4, ones - 1):
        powers |= {field << fraction_bits for field in range(max(center + near[0], 1), min(center + near[-1], ones))}
    magnitudes |= {power + step for power in powers for step in (-1, 0, 1)}
    # Fractions whose product or sum lies next to half of the last place.
    magnitudes |= {one | fraction for fraction in (normal // 2 - 1, normal // 2, normal // 2 + 1, normal - 2)}
    values = np.array(sorted(value for value in magnitudes if 0 <= value < normal << format.exponent_bits), np.uint32)
    return np.concatenate([values, values | np.uint32(1 << (format.width - 1))])


def pairs(values):
    """Every pair of some values."""
    return tuple(grid.ravel() for grid in np.meshgrid(values, values))


def uniform(format, generator, count=COUNT):
    """Pairs drawn uniformly over bit patterns."""
    return tuple(generator.integers(0, 1 << format.width, (2, count), dtype=np.uint32))


def near_exponents(format, generator, count=COUNT):
    """Pairs with signs and fractions drawn uniformly, and exponents a few apart: sums that cancel and carry.

    Fractions of every fourth pair agree, or nearly so.
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
    """Pairs whose products lie around the smallest subnormal, the smallest normal and the largest number."""
    ones, reach = format.exponent_ones, format.fraction_bits + 3
    fields = generator.integers(0, ones, count)
    center = generator.choice([format.bias, ones + format.bias, format.bias - format.fraction_bits], count)
    other = np.clip(center - fields + generator.integers(-reach, reach + 1, count), 0, ones)
    a, b = generator.integers(0, 1 << format.width, (2, count), dtype=np.uint32)
    # Some fractions have few ones, so that products are exact or halfway between two numbers.
    for bits in (a, b):
        bits[::3] &= generator.integers(0, 1 << format.width, len(bits[::3]), dtype=np.uint32)
        bits[::3] &= generator.integers(0, 1 << format.width, len(bits[::3]), dtype=np.uint32)
    fraction = np.uint32((1 << format.fraction_bits) - 1)
    sign = np.uint32(1 << (format.width - 1))
    shift = np.uint32(format.fraction_bits)
    return (a & (sign | fraction) | fields.astype(np.uint32) << shift,
            b & (sign | fraction) | other.astype(np.uint32) << shift)


def differences(a, b, got, want):
    """Up to eight lines that tell where results are wrong."""
    wrong = np.flatnonzero(got != want)
    return [f"{a[n]:#x}, {b[n]:#x}: {got[n]:#x}, not {want[n]:#x}" for n in wrong[:8]]
