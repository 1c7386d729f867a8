# amaranth: UnusedElaboratable=no
"""Both ends of a link, each alone: hdl/ring/link.py."""

import itertools
import random
from collections import deque

import cocotb
import pytest
from cocotb.triggers import FallingEdge, RisingEdge

from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.streams.stream import word_layout
from sim import regression
from sim.streams import STALLS, Monitor, Sink, cycles, stalls, start
from tests.hdl.ring.links import PACKET_WORDS, framed, random_packets, starting
from tests.hdl.ring.packets import wait_for

SEGMENTS = 3


class Wires:
    """Log of the wires of a link: words and credits, with their cycles."""

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
    """A credit that was never given is ignored."""
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
        # Queued words are not sent while the reset is held.
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
