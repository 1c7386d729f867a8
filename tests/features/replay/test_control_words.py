# amaranth: UnusedElaboratable=no
"""Tests of control words on a ring of links with replay: hdl/features/replay/control_words.py."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring

from hdl.config import NodeConfig
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.programs.feature import Programs
from hdl.features.replay.control_hub import ControlHub
from hdl.features.replay.control_words import ControlWords, units
from hdl.features.replay.feature import Replay
from hdl.features.replay.keepalive import KeepAlive
from hdl.features.replay.link_ends import ReplayEnds
from hdl.features.replay.receiver import ReplayReceiver
from hdl.features.replay.transmitter import ReplayTransmitter
from hdl.features.slots.feature import JobSlots, Slots
from hdl.ring.ports import joined
from hdl.streams.stream import connect_stream
from tests.hdl import pysim
from tests.refusals import refuses

CONFIG = NodeConfig(segment=32, link=Replay(ingress=2), programs=Programs())
NODES = 3

#: Latency in cycles of a control word from node to node over one-cycle wires: it is forwarded, sent and received like
#: a packet word, but bypasses the receiver's packet queue.
HOP = ControlWords.latency + ReplayTransmitter.latency + ReplayReceiver.latency - 2 + 1


class Ring(wiring.Component):
    """Control word units and links of all nodes of a ring; ``damage`` flips a wire from node 0 to node 1."""

    def __init__(self):
        self.words = [ControlWords(config=CONFIG) for _ in range(NODES)]
        self.damage, self.reset_link = Signal(), Signal()
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        links = [ReplayEnds(config=CONFIG) for _ in range(NODES)]
        for n, (words, link) in enumerate(zip(self.words, links, strict=True)):
            m.submodules[f"words_{n}"], m.submodules[f"link_{n}"] = words, link
            connect_stream(m, words.o, link.control_i)
            connect_stream(m, link.control_o, words.i)
            m.d.sync += joined(link.ring_o, links[(n + 1) % NODES].ring_i)
            m.d.comb += [link.reset_link.eq(self.reset_link), words.reset_link.eq(self.reset_link),
                         link.o.ready.eq(1)]
        m.d.sync += links[1].ring_i.data.eq(links[0].ring_o.data ^ self.damage << 13)
        return m


def simulate(bench):
    ring = Ring()
    async def settled(ctx):
        for rank, words in enumerate(ring.words):
            ctx.set(words.signals.place, {"rank": rank, "size": NODES})
            ctx.set(words.signals.of_queue, 1)
        await ctx.tick().repeat(100)  # time for the links to start
        await bench(ctx, ring)

    pysim.simulate(ring, settled)


async def told(ctx, ring, count, *, damage=()):
    """Return the cycle in which each node except 0 learns that queue 1 of node 0 has run ``count`` commands."""
    known = {}
    for cycle in range(400):
        ctx.set(ring.damage, cycle in damage)
        for rank, words in enumerate(ring.words[1:], 1):
            if rank not in known and ctx.get(words.signals.current) and ctx.get(words.signals.count) == count:
                known[rank] = cycle
        if len(known) == NODES - 1:
            return [known[rank] for rank in range(1, NODES)]
        await ctx.tick()
    raise AssertionError(known)


def test_counts():
    """Counts advance one hop per node, damaged words are repeated, and a link reset clears all counts."""
    async def bench(ctx, ring):
        for words in ring.words:
            ctx.set(words.signals.run, 1)
        await ctx.tick().repeat(4 * NODES * HOP)  # time for all nodes to report the start of the run
        ctx.set(ring.words[0].signals.done, [0, 1])
        first, second = await told(ctx, ring, 1)
        assert second - first == HOP
        await ctx.tick().repeat(3 * NODES * HOP)
        ctx.set(ring.words[0].signals.done, [0, 2])
        late = await told(ctx, ring, 2, damage=range(3, 12))
        assert late[0] > first + 20
        assert late[1] - late[0] == HOP
        # Counts reported for the previous run are ignored.
        for words in ring.words:
            ctx.set(words.signals.run, 2)
            ctx.set(words.signals.done, [0, 0])
        await ctx.tick().repeat(3 * NODES * HOP)
        assert [ctx.get(words.signals.count) for words in ring.words] == [0] * NODES
        ctx.set(ring.words[0].signals.done, [5, 6])
        await told(ctx, ring, 6)
        ctx.set(ring.reset_link, 1)
        for words in ring.words:
            ctx.set(words.signals.run, 0)
        await ctx.tick().repeat(20)
        ctx.set(ring.reset_link, 0)
        await ctx.tick().repeat(200)
        for run in (0, 2):
            ctx.set(ring.words[1].signals.run, run)
            await ctx.tick().repeat(4)
            assert not ctx.get(ring.words[1].signals.current)

    simulate(bench)


def test_alive():
    """Once per period of a working node, every node receives one KEEPALIVE, and the working node receives it last."""
    async def bench(ctx, ring):
        ctx.set(ring.words[1].signals.at_work, 1)
        heard = [[], [], []]
        for cycle in range(KeepAlive.period + 100):
            for rank, words in enumerate(ring.words):
                if ctx.get(words.signals.alive):
                    heard[rank].append(cycle)
            await ctx.tick()
        # A KEEPALIVE takes as long as a SIGNAL because it passes through a register in its unit and one in the hub.
        (second,), (third,), (first,) = heard
        assert KeepAlive.period < first < KeepAlive.period + HOP + 2
        assert second - first == third - second == KeepAlive.latency + ControlHub.latency + HOP - ControlWords.latency

    simulate(bench)


def test_units():
    """Each type of control word belongs to one unit, and a unit requires links that support its types."""
    names = {link: [unit.name for unit in units(CONFIG.replace(link=link, stub=ComputeStub(quorum=quorum)))]
             for link, quorum in ((Replay(), True), (Slots(messages=True), False), (JobSlots(), False))}
    assert names == {Replay(): ["relay", "keepalive", "rounds"], JobSlots(): ["rooms", "clock"],
                     Slots(messages=True): ["relay", "keepalive", "records", "clock", "places"]}
    refuses("Node with control words must have replay and two queues", ControlWords, config=NodeConfig(link=Replay()))
