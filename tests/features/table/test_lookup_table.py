# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest

from hdl.features.table import format as hardware
from hdl.features.table.decoder import Decoder
from hdl.features.table.encoder import Encoder
from tests.features.table.lookup_tables import (
    BENCH,
    LOADED,
    PLAIN,
    SMALL,
    UNITS,
    drive,
    gateware,
    random_centroids,
    run_decoder,
    run_encoder,
    units,
)
from tests.hdl.compression import packets
from tests.hdl.unit_bench import offers
from tests.refusals import refuses


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_parameters(unit):
    refuses("Table must be a LookupTable, not 32", unit, error=TypeError, table=32, lanes=4)
    for lanes in (0, 3, 16, "4", None):
        refuses(f"Lane count must be 1, 2, 4 or 8, not {lanes!r}", unit, table=gateware(PLAIN), lanes=lanes)


KINDS = (Encoder, Decoder)
test_lockstep = BENCH.lockstep([(kind, *case) for kind in KINDS for case in [*UNITS, (LOADED, 4)]], seeds=2,
                               count=2_500)
test_reset_in_a_packet = BENCH.resets([(kind, *case) for kind in KINDS for case in UNITS], (3, 17, 30, 41, 60),
                                      count=3_000, drive=functools.partial(drive, count=300))
test_cocotb = BENCH.cocotb([(kind, PLAIN, 4) for kind in KINDS], cut=70, drive=functools.partial(drive, count=75))


def test_loading():
    refuses("Loading must be False, or True with centroids, not True", hardware.LookupTable, loaded=True)
    assert gateware(LOADED).load_length == 31
    assert LOADED.words(256, 16) == 5 + 80


@units
def test_corners(table, lanes):
    """Zeros, infinities, NaNs, subnormals and extreme numbers are encoded and decoded as in the model."""
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
    """Within a packet, both units transfer one beat per cycle; the number of words matches the formula."""
    generator = np.random.default_rng(1)
    weights = (generator.standard_normal(4096) * 0.02).astype(np.float32).view(np.uint32)
    vectors = [weights >> np.uint32(32 - table.format.width)] * 2
    centroids = random_centroids(generator, table)
    beats = 4096 // lanes
    trace = run_encoder(table, lanes, vectors, centroids=centroids, cycles=3 * beats + 300)
    for name in ("scan", "i"):
        when = np.flatnonzero(trace[f"{name}__valid"] & trace[f"{name}__ready"])
        # The first beats may be accepted while the centroids are still being sent.
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
    """Packets of random words and lengths are accepted, and the next valid packet is decoded correctly."""
    vector = np.full(32, 0x3F80_0000, np.uint32) >> np.uint32(32 - table.format.width)
    centroids = random_centroids(np.random.default_rng(1), table)
    words = table.encode(vector, centroids)
    for seed in range(20):
        generator = np.random.default_rng(seed)
        noise = [generator.integers(0, 1 << 32, generator.integers(1, 60), dtype=np.uint32) for _ in range(10)]
        for stream_ in noise[::2]:
            stream_[0] = 0x8080_7F01  # the start of a valid table
        trace = run_decoder(table, lanes, [*noise, words], cycles=4_000)
        got, rest, _ = packets.taken(trace, lanes, width=table.format.width)
        assert len(rest) == 0, f"{seed=}"
        assert got[-1].tolist() == table.decode(words).tolist(), f"{seed=}"


test_offers_stand_for_all_time = offers(lambda: Decoder(table=gateware(SMALL), lanes=1), depth=2)
