"""Test both kinds of link ends between two nodes: packets, counters and repairs."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Credits, NodeConfig
from hdl.features.replay.feature import Replay
from hdl.ring.extension import link_class
from hdl.ring.ports import joined
from hdl.streams.stream import connect_stream, word_layout
from tests.hdl import pysim

CONFIGS = {"credits": NodeConfig(segment=32, link=Credits(ingress=2)),
           "replay": NodeConfig(segment=32, link=Replay(ingress=2))}


class Pair(wiring.Component):
    """Link ends of two nodes, joined into a ring by registers; words enter at node 0 and leave at node 1.

    ``damage`` flips wire ``data[0]`` from node 0 for one cycle. ``sent`` and ``received`` count the words and packets
    that node 0 sends and node 1 receives in each cycle.
    """

    def __init__(self, config):
        self._config = config
        word = stream.Signature(word_layout())
        super().__init__({"i": In(word), "o": Out(word), "may_start": Out(1), "reset_link": In(1), "damage": In(1),
                          "sent": Out(2), "received": Out(2), "repairs": Out(6), "overrun": Out(1), "delay": Out(32)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.source = source = link_class(self._config)(config=self._config)
        m.submodules.target = target = link_class(self._config)(config=self._config)
        m.d.sync += [*joined(source.ring_o, target.ring_i), *joined(target.ring_o, source.ring_i),
                     target.ring_i.data.eq(source.ring_o.data ^ self.damage)]
        connect_stream(m, wiring.flipped(self.i), source.i)
        connect_stream(m, target.o, wiring.flipped(self.o))
        m.d.comb += [
            self.may_start.eq(source.may_start), source.reset_link.eq(self.reset_link),
            target.reset_link.eq(self.reset_link), self.sent.eq(source.sent), self.received.eq(target.received),
            self.overrun.eq(target.overrun), self.delay.eq(source.delay),
        ]
        if self._config.link.replay:
            m.d.comb += [self.repairs[:3].eq(source.repairs), self.repairs[3:].eq(target.repairs)]
        return m


def play(config, *, packets, damage=(), cycles=1200):
    """Return the received words, the sums of the counters of both ends, and the sent words.

    Parameters
    ----------
    packets : list of list of int
    damage : collection of int
        Cycles when a wire is flipped, counted from when the first word is offered. The link accepts this word 65
        cycles later.
    """
    pair = Pair(config)
    words = [(word, n == len(packet) - 1) for packet in packets for n, word in enumerate(packet)]
    got, totals = [], dict.fromkeys(("sent", "packets sent", "received", "packets received", "restarts", "repeated",
                                     "failed"), 0)

    async def bench(context):
        context.set(pair.o.ready, 1)
        first, index, begun = True, 0, None
        for cycle in range(cycles):
            offer = index < len(words) and (not first or context.get(pair.may_start))
            if offer and begun is None:
                begun = cycle
            context.set(pair.damage, begun is not None and cycle - begun in damage)
            context.set(pair.i.valid, offer)
            if offer:
                context.set(pair.i.p.data, words[index][0])
                context.set(pair.i.p.last, words[index][1])
            taken = offer and context.get(pair.i.ready)
            for name, value, bit in (("sent", pair.sent, 0), ("packets sent", pair.sent, 1),
                                     ("received", pair.received, 0), ("packets received", pair.received, 1),
                                     ("restarts", pair.repairs, 0), ("repeated", pair.repairs, 1),
                                     ("failed", pair.repairs, 5)):
                totals[name] += context.get(value) >> bit & 1
            if context.get(pair.o.valid):
                got.append((context.get(pair.o.p.data), bool(context.get(pair.o.p.last))))
            if taken:
                first = words[index][1]
                index += 1
            await context.tick()
        assert not context.get(pair.overrun)
        totals["delay"] = context.get(pair.delay)

    pysim.simulate(pair, bench)
    return got, totals, words


@pytest.mark.parametrize("kind", CONFIGS)
def test_packets(kind):
    """All words arrive in order, and are counted once at each end."""
    generator = np.random.default_rng(1)
    packets = [[int(word) for word in generator.integers(0, 1 << 32, generator.integers(2, 30))] for _ in range(9)]
    received, totals, words = play(CONFIGS[kind], packets=packets)
    assert received == words
    assert totals == {"sent": len(words), "packets sent": 9, "received": len(words), "packets received": 9,
                      "restarts": 0, "repeated": 0, "failed": 0, "delay": int(kind == "replay")}


def test_repairs():
    """Damaged words are resent but counted only once."""
    packets = [list(range(100 * n, 100 * n + 25)) for n in range(6)]
    received, totals, words = play(CONFIGS["replay"], packets=packets, damage={75, 76, 120})
    assert received == words
    assert [totals[name] for name in ("sent", "packets sent", "received", "packets received")] == [150, 6, 150, 6]
    assert totals["restarts"] == totals["failed"] == 2
    assert 50 < totals["repeated"] < 80
