# amaranth: UnusedElaboratable=no
"""Tests of the set of exponents in a packet: hdl/features/table/exponent_set.py."""

import functools

import numpy as np
import pytest

from hdl.features.table.exponent_set import ROW, ROWS, ExponentSet
from hdl.floating.format import BF16, FP16, FP32
from hdl.streams.stream import beat_layout
from sim.golden import stream
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets
from tests.refusals import refuses

UNITS = [(1, BF16), (4, FP32)]
units = pytest.mark.parametrize(("lanes", "format"), UNITS, ids=["1-bf16", "4-fp32"])


@functools.cache
def _unit(lanes, format):
    return Unit(ExponentSet(lanes=lanes, format=format))


def test_parameters():
    for lanes in (0, 3, 16, "4", None):
        refuses(f"Lane count must be 1, 2, 4 or 8, not {lanes!r}", ExponentSet, lanes=lanes, format=FP32)
    refuses("Format must be a FloatFormat, not 'FP32'", ExponentSet, error=TypeError, lanes=4, format="FP32")
    refuses("Exponents must be of 8 bits, not 5", ExponentSet, lanes=4, format=FP16)
    assert ExponentSet(lanes=2, format=BF16).i.payload.shape() == beat_layout(2, 16)


def _vectors(generator, format, count):
    """Draw packets with few exponents, with nearly all exponents, and with a single element."""
    vectors = []
    for _ in range(count):
        kind = generator.random()
        length = 1 if kind < 0.2 else 600 if kind < 0.3 else int(generator.integers(1, 60))
        exponents = generator.integers(0, 256, length)
        if kind > 0.6:
            exponents = generator.choice(exponents[:3], length)
        rest = generator.integers(0, 1 << format.fraction_bits, length)
        sign = generator.integers(0, 2, length) << (format.width - 1)
        vectors.append((sign | exponents << format.fraction_bits | rest).astype(np.uint64))
    return vectors


def _rows(exponents):
    bits = np.zeros(ROWS * ROW, bool)
    bits[list(exponents)] = True
    return (bits.reshape(ROWS, ROW) << np.arange(ROW)).sum(axis=1)


def _scenario(generator, vectors, lanes, format, willing):
    """Draw accesses to the exponent set after each packet; return inputs and expected outputs by cycle.

    Rows are read in random order, each for one or more cycles, and cleared in the last of them. A few rows are not
    cleared, so that their exponents remain in the set for the next packet.
    """
    beats = [-(-len(vector) // lanes) for vector in vectors]
    feed = stream.Feed(sum(beats), willing)
    end = feed.end
    row, clear, done, bits = (np.zeros(end, int) for _ in range(4))
    full = np.zeros(end, bool)
    cycle, present = ROWS, set()
    for vector, count in zip(vectors, beats, strict=True):
        for _ in range(count):
            cycle = feed.accept(cycle) + 1
        present |= set((vector >> np.uint64(format.fraction_bits) & np.uint64(255)).tolist())
        cycle += ExponentSet.latency - 1
        began = cycle
        for index in generator.permutation(ROWS).tolist():
            kept = generator.random() < 0.02
            stay = 1 if generator.random() < 0.8 else int(generator.integers(1, 6))
            now = slice(cycle, cycle + stay)
            row[now], bits[now] = index, _rows(present)[index]
            cycle += stay
            if not kept:
                clear[cycle - 1:cycle] = 1
                present -= set(range(ROW * index, ROW * (index + 1)))
        # The last row may be cleared in the same cycle as ``done``.
        if generator.random() < 0.5:
            now = slice(cycle, cycle + 1)
            bits[now] = _rows(present)[0]
            cycle += 1
        done[cycle - 1:cycle] = 1
        full[began:cycle] = True
        if cycle >= end:
            break
    return feed, {"row": row, "clear": clear, "done": done}, full, bits


@pytest.mark.parametrize("source", STALLS)
@units
def test_lockstep(lanes, format, source):
    """In every cycle, the input handshake and ``full`` match the model; while ``full`` is high, the rows match, too.
    """
    cycles, seed = 6_000, STALLS.index(source)
    generator = np.random.default_rng(seed)
    vectors = _vectors(generator, format, 150)
    willing = stall_array(source, cycles, seed=seed)
    feed, inputs, full, bits = _scenario(generator, vectors, lanes, format, willing)
    unit = _unit(lanes, format)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.beats(vectors, lanes, width=format.width), willing)}, sinks={},
                          inputs=inputs, seed=seed)
    for name, expected in (("i__valid", feed.valid), ("i__ready", feed.ready), ("full", full)):
        np.testing.assert_array_equal(trace[name], expected, f"{name}, {seed=}")
    np.testing.assert_array_equal(trace["bits"][full], bits[full], f"{seed=}")
    assert inputs["done"].sum() > 8


def _given(unit, vector, lanes, format):
    """Read and clear a packet's rows; return them, the cycles when ``full`` is high, and the trace."""
    beats = -(-len(vector) // lanes)
    ready = ROWS + beats + ExponentSet.latency
    cycles = ready + ROWS + 1
    row = np.zeros(cycles, int)
    row[ready:ready + ROWS] = np.arange(ROWS)
    clear = np.zeros(cycles, int)
    clear[ready:ready + ROWS] = 1
    trace = unit.lockstep(sources={"i": Feed(packets.beats([np.array(vector)], lanes, width=format.width))}, sinks={},
                          cycles=cycles, inputs={"row": row, "clear": clear})
    return trace["bits"][ready:ready + ROWS].tolist(), np.flatnonzero(trace["full"]), trace


@units
def test_known(lanes, format):
    """Exponents of zeros, ones, NaNs and infinities are collected, one beat per cycle."""
    unit = _unit(lanes, format)
    unit.reset()
    words = np.array([0, 0x8000_0000, 0x3F80_0000, 0xBFC0_0000, 0x7FC0_0000, 0xFF80_0000], np.uint32)
    bits, full, trace = _given(unit, words >> np.uint32(32 - format.width), lanes, format)
    assert {index: row for index, row in enumerate(bits) if row} == {0: 1 << 0, 7: 1 << 15, 15: 1 << 15}
    beats = -(-len(words) // lanes)
    accepted = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    assert accepted.tolist() == list(range(ROWS, ROWS + beats))
    assert full[0] == accepted[-1] + ExponentSet.latency


@units
def test_reset_in_a_packet(lanes, format):
    """A reset at any point in a packet clears the set, and a second reset may interrupt the clearing."""
    vector = np.arange(256, dtype=np.uint32) << np.uint32(format.fraction_bits)
    beats = packets.beats([vector], lanes, width=format.width)
    unit = _unit(lanes, format)
    for cut in (3, ROWS + 1, ROWS + 20, ROWS + len(beats) + 1, ROWS + len(beats) + 10):
        unit.reset()
        unit.lockstep(sources={"i": Feed(beats)}, sinks={}, cycles=cut)
        unit.reset()
        bits, full, _ = _given(unit, [0], lanes, format)
        assert bits == [1] + [0] * (ROWS - 1), f"given={cut!r}"
        assert full[0] == ROWS + ExponentSet.latency, f"given={cut!r}"
