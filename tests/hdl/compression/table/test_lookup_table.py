# amaranth: UnusedElaboratable=no
import cocotb
import numpy as np
import pytest

from hdl.compression.table import format as hardware
from hdl.compression.table.decoder import Decoder
from hdl.compression.table.encoder import Encoder
from hdl.streams.stream import beat_layout
from sim import formal, regression
from sim.golden import lookup_table as model
from sim.payload import from_int
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed
from tests.hdl.compression import packets
from tests.hdl.compression.table.lookup_tables import (
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
from tests.hdl.compression.table.test_decoder import loaded_decoder


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_parameters(unit):
    with pytest.raises(TypeError, match=r"^Table must be a LookupTable, not 32$"):
        unit(table=32, lanes=4)
    for lanes in (0, 3, 16, "4", None):
        with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4 or 8, not {lanes!r}$"):
            unit(table=gateware(PLAIN), lanes=lanes)


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
    expected = model.trace_encoder(LOADED, vectors, lanes=lanes, scan_willing=scan, willing=willing, ready=ready,
                                   opened=opened)
    packets.same(trace, expected, words, Encoder(table=gateware(LOADED), lanes=lanes).words, names=SCAN)
    unit = loaded_decoder(centroids, lanes)
    trace = unit.lockstep(sources={"i": Feed(words, willing)}, sinks={"o": ready})
    expected = model.trace_decoder(LOADED, streams, lanes=lanes, willing=willing, ready=ready)
    rows = packets.beats([LOADED.decode(stream, None, centroids) for stream in streams], lanes)
    packets.same(trace, expected, rows, lanes)
    assert not trace["error"].any()


def test_loading():
    with pytest.raises(ValueError, match=r"^Loading must be False, or True with centroids, not True$"):
        hardware.LookupTable(loaded=True)
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

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def passes(dut):
    parameters = regression.parameters()
    await start(dut)
    # Fill the unit with a packet that never ends, and reset it.
    for name in parameters["inputs"]:
        getattr(dut, f"{name}__payload").value = 0x5555
        getattr(dut, f"{name}__valid").value = 1
    await cycles(dut, 70)
    dut.rst.value = 1
    for name in parameters["inputs"]:
        getattr(dut, f"{name}__valid").value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    for seed, (name, (shape, rows)) in enumerate(parameters["inputs"].items()):
        layout = beat_layout(*shape)
        Monitor(dut, name, layout)
        source = Source(dut, name, layout, stalls=stalls(parameters["stalls"], seed=seed))
        cocotb.start_soon(source.send([from_int(layout, row) for row in rows]))
    shape, rows = parameters["output"]
    layout = beat_layout(*shape)
    Monitor(dut, "o", layout)
    sink = Sink(dut, "o", layout, stalls=stalls(parameters["stalls"], seed=9))
    assert await sink.receive(len(rows)) == [from_int(layout, row) for row in rows]


def _numbers(rows):
    """Rows of a port as plain numbers."""
    return [int(row) if np.ndim(row) == 0 else sum(int(word) << 32 * place for place, word in enumerate(row))
            for row in rows]


@pytest.mark.parametrize("kind", ["none", "geometric"])
@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_cocotb(unit, kind):
    lanes, words = 4, Encoder(table=gateware(PLAIN), lanes=4).words
    vectors = [vector[:len(vector) // 4 * 4 or None]
               for vector in random_vectors(np.random.default_rng(3), PLAIN, 300)]
    streams = [PLAIN.encode(vector) for vector in vectors]
    # Beats whose missing words are zeros, as the encoder gives them.
    padded = [np.concatenate([stream, np.zeros(-len(stream) % words, np.uint32)]) for stream in streams]
    rows = _numbers(packets.beats(padded, words))
    ends = np.cumsum([len(stream) // words for stream in padded]) - 1
    for stream_, end in zip(streams, ends, strict=True):
        missing = -len(stream_) % words
        rows[end] &= ~(((1 << missing) - 1) << 32 * words + words - missing)
    if unit is Encoder:
        elements = _numbers(packets.beats(vectors, lanes))
        inputs, output = {"scan": ((4, 32), elements), "i": ((4, 32), elements)}, ((words, 32), rows)
    else:
        elements = _numbers(packets.beats([PLAIN.decode(stream) for stream in streams], lanes))
        inputs, output = {"i": ((words, 32), rows)}, ((4, 32), elements)
    component = unit(table=gateware(PLAIN), lanes=lanes)
    regression.run(component, module=__name__, name=f"LookupTable{unit.__name__}", parameters={
        "stalls": kind, "inputs": inputs, "output": output})
