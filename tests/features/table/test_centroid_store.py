# amaranth: UnusedElaboratable=no
"""Centroid store of an encoder: hdl/features/table/centroid_store.py."""

import functools

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from hdl.features.table.centroid_store import CentroidStore
from hdl.features.table.format import LookupTable
from hdl.floating.format import BF16
from hdl.streams.stream import connect_stream, word_layout
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets
from tests.refusals import refuses

SENT = LookupTable(format=BF16, mantissas=16, centroids=True)
LOADED = LookupTable(mantissas=8, centroids=True, loaded=True)
tables = pytest.mark.parametrize("table", [SENT, LOADED], ids=["sent", "loaded"])


class _Store(wiring.Component):
    """The unit with ``final`` renamed to ``ends``, since ``final`` cannot be a member name in C++."""

    def __init__(self, *, table):
        self._store = CentroidStore(table=table)
        super().__init__({{"final": "ends"}.get(name, name): member
                          for name, member in self._store.signature.members.items()})

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = self._store
        connect_stream(m, self.load, store.load)
        m.d.comb += [
            *(getattr(store, name).eq(getattr(self, name)) for name in ("open", "step")),
            *(getattr(self, name).eq(getattr(store, name))
              for name in ("busy", "write", "number", "bound", "word", "error")),
            self.ends.eq(store.final),
        ]
        return m


@functools.cache
def _unit(table):
    return Unit(_Store(table=table), name="CentroidStore")


def test_parameters():
    refuses("Table must be a LookupTable, not 'table32'", CentroidStore, error=TypeError, table="table32")
    message = f"Table must have centroids, not {LookupTable()!r}"
    refuses(message, CentroidStore, table=LookupTable())


def _level(number, bits):
    """Level of a bound in a binary search tree; the root at level 0 is the middle bound, 2 ** (bits - 1)."""
    return bits - 1 - ((number & -number).bit_length() - 1)


def _check(table, trace, note):
    """Check all outputs in all cycles, given the table and the trace."""
    bounds, length = table.mantissas - 1, table.load_length
    words = [None] * (length - bounds)
    loaded = index = 0
    error = False
    seen = {"errors": 0, "loads": 0, "words": 0}
    data, last = (unpack(word_layout(), trace["load__payload"])[name].tolist() for name in ("data", "last"))
    for cycle in range(len(data)):
        now = f"{cycle=}, {note}"
        taken = bool(trace["load__valid"][cycle] and trace["open"][cycle])
        assert trace["load__ready"][cycle] == trace["open"][cycle], now
        assert trace["busy"][cycle] == (loaded > 0), now
        assert trace["error"][cycle] == error, now
        bound = taken and loaded < bounds
        assert trace["write"][cycle] == (1 << _level(loaded + 1, table.mantissa_bits) if bound else 0), now
        if bound:
            assert trace["number"][cycle] == loaded + 1, now
            assert trace["bound"][cycle] == data[cycle] & ((1 << table.compared_bits) - 1), now
        if words:
            assert trace["ends"][cycle] == (index == len(words) - 1), now
            if words[index] is not None:
                assert trace["word"][cycle] == words[index], now
                seen["words"] += 1
            if trace["step"][cycle]:
                index = (index + 1) % len(words)
        error = False
        if taken:
            loaded += 1
            if bounds < loaded <= length:
                words[loaded - 1 - bounds] = data[cycle]
            if last[cycle]:
                error = loaded != length
                seen["errors"] += error
                seen["loads"] += 1
                loaded = 0
    return seen


@pytest.mark.parametrize("source", STALLS)
@tables
def test_lockstep(table, source):
    """Outputs match for loads with too few, enough or too many words, and for steps between loads."""
    cycles, seed = 4_000, STALLS.index(source)
    generator = np.random.default_rng(seed)
    lengths = np.where(generator.random(120) < 0.5, table.load_length,
                       generator.integers(1, 2 * table.load_length + 3, 120))
    loads = [generator.integers(0, 1 << 32, length, dtype=np.uint64) for length in lengths.tolist()]
    opened = stall_array(STALLS[seed - 1], cycles, seed=seed + 4)
    unit = _unit(table)
    unit.reset()
    trace = unit.lockstep(
        sources={"load": Feed(packets.words(loads), stall_array(source, cycles, seed=seed))}, sinks={}, seed=seed,
        inputs={"open": opened, **({"step": (generator.random(cycles) < 0.6) & ~opened} if table.sent else {})})
    seen = _check(table, trace, f"{seed=}")
    assert min(seen["errors"], seen["loads"] - seen["errors"]) > 5
    assert not table.sent or seen["words"] > 300


def _load(table, words, *, cycles=None):
    """Trace of one load at one word per cycle, followed by steps that output the centroids again and again."""
    cycles = cycles or 3 * table.load_length
    opened = np.arange(cycles) < len(words)
    return _unit(table).lockstep(
        sources={"load": Feed(packets.words([words]))}, sinks={}, cycles=cycles,
        inputs={"open": opened, **({"step": ~opened} if table.sent else {})})


@tables
def test_known(table):
    """In a known load, one bound is written per cycle to its level of the search tree.

    After that, the centroids are output repeatedly.
    """
    _unit(table).reset()
    words = np.arange(table.load_length, dtype=np.uint64) + np.uint64(100)
    trace = _load(table, words)
    bounds = table.mantissas - 1
    levels = {8: [2, 1, 2, 0, 2, 1, 2], 16: [3, 2, 3, 1, 3, 2, 3, 0, 3, 2, 3, 1, 3, 2, 3]}[table.mantissas]
    assert trace["write"].tolist() == [*(1 << level for level in levels), *[0] * (len(trace["write"]) - bounds)]
    assert trace["bound"][:bounds].tolist() == list(range(100, 100 + bounds))
    assert np.flatnonzero(trace["busy"]).tolist() == list(range(1, table.load_length))
    assert not trace["error"].any()
    if table.sent:
        after = trace["word"][table.load_length:].tolist()
        expected = words[bounds:].tolist()
        assert after == [expected[n % len(expected)] for n in range(len(after))]


@tables
def test_reset_in_a_load(table):
    """After a reset during a load, loads and centroid output start from the beginning."""
    unit = _unit(table)
    words = np.arange(table.load_length, dtype=np.uint64)
    for cut in (1, table.mantissas, table.load_length + 2):
        unit.reset()
        _load(table, words + np.uint64(77), cycles=cut)
        unit.reset()
        trace = _load(table, words)
        seen = _check(table, trace, f"given={cut!r}")
        assert (seen["loads"], seen["errors"]) == (1, 0), f"given={cut!r}"
