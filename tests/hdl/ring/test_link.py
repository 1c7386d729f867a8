# amaranth: UnusedElaboratable=no
import dataclasses
import itertools
import random
from collections import deque

import cocotb
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import FallingEdge, RisingEdge

from hdl.ring.depacketizer import Depacketizer
from hdl.ring.header import OVERHEAD_WORDS, expected_layout, header_layout, packet_words
from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.ring.packetizer import Packetizer
from hdl.streams.stream import connect_stream, word_layout
from sim import regression
from sim.golden.packet import ABORT, Header, Refusal
from sim.payload import to_int
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stalls, start

PATIENCE = 20_000
SEGMENTS = 3
PACKET_WORDS = 13


def random_packets(generator, count, *, longest=PACKET_WORDS):
    """No packet is shorter than a stomped one: a header word and a trailer."""
    return [
        [generator.getrandbits(32) for _ in range(generator.choice([2, 4, longest, generator.randint(2, longest)]))]
        for _ in range(count)
    ]


def framed(packets):
    return [{"data": word, "last": int(n == len(words) - 1)} for words in packets for n, word in enumerate(words)]


async def wait_for(dut, condition, what):
    edge = RisingEdge(dut.clk)
    for _ in range(PATIENCE):
        if condition():
            return
        await edge
    raise AssertionError(f"Not within {PATIENCE} cycles: {what}")


class Wires:
    """What passes on the wires of a link: words and credits, with their cycles."""

    def __init__(self, dut, name):
        self.beats, self.cycles, self.credits = [], [], []
        self.cycle = 0
        self._edge = FallingEdge(dut.clk)
        self._ports = [getattr(dut, f"{name}__{wire}") for wire in ("valid", "data", "last", "credit")]
        cocotb.start_soon(self._watch())

    async def _watch(self):
        valid, word, last, credit = self._ports
        for self.cycle in itertools.count():
            await self._edge
            if valid.value:
                self.beats.append({"data": int(word.value), "last": int(last.value)})
                self.cycles.append(self.cycle)
            if credit.value:
                self.credits.append(self.cycle)


# ---- Transmitter


async def starting(dut, packets, *, pattern):
    """Offer packets as the transmitter wants them: the first word only while may_start is high."""
    edge = RisingEdge(dut.clk)
    valid, ready, payload = dut.i__valid, dut.i__ready, dut.i__payload
    for words in packets:
        for n, beat in enumerate(framed([words])):
            while not next(pattern) or (n == 0 and not dut.may_start.value):
                valid.value = 0
                await edge
            valid.value = 1
            payload.value = beat["data"] | beat["last"] << 32
            await edge
            while not ready.value:
                await edge
    valid.value = 0


async def peer(dut, *, lag, held):
    """A receiver that returns each credit some time after the last word, but for the last ``held`` ones."""
    edge = RisingEdge(dut.clk)
    due = deque()
    for cycle in itertools.count():
        await edge
        dut.ring_o__credit.value = 0
        if dut.ring_o__valid.value and dut.ring_o__last.value:
            due.append(cycle + next(lag))
        if len(due) > held[0] and due[0] <= cycle:
            due.popleft()
            dut.ring_o__credit.value = 1


async def reset_transmitter(dut):
    dut.reset_link.value = dut.i__valid.value = dut.ring_o__credit.value = 0
    await start(dut)
    await cycles(dut, 1)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def sends_on_credit(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await reset_transmitter(dut)
    wires = Wires(dut, "ring_o")
    cocotb.start_soon(peer(dut, lag=iter(lambda: generator.randrange(60), None), held=[0]))
    packets = random_packets(generator, 120)
    balance = []

    async def account():
        edge = FallingEdge(dut.clk)
        started = returned = 0
        first = True
        while True:
            await edge
            balance.append((int(dut.credits.value), SEGMENTS - started + returned))
            assert int(dut.may_start.value) == (balance[-1][0] != 0)
            if dut.i__valid.value and dut.i__ready.value:
                started += first
                first = int(dut.i__payload.value) >> 32
            returned += int(dut.ring_o__credit.value)

    cocotb.start_soon(account())
    await starting(dut, packets, pattern=stalls(p["stalls"], seed=p["seed"]))
    await wait_for(dut, lambda: len(wires.beats) == sum(map(len, packets)), "all words sent")
    assert wires.beats == framed(packets)
    assert all(credits == model for credits, model in balance)
    assert {credits for credits, _ in balance} == set(range(SEGMENTS + 1))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def sends_a_word_per_cycle(dut):
    await reset_transmitter(dut)
    wires = Wires(dut, "ring_o")
    entry = Monitor(dut, "i", word_layout())
    cocotb.start_soon(peer(dut, lag=itertools.repeat(5), held=[0]))
    packets = random_packets(random.Random(1), 20, longest=40)
    packets = [words for words in packets if len(words) > 4]
    await starting(dut, packets, pattern=itertools.repeat(True))
    await cycles(dut, LinkTransmitter.latency + 1)
    assert wires.beats == framed(packets)
    offset = wires.cycles[0] - entry.cycles[0]
    assert offset == LinkTransmitter.latency
    assert wires.cycles == list(range(wires.cycles[0], wires.cycles[0] + len(wires.beats)))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def spends_no_more_than_it_has(dut):
    """And takes no more than there are: a credit that was never given is ignored."""
    await reset_transmitter(dut)
    held = [99]
    cocotb.start_soon(peer(dut, lag=itertools.repeat(0), held=held))
    wires = Wires(dut, "ring_o")
    sending = cocotb.start_soon(starting(dut, [[1, 2]] * (SEGMENTS + 2), pattern=itertools.repeat(True)))
    await cycles(dut, 60)
    assert len(wires.beats) == 2 * SEGMENTS
    assert int(dut.credits.value) == 0
    held[0] = 0
    await sending
    await cycles(dut, 20)
    assert len(wires.beats) == 2 * (SEGMENTS + 2)
    assert int(dut.credits.value) == SEGMENTS
    edge = RisingEdge(dut.clk)
    for _ in range(3):
        dut.ring_o__credit.value = 1
        await edge
    dut.ring_o__credit.value = 0
    await cycles(dut, 2)
    assert int(dut.credits.value) == SEGMENTS


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def drops_all_when_the_link_is_reset(dut):
    for moment in range(1, 20):
        await reset_transmitter(dut)
        wires = Wires(dut, "ring_o")
        sending = cocotb.start_soon(starting(dut, [[1] * 6] * SEGMENTS, pattern=itertools.repeat(True)))
        await cycles(dut, moment)
        dut.reset_link.value = 1
        await cycles(dut, 2)
        assert not dut.may_start.value
        assert dut.i__ready.value
        # What the queue holds is not sent while the reset is held.
        for _ in range(4):
            assert not dut.ring_o__valid.value
            await cycles(dut, 1)
        sending.cancel()
        dut.i__valid.value = 0
        assert not dut.ring_o__valid.value
        dut.reset_link.value = 0
        await cycles(dut, 2)
        assert int(dut.credits.value) == SEGMENTS
        wires.beats.clear()
        await starting(dut, [[7, 8, 9]], pattern=itertools.repeat(True))
        await cycles(dut, 8)
        assert wires.beats == framed([[7, 8, 9]])
        assert int(dut.credits.value) == SEGMENTS - 1


def transmitter():
    return LinkTransmitter(segments=SEGMENTS, egress_words=PACKET_WORDS)


@pytest.mark.parametrize("kind", STALLS)
def test_transmitter(kind):
    regression.run(transmitter(), module=__name__, name="link_transmitter", testcase="sends_on_credit",
                   parameters={"stalls": kind, "seed": 400 + STALLS.index(kind)})


def test_transmitter_timing():
    regression.run(transmitter(), module=__name__, name="link_transmitter", testcase=[
        "sends_a_word_per_cycle", "spends_no_more_than_it_has", "drops_all_when_the_link_is_reset",
    ])


# ---- Receiver


class Sender:
    """The peer of a receiver: keeps to its credit, unless it is told not to."""

    def __init__(self, dut):
        self.dut = dut
        self.credits = SEGMENTS
        self.wires = Wires(dut, "ring_i")
        dut.ring_i__valid.value = dut.reset_link.value = 0
        cocotb.start_soon(self._count())

    async def _count(self):
        edge = RisingEdge(self.dut.clk)
        while True:
            await edge
            self.credits += int(self.dut.ring_i__credit.value)

    async def send(self, packets, *, pattern=None, obey=True):
        edge = RisingEdge(self.dut.clk)
        pattern = itertools.repeat(True) if pattern is None else pattern
        dut = self.dut
        for words in packets:
            while obey and not self.credits:
                await edge
            self.credits -= obey
            for beat in framed([words]):
                while not next(pattern):
                    await edge
                dut.ring_i__valid.value = 1
                dut.ring_i__data.value = beat["data"]
                dut.ring_i__last.value = beat["last"]
                await edge
                dut.ring_i__valid.value = 0


async def reset_receiver(dut):
    dut.o__ready.value = 0
    await start(dut)
    sender = Sender(dut)
    await cycles(dut, 1)
    return sender


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def keeps_packets(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    sender = await reset_receiver(dut)
    sink = Sink(dut, "o", word_layout(), stalls=stalls(p["sink"], seed=p["seed"]))
    output, wires = Monitor(dut, "o", word_layout()), Wires(dut, "ring_i")
    packets = random_packets(generator, 100)
    beats = framed(packets)
    levels = []

    async def account():
        edge = FallingEdge(dut.clk)
        while True:
            await edge
            levels.append((int(dut.level.value), int(dut.packets.value)))

    cocotb.start_soon(account())
    cocotb.start_soon(sender.send(packets, pattern=stalls(p["source"], seed=p["seed"] + 1)))
    assert await sink.receive(len(beats)) == output.beats == beats
    await cycles(dut, 3)
    ends = [cycle for cycle, beat in zip(output.cycles, output.beats, strict=True) if beat["last"]]
    assert wires.credits == [end + 1 for end in ends]
    assert (int(dut.level.value), int(dut.packets.value), int(dut.overrun.value)) == (0, 0, 0)
    if p["source"] == "none" and p["sink"] != "none":
        assert max(count for _, count in levels) == SEGMENTS


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def receives_a_word_per_cycle(dut):
    sender = await reset_receiver(dut)
    sink = Sink(dut, "o", word_layout())
    output, wires = Monitor(dut, "o", word_layout()), Wires(dut, "ring_i")
    packets = [[n] * PACKET_WORDS for n in range(10)]
    receiving = cocotb.start_soon(sink.receive(len(framed(packets))))
    await cycles(dut, 2)
    await sender.send(packets)
    assert await receiving == framed(packets)
    assert wires.cycles == list(range(wires.cycles[0], wires.cycles[0] + len(framed(packets))))
    assert output.cycles == [cycle + LinkReceiver.latency for cycle in wires.cycles]


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def survives_a_peer_without_credit(dut):
    sender = await reset_receiver(dut)
    sink = Sink(dut, "o", word_layout())
    stored = [[n, *range(PACKET_WORDS - 1)] for n in range(SEGMENTS)]
    await sender.send(stored)
    assert not dut.overrun.value
    await sender.send([[99]], obey=False)
    await cycles(dut, 1)
    assert dut.overrun.value
    await sender.send([[98] * 30, [97] * PACKET_WORDS], obey=False)
    await cycles(dut, 1)
    assert dut.overrun.value
    assert int(dut.packets.value) == SEGMENTS
    assert await sink.receive(len(framed(stored))) == framed(stored)
    await cycles(dut, 4)
    assert len(sender.wires.credits) == SEGMENTS
    assert int(dut.level.value) == 0
    # Room has been made in the middle of a packet that came without credit: its rest is not taken for a packet.
    await sender.send(stored)
    sending = cocotb.start_soon(sender.send([[96] * 20], obey=False))
    await cycles(dut, 3)
    assert await sink.receive(len(framed(stored))) == framed(stored)
    await sending
    await cycles(dut, 4)
    assert int(dut.level.value) == 0
    await sender.send([[1, 2, 3]])
    assert await sink.receive(3) == framed([[1, 2, 3]])
    assert dut.overrun.value
    dut.reset_link.value = 1
    await cycles(dut, 2)
    assert not dut.overrun.value


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def cuts_packets_that_are_too_long(dut):
    sender = await reset_receiver(dut)
    sink = Sink(dut, "o", word_layout())
    await sender.send([list(range(PACKET_WORDS))])
    assert not dut.overrun.value
    await sender.send([list(range(100)), [5, 6]])
    assert dut.overrun.value
    due = framed([list(range(PACKET_WORDS)), list(range(PACKET_WORDS)), [5, 6]])
    assert await sink.receive(len(due)) == due
    await cycles(dut, 4)
    assert (int(dut.level.value), len(sender.wires.credits)) == (0, 3)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def forgets_all_when_the_link_is_reset(dut):
    for moment in range(1, 30):
        sender = await reset_receiver(dut)
        sending = cocotb.start_soon(sender.send([[1] * 8] * SEGMENTS))
        if moment % 2:
            dut.o__ready.value = 1
        await cycles(dut, moment)
        dut.reset_link.value = 1
        await cycles(dut, 2)
        credits = len(sender.wires.credits)
        await cycles(dut, 40)
        await sending
        assert not dut.o__valid.value
        assert (int(dut.level.value), int(dut.packets.value)) == (0, 0)
        assert len(sender.wires.credits) == credits
        dut.reset_link.value = 0
        sender.credits = SEGMENTS
        dut.o__ready.value = 0
        await cycles(dut, 2)
        sink = Sink(dut, "o", word_layout())
        cocotb.start_soon(sender.send([[moment, 2], [3]]))
        assert await sink.receive(3) == framed([[moment, 2], [3]])


def receiver():
    return LinkReceiver(segments=SEGMENTS, packet_words=PACKET_WORDS)


@pytest.mark.parametrize("kinds", [("none", "none"), ("none", "geometric"), ("geometric", "none"), ("none", "freeze"),
                                   ("geometric", "alternating")], ids="-".join)
def test_receiver(kinds):
    regression.run(receiver(), module=__name__, name="link_receiver", testcase="keeps_packets",
                   parameters={"source": kinds[0], "sink": kinds[1], "seed": 500})


def test_receiver_timing():
    regression.run(receiver(), module=__name__, name="link_receiver", testcase=[
        "receives_a_word_per_cycle", "survives_a_peer_without_credit", "cuts_packets_that_are_too_long",
        "forgets_all_when_the_link_is_reset",
    ])


# ---- Both ends, with a long wire between them


class Link(wiring.Component):
    """A transmitter and a receiver, ``distance`` cycles apart in both directions."""

    def __init__(self, *, segments, packet_words, distance):
        self._segments = segments
        self._packet_words = packet_words
        self._distance = distance
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(word_layout())),
            "may_start": Out(1),
            "overrun": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.transmitter = transmitter = LinkTransmitter(
            segments=self._segments, egress_words=self._packet_words
        )
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
    p = regression.parameters()
    dut.i__valid.value = 0
    await start(dut)
    generator = random.Random(p["seed"])
    packets = random_packets(generator, 150)
    beats = framed(packets)
    sink = Sink(dut, "o", word_layout(), stalls=stalls(p["sink"], seed=p["seed"]))
    cocotb.start_soon(starting(dut, packets, pattern=stalls(p["source"], seed=p["seed"] + 1)))
    assert await sink.receive(len(beats)) == beats
    assert not dut.overrun.value


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def hides_the_distance(dut):
    """Full rate, if the other packets on credit are as long as the way there and back."""
    dut.i__valid.value = 0
    await start(dut)
    packets = [[n] * PACKET_WORDS for n in range(40)]
    beats = framed(packets)
    sink = Sink(dut, "o", word_layout())
    output = Monitor(dut, "o", word_layout())
    cocotb.start_soon(starting(dut, packets, pattern=itertools.repeat(True)))
    assert await sink.receive(len(beats)) == beats
    hidden = output.cycles == list(range(output.cycles[0], output.cycles[0] + len(beats)))
    assert hidden == regression.parameters()["hidden"]


@pytest.mark.parametrize("distance", [1, 16])
@pytest.mark.parametrize("kinds", [("none", "none"), ("geometric", "geometric"), ("none", "freeze")], ids="-".join)
def test_link(distance, kinds):
    regression.run(Link(segments=2, packet_words=PACKET_WORDS, distance=distance), module=__name__, name="link",
                   testcase="joins_two_nodes", parameters={"source": kinds[0], "sink": kinds[1], "seed": 600})


@pytest.mark.parametrize(("distance", "hidden"), [(2, True), (3, False)])
def test_link_rate(distance, hidden):
    """Credits hide the distance if (segments - 1) * packet_words >= 8 + 2 * distance, and not otherwise."""
    regression.run(Link(segments=2, packet_words=PACKET_WORDS, distance=distance), module=__name__, name="link",
                   testcase="hides_the_distance", parameters={"hidden": hidden})


# ---- A whole hop: packetizer, link, depacketizer


class Hop(wiring.Component):
    """What is between the datapaths of two neighbours, with the shortest wires."""

    def __init__(self):
        super().__init__({
            "header": In(stream.Signature(header_layout())),
            "payload": In(stream.Signature(word_layout())),
            "give_up": In(1),
            "abort_header": In(header_layout()),
            "aborted": Out(1),
            "expected": In(stream.Signature(expected_layout())),
            "o": Out(stream.Signature(word_layout())),
            "drain": In(1),
            "done": Out(1),
            "error": Out(1),
            "code": Out(8),
            "abort_seen": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.packetizer = packetizer = Packetizer()
        m.submodules.link = link = Link(segments=2, packet_words=packet_words(64), distance=1)
        m.submodules.depacketizer = depacketizer = Depacketizer()
        connect_stream(m, self.header, packetizer.header)
        connect_stream(m, self.payload, packetizer.payload)
        connect_stream(m, packetizer.o, link.i)
        connect_stream(m, link.o, depacketizer.i)
        connect_stream(m, self.expected, depacketizer.expected)
        connect_stream(m, depacketizer.payload, self.o)
        m.d.comb += [
            packetizer.may_start.eq(link.may_start),
            packetizer.give_up.eq(self.give_up),
            packetizer.abort_header.eq(self.abort_header),
            self.aborted.eq(packetizer.aborted),
            depacketizer.active.eq(1),
            depacketizer.drain.eq(self.drain),
            self.done.eq(depacketizer.done),
            self.error.eq(depacketizer.error),
            self.code.eq(depacketizer.code),
            self.abort_seen.eq(depacketizer.abort_seen),
        ]
        return m


HOP_LATENCY = Packetizer.latency + LinkTransmitter.latency + LinkReceiver.latency + Depacketizer.latency


async def start_hop(dut):
    dut.give_up.value = dut.drain.value = 0
    await start(dut)
    return (Source(dut, "header", header_layout()), Source(dut, "payload", word_layout()),
            Source(dut, "expected", expected_layout()), Sink(dut, "o", word_layout()))


def hop_header(sequence, length):
    header = Header(source=1, destination=2, sequence=sequence, length=length)
    return dataclasses.asdict(header), {name: getattr(header, name) for name, _ in expected_layout()}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def carries_payloads(dut):
    """With two credits of 70 words the distance is hidden: only header and CRC cost anything."""
    header, payload, expected, sink = await start_hop(dut)
    entry, output = Monitor(dut, "payload", word_layout()), Monitor(dut, "o", word_layout())
    headers, records = zip(*(hop_header(n, 64) for n in range(12)), strict=True)
    beats = framed([[n * 64 + k for k in range(64)] for n in range(12)])
    cocotb.start_soon(header.send(headers))
    cocotb.start_soon(payload.send(beats))
    cocotb.start_soon(expected.send(records))
    assert await sink.receive(len(beats)) == beats
    # A payload word is offered to the packetizer when the three of the header have gone, and the last one of each
    # packet waits for the CRC.
    delays = [out - into for into, out in zip(entry.cycles, output.cycles, strict=True)]
    assert delays == ([HOP_LATENCY + 1] * 63 + [HOP_LATENCY + 2]) * 12
    assert output.cycles[-1] - output.cycles[0] == 12 * 68 - OVERHEAD_WORDS


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def carries_surrender(dut):
    """The neighbour is told, at any moment, that there is no more to come, and the link is clean afterwards."""
    header, payload, expected, sink = await start_hop(dut)
    cocotb.start_soon(sink.receive())
    abort = {**dataclasses.asdict(Header()), "type": ABORT}
    dut.abort_header.value = to_int(header_layout(), abort)
    for moment in range(40):
        headers, records = zip(*(hop_header(n, 8) for n in range(4)), strict=True)
        tasks = [cocotb.start_soon(header.send(headers)), cocotb.start_soon(expected.send(records)),
                 cocotb.start_soon(payload.send(framed([[n] * 8 for n in range(4)])))]
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
        # Both credits are there.
        headers, records = zip(*(hop_header(n, 1) for n in range(2)), strict=True)
        sending = [cocotb.start_soon(header.send(headers)), cocotb.start_soon(expected.send(records)),
                   cocotb.start_soon(payload.send(framed([[n] for n in range(2)])))]
        for _ in range(2):
            await wait_for(dut, lambda: dut.done.value, "done")
            await cycles(dut, 1)
        for task in sending:
            await task


def test_hop():
    regression.run(Hop(), module=__name__, name="hop", testcase=["carries_payloads", "carries_surrender"])


# ---- Parameters


@pytest.mark.parametrize(("make", "message"), [
    (lambda: LinkTransmitter(segments=1, egress_words=9), r"^Segment count must be an integer of at least 2, not 1$"),
    (lambda: LinkTransmitter(segments=2, egress_words=4), r"^Egress depth must be an integer of at least 5, not 4$"),
    (lambda: LinkReceiver(segments=2.0, packet_words=9),
     r"^Segment count must be an integer of at least 2, not 2.0$"),
    (lambda: LinkReceiver(segments=2, packet_words=None),
     r"^Packet length must be an integer of at least 5, not None$"),
])
def test_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()
