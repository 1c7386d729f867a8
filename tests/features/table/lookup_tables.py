# amaranth: UnusedElaboratable=no
"""Tables of every kind, and runs of their units, for the tests of encoder and decoder."""

import functools

import numpy as np
import pytest

from hdl.features.table import format as hardware
from hdl.features.table.decoder import Decoder
from hdl.features.table.encoder import Encoder
from hdl.floating.format import BF16, FP32
from sim.golden.features.table.lookup_table import LookupTable
from sim.verilated.vectors import Feed, Unit
from tests.features.table import cycles as table_cycles
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


def name_of(value):
    return f"{value.format.width}-{value.mantissas}-{value.centroids}" if isinstance(value, LookupTable) else None

units = pytest.mark.parametrize(("table", "lanes"), UNITS, ids=name_of)


def gateware(table):
    """The parameters of a model, for the units."""
    format = {each.width: each for each in (FP32, BF16)}[table.format.width]
    return hardware.LookupTable(**{**vars(table), "format": format})


@functools.cache
def unit_of(kind, table, lanes):
    return Unit(kind(table=gateware(table), lanes=lanes), name=f"LookupTable{kind.__name__}")


def random_vectors(generator, table, total):
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


def random_centroids(generator, table):
    if not table.centroids:
        return None
    return np.sort(generator.choice(1 << table.format.fraction_bits, table.mantissas, replace=False))


def fresh_encoder(table, lanes, centroids):
    """An encoder after a reset, with its centroids; and the cycle from which on it scans."""
    unit = unit_of(Encoder, table, lanes)
    unit.reset()
    if centroids is None:
        return unit, table_cycles.trace_encoder.__kwdefaults__["opened"]
    load = table.load_words(centroids)
    assert len(load) == gateware(table).load_length
    trace = unit.lockstep(sources={"load": Feed(packets.words([load]))}, sinks={"o": True}, cycles=len(load) + 20)
    assert (trace["load__valid"] & trace["load__ready"]).sum() == len(load)
    assert not trace["error"].any()
    return unit, 0


def run_encoder(table, lanes, vectors, *, centroids=None, scanned=None, cycles=6_000):
    unit, _ = fresh_encoder(table, lanes, centroids)
    width = table.format.width
    return unit.lockstep(sources={
        "scan": Feed(packets.beats(vectors if scanned is None else scanned, lanes, width=width)),
        "i": Feed(packets.beats(vectors, lanes, width=width))}, sinks={"o": True}, cycles=cycles)


def run_decoder(table, lanes, streams, *, cycles=6_000):
    unit = unit_of(Decoder, table, lanes)
    unit.reset()
    words = Decoder(table=gateware(table), lanes=lanes).words
    return unit.lockstep(sources={"i": Feed(packets.beats(streams, words))}, sinks={"o": True}, cycles=cycles)
