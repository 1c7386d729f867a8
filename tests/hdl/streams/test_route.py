# amaranth: UnusedElaboratable=no
"""Tests of units that fork and route packets: hdl/streams/route.py."""

import numpy as np
import pytest

from hdl.streams.route import Fork, PacketDemux, PacketMux
from hdl.streams.stream import word_layout
from sim.streams import STALLS
from tests.hdl.compression.packets import words
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused

ENABLES = (0b111, 0b101, 0b010, 0b000)


def _make(kind, enable=None):
    if kind is Fork:
        return Fork(shape=word_layout(), outputs=3)
    return kind(**{"outputs" if kind is PacketDemux else "inputs": 3})


def _chosen(vectors, flags):
    chosen = [vector for vector, flag in zip(vectors, flags, strict=True) if flag]
    return words(chosen) if chosen else words(vectors)[:0]


def _drive(generator, kind, enable=None):
    vectors = [generator.integers(0, 1 << 32, count, dtype=np.uint32) for count in generator.integers(1, 7, 60)]
    routes = generator.integers(0, 3 if kind is PacketMux else 8, len(vectors)).astype(np.uint8)
    beats = {"i": words(vectors)} if kind is not PacketMux else {
        f"i__{number}": _chosen(vectors, routes == number) for number in range(3)}
    if kind is Fork:
        return Drive(beats, (kind, np.full(len(vectors), enable), vectors), {"enable": enable})
    return Drive({**beats, "route": routes}, (kind, routes, vectors))


def _model(_, drawn, willing, ready):
    """Expected packets: each packet appears exactly once at each output to which it is routed."""
    kind, routes, vectors = drawn
    if kind is PacketMux:
        return Want({}, {"o": words(vectors)})
    return Want({}, {f"o__{number}": _chosen(vectors, routes >> number & 1) for number in range(3)})


BENCH = UnitBench(_make, _model, _drive)
test_outputs = refused(lambda unit, **outputs: unit(**outputs), {"outputs": 0}, [
    ({"unit": unit}, "Output count must be a positive integer, not 0")
    for unit in (lambda outputs: Fork(shape=word_layout(), outputs=outputs), PacketDemux)])
test_inputs = refused(PacketMux, {}, [({"inputs": 1}, "Input count must be an integer of at least 2, not 1")])


@pytest.mark.parametrize("pattern", STALLS)
@pytest.mark.parametrize("case", [*((Fork, enable) for enable in ENABLES), (PacketDemux,), (PacketMux,)])
def test_packets_follow_their_routes(case, pattern):
    for seed in range(1 if case[0] is Fork else 4):
        run = BENCH.check(case, kinds=pattern, seed=seed, count=60_000)
        if pattern == "none" and case[0] is not PacketDemux:  # these units transfer one beat per cycle
            stream = "i" if case[0] is Fork else "o"
            assert run.moves(stream)[-1] == sum(map(len, run.drive.drawn[-1])) - 1
