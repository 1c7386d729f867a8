# amaranth: UnusedElaboratable=no
"""Loader for codebooks: hdl/ring/parts/codebook.py."""

import random

import pytest
from amaranth.hdl import Module

from hdl.memory import READ_LATENCY
from hdl.ring.parts.codebook import CodebookLoader
from tests.hdl import pysim

WORDS = 32


@pytest.mark.parametrize(("lanes", "stalls"), [(4, False), (4, True), (1, True)])
def test_load(lanes, stalls):
    """All bounds and then all centroids are delivered once before ``done``, despite stalls on both sides."""
    generator = random.Random(lanes + 7 * stalls)
    case = f"seed {lanes + 7 * stalls}"
    unit, m = CodebookLoader(words=WORDS, lanes=lanes), Module()
    m.submodules.unit = unit
    taken = {"bounds": [], "centroids": []}
    cycles = []

    async def bench(ctx):
        answers = [None] * READ_LATENCY
        for cycle in range(600):
            ctx.set(unit.start, cycle in (5, 50, 300))  # later start pulses have no effect
            for name in taken:
                ctx.set(getattr(unit, name).ready, not stalls or generator.random() < 0.5)
            ctx.set(unit.port.ready, not stalls or generator.random() < 0.5)
            row = answers.pop(0)
            ctx.set(unit.port.response, row is not None)
            for lane in range(lanes):
                ctx.set(unit.port.elements[lane], generator.getrandbits(32) if row is None else row * lanes + lane)
            answers.append(ctx.get(unit.port.row) if ctx.get(unit.port.valid & unit.port.ready) else None)
            for name, words in taken.items():
                port = getattr(unit, name)
                if ctx.get(port.valid & port.ready):
                    words.append((ctx.get(port.payload.data), ctx.get(port.payload.last)))
            if ctx.get(unit.done):
                cycles.append(cycle)
            else:
                assert not cycles, case
            assert cycle > 5 or not any(taken.values()), case
            if len(taken["centroids"]) < WORDS // 2:
                assert not ctx.get(unit.done), case
            await ctx.tick()

    pysim.simulate(m, bench)
    half = WORDS // 2
    assert taken["bounds"] == [(word, word == half - 2) for word in range(half - 1)], case
    assert taken["centroids"] == [(word, word == WORDS - 1) for word in range(half, WORDS)], case
    assert cycles, case
    if not stalls:
        assert cycles[0] <= 5 + WORDS + 12, case
