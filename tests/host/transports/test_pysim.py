"""Links of rings that are simulated in Python: latency, direction, and the order of words and credits."""

import numpy as np
import pytest
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.link import LinkSignature
from hdl.streams.stream import word_layout
from host.transports.pysim import PysimRing


class Stopwatch(wiring.Component):
    """Node that sends the current time for each host word, and reports the age of each word that arrives.

    For each arrival it sends a packet of one word: bit 31 distinguishes words from credits, bit 30 is the word's
    ``last`` flag, and the other bits are the number of cycles since that word, or for a credit since the latest word,
    was sent.
    """

    host_i: In(stream.Signature(word_layout()))
    host_o: Out(stream.Signature(word_layout()))
    ring_i: In(LinkSignature())
    ring_o: Out(LinkSignature())

    def elaborate(self, platform):
        m = Module()
        time = Signal(32)
        sent = Signal(32)
        m.d.sync += time.eq(time + 1)
        m.d.comb += [
            self.host_i.ready.eq(1),
            self.ring_o.valid.eq(self.host_i.valid),
            self.ring_o.data.eq(time),
            self.ring_o.last.eq(self.host_i.payload.last),
            self.ring_i.credit.eq(self.ring_i.valid),
        ]
        with m.If(self.host_i.valid):
            m.d.sync += sent.eq(time)
        m.d.sync += [
            self.host_o.valid.eq(self.ring_i.valid | self.ring_o.credit),
            self.host_o.payload.last.eq(1),
            self.host_o.payload.data.eq(Mux(
                self.ring_i.valid, 1 << 31 | self.ring_i.last << 30 | time - self.ring_i.data, time - sent)),
        ]
        return m


def ages(ring, node):
    """Return all packets received from a node, as pairs of flags and age."""
    result = []
    while (packet := ring.receive(node)) is not None:
        result.append((int(packet[0]) >> 30, int(packet[0]) & 0x3FFFFFFF))
    return result


@pytest.mark.parametrize("latency", [1, 2, 16])
def test_latency(latency):
    ring = PysimRing(Stopwatch, nodes=3, latency=latency)
    for _ in range(2):
        ring.send(1, np.array([7], np.uint32))
        assert ring.run(1_000, until_packet_at=2) <= 48
        ring.run(100)
        assert ages(ring, 2) == [(0b11, latency)]
        assert ages(ring, 1) == [(0b00, 2 * latency)]
        assert ages(ring, 0) == []


@pytest.mark.parametrize("cycles", [0, 1, 20, 37, 300])
def test_reset(cycles):
    """A reset drops all words, whether waiting, in transit or delivered, and restores the initial state."""
    ring = PysimRing(Stopwatch, nodes=2, latency=9)
    ring.send(0, np.arange(20, dtype=np.uint32))
    ring.run(cycles)
    ring.reset()
    fresh = PysimRing(Stopwatch, nodes=2, latency=9)
    for current in (ring, fresh):
        assert current.cycle == 0
        current.send(1, np.arange(3, dtype=np.uint32))
        current.run(100)
    assert [ages(ring, node) for node in range(2)] == [ages(fresh, node) for node in range(2)]
    assert ring.describe() == fresh.describe()


def test_nothing_is_lost():
    ring = PysimRing(Stopwatch, nodes=2, latency=5)
    ring.send(0, np.arange(9, dtype=np.uint32))
    ring.send(0, np.arange(1, dtype=np.uint32))
    ring.run(50)
    assert ages(ring, 1) == [(0b10, 5)] * 8 + [(0b11, 5)] * 2
    assert len(ages(ring, 0)) == 10


def test_run_stops_where_it_is_told():
    ring = PysimRing(Stopwatch, nodes=1, latency=1)
    assert ring.run(100) == 100
    assert ring.run(7) == 7
    assert ring.cycle == 107
    assert ring.run(33, until_packet_at=0) == 33
    message = r"Node 0 gave no response within 10 cycles\ncycle 150\nnode 0: 0 words wait to go in, 0 whole packets"
    with pytest.raises(TimeoutError, match=message):
        ring.transports[0].receive(10)
    with pytest.raises(ValueError, match=r"Packet must be one sequence of at least one word, not of shape \(0,\)"):
        ring.send(0, np.empty(0, np.uint32))
