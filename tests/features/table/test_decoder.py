# amaranth: UnusedElaboratable=no
"""Tests of the decoder for packets with a table and codes: hdl/features/table/decoder.py."""

import numpy as np
import pytest

from hdl.features.table.decoder import Decoder
from sim.verilated.vectors import Feed
from tests.features.table.lookup_tables import (
    LOADED,
    PLAIN,
    gateware,
    loaded_unit,
    random_centroids,
    run_decoder,
    units,
)
from tests.hdl.compression import packets


@pytest.mark.parametrize("length", [1, 31, 33, 64])
def test_wrong_loads_of_a_decoder(length):
    """A centroid table of the wrong length is reported, and the next table is accepted."""
    centroids = np.arange(32, dtype=np.uint32) << 18
    unit = loaded_unit(Decoder, LOADED, 4, centroids[::-1])
    unit.reset()
    trace = unit.lockstep(sources={"load": Feed(packets.words([np.resize(centroids, length), centroids]))},
                          sinks={"o": True}, cycles=120)
    assert trace["error"].sum() >= 1
    vector = np.arange(100, dtype=np.uint32) << 17 | 0x3F80_0000
    words = LOADED.encode(vector, centroids)
    trace = unit.lockstep(sources={"i": Feed(packets.beats([words], Decoder(table=gateware(LOADED), lanes=4).words))},
                          sinks={"o": True}, cycles=200)
    got, _, _ = packets.taken(trace, 4)
    assert [elements.tolist() for elements in got] == [LOADED.decode(words, None, centroids).tolist()]


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_decoder_latency(lanes):
    """A packet of one group with one exponent is decoded with the documented latency after its first codes."""
    decoder = Decoder(table=gateware(PLAIN), lanes=lanes)
    words = PLAIN.encode(np.full(32, 0x3F80_0000, np.uint32))
    trace = run_decoder(PLAIN, lanes, [words], cycles=200)
    _, _, when = packets.taken(trace, lanes)
    if decoder.words > 1:
        assert when[0] == 3 + -(-6 // (4 * decoder.words)) - 1 + decoder.latency
    else:
        # One word arrives per cycle; the third word completes the first codes.
        assert when[0] == 2 + 2 + decoder.latency


@units
def test_decoder_short_packets(table, lanes):
    """A packet that ends within its table or a group is reported, and the next packet is decoded correctly."""
    generator = np.random.default_rng(1)
    vector = (generator.standard_normal(70) * 0.02).astype(np.float32).view(np.uint32)
    vector = vector >> np.uint32(32 - table.format.width)
    centroids = random_centroids(generator, table)
    words = table.encode(vector, centroids)
    width = table.code_width(len(np.unique(table.exponents_of(vector))))
    preamble = len(words) - 3 * width
    whole = table.decode(words)
    for length in range(1, len(words)):
        trace = run_decoder(table, lanes, [words, words[:length], words], cycles=900)
        got, rest, _ = packets.taken(trace, lanes, width=table.format.width)
        complete = 4 * max(length - preamble, 0) // width * 8
        errors = length <= preamble or (length - preamble) % width != 0
        assert len(rest) == 0, length
        if length <= preamble:
            assert len(got) == 2, length
        else:
            assert len(got) == 3, length
            assert len(got[1]) == complete + 8 * (4 * (length - preamble) % width != 0), length
            assert got[1][:complete].tolist() == whole[:complete].tolist(), length
        assert got[0].tolist() == got[-1].tolist() == whole.tolist(), length
        assert (trace["error"].sum() > 0) == errors, length


@units
def test_decoder_bad_packets(table, lanes):
    """Unordered exponents and out-of-range indices are reported."""
    shift = np.uint32(32 - table.format.width)
    vector = np.array([1, 2, 4], np.float32).view(np.uint32) >> shift
    centroids = random_centroids(np.random.default_rng(1), table)
    words = table.encode(vector, centroids)
    order = words.copy()
    order[0] = 0x7F81_8081
    beyond = words.copy()
    beyond[-table.code_width(3):] = 0xFFFF_FFFF
    trace = run_decoder(table, lanes, [order, words, beyond, words], cycles=900)
    got, rest, _ = packets.taken(trace, lanes, width=table.format.width)
    assert [len(elements) for elements in (*got, rest)] == [32, 32, 32, 0]
    assert got[0].tolist() == got[2].tolist() == table.decode(words).tolist()
    assert trace["error"].sum() == 1 + 32 // lanes
