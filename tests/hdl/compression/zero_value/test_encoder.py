# amaranth: UnusedElaboratable=no
"""Zero-value encoding of groups: hdl/compression/zero_value/encoder.py."""

import functools

import numpy as np
import pytest

from hdl.compression.zero_value.decoder import Decoder
from hdl.compression.zero_value.encoder import Encoder
from hdl.group import GROUP
from sim import formal
from sim.golden import zero_value as model
from tests.hdl.compression.packets import as_beats, as_rows
from tests.hdl.compression.packets import words as as_words
from tests.hdl.compression.zero_value import cycles
from tests.hdl.compression.zero_value.streams import (
    DENSITIES,
    KNOWN_A,
    KNOWN_B,
    LANES,
    random_vectors,
    run_decoder,
    run_encoder,
    vectors_of,
)
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused_values
from tests.words import bits_of

test_lanes, test_lanes_of_decoder = (refused_values(
    unit, {}, "lanes", [0, 3, 16, 4.0, "4", None], "Lane count must be 1, 2, 4 or 8") for unit in (Encoder, Decoder))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("vector", "words"), [
    (KNOWN_A, [0b0100_1010, *bits_of([5, -3, 7])]),
    (KNOWN_B, [0b0100_1110, *bits_of([-5, 2, 4, 1])]),
    (bits_of([-0.0, 0.0, -0.0, 1.0]), [0b1000, *bits_of([1])]),
    (np.zeros(64, np.uint32), [0, 0]),
    (np.full(33, 9, np.uint32), [0xFFFF_FFFF, *[9] * 32, 1, 9]),
])
def test_encoder_known(lanes, vector, words):
    data, last, _ = run_encoder(lanes, [vector])
    assert data.tolist() == words
    assert last.tolist() == [0] * (len(words) - 1) + [1]
    elements, last, _ = run_decoder(lanes, [np.array(words, np.uint32)])
    expected = np.zeros(-(-len(vector) // GROUP) * GROUP, np.uint32)
    expected[:len(vector)] = np.where(vector == 0x8000_0000, 0, vector)
    assert elements.tolist() == expected.tolist()
    assert last.tolist() == [0] * (len(expected) // lanes - 1) + [1]


def _drive(generator, lanes, total=3_000):
    vectors = random_vectors(generator, total * lanes)
    rows = as_rows(vectors, lanes, generator)
    return Drive({"i": as_beats(*rows)}, (rows, vectors))


def _model(unit, drawn, willing, ready):
    rows, vectors = drawn
    trace = cycles.trace_encoder(*rows, depth=unit.depth, willing=willing["i"], ready=ready["o"])
    return Want.of(trace, as_words(map(model.encode, vectors)))


BENCH = UnitBench(lambda lanes: Encoder(lanes=lanes), _model, _drive)
test_lockstep = BENCH.lockstep([(lanes,) for lanes in LANES], count=6_000)
test_cocotb = BENCH.cocotb([(4,)], cut=50, drive=functools.partial(_drive, total=50))


@pytest.mark.parametrize("density", [*DENSITIES, "mixed"])
@pytest.mark.parametrize("lanes", LANES)
def test_encoder_throughput(lanes, density):
    """After the first group, each group takes max(32 / lanes, 1 + number of non-zeros) cycles."""
    vectors = vectors_of(density)
    words = np.concatenate([model.encode(vector) for vector in vectors])
    data, _, when = run_encoder(lanes, vectors)
    np.testing.assert_array_equal(data, words)
    assert when[0] == GROUP // lanes - 1 + Encoder.latency
    assert when[-1] < GROUP // lanes + Encoder.latency + model.code_cycles(words, lanes)


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_offers_stand_for_all_time(unit):
    formal.prove(formal.Offers(unit(lanes=1)), depth=2)
