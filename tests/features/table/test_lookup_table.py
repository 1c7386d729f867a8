# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.features.table import format as hardware
from hdl.features.table.decoder import Decoder
from hdl.features.table.encoder import Encoder
from hdl.streams.stream import beat_layout
from sim import formal
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed
from tests.features.table import cycles as table_cycles
from tests.features.table.lookup_tables import (
    LOADED,
    PLAIN,
    SCAN,
    SMALL,
    fresh_encoder,
    gateware,
    random_centroids,
    random_vectors,
    run_decoder,
    run_encoder,
    units,
)
from tests.features.table.test_decoder import loaded_decoder
from tests.hdl.compression import packets
from tests.hdl.unit_bench import under_cocotb
from tests.refusals import refuses


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_parameters(unit):
    refuses("Table must be a LookupTable, not 32", unit, error=TypeError, table=32, lanes=4)
    for lanes in (0, 3, 16, "4", None):
        refuses(f"Lane count must be 1, 2, 4 or 8, not {lanes!r}", unit, table=gateware(PLAIN), lanes=lanes)


@units
def test_ports(table, lanes):
    encoder, decoder = Encoder(table=gateware(table), lanes=lanes), Decoder(table=gateware(table), lanes=lanes)
    assert encoder.lanes == decoder.lanes == lanes
    assert encoder.table == decoder.table == gateware(table)
    assert encoder.words == decoder.words
    assert 32 * encoder.words >= lanes * table.width
    assert encoder.i.payload.shape() == decoder.o.payload.shape() == beat_layout(lanes, table.format.width)
    assert encoder.o.payload.shape() == decoder.i.payload.shape() == beat_layout(encoder.words)


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
def test_loaded_lockstep(source, sink):
    """Without centroids in packets: encoder and decoder are loaded with them."""
    count, lanes = 2_500, 4
    generator = np.random.default_rng(3)
    vectors = random_vectors(generator, LOADED, count * lanes)
    centroids = random_centroids(generator, LOADED)
    streams = [LOADED.encode(vector, centroids) for vector in vectors]
    rows = packets.beats(vectors, lanes)
    words = packets.beats(streams, Encoder(table=gateware(LOADED), lanes=lanes).words)
    scan, willing, ready = (stall_array(kind, count, seed=n) for n, kind in enumerate((source, source, sink)))
    unit, opened = fresh_encoder(LOADED, lanes, centroids)
    trace = unit.lockstep(sources={"scan": Feed(rows, scan), "i": Feed(rows, willing)}, sinks={"o": ready})
    expected = table_cycles.trace_encoder(LOADED, vectors, lanes=lanes, scan_willing=scan, willing=willing,
                                          ready=ready, opened=opened)
    packets.same(trace, expected, words, Encoder(table=gateware(LOADED), lanes=lanes).words, names=SCAN)
    unit = loaded_decoder(centroids, lanes)
    trace = unit.lockstep(sources={"i": Feed(words, willing)}, sinks={"o": ready})
    expected = table_cycles.trace_decoder(LOADED, streams, lanes=lanes, willing=willing, ready=ready)
    rows = packets.beats([LOADED.decode(stream, None, centroids) for stream in streams], lanes)
    packets.same(trace, expected, rows, lanes)
    assert not trace["error"].any()


def test_loading():
    refuses("Loading must be False, or True with centroids, not True", hardware.LookupTable, loaded=True)
    assert gateware(LOADED).load_length == 31
    assert LOADED.words(256, 16) == 5 + 80


@units
def test_corners(table, lanes):
    """Zeros, infinities, NaNs and subnormal numbers, and weights between them."""
    corners = np.array([0, 1, 0x007F_FFFF, 0x0080_0000, 0x3F80_0000, 0x7F7F_FFFF, 0x7F80_0000, 0x7F80_0001,
                        0x7FC0_0000, 0x7FFF_FFFF], np.uint32)
    corners = np.concatenate([corners, corners | 0x8000_0000]) >> np.uint32(32 - table.format.width)
    centroids = random_centroids(np.random.default_rng(1), table)
    if centroids is not None:
        centroids[0] = 0
    vectors = [corners, corners[::-1], corners[:1]]
    streams = [table.encode(vector, centroids) for vector in vectors]
    got, _, _ = packets.taken(run_encoder(table, lanes, vectors, centroids=centroids),
                              Encoder(table=gateware(table), lanes=lanes).words)
    assert [words.tolist() for words in got] == [words.tolist() for words in streams]
    got, _, _ = packets.taken(run_decoder(table, lanes, streams), lanes, width=table.format.width)
    assert [vector.tolist() for vector in got] == [table.decode(words).tolist() for words in streams]


@units
def test_throughput(table, lanes):
    """One beat per cycle, from the first to the last of a packet, on both ports; and words as the formula says."""
    generator = np.random.default_rng(1)
    weights = (generator.standard_normal(4096) * 0.02).astype(np.float32).view(np.uint32)
    vectors = [weights >> np.uint32(32 - table.format.width)] * 2
    centroids = random_centroids(generator, table)
    beats = 4096 // lanes
    trace = run_encoder(table, lanes, vectors, centroids=centroids, cycles=3 * beats + 300)
    for name in ("scan", "i"):
        when = np.flatnonzero(trace[f"{name}__valid"] & trace[f"{name}__ready"])
        # Centroids are sent while the first beats are taken.
        first = 16 if name == "i" and table.centroids else 0
        assert when[beats - 1] - when[first] == when[-1] - when[beats + first] == beats - 1 - first
    words = Encoder(table=gateware(table), lanes=lanes).words
    streams, _, _ = packets.taken(trace, words)
    exponents = len(np.unique(table.exponents_of(vectors[0])))
    assert [len(stream) for stream in streams] == [table.words(4096, exponents)] * 2
    trace = run_decoder(table, lanes, streams, cycles=3 * beats + 300)
    _, _, when = packets.taken(trace, lanes, width=table.format.width)
    assert when[beats - 1] - when[0] == when[-1] - when[beats] == beats - 1


@units
def test_never_hangs(table, lanes):
    """Words of noise, in packets of any length: all are taken, and the packet behind them is sound."""
    vector = np.full(32, 0x3F80_0000, np.uint32) >> np.uint32(32 - table.format.width)
    centroids = random_centroids(np.random.default_rng(1), table)
    words = table.encode(vector, centroids)
    for seed in range(20):
        generator = np.random.default_rng(seed)
        noise = [generator.integers(0, 1 << 32, generator.integers(1, 60), dtype=np.uint32) for _ in range(10)]
        for stream_ in noise[::2]:
            stream_[0] = 0x8080_7F01  # a table
        trace = run_decoder(table, lanes, [*noise, words], cycles=4_000)
        got, rest, _ = packets.taken(trace, lanes, width=table.format.width)
        assert len(rest) == 0, f"{seed=}"
        assert got[-1].tolist() == table.decode(words).tolist(), f"{seed=}"


@units
@pytest.mark.parametrize("given", [3, 17, 30, 41, 60])
def test_reset_in_a_packet(table, lanes, given):
    """A reset forgets the packet that is inside."""
    generator = np.random.default_rng(given)
    vectors = random_vectors(generator, table, 300)
    centroids = random_centroids(generator, table)
    streams = [table.encode(vector, centroids) for vector in vectors]
    run_encoder(table, lanes, vectors, centroids=centroids, cycles=given)
    got, _, _ = packets.taken(run_encoder(table, lanes, vectors, centroids=centroids),
                              Encoder(table=gateware(table), lanes=lanes).words)
    assert [words.tolist() for words in got] == [words.tolist() for words in streams]
    run_decoder(table, lanes, streams, cycles=given)
    got, _, _ = packets.taken(run_decoder(table, lanes, streams), lanes, width=table.format.width)
    assert [vector.tolist() for vector in got] == [table.decode(words).tolist() for words in streams]


def test_offers_stand_for_all_time():
    formal.prove(formal.Offers(Decoder(table=gateware(SMALL), lanes=1)), depth=2)


@pytest.mark.parametrize("kind", ["none", "geometric"])
@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_cocotb(unit, kind):
    """The same under cocotb, after a reset in the middle of a packet."""
    lanes, words = 4, Encoder(table=gateware(PLAIN), lanes=4).words
    vectors = random_vectors(np.random.default_rng(3), PLAIN, 300)
    streams = [PLAIN.encode(vector) for vector in vectors]
    elements, coded = packets.beats(vectors, lanes), packets.beats(streams, words)
    whole = packets.beats([PLAIN.decode(stream) for stream in streams], lanes)
    beats, wanted = ({"scan": elements, "i": elements}, (coded, packets.kept(coded, words))) if unit is Encoder else (
        {"i": coded}, whole)
    under_cocotb(unit(table=gateware(PLAIN), lanes=lanes), kind, beats, {"o": wanted}, cut=70,
                 name=f"LookupTable{unit.__name__}")
