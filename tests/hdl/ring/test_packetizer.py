"""Packets put together: hdl/ring/packetizer.py."""

import dataclasses
import itertools
import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge

from hdl.ring.header import OVERHEAD_WORDS, header_layout
from hdl.ring.packetizer import Packetizer
from hdl.streams.stream import word_layout
from sim import regression
from sim.golden.packet import ABORT, Header, checksum, packet
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stalls, start
from tests.hdl.ring.packets import Trace, framed, header_bits, random_packets, split, wait_for


class Sending:
    """A packetizer between a driver of each of its ports."""

    def __init__(self, dut, *, kind="none", seed=1, start_kind="none"):
        self.dut = dut
        self.header = Source(dut, "header", header_layout(), stalls=stalls(kind, seed=seed))
        self.payload = Source(dut, "payload", word_layout(), stalls=stalls(kind, seed=seed + 1))
        self.sink = Sink(dut, "o", word_layout(), stalls=stalls(kind, seed=seed + 2))
        self.output = Monitor(dut, "o", word_layout())
        self.tasks = []
        dut.give_up.value = dut.clear.value = 0
        cocotb.start_soon(self.sink.receive())
        cocotb.start_soon(self._allow(stalls(start_kind, seed=seed + 3)))

    async def _allow(self, pattern):
        edge = RisingEdge(self.dut.clk)
        for willing in pattern:
            self.dut.may_start.value = willing
            await edge

    def offer(self, packets):
        self.tasks = [
            cocotb.start_soon(self.header.send([dataclasses.asdict(header) for header, _ in packets])),
            cocotb.start_soon(self.payload.send([beat for _, words in packets for beat in framed(words)])),
        ]

    def withdraw(self):
        for task in self.tasks:
            task.cancel()
        self.dut.header__valid.value = 0
        self.dut.payload__valid.value = 0

    async def sent(self, count):
        await wait_for(self.dut, lambda: len(self.output.beats) >= count, f"{count} words sent")


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def makes_packets(dut):
    p = regression.parameters()
    await start(dut)
    bench = Sending(dut, kind=p["stalls"], seed=p["seed"], start_kind=p["stalls"])
    packets = random_packets(random.Random(p["seed"]), 40)
    bench.offer(packets)
    words = [packet(*pair) for pair in packets]
    await bench.sent(sum(map(len, words)))
    assert split(bench.output.beats) == (words, [])
    await cycles(dut, 2)
    assert dut.idle.value


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def sends_a_word_per_cycle(dut):
    await start(dut)
    bench = Sending(dut)
    trace = Trace(dut, "header__valid", "o__valid")
    packets = random_packets(random.Random(1), 20) + [(Header(), [])] * 5
    total = sum(len(packet(*pair)) for pair in packets)
    bench.offer(packets)
    await bench.sent(total)
    first = trace.cycles("header__valid")[0]
    assert trace.cycles("o__valid") == list(range(first + Packetizer.latency, first + Packetizer.latency + total))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def starts_only_when_allowed(dut):
    """Every packet starts only when allowed, the ABORT packet too; a packet in progress goes on."""
    await start(dut)
    bench = Sending(dut, start_kind="freeze", seed=3)
    trace = Trace(dut, "may_start", "stalled", "o__valid")
    packets = random_packets(random.Random(2), 40)
    bench.offer(packets)
    await bench.sent(sum(len(packet(*pair)) for pair in packets))
    dut.abort_header.value = header_bits(Header(type=ABORT))
    await wait_for(dut, lambda: not dut.may_start.value, "may_start low")
    dut.give_up.value = 1
    await wait_for(dut, lambda: dut.aborted.value, "aborted")
    sent = trace.cycles("o__valid")
    starts = [b for a, b in itertools.pairwise(sent) if b > a + 1]
    assert len(starts) > 2
    assert all(trace.rows[cycle - 1]["may_start"] for cycle in starts)
    assert all(trace.rows[cycle - 2]["stalled"] for cycle in starts)
    assert not any(row["stalled"] and row["may_start"] for row in trace.rows)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def aborts(dut):
    """Abort at any moment of a run: whole packets, at most one stomped, the ABORT packet, and normal operation."""
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    bench = Sending(dut, kind=p["stalls"], seed=p["seed"], start_kind=p["stalls"])
    aborting = Header(type=ABORT, source=3, epoch=9, length=17)
    dut.abort_header.value = header_bits(aborting)
    stomps = 0
    for moment in range(60):
        packets = random_packets(generator, 6, length=generator.randrange(8))
        bench.output.beats.clear()
        bench.offer(packets)
        await cycles(dut, moment)
        dut.give_up.value = 1
        await wait_for(dut, lambda: dut.aborted.value, "aborted")
        bench.withdraw()
        dut.give_up.value = 0
        await wait_for(dut, lambda: dut.idle.value, "idle")
        (*got, last), rest = split(bench.output.beats)
        message = f"seed {p['seed']}, moment {moment}"
        assert (last, rest) == (packet(aborting), []), message
        whole = [packet(*pair) for pair in packets]
        if got and got[-1] != whole[len(got) - 1]:
            *body, trailer = got.pop()
            stomps += 1
            assert body == whole[len(got)][: len(body)], message
            assert trailer == checksum(body) ^ 0xFFFFFFFF, message
        assert got == whole[: len(got)], message
    assert stomps > 20


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def stomps_at_once(dut):
    """A packet is stomped without waiting for its payload; the ABORT packet follows without a bubble."""
    await start(dut)
    bench = Sending(dut)
    trace = Trace(dut, "give_up", "o__valid", "aborted")
    cocotb.start_soon(bench.header.send([dataclasses.asdict(Header(length=8))]))
    cocotb.start_soon(bench.payload.send([{"data": 1, "last": 0}]))
    await bench.sent(4)
    await cycles(dut, 5)
    dut.give_up.value = 1
    await wait_for(dut, lambda: dut.aborted.value, "aborted")
    await cycles(dut, 2)
    first = trace.cycles("give_up")[0] + 1
    assert trace.cycles("o__valid")[4:] == list(range(first, first + 1 + OVERHEAD_WORDS))
    assert trace.cycles("aborted")[0] == first + OVERHEAD_WORDS


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def forgets_packet_when_cleared(dut):
    await start(dut)
    bench = Sending(dut)
    for moment in range(1, 12):
        bench.offer([(Header(length=5), [1, 2, 3, 4, 5])])
        await cycles(dut, moment)
        dut.clear.value = 1
        bench.withdraw()
        await cycles(dut, 2)
        assert not dut.o__valid.value
        assert dut.idle.value
        dut.clear.value = 0
        bench.output.beats.clear()
        bench.offer([(Header(length=1, sequence=moment), [7])])
        await bench.sent(5)
        assert split(bench.output.beats) == ([packet(Header(length=1, sequence=moment), [7])], [])


PACKETIZER = dict(module=__name__, name="packetizer")


@pytest.mark.parametrize("kind", STALLS)
def test_packetizer(kind):
    regression.run(Packetizer(), **PACKETIZER, testcase=["makes_packets", "aborts"],
                   parameters={"stalls": kind, "seed": 100 + STALLS.index(kind)})


def test_packetizer_timing():
    regression.run(Packetizer(), **PACKETIZER, testcase=[
        "sends_a_word_per_cycle", "starts_only_when_allowed", "stomps_at_once", "forgets_packet_when_cleared",
    ])
