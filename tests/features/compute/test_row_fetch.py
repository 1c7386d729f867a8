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
from sim.golden.stream import Feed, Output, Trace, first_from
from sim.payload import pack
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers

ROWS, DEPTH, LATENCY = 64, 9, 3
LAYOUTS = fetch_layout(ROWS, 8), fetched_layout(16, 8)


class AnsweredFetch(wiring.Component):
    """Row fetch with a memory stub that answers each request with a number derived from its memory and row."""

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


def _fetch(reads, *, depth, latency, willing, free, ready):
    """Trace a row fetch's handshakes after a reset; ``i_ready`` is set only when a row is accepted."""
    feed, output, requests = Feed(len(reads), willing), Output(ready), first_from(free)
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


def _drive(generator, count=300, reads=0.7):
    rows = {"place": generator.integers(3, size=count), "row": generator.integers(ROWS, size=count),
            "read": generator.random(count) < reads, "tag": generator.integers(256, size=count)}
    return Drive({"i": pack(LAYOUTS[0], rows)}, rows)


def _model(unit, rows, willing, ready):
    read = rows["read"]
    trace = _fetch(read.tolist(), depth=DEPTH, latency=LATENCY, willing=willing["i"], free=ready["request"],
                   ready=ready["o"])
    answers = np.where(read, rows["place"] * 256 + rows["row"], 0)
    want = Want.of(trace, pack(LAYOUTS[1], {"answer": answers, "tag": rows["tag"], "read": read}))
    want.ports["i__ready"] = trace.i_ready, trace.i_valid
    want.beats["request"] = pack(request_layout(ROWS), {name: rows[name][read] for name in ("place", "row")})
    return want


BENCH = UnitBench(AnsweredFetch, _model, _drive, rate=0.7)
test_lockstep = BENCH.lockstep(count=4_000)
test_reset = BENCH.resets([()], (1, 3, 5, 12), count=2_000, drive=functools.partial(_drive, count=30))
test_offers_stand_for_all_time = offers(AnsweredFetch, depth=2)


@pytest.mark.parametrize("reads", [0, 1])
def test_throughput(reads):
    """One row is delivered per cycle, whether or not it is read from memory."""
    run = BENCH.check(drive=_drive(np.random.default_rng(1), count=100, reads=reads))
    first = RowFetch.latency + LATENCY * reads
    assert run.moves().tolist() == list(range(first, first + 100))
