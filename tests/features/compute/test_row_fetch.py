# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import request_layout
from hdl.features.compute.row_fetch import RowFetch, fetch_layout, fetched_layout
from hdl.streams.stream import connect_stream
from sim import formal
from sim.golden.stream import Feed as Offers
from sim.golden.stream import Output, Trace, first_from
from sim.payload import pack, unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.unit_bench import sinks

ROWS, DEPTH, LATENCY = 64, 9, 3
LAYOUTS = fetch_layout(ROWS, 8), fetched_layout(16, 8)


class AnsweredFetch(wiring.Component):
    """A fetch whose requests are answered after some cycles: by a number made of place and row."""

    def __init__(self):
        super().__init__({
            "i": In(stream.Signature(LAYOUTS[0])), "request": Out(stream.Signature(request_layout(ROWS))),
            "o": Out(stream.Signature(LAYOUTS[1]))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.fetch = fetch = RowFetch(rows=ROWS, answer=16, tag=8, depth=DEPTH)
        for source, sink in ((self.i, fetch.i), (fetch.request, self.request), (fetch.o, self.o)):
            connect_stream(m, source, sink)
        valid, answer = self.request.valid & self.request.ready, self.request.p.place * 256 + self.request.p.row
        for stage in range(LATENCY):
            later, number = Signal(name=f"valid_{stage}"), Signal(16, name=f"answer_{stage}")
            m.d.sync += [later.eq(valid), number.eq(answer)]
            valid, answer = later, number
        m.d.comb += [fetch.response.valid.eq(valid), fetch.response.payload.eq(answer)]
        return m


@functools.cache
def _unit():
    return Unit(AnsweredFetch())


def _fetch(reads, *, depth, latency, willing, free, ready):
    """Trace every cycle of the handshakes of a fetch, from reset; ``i_ready`` is set where a row is taken."""
    feed, output, requests = Offers(len(reads), willing), Output(ready), first_from(free)
    departed = []
    i_ready = np.zeros(feed.end, np.bool_)
    accepted = -1
    for number, read in enumerate(reads):
        room = departed[number - depth] + 1 if number >= depth else 0
        room = max(room, accepted + 1)
        wanted = min(max(feed.offered, room), feed.end)
        accepted = requests[wanted] if read else wanted
        if accepted >= feed.end:
            break
        i_ready[accepted] = True
        feed.take(accepted)
        output.load(max(accepted + latency if read else accepted, output.departed))
        departed.append(output.departed)
    return Trace(feed.valid, i_ready, output.offered >= 0, output.offered)


def _run(count, willing, free, ready, *, seed, reads=0.7):
    generator = np.random.default_rng(seed)
    rows = {"place": generator.integers(3, size=count), "row": generator.integers(ROWS, size=count),
            "read": generator.random(count) < reads, "tag": generator.integers(256, size=count)}
    ports = _unit().lockstep(sources={"i": Feed(pack(LAYOUTS[0], rows), willing)},
                             sinks={"request": free, "o": ready}, seed=seed)
    want = _fetch(rows["read"].tolist(), depth=DEPTH, latency=LATENCY, willing=willing, free=free, ready=ready)
    np.testing.assert_array_equal(ports["i__valid"], want.i_valid, f"{seed=}")
    moves = ports["i__valid"] & ports["i__ready"]
    np.testing.assert_array_equal(moves.astype(bool), want.i_ready, f"{seed=}")
    np.testing.assert_array_equal(ports["o__valid"], want.o_valid, f"{seed=}")
    asked = unpack(request_layout(ROWS), ports["request__payload"][
        np.flatnonzero(ports["request__valid"] & ports["request__ready"])])
    read = rows["read"] & (np.arange(count) < np.count_nonzero(moves))
    for name in ("place", "row"):
        np.testing.assert_array_equal(asked[name], rows[name][read], f"{name}, {seed=}")
    offers = np.flatnonzero(want.o_valid)
    index = want.offered[offers]
    got = unpack(LAYOUTS[1], ports["o__payload"][offers])
    np.testing.assert_array_equal(got["tag"], rows["tag"][index], f"{seed=}")
    np.testing.assert_array_equal(got["read"], rows["read"][index], f"{seed=}")
    wanted = np.where(rows["read"], rows["place"] * 256 + rows["row"], 0)[index]
    np.testing.assert_array_equal(got["answer"], wanted, f"{seed=}")
    return want


@pytest.mark.parametrize("source", STALLS)
def test_lockstep(source):
    """Every handshake under stalls on all sides, with answers in order, and rows that are not read among them."""
    for seed, sink in sinks(source):
        willing, free, ready = (stall_array(kind, 4_000, seed=seed + 20 * place, rate=0.7)
                                for place, kind in enumerate((source, STALLS[seed % len(STALLS)], sink)))
        _unit().reset()
        want = _run(300, willing, free, ready, seed=seed)
        assert want.offered.max() == 299


@pytest.mark.parametrize("reads", [0, 1])
def test_throughput(reads):
    """A row per cycle, whether it is read or not."""
    always = np.ones(200, bool)
    _unit().reset()
    want = _run(100, always, always, always, seed=1, reads=reads)
    first = RowFetch.latency + LATENCY * reads
    assert np.flatnonzero(want.o_valid).tolist() == list(range(first, first + 100))


def test_reset():
    """A reset leaves nothing of the rows under way; a memory that is reset with it answers none of them."""
    for cut in (1, 3, 5, 12):
        _run(30, np.ones(cut, bool), np.ones(cut, bool), np.zeros(cut, bool), seed=cut)
        _unit().reset()
        always = np.ones(200, bool)
        _run(30, always, always, always, seed=cut)
        _unit().reset()


def test_offers_stand_for_all_time():
    formal.prove(formal.Offers(AnsweredFetch()), depth=2)
