# amaranth: UnusedElaboratable=no
import functools

import cocotb
import numpy as np
import pytest

from hdl.compression.table import format as hardware
from hdl.compression.table.decoder import Decoder
from hdl.compression.table.encoder import Encoder
from hdl.floating.format import BF16, FP32
from hdl.streams.stream import beat_layout
from sim import formal, regression
from sim.golden import lookup_table as model
from sim.golden.lookup_table import LookupTable
from sim.payload import from_int
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets

PLAIN = LookupTable(exponents=256)
CENTROIDS = LookupTable(centroids=True)
HALF = LookupTable(format=BF16, mantissas=8, centroids=True)
LOSSLESS = LookupTable(format=BF16, mantissas=128)
SMALL = LookupTable(mantissas=16, exponents=16)
LOADED = LookupTable(centroids=True, loaded=True)
#: Every kind of table at some number of lanes, and every number of lanes.
UNITS = [(PLAIN, 1), (PLAIN, 4), (PLAIN, 8), (CENTROIDS, 2), (CENTROIDS, 8), (HALF, 4), (LOSSLESS, 8), (SMALL, 1)]
SCAN = ("scan_valid", "scan_ready", "i_valid", "i_ready", "o_valid")


def _name(value):
    return f"{value.format.width}-{value.mantissas}-{value.centroids}" if isinstance(value, LookupTable) else None


units = pytest.mark.parametrize(("table", "lanes"), UNITS, ids=_name)


def gateware(table):
    """The parameters of a model, for the units."""
    format = {each.width: each for each in (FP32, BF16)}[table.format.width]
    return hardware.LookupTable(**{**vars(table), "format": format})


@functools.cache
def _unit(kind, table, lanes):
    return Unit(kind(table=gateware(table), lanes=lanes), name=f"LookupTable{kind.__name__}")


def _vectors(generator, table, total):
    """Vectors of uneven lengths: weights, noise of any kind, and numbers of few exponents."""
    vectors = []
    while sum(map(len, vectors)) < total:
        count = int(generator.integers(1, 200))
        bits = (generator.standard_normal(count) * 0.02).astype(np.float32).view(np.uint32)
        kind = generator.random()
        if kind < 0.2 and table.exponents == 256:
            bits = generator.integers(0, 1 << 32, count, dtype=np.uint32)
        elif kind < 0.4:
            bits = generator.choice(np.array([0, 0x7F80_0001, 0x8000_0001, 0xFF80_0000], np.uint32), count)
        elif kind < 0.5:
            bits = np.full(count, 0x3F80_0000, np.uint32)
        vectors.append(bits >> np.uint32(32 - table.format.width))
    return vectors


def _centroids(generator, table):
    if not table.centroids:
        return None
    return np.sort(generator.choice(1 << table.format.fraction_bits, table.mantissas, replace=False))


def _fresh(table, lanes, centroids):
    """An encoder after a reset, with its centroids; and the cycle from which on it scans."""
    unit = _unit(Encoder, table, lanes)
    unit.reset()
    if centroids is None:
        return unit, model.trace_encoder.__kwdefaults__["opened"]
    load = table.load_words(centroids)
    assert len(load) == gateware(table).load_length
    trace = unit.lockstep(sources={"load": Feed(packets.words([load]))}, sinks={"o": True}, cycles=len(load) + 20)
    assert (trace["load__valid"] & trace["load__ready"]).sum() == len(load)
    assert not trace["error"].any()
    return unit, 0


def _encode(table, lanes, vectors, *, centroids=None, scanned=None, cycles=6_000):
    unit, _ = _fresh(table, lanes, centroids)
    width = table.format.width
    return unit.lockstep(sources={
        "scan": Feed(packets.beats(vectors if scanned is None else scanned, lanes, width=width)),
        "i": Feed(packets.beats(vectors, lanes, width=width))}, sinks={"o": True}, cycles=cycles)


def _decode(table, lanes, streams, *, cycles=6_000):
    unit = _unit(Decoder, table, lanes)
    unit.reset()
    words = Decoder(table=gateware(table), lanes=lanes).words
    return unit.lockstep(sources={"i": Feed(packets.beats(streams, words))}, sinks={"o": True}, cycles=cycles)


# --- construction


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


# --- every cycle against the model


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@units
def test_encoder_lockstep(table, lanes, source, sink):
    count = 2_500
    words = Encoder(table=gateware(table), lanes=lanes).words
    for seed in range(2):
        generator = np.random.default_rng(seed)
        vectors = _vectors(generator, table, count * lanes)
        centroids = _centroids(generator, table)
        rows = packets.beats(vectors, lanes, width=table.format.width)
        scan, willing = (stall_array(source, count, seed=seed + n) for n in (5, 6))
        ready = stall_array(sink, count, seed=seed + 1)
        unit, opened = _fresh(table, lanes, centroids)
        trace = unit.lockstep(sources={"scan": Feed(rows, scan), "i": Feed(rows, willing)}, sinks={"o": ready})
        expected = model.trace_encoder(table, vectors, lanes=lanes, scan_willing=scan, willing=willing, ready=ready,
                                       opened=opened)
        streams = [table.encode(vector, centroids) for vector in vectors]
        packets.same(trace, expected, packets.beats(streams, words), words, names=SCAN, note=f"{seed=}")
        assert not trace["error"].any()


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@units
def test_decoder_lockstep(table, lanes, source, sink):
    count = 2_500
    words = Decoder(table=gateware(table), lanes=lanes).words
    for seed in range(2):
        generator = np.random.default_rng(seed)
        vectors = _vectors(generator, table, count * lanes)
        centroids = _centroids(generator, table)
        streams = [table.encode(vector, centroids) for vector in vectors]
        willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 1)
        unit = _unit(Decoder, table, lanes)
        unit.reset()
        trace = unit.lockstep(sources={"i": Feed(packets.beats(streams, words), willing)}, sinks={"o": ready})
        expected = model.trace_decoder(table, streams, lanes=lanes, willing=willing, ready=ready)
        rows = packets.beats([table.decode(words) for words in streams], lanes, width=table.format.width)
        packets.same(trace, expected, rows, lanes, width=table.format.width, note=f"{seed=}")
        assert not trace["error"].any()


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
def test_loaded_lockstep(source, sink):
    """Without centroids in packets: encoder and decoder are loaded with them."""
    count, lanes = 2_500, 4
    generator = np.random.default_rng(3)
    vectors = _vectors(generator, LOADED, count * lanes)
    centroids = _centroids(generator, LOADED)
    streams = [LOADED.encode(vector, centroids) for vector in vectors]
    rows = packets.beats(vectors, lanes)
    words = packets.beats(streams, Encoder(table=gateware(LOADED), lanes=lanes).words)
    scan, willing, ready = (stall_array(kind, count, seed=n) for n, kind in enumerate((source, source, sink)))
    unit, opened = _fresh(LOADED, lanes, centroids)
    trace = unit.lockstep(sources={"scan": Feed(rows, scan), "i": Feed(rows, willing)}, sinks={"o": ready})
    expected = model.trace_encoder(LOADED, vectors, lanes=lanes, scan_willing=scan, willing=willing, ready=ready,
                                   opened=opened)
    packets.same(trace, expected, words, Encoder(table=gateware(LOADED), lanes=lanes).words, names=SCAN)
    unit = _loaded(centroids, lanes)
    trace = unit.lockstep(sources={"i": Feed(words, willing)}, sinks={"o": ready})
    expected = model.trace_decoder(LOADED, streams, lanes=lanes, willing=willing, ready=ready)
    rows = packets.beats([LOADED.decode(stream, None, centroids) for stream in streams], lanes)
    packets.same(trace, expected, rows, lanes)
    assert not trace["error"].any()


def _loaded(centroids, lanes):
    """A decoder after a reset, with its centroids."""
    unit = _unit(Decoder, LOADED, lanes)
    unit.reset()
    trace = unit.lockstep(sources={"load": Feed(packets.words([centroids]))}, sinks={"o": True}, cycles=40)
    assert trace["load__ready"].all()
    assert not trace["error"].any()
    return unit


@pytest.mark.parametrize("length", [1, 31, 33, 64])
def test_wrong_loads_of_a_decoder(length):
    """Too few words or too many are reported; the next ones are taken."""
    centroids = np.arange(32, dtype=np.uint32) << 18
    unit = _loaded(centroids[::-1], 4)
    trace = unit.lockstep(sources={"load": Feed(packets.words([np.resize(centroids, length), centroids]))},
                          sinks={"o": True}, cycles=120)
    assert trace["error"].sum() >= 1
    vector = np.arange(100, dtype=np.uint32) << 17 | 0x3F80_0000
    words = LOADED.encode(vector, centroids)
    trace = unit.lockstep(sources={"i": Feed(packets.beats([words], Decoder(table=gateware(LOADED), lanes=4).words))},
                          sinks={"o": True}, cycles=200)
    got, _, _ = packets.taken(trace, 4)
    assert [found.tolist() for found in got] == [LOADED.decode(words, None, centroids).tolist()]


def test_loading():
    with pytest.raises(ValueError, match=r"^Loading must be False, or True with centroids, not True$"):
        hardware.LookupTable(loaded=True)
    assert gateware(LOADED).load_length == 31
    assert LOADED.words(256, 16) == 5 + 80


# --- values, latency and throughput


@units
def test_corners(table, lanes):
    """Zeros, infinities, NaNs and subnormal numbers, and weights between them."""
    corners = np.array([0, 1, 0x007F_FFFF, 0x0080_0000, 0x3F80_0000, 0x7F7F_FFFF, 0x7F80_0000, 0x7F80_0001,
                        0x7FC0_0000, 0x7FFF_FFFF], np.uint32)
    corners = np.concatenate([corners, corners | 0x8000_0000]) >> np.uint32(32 - table.format.width)
    centroids = _centroids(np.random.default_rng(1), table)
    if centroids is not None:
        centroids[0] = 0
    vectors = [corners, corners[::-1], corners[:1]]
    streams = [table.encode(vector, centroids) for vector in vectors]
    got, _, _ = packets.taken(_encode(table, lanes, vectors, centroids=centroids),
                              Encoder(table=gateware(table), lanes=lanes).words)
    assert [words.tolist() for words in got] == [words.tolist() for words in streams]
    got, _, _ = packets.taken(_decode(table, lanes, streams), lanes, width=table.format.width)
    assert [vector.tolist() for vector in got] == [table.decode(words).tolist() for words in streams]


@units
def test_throughput(table, lanes):
    """One beat per cycle, from the first to the last of a packet, on both ports; and words as the formula says."""
    generator = np.random.default_rng(1)
    weights = (generator.standard_normal(4096) * 0.02).astype(np.float32).view(np.uint32)
    vectors = [weights >> np.uint32(32 - table.format.width)] * 2
    centroids = _centroids(generator, table)
    beats = 4096 // lanes
    trace = _encode(table, lanes, vectors, centroids=centroids, cycles=3 * beats + 300)
    for name in ("scan", "i"):
        when = np.flatnonzero(trace[f"{name}__valid"] & trace[f"{name}__ready"])
        # Centroids are sent while the first beats are taken.
        first = 16 if name == "i" and table.centroids else 0
        assert when[beats - 1] - when[first] == when[-1] - when[beats + first] == beats - 1 - first
    words = Encoder(table=gateware(table), lanes=lanes).words
    streams, _, _ = packets.taken(trace, words)
    exponents = len(np.unique(table.exponents_of(vectors[0])))
    assert [len(stream) for stream in streams] == [table.words(4096, exponents)] * 2
    trace = _decode(table, lanes, streams, cycles=3 * beats + 300)
    _, _, when = packets.taken(trace, lanes, width=table.format.width)
    assert when[beats - 1] - when[0] == when[-1] - when[beats] == beats - 1


@units
def test_scans_overlap(table, lanes):
    """While a packet is encoded, the next one is scanned: two take little longer than one more encoding."""
    generator = np.random.default_rng(1)
    weights = (generator.standard_normal(2048) * 0.02).astype(np.float32).view(np.uint32)
    vectors = [weights >> np.uint32(32 - table.format.width)] * 4
    centroids = _centroids(generator, table)
    trace = _encode(table, lanes, vectors, centroids=centroids, cycles=2048 // lanes * 6 + 700)
    _, _, when = packets.taken(trace, Encoder(table=gateware(table), lanes=lanes).words)
    preamble = 80 if centroids is not None else 50
    assert when[-1] < 5 * (2048 // lanes) + 5 * preamble


@units
def test_encoder_latency(table, lanes):
    """From the last beat of an eight to the beat of words that its first bytes complete."""
    encoder = Encoder(table=gateware(table), lanes=lanes)
    generator = np.random.default_rng(1)
    vector = (generator.standard_normal(1024) * 0.02).astype(np.float32).view(np.uint32)
    vector = vector >> np.uint32(32 - table.format.width)
    centroids = _centroids(generator, table)
    trace = _encode(table, lanes, [vector], centroids=centroids, cycles=2 * 1024 // lanes + 400)
    (words,), _, when = packets.taken(trace, encoder.words)
    accepted = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    exponents = len(np.unique(table.exponents_of(vector)))
    width, size = table.code_width(exponents), 4 * encoder.words
    preamble = 4 * (len(words) - 32 * width)
    checked = 0
    for eight in range(32, 128):  # behind what the table has held up
        first = preamble + eight * width
        beat = first // size
        if (first + min(width, size)) // size > beat:
            assert when[beat] - accepted[(eight + 1) * 8 // lanes - 1] == encoder.latency
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_decoder_latency(lanes):
    """A packet of one group and one exponent: its table takes four cycles, and an eight one for each chunk."""
    decoder = Decoder(table=gateware(PLAIN), lanes=lanes)
    words = PLAIN.encode(np.full(32, 0x3F80_0000, np.uint32))
    trace = _decode(PLAIN, lanes, [words], cycles=200)
    _, _, when = packets.taken(trace, lanes)
    if decoder.words > 1:
        assert when[0] == 3 + -(-6 // (4 * decoder.words)) - 1 + decoder.latency
    else:
        # One word comes per cycle, and the second chunk is in the third one.
        assert when[0] == 2 + 2 + decoder.latency


# --- what goes wrong


@units
def test_unknown_exponents(table, lanes):
    """An exponent that the scan has not seen is reported, and the next packet is sound."""
    shift = np.uint32(32 - table.format.width)
    vector = np.full(40, 0x3F80_0000, np.uint32) >> shift
    other = vector.copy()
    other[17] = 0x4000_0000 >> shift
    centroids = _centroids(np.random.default_rng(1), table)
    trace = _encode(table, lanes, [other, other], scanned=[vector, other], centroids=centroids)
    got, rest, _ = packets.taken(trace, Encoder(table=gateware(table), lanes=lanes).words)
    assert trace["error"].sum() == 1
    assert len(rest) == 0
    assert got[1].tolist() == table.encode(other, centroids).tolist()


@pytest.mark.parametrize("lanes", [1])
def test_too_many_exponents(lanes):
    """The encoder reports it, and so does the decoder, which gives nothing of this packet."""
    sound = np.full(5, 0x3F80_0000, np.uint32)
    vectors = [sound, np.arange(17, dtype=np.uint32) << 23, sound]
    trace = _encode(SMALL, lanes, vectors)
    assert trace["error"].sum() == 1
    got, rest, _ = packets.taken(trace, Encoder(table=gateware(SMALL), lanes=lanes).words)
    assert (len(got), len(rest)) == (3, 0)
    trace = _decode(SMALL, lanes, got)
    decoded, rest, _ = packets.taken(trace, lanes)
    want = SMALL.decode(SMALL.encode(sound)).tolist()
    assert [vector.tolist() for vector in decoded] == [want, want]
    assert (len(rest), trace["error"].sum()) == (0, 1)


@pytest.mark.parametrize("length", [1, 30, 53, 55, 70])
def test_wrong_loads(length):
    """Too few words or too many are reported; the next ones are taken."""
    unit = _unit(Encoder, CENTROIDS, 8)
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


@units
def test_decoder_short_packets(table, lanes):
    """Cut anywhere, a packet is reported, gives its whole eights or nothing, and the next one is sound."""
    generator = np.random.default_rng(1)
    vector = (generator.standard_normal(70) * 0.02).astype(np.float32).view(np.uint32)
    vector = vector >> np.uint32(32 - table.format.width)
    centroids = _centroids(generator, table)
    words = table.encode(vector, centroids)
    width = table.code_width(len(np.unique(table.exponents_of(vector))))
    preamble = len(words) - 3 * width
    whole = table.decode(words)
    for length in range(1, len(words)):
        trace = _decode(table, lanes, [words, words[:length], words], cycles=900)
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
    """Exponents out of order, and indices beyond the table."""
    shift = np.uint32(32 - table.format.width)
    vector = np.array([1, 2, 4], np.float32).view(np.uint32) >> shift
    centroids = _centroids(np.random.default_rng(1), table)
    words = table.encode(vector, centroids)
    order = words.copy()
    order[0] = 0x7F81_8081
    beyond = words.copy()
    beyond[-table.code_width(3):] = 0xFFFF_FFFF
    trace = _decode(table, lanes, [order, words, beyond, words], cycles=900)
    got, rest, _ = packets.taken(trace, lanes, width=table.format.width)
    assert [len(elements) for elements in (*got, rest)] == [32, 32, 32, 0]
    assert got[0].tolist() == got[2].tolist() == table.decode(words).tolist()
    assert trace["error"].sum() == 1 + 32 // lanes


@units
def test_never_hangs(table, lanes):
    """Words of noise, in packets of any length: all are taken, and the packet behind them is sound."""
    vector = np.full(32, 0x3F80_0000, np.uint32) >> np.uint32(32 - table.format.width)
    centroids = _centroids(np.random.default_rng(1), table)
    words = table.encode(vector, centroids)
    for seed in range(20):
        generator = np.random.default_rng(seed)
        noise = [generator.integers(0, 1 << 32, generator.integers(1, 60), dtype=np.uint32) for _ in range(10)]
        for stream_ in noise[::2]:
            stream_[0] = 0x8080_7F01  # a table
        trace = _decode(table, lanes, [*noise, words], cycles=4_000)
        got, rest, _ = packets.taken(trace, lanes, width=table.format.width)
        assert len(rest) == 0, f"{seed=}"
        assert got[-1].tolist() == table.decode(words).tolist(), f"{seed=}"


@units
@pytest.mark.parametrize("given", [3, 17, 30, 41, 60])
def test_reset_in_a_packet(table, lanes, given):
    """Whatever is inside is forgotten."""
    generator = np.random.default_rng(given)
    vectors = _vectors(generator, table, 300)
    centroids = _centroids(generator, table)
    streams = [table.encode(vector, centroids) for vector in vectors]
    _encode(table, lanes, vectors, centroids=centroids, cycles=given)
    got, _, _ = packets.taken(_encode(table, lanes, vectors, centroids=centroids),
                              Encoder(table=gateware(table), lanes=lanes).words)
    assert [words.tolist() for words in got] == [words.tolist() for words in streams]
    _decode(table, lanes, streams, cycles=given)
    got, _, _ = packets.taken(_decode(table, lanes, streams), lanes, width=table.format.width)
    assert [vector.tolist() for vector in got] == [table.decode(words).tolist() for words in streams]


# --- handshakes, proven


def test_offers_stand_for_all_time():
    formal.prove(formal.Offers(Decoder(table=gateware(SMALL), lanes=1)), depth=2)


# --- the same under cocotb


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
    vectors = [vector[:len(vector) // 4 * 4 or None] for vector in _vectors(np.random.default_rng(3), PLAIN, 300)]
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
