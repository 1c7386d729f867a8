# amaranth: UnusedElaboratable=no
"""Queue that stamps packets to detect stale rows: hdl/features/reproducible/stamped_queue.py."""

import numpy as np
import pytest
from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import wiring

from hdl.features.reproducible.stamped_queue import STAMP, StampedQueue
from hdl.streams.stream import Queue, connect_stream
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers

DEPTH = 17
#: Number of rows after which the faulty queue repeats old rows.
FAULT = 30


class StaleQueue(wiring.Component):
    """Faulty queue that starts correctly, and then outputs, instead of each row, the row ``lag`` rows before it."""

    def __init__(self, queue, lag):
        self._queue, self._lag = queue, lag
        super().__init__({name: queue.signature.members[name] for name in ("i", "o")})

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = self._queue
        connect_stream(m, self.i, queue.i)
        connect_stream(m, queue.o, self.o)
        rows = Array(Signal(queue.o.payload.shape(), name=f"row_{number}") for number in range(self._lag))
        count, index = Signal(range(FAULT + 1)), Signal(range(self._lag))
        m.d.comb += self.o.payload.eq(Mux(count == FAULT, rows[index], queue.o.payload))
        with m.If(queue.o.valid & queue.o.ready):
            m.d.sync += [rows[index].eq(queue.o.payload), index.eq(Mux(index == self._lag - 1, 0, index + 1))]
            with m.If(count != FAULT):
                m.d.sync += count.eq(count + 1)
        return m


class FaultyStampedQueue(StampedQueue):
    def __init__(self, *, depth, lag):
        super().__init__(depth=depth)
        self._lag = lag

    def _queue(self, shape):
        return StaleQueue(super()._queue(shape), self._lag)


def _drive(generator, depth):
    words = [generator.integers(0, 1 << 32, count, dtype=np.uint32)
             for count in (1, 1, 40, 2, *generator.integers(1, 20, 40))]
    return Drive({"i": packets.words(words)}, words, cycles=60 * sum(map(len, words)))


def _model(_, words, willing, ready):
    return Want({"wrong": np.zeros(len(ready["o"]), np.uint8)}, {"o": packets.words(words)})


BENCH = UnitBench(lambda depth: StampedQueue(depth=depth), _model, _drive)
test_packets = BENCH.lockstep([(DEPTH,)])
test_resets = BENCH.resets([(DEPTH,)], (1, 7, 40))
test_offers = offers(lambda: StampedQueue(depth=4), depth=6)


def test_latency_and_capacity():
    """The stamped queue has the same latency and capacity as a plain queue in block memory."""
    run = BENCH.check((DEPTH,))
    count = len(run.drive.beats["i"])
    latency = Queue(shape=1, depth=DEPTH, block=True).latency
    assert run.moves("i").tolist() == list(range(count))
    assert run.moves("o").tolist() == list(range(latency, latency + count))
    unit = BENCH.unit(DEPTH)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(run.drive.beats["i"])}, sinks={"o": False}, cycles=50)
    assert (trace["i__valid"] & trace["i__ready"]).sum() == DEPTH


@pytest.mark.parametrize("lag", [2, 4, DEPTH])
def test_repeated_rows(lag):
    """If rows of an earlier packet are read again, the queue outputs at most one of them, and then nothing more."""
    unit = Unit(FaultyStampedQueue(depth=DEPTH, lag=lag))
    for size in (1, 2, 3, 5, 16):
        unit.reset()
        words = [np.arange(first, first + size, dtype=np.uint32) for first in range(0, 120, size)]
        trace = unit.lockstep(sources={"i": Feed(packets.words(words))}, sinks={"o": True}, cycles=200)
        moved = trace["o__payload"][(trace["o__valid"] & trace["o__ready"]).astype(bool)] & 0xFFFF_FFFF
        right = np.arange(len(moved))
        stale = np.flatnonzero((moved // size - right // size) % (1 << STAMP))
        if lag >= size or FAULT % size < lag:
            assert stale.tolist() == [len(moved) - 1]
            assert moved[-1] == right[-1] - lag
            assert not trace["o__valid"][np.argmax(trace["wrong"]):].any()
            assert trace["wrong"][-1]
