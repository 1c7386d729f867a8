# amaranth: UnusedElaboratable=no
"""Tests of both ends of a link with wires between them, and of a whole hop between neighbouring datapaths."""

import dataclasses
import random

import cocotb
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.depacketizer import Depacketizer
from hdl.ring.header import OVERHEAD_WORDS, expected_layout, header_layout, packet_words
from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.ring.packetizer import Packetizer
from hdl.streams.stream import connect_stream, word_layout
from sim import regression
from sim.golden.packet import ABORT, Header, Refusal
from sim.payload import to_int
from sim.streams import Monitor, Sink, Source, cycles, stalls, start
from tests.hdl.ring.links import PACKET_WORDS, framed, random_packets, starting
from tests.hdl.ring.packets import wait_for

# ---- Both ends of a link, with a long wire between them


class Link(wiring.Component):
    """A transmitter and a receiver that are ``distance`` cycles apart in both directions."""

    def __init__(self, *, segments, packet_words, distance):
        self._segments, self._packet_words, self._distance = segments, packet_words, distance
        word = stream.Signature(word_layout())
        super().__init__({"i": In(word), "o": Out(word), "may_start": Out(1), "overrun": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.transmitter = transmitter = LinkTransmitter(
            segments=self._segments, egress_words=self._packet_words)
        m.submodules.receiver = receiver = LinkReceiver(segments=self._segments, packet_words=self._packet_words)
        connect_stream(m, self.i, transmitter.i)
        connect_stream(m, receiver.o, self.o)
        m.d.comb += [self.may_start.eq(transmitter.may_start), self.overrun.eq(receiver.overrun)]

        def delayed(wire, name):
            for n in range(self._distance):
                previous, wire = wire, Signal.like(wire, name=f"{name}_{n}")
                m.d.sync += wire.eq(previous)
            return wire

        for name in ("valid", "data", "last"):
            m.d.comb += getattr(receiver.ring_i, name).eq(delayed(getattr(transmitter.ring_o, name), name))
        m.d.comb += transmitter.ring_o.credit.eq(delayed(receiver.ring_i.credit, "credit"))
        return m


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def joins_two_nodes(dut):
    """All words arrive in order, and at the full rate if the remaining credits cover the round trip."""
    p = regression.parameters()
    dut.i__valid.value = 0
    await start(dut)
    packets = [[n] * PACKET_WORDS for n in range(40)] if "hidden" in p else random_packets(
        random.Random(p["seed"]), 150)
    beats = framed(packets)
    sink = Sink(dut, "o", word_layout(), stalls=stalls(p["sink"], seed=p["seed"]))
    output = Monitor(dut, "o", word_layout())
    cocotb.start_soon(starting(dut, packets, pattern=stalls(p["source"], seed=p["seed"] + 1)))
    assert await sink.receive(len(beats)) == beats
    assert not dut.overrun.value
    hidden = output.cycles == list(range(output.cycles[0], output.cycles[0] + len(beats)))
    assert hidden == p.get("hidden", hidden)


def check_link(distance, **parameters):
    regression.run(Link(segments=2, packet_words=PACKET_WORDS, distance=distance), module=__name__, name="link",
                   testcase="joins_two_nodes", parameters={"seed": 600, **parameters})


@pytest.mark.parametrize("distance", [1, 16])
@pytest.mark.parametrize("kinds", [("none", "none"), ("geometric", "geometric"), ("none", "freeze")], ids="-".join)
def test_link(distance, kinds):
    check_link(distance, source=kinds[0], sink=kinds[1])


@pytest.mark.parametrize(("distance", "hidden"), [(2, True), (3, False)])
def test_link_rate(distance, hidden):
    """A delay of ``distance`` is hidden by credits only if (segments - 1) * packet_words >= 8 + 2 * distance."""
    check_link(distance, source="none", sink="none", hidden=hidden)


# ---- A whole hop: packetizer, link, depacketizer


class Hop(wiring.Component):
    """All units between the datapaths of two neighbouring nodes, connected by wires of minimum length."""

    def __init__(self):
        word = stream.Signature(word_layout())
        super().__init__({
            "header": In(stream.Signature(header_layout())), "payload": In(word), "give_up": In(1),
            "abort_header": In(header_layout()), "aborted": Out(1),
            "expected": In(stream.Signature(expected_layout())), "o": Out(word), "drain": In(1), "done": Out(1),
            "error": Out(1), "code": Out(8), "abort_seen": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.packetizer = packetizer = Packetizer()
        m.submodules.link = link = Link(segments=2, packet_words=packet_words(64), distance=1)
        m.submodules.depacketizer = depacketizer = Depacketizer()
        for source, sink in ((self.header, packetizer.header), (self.payload, packetizer.payload),
                             (packetizer.o, link.i), (link.o, depacketizer.i),
                             (self.expected, depacketizer.expected), (depacketizer.payload, self.o)):
            connect_stream(m, source, sink)
        m.d.comb += [
            packetizer.may_start.eq(link.may_start), packetizer.give_up.eq(self.give_up),
            packetizer.abort_header.eq(self.abort_header), self.aborted.eq(packetizer.aborted),
            depacketizer.active.eq(1), depacketizer.drain.eq(self.drain),
            *(getattr(self, name).eq(getattr(depacketizer, name))
              for name in ("done", "error", "code", "abort_seen")),
        ]
        return m


HOP_LATENCY = Packetizer.latency + LinkTransmitter.latency + LinkReceiver.latency + Depacketizer.latency


class Ends:
    """Drivers for the inputs of a hop and for its output."""

    @classmethod
    async def begin(cls, dut):
        dut.give_up.value = dut.drain.value = 0
        await start(dut)
        ends = cls()
        ends.sources = [Source(dut, name, layout) for name, layout in (
            ("header", header_layout()), ("payload", word_layout()), ("expected", expected_layout()))]
        ends.sink = Sink(dut, "o", word_layout())
        return ends

    def send(self, payloads):
        """Offer packets, their headers, and the records that the receiver expects."""
        headers = [Header(source=1, destination=2, sequence=n, length=len(words)) for n, words in enumerate(payloads)]
        records = [{name: getattr(header, name) for name, _ in expected_layout()} for header in headers]
        return [cocotb.start_soon(source.send(beats)) for source, beats in zip(
            self.sources, (list(map(dataclasses.asdict, headers)), framed(payloads), records), strict=True)]


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def carries_payloads(dut):
    """Two credits for packets of 70 words hide the distance, so only header and CRC add cycles."""
    ends = await Ends.begin(dut)
    entry, output = Monitor(dut, "payload", word_layout()), Monitor(dut, "o", word_layout())
    payloads = [[n * 64 + k for k in range(64)] for n in range(12)]
    beats = framed(payloads)
    ends.send(payloads)
    assert await ends.sink.receive(len(beats)) == beats
    # Payload words follow the three header words into the packetizer, and the last word of each packet waits for the
    # CRC.
    delays = [out - into for into, out in zip(entry.cycles, output.cycles, strict=True)]
    assert delays == ([HOP_LATENCY + 1] * 63 + [HOP_LATENCY + 2]) * 12
    assert output.cycles[-1] - output.cycles[0] == 12 * 68 - OVERHEAD_WORDS


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def carries_surrender(dut):
    """An ABORT packet at any moment ends the transfer at the neighbour and leaves the link clean."""
    ends = await Ends.begin(dut)
    cocotb.start_soon(ends.sink.receive())
    abort = {**dataclasses.asdict(Header()), "type": ABORT}
    dut.abort_header.value = to_int(header_layout(), abort)
    for moment in range(40):
        tasks = ends.send([[n] * 8 for n in range(4)])
        await cycles(dut, moment)
        dut.give_up.value = 1
        await wait_for(dut, lambda: dut.error.value, "error")
        assert int(dut.code.value) == Refusal.PEER_ABORT
        seen = dut.abort_seen.value
        dut.drain.value = 1
        if not seen:
            await wait_for(dut, lambda: dut.abort_seen.value, "abort_seen")
        await wait_for(dut, lambda: dut.aborted.value, "aborted")
        for task in tasks:
            task.cancel()
        for name in ("header", "payload", "expected"):
            getattr(dut, f"{name}__valid").value = 0
        await cycles(dut, 2)
        dut.give_up.value = dut.drain.value = 0
        await cycles(dut, 2)
        # The transmitter must have both credits back.
        sending = ends.send([[n] for n in range(2)])
        for _ in range(2):
            await wait_for(dut, lambda: dut.done.value, "done")
            await cycles(dut, 1)
        for task in sending:
            await task


def test_hop():
    regression.run(Hop(), module=__name__, name="hop", testcase=["carries_payloads", "carries_surrender"])
