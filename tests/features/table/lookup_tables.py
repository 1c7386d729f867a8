# amaranth: UnusedElaboratable=no
"""Lookup tables of every kind, and test benches for the units that encode and decode with them."""

import numpy as np
import pytest

from hdl.features.table import format as hardware
from hdl.features.table.decoder import Decoder
from hdl.features.table.encoder import Encoder
from hdl.floating.format import BF16, FP32
from sim.golden.features.table.lookup_table import LookupTable
from sim.verilated.vectors import Feed
from tests.features.table import cycles as table_cycles
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench
from tests.loaded import Loaded

PLAIN = LookupTable(exponents=256)

CENTROIDS = LookupTable(centroids=True)

HALF = LookupTable(format=BF16, mantissas=8, centroids=True)

LOSSLESS = LookupTable(format=BF16, mantissas=128)

SMALL = LookupTable(mantissas=16, exponents=16)

LOADED = LookupTable(centroids=True, loaded=True)

#: Tables and numbers of lanes; together they cover every kind of table and every number of lanes.
UNITS = [(PLAIN, 1), (PLAIN, 4), (PLAIN, 8), (CENTROIDS, 2), (CENTROIDS, 8), (HALF, 4), (LOSSLESS, 8), (SMALL, 1)]

def name_of(value):
    return f"{value.format.width}-{value.mantissas}-{value.centroids}" if isinstance(value, LookupTable) else None


units = pytest.mark.parametrize(("table", "lanes"), UNITS, ids=name_of)


def gateware(table):
    """Convert a golden model's parameters to gateware parameters."""
    format = {each.width: each for each in (FP32, BF16)}[table.format.width]
    return hardware.LookupTable(**{**vars(table), "format": format})


def random_vectors(generator, table, total):
    """Draw vectors of random length with random weights, random bits or few different exponents."""
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


def random_centroids(generator, table):
    if not table.centroids:
        return None
    return np.sort(generator.choice(1 << table.format.fraction_bits, table.mantissas, replace=False))


def loaded_unit(kind, table, lanes, centroids):
    """Create a unit; if its table has a codebook, the unit is loaded with ``centroids`` after each reset."""
    unit = BENCH.unit(kind, table, lanes)
    unit.load = None
    if centroids is not None and kind is Encoder:
        unit.load = packets.words([table.load_words(centroids)])
        assert len(unit.load) == gateware(table).load_length
    elif table.loaded:
        unit.load = packets.words([centroids])
    return unit


def _make(kind, table, lanes):
    return kind(table=gateware(table), lanes=lanes)


def drive(generator, kind, table, lanes, count=2_500):
    vectors, centroids = random_vectors(generator, table, count * lanes), random_centroids(generator, table)
    unit = loaded_unit(kind, table, lanes, centroids)
    streams = [table.encode(vector, centroids) for vector in vectors]
    elements = packets.beats(vectors, lanes, width=table.format.width)
    beats = {"scan": elements, "i": elements} if kind is Encoder else {
        "i": packets.beats(streams, _make(kind, table, lanes).words)}
    return Drive(beats | unit.no_more(), (table, vectors, streams, centroids if table.loaded else None))


def _model(unit, drawn, willing, ready):
    table, vectors, streams, loaded = drawn
    stalls = {"lanes": unit.lanes, "willing": willing["i"], "ready": ready["o"]}
    if isinstance(unit, Encoder):
        opened = {"opened": 0} if table.centroids else {}
        trace = table_cycles.trace_encoder(table, vectors, scan_willing=willing["scan"], **opened, **stalls)
        return packets.want(trace, packets.beats(streams, unit.words), unit.words, scan="scan")
    width = table.format.width
    elements = packets.beats([table.decode(words, None, loaded) for words in streams], unit.lanes, width=width)
    return packets.want(table_cycles.trace_decoder(table, streams, **stalls), elements, unit.lanes, width=width)


BENCH = UnitBench(_make, _model, drive, simulate=lambda component, kind, *_: Loaded(
    component, name=f"LookupTable{kind.__name__}"))


def run_encoder(table, lanes, vectors, *, centroids=None, scanned=None, cycles=6_000):
    unit, width = loaded_unit(Encoder, table, lanes, centroids), table.format.width
    unit.reset()
    return unit.lockstep(sources={
        "scan": Feed(packets.beats(vectors if scanned is None else scanned, lanes, width=width)),
        "i": Feed(packets.beats(vectors, lanes, width=width))}, sinks={"o": True}, cycles=cycles)


def run_decoder(table, lanes, streams, *, cycles=6_000):
    unit = BENCH.unit(Decoder, table, lanes)
    unit.reset()
    words = BENCH.make(Decoder, table, lanes).words
    return unit.lockstep(sources={"i": Feed(packets.beats(streams, words))}, sinks={"o": True}, cycles=cycles)
