# amaranth: UnusedElaboratable=no
"""Elements to groups without zeros: hdl/compression/zero_value/encoder.py."""

import numpy as np
import pytest

from hdl.compression.zero_value.decoder import Decoder
from hdl.compression.zero_value.encoder import Encoder
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, word_layout
from sim import formal
from sim.golden import zero_value as model
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed
from tests.hdl.compression.zero_value.streams import (
    DENSITIES,
    KNOWN_A,
    KNOWN_B,
    LANES,
    VECTORS,
    as_beats,
    as_rows,
    check_passes,
    check_same,
    random_elements,
    random_vectors,
    row_beats,
    run_decoder,
    run_encoder,
    unit_of,
    word_beats,
)
from tests.words import bits_of


@pytest.mark.parametrize("unit", [Encoder, Decoder])
@pytest.mark.parametrize("lanes", [0, 3, 16, 4.0, "4", None])
def test_lanes(unit, lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4 or 8, not {lanes!r}$"):
        unit(lanes=lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_ports(lanes):
    for unit in (Encoder(lanes=lanes), Decoder(lanes=lanes)):
        assert unit.lanes == lanes
    assert Encoder(lanes=lanes).i.payload.shape() == Decoder(lanes=lanes).o.payload.shape() == beat_layout(lanes)
    assert Encoder(lanes=lanes).o.payload.shape() == Decoder(lanes=lanes).i.payload.shape() == word_layout()

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


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("lanes", LANES)
def test_encoder_lockstep(lanes, source, sink):
    count = 6_000
    unit = unit_of(Encoder, lanes)
    seed = STALLS.index(source) + 4 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    rows, keep, last = as_rows(random_vectors(generator, count * lanes // 2), lanes, generator)
    willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 1)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(as_beats(rows, keep, last), willing)}, sinks={"o": ready}, seed=seed)
    expected = model.trace_encoder(rows, keep, last, depth=Encoder(lanes=lanes).depth, willing=willing,
                                   ready=ready)
    payload = unpack(word_layout(), trace["o__payload"])
    check_same(trace, expected, payload["data"][:, np.newaxis], payload["last"], seed)


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("lanes", LANES)
def test_encoder_throughput(lanes, density):
    """Every group takes max(32 / lanes, 1 + non-zeros) cycles; the first one is collected before."""
    vectors = [random_elements(np.random.default_rng(seed), 320, density) for seed in range(20)]
    words = np.concatenate([model.encode(vector) for vector in vectors])
    data, _, when = run_encoder(lanes, vectors)
    np.testing.assert_array_equal(data, words)
    assert when[0] == GROUP // lanes - 1 + Encoder.latency
    assert when[-1] < GROUP // lanes + Encoder.latency + model.code_cycles(words, lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_encoder_throughput_of_mixed_groups(lanes):
    for seed in range(20):
        generator = np.random.default_rng(seed)
        vector = np.concatenate([random_elements(generator, GROUP, generator.choice(DENSITIES)) for _ in range(100)])
        words = model.encode(vector)
        data, _, when = run_encoder(lanes, [vector])
        np.testing.assert_array_equal(data, words, f"{seed=}")
        assert when[-1] < GROUP // lanes + Encoder.latency + model.code_cycles(words, lanes), f"{seed=}"


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_offers_stand_for_all_time(unit):
    formal.prove(formal.Offers(unit(lanes=1)), depth=2)


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb_encoder(kind):
    lanes = 4
    check_passes(Encoder(lanes=lanes), kind, lanes=lanes, i=("beats", row_beats(VECTORS, lanes)),
            o=("words", word_beats(VECTORS)))
