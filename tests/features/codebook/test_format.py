# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.features.codebook import format as hardware
from hdl.features.codebook.format import Decoder, Encoder
from hdl.streams.stream import word_layout
from sim.golden.features.codebook.centroid import CentroidTable
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.features.codebook import cycles
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, offers
from tests.loaded import Loaded
from tests.refusals import refuses

UNITS = [(16, 1), (64, 2), (4, 4), (32, 4), (16, 8), (64, 8)]
units = pytest.mark.parametrize(("centroids", "lanes"), UNITS)


def gateware(table):
    """Create gateware parameters equivalent to those of a golden model."""
    return hardware.CentroidTable(**vars(table))


def _packets(generator, centroids, total):
    """Draw codebook tables, and for each table index vectors of various lengths."""
    tables, indices = [], []
    while sum(map(len, indices)) < total:
        tables.append(generator.integers(0, 1 << 32, centroids, dtype=np.uint32))
        indices.append(generator.integers(0, generator.integers(1, centroids + 1), generator.integers(1, 200)))
    return tables, indices


# --- construction


def test_parameters():
    for parameters in (CentroidTable, hardware.CentroidTable):
        refuses("Centroid count must be 4, 8, 16, 32 or 64, not 12", parameters, centroids=12)
    table = CentroidTable()
    for unit in (Encoder, Decoder):
        refuses("Table must be a CentroidTable, not 16", unit, error=TypeError, table=16, lanes=4)
        refuses("Lane count must be 1, 2, 4 or 8, not 3", unit, table=gateware(table), lanes=3)
    refuses("Expansion must be True or False, not 2", Decoder, table=gateware(table), lanes=4, expand=2)


# --- packets


def _make(kind, centroids, lanes, loaded=False):
    return kind(table=gateware(CentroidTable(centroids=centroids, loaded=loaded)), lanes=lanes)


def _drive(generator, kind, centroids, lanes, loaded=False):
    """Draw packets with tables or, if ``loaded``, without; a loaded decoder uses the first table for all packets."""
    tables, indices = _packets(generator, centroids, 2_000 * lanes)
    table, unit = CentroidTable(centroids=centroids, loaded=loaded), BENCH.unit(kind, centroids, lanes, loaded)
    of = tables[0] if loaded else None
    streams = [table.encode(*pair[:1 if loaded else 2]) for pair in zip(indices, tables, strict=True)]
    if kind is Decoder:
        unit.load = packets.words([of]) if loaded else None
        beats = {"i": packets.beats(streams, _make(kind, centroids, lanes).words)}
    else:
        beats = {"i": packets.beats(indices, lanes, width=table.index_bits)}
        beats |= {} if loaded else {"table": packets.words(tables)}
    return Drive(beats | unit.no_more(), (table, indices, streams, of))


def _model(unit, drawn, willing, ready):
    table, indices, streams, of = drawn
    stalls = {"lanes": unit.lanes, "willing": willing["i"], "ready": ready["o"]}
    if isinstance(unit, Decoder):
        elements = packets.beats([table.decode(stream, None, of) for stream in streams], unit.lanes)
        return packets.want(cycles.trace_decoder(table, streams, **stalls), elements, unit.lanes)
    scan = None if table.loaded else "table"
    trace = cycles.trace_encoder(table, list(map(len, indices)), table_willing=willing[scan or "i"], **stalls)
    return packets.want(trace, packets.beats(streams, unit.words), unit.words, scan=scan)


KINDS = (Encoder, Decoder)
BENCH = UnitBench(_make, _model, _drive, simulate=lambda component, kind, centroids, lanes, loaded=False: Loaded(
    component, name=f"{'Loaded' if loaded else 'Centroid'}{kind.__name__}"))
test_lockstep = BENCH.lockstep([(kind, *case) for kind in KINDS for case in UNITS], count=2_000, seeds=2)
test_loaded_lockstep = BENCH.lockstep([(kind, 16, 8, True) for kind in KINDS], count=2_000)
test_offers_stand_for_all_time = offers(lambda: Encoder(table=gateware(CentroidTable(centroids=4)), lanes=8), depth=2)


def test_loading():
    refuses("Loading must be True or False, not 2", hardware.CentroidTable, loaded=2)
    table = CentroidTable(centroids=16, loaded=True)
    assert table.words(256) == 32
    unit = BENCH.unit(Decoder, 16, 8, True)
    unit.load = None
    unit.reset()
    of = np.arange(16, dtype=np.uint32)
    trace = unit.lockstep(sources={"load": Feed(packets.words([of[:15], of]))}, sinks={"o": True}, cycles=40)
    assert trace["error"].sum() == 1


@units
def test_throughput(centroids, lanes):
    """One beat is transferred per cycle, from first to last; the number of words matches the formula."""
    table = CentroidTable(centroids=centroids)
    generator = np.random.default_rng(1)
    of, indices = generator.integers(0, 1 << 32, centroids), generator.integers(0, centroids, 4096)
    beats = 4096 // lanes
    unit = BENCH.unit(Encoder, centroids, lanes)
    unit.reset()
    trace = unit.lockstep(sources={
        "table": Feed(packets.words([of])),
        "i": Feed(packets.beats([indices], lanes, width=table.index_bits), np.arange(beats + 200) > centroids)},
        sinks={"o": True})
    when = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    assert when[-1] - when[0] == beats - 1
    (words,), _, _ = packets.taken(trace, Encoder(table=gateware(table), lanes=lanes).words)
    assert 32 * len(words) == table.bits(4096) == 32 * table.words(4096)
    unit = BENCH.unit(Decoder, centroids, lanes)
    unit.reset()
    width = Decoder(table=gateware(table), lanes=lanes).words
    trace = unit.lockstep(sources={"i": Feed(packets.beats([words], width))},
                          sinks={"o": True}, cycles=beats + 200)
    _, _, when = packets.taken(trace, lanes)
    assert when[-1] - when[0] == beats - 1


@pytest.mark.parametrize("kind", STALLS)
def test_indices_apart(kind):
    """Without expansion, the decoder outputs the table and the indices on separate streams."""
    table = CentroidTable()
    tables, indices = _packets(np.random.default_rng(1), 16, 2_000)
    streams = [table.encode(packet, of) for packet, of in zip(indices, tables, strict=True)]
    component = Decoder(table=gateware(table), lanes=8, expand=False)
    unit = Unit(component, name="CentroidDecoder")
    unit.reset()
    count = 6_000
    trace = unit.lockstep(sources={"i": Feed(packets.beats(streams, 1))},
                          sinks={"o": stall_array(kind, count, seed=1), "table": stall_array(kind, count, seed=2)})
    got, rest, _ = packets.taken(trace, 8, width=4)
    assert len(rest) == 0
    assert [list(packet) for packet in got] == [table.indices(words).tolist() for words in streams]
    taken = unpack(word_layout(), trace["table__payload"][trace["table__valid"] & trace["table__ready"] == 1])
    np.testing.assert_array_equal(taken["data"], np.concatenate(tables))
    assert np.flatnonzero(taken["last"]).tolist() == list(range(15, 16 * len(tables), 16))


@pytest.mark.parametrize("length", [1, 15, 17, 40])
def test_wrong_tables(length):
    """Missing table words become zeros, excess words are discarded, and the next packet is encoded correctly."""
    table = CentroidTable()
    unit = BENCH.unit(Encoder, 16, 8)
    unit.reset()
    wrong, sound = np.arange(1, length + 1), np.arange(16)
    trace = unit.lockstep(sources={
        "table": Feed(packets.words([wrong, sound])),
        "i": Feed(packets.beats([np.arange(16)] * 2, 8, width=4))}, sinks={"o": True}, cycles=200)
    got, rest, _ = packets.taken(trace, 1)
    padded = np.concatenate([wrong, np.zeros(16, int)])[:16]
    assert [words.tolist() for words in got] == [
        table.encode(np.arange(16), of).tolist() for of in (padded, sound)]
    assert (len(rest), trace["error"].sum()) == (0, 1)


@units
def test_decoder_short_packets(centroids, lanes):
    """A packet truncated within its table or a group of indices is reported; the next one is decoded correctly."""
    table = CentroidTable(centroids=centroids)
    generator = np.random.default_rng(1)
    words = table.encode(generator.integers(0, centroids, 70), generator.integers(0, 1 << 32, centroids))
    whole = table.decode(words)
    unit = BENCH.unit(Decoder, centroids, lanes)
    for length in range(1, len(words)):
        unit.reset()
        trace = unit.lockstep(sources={"i": Feed(packets.beats(
            [words, words[:length], words], Decoder(table=gateware(table), lanes=lanes).words))},
            sinks={"o": True}, cycles=800)
        got, rest, _ = packets.taken(trace, lanes)
        codes = 4 * max(length - centroids, 0)
        complete = codes // table.index_bits * 8
        assert len(rest) == 0, length
        assert len(got) == 2 + (length > centroids), length
        if length > centroids:
            assert len(got[1]) == complete + 8 * (codes % table.index_bits != 0), length
            assert got[1][:complete].tolist() == whole[:complete].tolist(), length
        assert got[0].tolist() == got[-1].tolist() == whole.tolist(), length
        assert trace["error"].sum() == (codes == 0 or codes // 4 % table.index_bits != 0), length
