# amaranth: UnusedElaboratable=no
"""Encoder of packets with tables and codes: hdl/features/table/encoder.py."""

import numpy as np
import pytest

from hdl.features.table.encoder import Encoder
from sim.verilated.vectors import Feed
from tests.features.table.lookup_tables import (
    CENTROIDS,
    SMALL,
    gateware,
    loaded_unit,
    random_centroids,
    run_decoder,
    run_encoder,
    units,
)
from tests.hdl.compression import packets


@units
def test_scans_overlap(table, lanes):
    """A packet is scanned while its predecessor is encoded, so four packets take little more than five scans."""
    generator = np.random.default_rng(1)
    weights = (generator.standard_normal(2048) * 0.02).astype(np.float32).view(np.uint32)
    vectors = [weights >> np.uint32(32 - table.format.width)] * 4
    centroids = random_centroids(generator, table)
    trace = run_encoder(table, lanes, vectors, centroids=centroids, cycles=2048 // lanes * 6 + 700)
    _, _, when = packets.taken(trace, Encoder(table=gateware(table), lanes=lanes).words)
    preamble = 80 if centroids is not None else 50
    assert when[-1] < 5 * (2048 // lanes) + 5 * preamble


@units
def test_encoder_latency(table, lanes):
    """The latency from the last beat of eight elements to the word completed by their codes is exact."""
    encoder = Encoder(table=gateware(table), lanes=lanes)
    generator = np.random.default_rng(1)
    vector = (generator.standard_normal(1024) * 0.02).astype(np.float32).view(np.uint32)
    vector = vector >> np.uint32(32 - table.format.width)
    centroids = random_centroids(generator, table)
    trace = run_encoder(table, lanes, [vector], centroids=centroids, cycles=2 * 1024 // lanes + 400)
    (words,), _, when = packets.taken(trace, encoder.words)
    accepted = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    exponents = len(np.unique(table.exponents_of(vector)))
    width, size = table.code_width(exponents), 4 * encoder.words
    preamble = 4 * (len(words) - 32 * width)
    checked = 0
    for eight in range(32, 128):  # groups of eight codes that do not wait for the table
        first = preamble + eight * width
        beat = first // size
        if (first + min(width, size)) // size > beat:
            assert when[beat] - accepted[(eight + 1) * 8 // lanes - 1] == encoder.latency
            checked += 1
    assert checked > 10


@units
def test_unknown_exponents(table, lanes):
    """Exponents missing from the scan are reported, and the next packet is encoded correctly."""
    shift = np.uint32(32 - table.format.width)
    vector = np.full(40, 0x3F80_0000, np.uint32) >> shift
    other = vector.copy()
    other[17] = 0x4000_0000 >> shift
    centroids = random_centroids(np.random.default_rng(1), table)
    trace = run_encoder(table, lanes, [other, other], scanned=[vector, other], centroids=centroids)
    got, rest, _ = packets.taken(trace, Encoder(table=gateware(table), lanes=lanes).words)
    assert trace["error"].sum() == 1
    assert len(rest) == 0
    assert got[1].tolist() == table.encode(other, centroids).tolist()


@pytest.mark.parametrize("lanes", [1])
def test_too_many_exponents(lanes):
    """Encoder and decoder report a packet with too many exponents, and the decoder outputs none of it."""
    sound = np.full(5, 0x3F80_0000, np.uint32)
    vectors = [sound, np.arange(17, dtype=np.uint32) << 23, sound]
    trace = run_encoder(SMALL, lanes, vectors)
    assert trace["error"].sum() == 1
    got, rest, _ = packets.taken(trace, Encoder(table=gateware(SMALL), lanes=lanes).words)
    assert (len(got), len(rest)) == (3, 0)
    trace = run_decoder(SMALL, lanes, got)
    decoded, rest, _ = packets.taken(trace, lanes)
    want = SMALL.decode(SMALL.encode(sound)).tolist()
    assert [vector.tolist() for vector in decoded] == [want, want]
    assert (len(rest), trace["error"].sum()) == (0, 1)


@pytest.mark.parametrize("length", [1, 30, 53, 55, 70])
def test_wrong_loads(length):
    """Loading too few or too many centroid words is reported; the next load is accepted."""
    unit = loaded_unit(Encoder, CENTROIDS, 8, None)
    unit.reset()
    load = CENTROIDS.load_words(np.arange(32) << 18)
    assert len(load) == 54
    trace = unit.lockstep(sources={"load": Feed(packets.words([np.resize(load, length), load]))}, sinks={"o": True},
                          cycles=200)
    assert trace["error"].sum() == 1
    vector = np.arange(100, dtype=np.uint32) << 17 | 0x3F80_0000
    trace = unit.lockstep(sources={"scan": Feed(packets.beats([vector], 8)), "i": Feed(packets.beats([vector], 8))},
                          sinks={"o": True}, cycles=300)
    got, _, _ = packets.taken(trace, 4)
    assert [words.tolist() for words in got] == [CENTROIDS.encode(vector, np.arange(32) << 18).tolist()]
