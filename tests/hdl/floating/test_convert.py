# amaranth: UnusedElaboratable=no
import itertools

import ml_dtypes
import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.convert import FloatConverter, FloatToInteger, IntegerToFloat
from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from sim.golden import conversion
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands, pipeline
from tests.refusals import refuses

#: Exponent and fraction bits of each format. Pairs of these cover conversions to wider and narrower ranges, where the
#: narrower range ends below, within or above the subnormal numbers.
NARROW = [(4, 3), (5, 2), (2, 5), (2, 1), (3, 7), (5, 5), (6, 1)]
HALVES = [(FP16, conversion.to_half, conversion.from_half, np.float16),
          (BF16, conversion.to_bfloat16, conversion.from_bfloat16, ml_dtypes.bfloat16)]


def bits_of(format):
    return format.exponent_bits, format.fraction_bits


def make(exponent_bits, fraction_bits):
    return FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)


class Together(wiring.Component):
    """Several units that share one input, built as one design."""

    def __init__(self, units):
        self._units = units
        super().__init__({"i": In(len(units[0].i)), **{
            f"{port}_{n}": Out(len(getattr(unit, port)))
            for n, unit in enumerate(units) for port in ("o", "invalid") if hasattr(unit, port)}})

    def elaborate(self, platform):
        m = Module()
        for n, unit in enumerate(self._units):
            m.submodules[f"unit_{n}"] = unit
            m.d.comb += [unit.i.eq(self.i), getattr(self, f"o_{n}").eq(unit.o)]
            if hasattr(unit, "invalid"):
                m.d.comb += getattr(self, f"invalid_{n}").eq(unit.invalid)
        return m


def run(units, i):
    """Run all units on the same inputs; return the outputs of each unit."""
    drain = max(unit.latency for unit in units)
    trace = Unit(Together(units)).run({"i": i}, drain=drain)
    return [{port: trace[f"{port}_{n}"][unit.latency:unit.latency + len(i)]
             for port in ("o", "invalid") if hasattr(unit, port)} for n, unit in enumerate(units)]


def same(i, got, want, message=""):
    wrong = np.flatnonzero(got != want)
    assert [f"{i[n]:#x}: {got[n]:#x}, not {want[n]:#x}" for n in wrong[:8]] == [], message


def check(unit, i, want):
    same(i, run([unit], i)[0]["o"], want)


# --- construction


@pytest.mark.parametrize("format", [None, 32, (8, 23)])
def test_format(format):
    with pytest.raises(TypeError, match=r"^Source must be a FloatFormat, not "):
        FloatConverter(source=format, target=FP32)
    with pytest.raises(TypeError, match=r"^Target must be a FloatFormat, not "):
        FloatConverter(source=FP32, target=format)
    for unit in (FloatToInteger, IntegerToFloat):
        with pytest.raises(TypeError, match=r"^Format must be a FloatFormat, not "):
            unit(format=format)


@pytest.mark.parametrize("unit", [FloatToInteger, IntegerToFloat])
@pytest.mark.parametrize("width", [0, 1, -8, 32.0, None])
def test_width(unit, width):
    refuses(f"Integer width must be an integer of at least 2, not {width!r}", unit, width=width)


@pytest.mark.parametrize(("source", "target", "latency"), [
    (FP32, BF16, 1), (BF16, FP32, 1), (FP32, FP32, 1), (FP16, FP32, 2), (FP16, BF16, 3), (FP32, FP16, 3),
    (BF16, FP16, 3),
])
def test_latency(source, target, latency):
    unit = FloatConverter(source=source, target=target)
    assert (unit.source, unit.target, unit.latency) == (source, target, latency)


def test_parameters():
    for unit in (FloatToInteger(), IntegerToFloat()):
        assert (unit.format, unit.width, unit.latency) == (FP32, 32, 4)


# --- formats


@pytest.mark.parametrize(("format", "narrow", "widen", "dtype"), HALVES)
def test_widening(format, narrow, widen, dtype):
    every = np.arange(1 << 16, dtype=np.uint32)
    check(FloatConverter(source=format, target=FP32), every, widen(every))


@pytest.mark.parametrize(("format", "narrow", "widen", "dtype"), HALVES)
def test_narrowing(format, narrow, widen, dtype):
    i = np.concatenate([operands.borders(widen), operands.corners(FP32),
                        *operands.uniform(FP32, np.random.default_rng(1)),
                        operands.numbers(np.random.default_rng(1), 1 << 20)])
    check(FloatConverter(source=FP32, target=format), i, narrow(i))


@pytest.mark.parametrize(("source", "target"), [(FP16, BF16), (BF16, FP16)])
def test_halves(source, target):
    every = np.arange(1 << 16, dtype=np.uint32)
    want = conversion.convert_exact(every, source=bits_of(source), target=bits_of(target))
    check(FloatConverter(source=source, target=target), every, want)


@pytest.mark.parametrize("source", NARROW)
def test_narrow_pairs(source):
    """Every value of each narrow format converts correctly to all narrow, 16-bit and 32-bit formats."""
    every = np.arange(1 << (1 + sum(source)), dtype=np.uint32)
    targets = [*NARROW, bits_of(FP16), bits_of(BF16), bits_of(FP32), (3, 20)]
    units = [FloatConverter(source=make(*source), target=make(*target)) for target in targets]
    for target, outputs in zip(targets, run(units, every), strict=True):
        same(every, outputs["o"], conversion.convert_exact(every, source=source, target=target), f"{target=}")


@pytest.mark.parametrize("source", [bits_of(FP16), bits_of(FP32), (5, 20)])
def test_other_formats(source):
    """Conversions to a format with one fraction bit less or a slightly smaller range are correct."""
    generator = np.random.default_rng(1)
    format = make(*source)
    targets = [(source[0], source[1] - 1), (source[0], source[1] + 5), (source[0] + 1, source[1] - 1),
               (source[0] + 1, source[1] + 2), (source[0] - 1, source[1]), (source[0] - 1, source[1] + 3), *NARROW]
    i = np.concatenate([operands.corners(format), *operands.near_borders(format, generator, 4_000),
                        *operands.uniform(format, generator, 4_000)])
    units = [FloatConverter(source=format, target=make(*target)) for target in targets]
    for target, outputs in zip(targets, run(units, i), strict=True):
        same(i, outputs["o"], conversion.convert_exact(i, source=source, target=target), f"{target=}")


# --- integers


def check_integers(format, widths, i, golden):
    units = [FloatToInteger(format=format, width=width) for width in widths]
    for width, outputs in zip(widths, run(units, i), strict=True):
        integers, invalid = golden(i, width)
        same(i, outputs["o"].astype(np.uint64), integers.view(np.uint64) & np.uint64((1 << width) - 1), f"{width=}")
        same(i, outputs["invalid"].astype(int), invalid.astype(int), f"invalid, {width=}")


def test_to_integer():
    generator = np.random.default_rng(1)
    i = np.concatenate([operands.corners(FP32), *operands.uniform(FP32, generator),
                        operands.numbers(generator, 1 << 20)])
    check_integers(FP32, [32, 31, 25, 24, 23, 16, 8, 3, 2], i,
                   lambda i, width: conversion.to_integer(i, width=width))


@pytest.mark.parametrize("source", [*NARROW, bits_of(FP16), bits_of(BF16)])
def test_to_integer_exhaustive(source):
    every = np.arange(1 << (1 + sum(source)), dtype=np.uint32)
    check_integers(make(*source), [2, 3, 8, 12, 32, 48], every, lambda i, width: conversion.to_integer_exact(
        i, exponent_bits=source[0], fraction_bits=source[1], width=width))


@pytest.mark.parametrize("width", [32, 64])
def test_from_integer(width):
    integers = operands.integer_cases(width, np.random.default_rng(1), 1 << 20)
    mask = np.uint64((1 << width) - 1)
    check(IntegerToFloat(width=width), integers.view(np.uint64) & mask, conversion.from_integer(integers))


@pytest.mark.parametrize("width", [2, 3, 8, 12, 24, 32])
def test_from_integer_to_other_formats(width):
    if width <= 12:
        integers = np.arange(-1 << (width - 1), 1 << (width - 1), dtype=np.int64)
    else:
        integers = operands.integer_cases(width, np.random.default_rng(1), 10_000)
    targets = [*NARROW, bits_of(FP16), bits_of(BF16), bits_of(FP32)]
    units = [IntegerToFloat(width=width, format=make(*target)) for target in targets]
    i = integers.view(np.uint64) & np.uint64((1 << width) - 1)
    for target, outputs in zip(targets, run(units, i), strict=True):
        want = conversion.from_integer_exact(integers, exponent_bits=target[0], fraction_bits=target[1])
        same(i, outputs["o"], want, f"{target=}")


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations([FP32, FP16, BF16], 2)))
def test_timing(source, target):
    i = operands.uniform(source, np.random.default_rng(1), 200)[0]
    pipeline.check(FloatConverter(source=source, target=target), {"i": i}, {
        "o": conversion.convert_exact(i, source=bits_of(source), target=bits_of(target))})


def test_to_integer_timing():
    i = operands.numbers(np.random.default_rng(1), 200)[:200]
    integers, invalid = conversion.to_integer(i)
    pipeline.check(FloatToInteger(), {"i": i}, {"o": integers & 0xFFFFFFFF, "invalid": invalid})


def test_from_integer_timing():
    integers = operands.integer_cases(32, np.random.default_rng(1), 200)[-200:]
    pipeline.check(IntegerToFloat(), {"i": integers & 0xFFFFFFFF}, {"o": conversion.from_integer(integers)})
