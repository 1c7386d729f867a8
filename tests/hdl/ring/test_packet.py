import dataclasses
import itertools
import random

import cocotb
import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In
from cocotb.triggers import FallingEdge, RisingEdge

from hdl.compression.codecs import WEIGHT_CODECS
from hdl.ring.packet import (
    OVERHEAD_WORDS,
    Codec,
    Depacketizer,
    Packetizer,
    expected_layout,
    header_layout,
    packet_words,
)
from hdl.streams.stream import connect_stream, word_layout
from sim import formal, regression
from sim.golden.codecs import TableCodec
from sim.golden.packet import ABORT, CODED, RAW, ZERO_VALUE, Header, Refusal, checksum, packet, verdict
from sim.payload import to_int
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stalls, start

PATIENCE = 20_000
EPOCH = 5


def random_header(generator, *, codecs=(RAW, ZERO_VALUE), **fields):
    header = Header(
        codec=generator.choice(codecs), source=generator.randrange(256),
        destination=generator.randrange(256), epoch=EPOCH,
        sequence=generator.randrange(1 << 16), iteration=generator.randrange(1 << 16),
        block=generator.randrange(256), segment=generator.randrange(1 << 12),
        length=generator.choice([0, 1, 31, 32, 33, 64, generator.randrange(70)]),
    )
    return dataclasses.replace(header, **fields)


def random_payload(generator, header):
    if isinstance(CODED.get(header.codec), TableCodec):
        kinds = generator.choice([1, 2, 8, 17, 256])
        exponents = [generator.randrange(256) for _ in range(kinds)]
        elements = [generator.choice(exponents) << 23 | generator.getrandbits(1) << 31 for _ in range(header.length)]
        return CODED[header.codec].encode(np.array(elements, np.uint32)).tolist()
    if header.codec != ZERO_VALUE:
        count = CODED[header.codec].words(header.length) if header.codec in CODED else header.length
        return [generator.getrandbits(32) for _ in range(count)]
    words, density = [], generator.choice([0.0, 0.1, 0.5, 1.0])
    for first in range(0, header.length, 32):
        mask = sum((generator.random() < density) << n for n in range(min(32, header.length - first)))
        words += [mask, *(generator.getrandbits(32) for _ in range(mask.bit_count()))]
    return words


def random_packets(generator, count, **fields):
    headers = [random_header(generator, **fields) for _ in range(count)]
    return [(header, random_payload(generator, header)) for header in headers]


def framed(words):
    return [{"data": word, "last": int(n == len(words) - 1)} for n, word in enumerate(words)]


def split(beats):
    """The packets of a stream, and the words after the last of them."""
    packets, words = [], []
    for beat in beats:
        words.append(beat["data"])
        if beat["last"]:
            packets.append(words)
            words = []
    return packets, words


def record(header):
    """The record that a packet of this header is accepted with."""
    return {name: getattr(header, name) for name, _ in expected_layout()}


def header_bits(header):
    return to_int(header_layout(), dataclasses.asdict(header))


async def wait_for(dut, condition, what):
    edge = RisingEdge(dut.clk)
    for _ in range(PATIENCE):
        if condition():
            return
        await edge
    raise AssertionError(f"Not within {PATIENCE} cycles: {what}")


class Trace:
    """Values of some ports in every cycle, sampled when they have settled."""

    def __init__(self, dut, *names):
        self.rows = []
        self._edge = FallingEdge(dut.clk)
        self._ports = {name: getattr(dut, name) for name in names}
        cocotb.start_soon(self._watch())

    async def _watch(self):
        while True:
            await self._edge
            self.rows.append({name: int(port.value) for name, port in self._ports.items()})

    def cycles(self, name):
        """Cycles in which a port is not 0."""
        return [cycle for cycle, row in enumerate(self.rows) if row[name]]


# ---- Packetizer


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
    """The ABORT packet too; a packet in progress goes on."""
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
    """At any moment of a run: whole packets, a stomped one at most, the ABORT packet, and then as before."""
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
    """Without waiting for the payload; the ABORT packet follows without a bubble."""
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


# ---- Depacketizer


class Receiving:
    """A depacketizer between a driver of each of its ports, and a log of all that it says.

    The log has, in order: ``("accepted",)``, ``("word", data, last)``, ``("done",)``, ``("error", code, detail)`` and
    ``("abort",)``. With ``prompt``, records do not stall: what is said of a packet without a whole header depends on
    whether its record is there.
    """

    def __init__(self, dut, *, kind="none", seed=1, prompt=False):
        self.dut = dut
        self.input = Source(dut, "i", word_layout(), stalls=stalls(kind, seed=seed))
        pattern = stalls("none" if prompt else kind, seed=seed + 1)
        self.expected = Source(dut, "expected", expected_layout(), stalls=pattern)
        self.sink = Sink(dut, "payload", word_layout(), stalls=stalls(kind, seed=seed + 2))
        self.log = []
        self.taken = 0
        self.tasks = []
        dut.epoch.value = EPOCH
        dut.active.value = 1
        dut.drain.value = dut.clear.value = 0
        cocotb.start_soon(self.sink.receive())
        cocotb.start_soon(self._watch())

    async def _watch(self):
        dut, edge = self.dut, FallingEdge(self.dut.clk)
        layout = word_layout()
        valid, ready, payload = dut.payload__valid, dut.payload__ready, dut.payload__payload
        accepted, done, error, abort_seen = dut.accepted, dut.done, dut.error, dut.abort_seen
        i_valid, i_ready, drain = dut.i__valid, dut.i__ready, dut.drain
        held = None
        width = layout["data"].width
        while True:
            await edge
            if i_valid.value and i_ready.value:
                self.taken += 1
            if valid.value:
                bits = int(payload.value)
                assert held in (None, bits), "The payload changed while it was on offer"
                assert not accepted.value, "A header was accepted while a word of the packet before was on offer"
                held = bits
                if ready.value:
                    held = None
                    self.log.append(("word", bits & (1 << width) - 1, bits >> width))
            else:
                assert held is None or drain.value or dut.clear.value, "An offer was withdrawn"
                held = None
            if accepted.value:
                self.log.append(("accepted",))
            if done.value:
                self.log.append(("done",))
            if error.value:
                self.log.append(("error", int(dut.code.value), int(dut.detail.value)))
            if abort_seen.value:
                self.log.append(("abort",))

    def offer(self, packets, expected=()):
        """Offer packets, as lists of words, and records."""
        self.offer_beats([beat for words in packets for beat in framed(words)], expected)

    def offer_beats(self, beats, expected=()):
        self.tasks = [
            cocotb.start_soon(self.input.send(beats)),
            cocotb.start_soon(self.expected.send([record(header) for header in expected])),
        ]

    def withdraw(self):
        for task in self.tasks:
            task.cancel()
        self.dut.i__valid.value = 0
        self.dut.expected__valid.value = 0

    async def said(self, *kinds, count=1):
        def enough():
            return sum(entry[0] in kinds for entry in self.log) >= count

        await wait_for(self.dut, enough, f"{count} of {kinds}, only {self.log[-5:]}")

    async def swallowed(self, count):
        await wait_for(self.dut, lambda: self.taken >= count, f"{count} words taken, only {self.taken}")

    async def recover(self):
        """What the engine does after a refusal: discard until all that was on its way is gone."""
        self.dut.drain.value = 1
        await wait_for(self.dut, lambda: self.tasks[0].done(), "input drained")
        self.withdraw()
        await cycles(self.dut, 3)
        self.dut.drain.value = 0
        await cycles(self.dut, 2)

    def words(self):
        return [entry[1:] for entry in self.log if entry[0] == "word"]


def accepted_log(packets):
    """What is said of good packets, if ``done`` is left out, which may come before or after the last word."""
    log = []
    for _, payload in packets:
        log += [("accepted",), *(("word", beat["data"], beat["last"]) for beat in framed(payload))]
    return log


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def accepts_what_was_expected(dut):
    p = regression.parameters()
    await start(dut)
    bench = Receiving(dut, kind=p["stalls"], seed=p["seed"])
    generator, codecs = random.Random(p["seed"]), p.get("codecs", [RAW, ZERO_VALUE])
    packets = random_packets(generator, 60, codecs=codecs)
    if p["stalls"] == "none":
        for codec, length in itertools.product(dict.fromkeys(codecs), (128, 129, 255, 256, 2048, 4095)):
            packets += random_packets(generator, 1, codecs=[codec], length=length)
    bench.offer([packet(*pair) for pair in packets], [header for header, _ in packets])
    await bench.said("done", count=len(packets))
    await wait_for(dut, lambda: not dut.payload__valid.value, "last word")
    assert [entry for entry in bench.log if entry != ("done",)] == accepted_log(packets)
    assert bench.log.count(("done",)) == len(packets)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def takes_a_word_per_cycle(dut):
    """Without a bubble; payload after the latency, but for the last word, which comes with the verdict."""
    await start(dut)
    bench = Receiving(dut)
    trace = Trace(dut, "i__valid", "accepted", "payload__valid", "done", "starved")
    packets = random_packets(random.Random(1), 20) + [(Header(epoch=EPOCH), [])] * 5
    bench.offer([packet(*pair) for pair in packets], [header for header, _ in packets])
    await bench.said("done", count=len(packets))
    await cycles(dut, 1)
    at = trace.cycles("i__valid")[0]
    accepted, words, done = [], [], []
    for _, payload in packets:
        accepted.append(at + 2 + Depacketizer.latency)
        words += [at + 3 + n + Depacketizer.latency for n in range(len(payload) - 1)]
        at += OVERHEAD_WORDS + len(payload)
        done.append(at - 1 + Depacketizer.latency)
        if payload:
            words.append(done[-1])
    assert trace.cycles("i__valid") == list(range(trace.cycles("i__valid")[0], at))
    assert trace.cycles("accepted") == accepted
    assert trace.cycles("payload__valid") == words
    assert trace.cycles("done") == done
    assert not trace.cycles("starved")[1:]


HEADER = Header(codec=ZERO_VALUE, source=4, epoch=EPOCH, sequence=77, iteration=1000, block=3, segment=9, length=40)
PAYLOAD = (0b101, 11, 12, 0x81, 13, 14)
RAW_HEADER = dataclasses.replace(HEADER, codec=RAW, length=3)
LONG_HEADER = dataclasses.replace(HEADER, codec=RAW, length=4095)


def resealed(words, **changes):
    """A packet with some of its words changed, and a CRC that is right again."""
    words = list(words[:-1])
    for index, word in changes.items():
        words[int(index[1:])] = word
    return [*words, checksum(words)]


def corrupted(words, index, bit):
    return [word ^ (1 << bit if n == index else 0) for n, word in enumerate(words)]


GOOD = packet(HEADER, PAYLOAD)
GOOD_RAW = packet(RAW_HEADER, (1, 2, 3))

#: name: (words, expected, code, detail)
REFUSED = {
    **{
        f"wrong_{name}": (packet(dataclasses.replace(HEADER, **{name: got}), PAYLOAD), HEADER, code, detail)
        for name, got, code, detail in [
            ("epoch", 6, Refusal.WRONG_SEQUENCE, 6 << 16 | 5),
            ("source", 5, Refusal.WRONG_SOURCE, 5 << 16 | 4),
            ("codec", RAW, Refusal.WRONG_CODEC, 0x01 << 16 | 0x11),
            ("type", 7, Refusal.WRONG_CODEC, 0x17 << 16 | 0x11),
            ("sequence", 78, Refusal.WRONG_SEQUENCE, 78 << 16 | 77),
            ("iteration", 999, Refusal.WRONG_ITERATION, 999 << 16 | 1000),
            ("block", 2, Refusal.WRONG_BLOCK, 2 << 16 | 3),
            ("segment", 10, Refusal.WRONG_BLOCK, 0x800A << 16 | 0x8009),
            ("length", 41, Refusal.WRONG_LENGTH, 41 << 16 | 40),
        ]
    },
    "wrong_everything": (packet(Header(epoch=EPOCH), ()), HEADER, Refusal.WRONG_SOURCE, 4),
    "crc_of_trailer": (corrupted(GOOD, 9, 31), HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_of_payload": (corrupted(GOOD, 5, 0), HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_of_mask": (corrupted(GOOD, 3, 3), HEADER, Refusal.BAD_CRC, 1 << 16 | 0xFFFF),
    "crc_of_header": (corrupted(GOOD, 1, 0), HEADER, Refusal.BAD_CRC, 76 << 16 | 77),
    "crc_of_old_epoch": (corrupted(GOOD, 0, 24), HEADER, Refusal.BAD_CRC, 77 << 16 | 77),
    "crc_of_abort": (corrupted(packet(Header(type=ABORT, epoch=EPOCH, sequence=1)), 2, 8), None,
                     Refusal.BAD_CRC, 1 << 16),
    "stomped": (packet(HEADER, PAYLOAD, stomp=True), HEADER, Refusal.PEER_ABORT, 4 << 16),
    "stomped_early": (packet(HEADER, PAYLOAD[:2], stomp=True), HEADER, Refusal.PEER_ABORT, 4 << 16),
    "stomped_in_header": ([HEADER.words()[0], checksum(HEADER.words()[:1]) ^ 0xFFFFFFFF], HEADER,
                          Refusal.PEER_ABORT, 4 << 16),
    "abort": (packet(Header(type=ABORT, source=2, epoch=EPOCH, length=8)), None, Refusal.PEER_ABORT, 2 << 16 | 8),
    "abort_when_expecting": (packet(Header(type=ABORT, source=2, epoch=EPOCH)), HEADER, Refusal.PEER_ABORT, 2 << 16),
    "lone_word": ([0], None, Refusal.BAD_CRC, 0),
    "lone_inverse": ([0xFFFFFFFF], None, Refusal.BAD_CRC, 0),
    "short_of_many": (packet(LONG_HEADER, range(6)), LONG_HEADER, Refusal.WRONG_LENGTH, 4089 << 16 | 0xFFFF),
    "short_of_128": (packet(dataclasses.replace(LONG_HEADER, length=128), range(127)),
                     dataclasses.replace(LONG_HEADER, length=128), Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "short_of_many_groups": (packet(dataclasses.replace(LONG_HEADER, codec=ZERO_VALUE), (0, 0)),
                             dataclasses.replace(LONG_HEADER, codec=ZERO_VALUE), Refusal.WRONG_LENGTH,
                             126 << 16 | 0xFFFF),
    "short_raw": (resealed(packet(RAW_HEADER, (1, 2))), RAW_HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "long_raw": (packet(RAW_HEADER, (1, 2, 3, 4)), RAW_HEADER, Refusal.WRONG_LENGTH, 0xFFFF),
    "no_payload": (packet(RAW_HEADER), RAW_HEADER, Refusal.WRONG_LENGTH, 3 << 16 | 0xFFFF),
    "unwanted_payload": (packet(dataclasses.replace(HEADER, length=0), [0]), dataclasses.replace(HEADER, length=0),
                         Refusal.WRONG_LENGTH, 0xFFFF),
    "short_values": (packet(HEADER, PAYLOAD[:-1]), HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "missing_group": (packet(HEADER, PAYLOAD[:3]), HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "cut_in_first_group": (packet(HEADER, PAYLOAD[:2]), HEADER, Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "extra_group": (packet(HEADER, (*PAYLOAD, 0)), HEADER, Refusal.WRONG_LENGTH, 0xFFFF),
    "mask_beyond_length": (resealed(GOOD, w6=0x101), HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "only_header_of_two": (resealed(GOOD[:3]), HEADER, Refusal.WRONG_LENGTH, 0xFFFFFFFF),
    "only_header_of_one": (resealed(GOOD[:2]), HEADER, Refusal.WRONG_LENGTH, 0xFFFFFFFF),
}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def refuses(dut):
    """Every fault of the table, with its code; the last payload word is never offered, and the next packet passes."""
    p = regression.parameters()
    await start(dut)
    bench = Receiving(dut, kind=p["stalls"], seed=p["seed"])
    for name, (words, expected, code, detail) in REFUSED.items():
        bench.log.clear()
        bench.taken = 0
        bench.offer([words, GOOD], [] if expected is None else [expected, HEADER])
        await bench.said("error")
        await cycles(dut, 5)
        assert bench.taken <= len(words) + 1, f"{name}: more than the next word was taken before drain"
        assert [entry for entry in bench.log if entry[0] == "error"] == [("error", code, detail)], name
        assert not any(last for _, last in bench.words()), name
        assert ("done",) not in bench.log, name
        assert bench.log.count(("abort",)) == (name in ("abort", "abort_when_expecting")), name
        await bench.recover()
        bench.log.clear()
        bench.offer([GOOD], [HEADER])
        await bench.said("done")
        await wait_for(dut, lambda: not dut.payload__valid.value, "last word")
        assert [entry for entry in bench.log if entry != ("done",)] == accepted_log([(HEADER, PAYLOAD)]), name


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def drops_old_packets_and_waits(dut):
    """Old packets go when a command is active; what is for later waits for its record."""
    await start(dut)
    bench = Receiving(dut)
    old = [
        packet(dataclasses.replace(HEADER, epoch=(EPOCH - age) % 256), PAYLOAD, stomp=age == 2) for age in (1, 2, 128)
    ]
    old.append(packet(Header(type=ABORT, epoch=EPOCH - 1)))
    total = sum(map(len, old))
    dut.active.value = 0
    bench.offer([*old, GOOD])
    await cycles(dut, 20)
    assert bench.taken == 1  # it waits inside
    dut.active.value = 1
    await bench.swallowed(total + 1)
    await cycles(dut, 20)
    assert (bench.taken, bench.log) == (total + 1, [])
    await bench.expected.send([record(HEADER)])
    await bench.said("done")
    assert bench.words()[-1] == (PAYLOAD[-1], 1)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def tells_old_epochs_from_new_ones(dut):
    """In every kind of epoch: the 128 before are old, the 127 behind are not due, and an ABORT packet of this one is
    refused."""
    await start(dut)
    bench = Receiving(dut)
    for epoch in (0, 1, 2, 4, 8, 16, 32, 64, 127, 128, 171, 254, 255):
        def header(difference, epoch=epoch, **fields):
            return dataclasses.replace(Header(source=4, epoch=(epoch + difference) % 256), **fields)

        dut.epoch.value = epoch
        await cycles(dut, 1)
        old = [packet(header(-age, type=kind, length=length), range(length) if kind != ABORT else ())
               for age in (1, 2, 3, 64, 127, 128) for kind in (1, ABORT) for length in (0, 2)]
        bench.log.clear()
        bench.taken = 0
        bench.offer(old)
        await bench.swallowed(sum(map(len, old)))
        await cycles(dut, 5)
        assert bench.log == [], f"epoch {epoch}"
        due = header(0)
        for difference in (1, 2, 64, 127):
            for kind in (1, ABORT):
                words = packet(header(difference, type=kind))
                bench.log.clear()
                bench.taken = 0
                bench.offer([words])
                await cycles(dut, 8)
                assert (bench.taken, bench.log) == (1, []), f"epoch {epoch}, {difference} later"
                await bench.expected.send([record(due)])
                await bench.said("error")
                one = verdict(words, due, epoch=epoch)
                assert bench.log == [("error", one.code, one.detail)], f"epoch {epoch}, {difference} later"
                assert one.code == Refusal.WRONG_SEQUENCE
                await bench.recover()
        words = packet(header(0, type=ABORT, length=9))
        bench.log.clear()
        bench.offer([words])
        await bench.said("error")
        assert set(bench.log) == {("error", Refusal.PEER_ABORT, 4 << 16 | 9), ("abort",)}, f"epoch {epoch}"
        await bench.recover()
        bench.log.clear()
        bench.offer([packet(due)], [due])
        await bench.said("done")


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def refuses_every_mask_bit_beyond_the_length(dut):
    """Of every length modulo 32, each bit behind the last element; the last element's own bit is right."""
    await start(dut)
    bench = Receiving(dut)
    for length in range(1, 33):
        header = dataclasses.replace(HEADER, length=length)
        for bit in range(length - 1, 32):
            words = packet(header, (1 << bit, 7))
            bench.log.clear()
            bench.offer([words], [header])
            if bit < length:
                await bench.said("done")
                assert ("error",) not in {entry[:1] for entry in bench.log}, f"bit {bit} of length {length}"
                continue
            await bench.said("error")
            assert [entry for entry in bench.log if entry[0] == "error"] == [
                ("error", Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF)], f"bit {bit} of length {length}"
            assert bench.words() == [], f"bit {bit} of length {length}"
            dut.drain.value = 1
            await cycles(dut, 2)
            dut.drain.value = 0
            await cycles(dut, 1)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def judges_waiting_packet_by_new_epoch(dut):
    """A packet that came in an earlier epoch, or for a later one, is old, or due, when a command becomes active."""
    await start(dut)
    bench = Receiving(dut)
    for now, said in [(EPOCH + 1, []), (EPOCH, ["done"])]:
        dut.epoch.value = 100
        dut.active.value = 0
        bench.log.clear()
        bench.offer([GOOD], [HEADER] if said else [])
        await cycles(dut, 10)
        dut.epoch.value = now
        await cycles(dut, 1)
        dut.active.value = 1
        await cycles(dut, 30)
        assert [entry[0] for entry in bench.log if entry[0] in ("done", "error")] == said
        assert bench.tasks[0].done()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def drains(dut):
    """Discards from any moment on, tells of the ABORT packet, and finishes a packet it has begun to discard."""
    await start(dut)
    bench = Receiving(dut)
    aborting = packet(Header(type=ABORT, epoch=EPOCH))
    for moment in range(16):
        bench.log.clear()
        taken = bench.taken
        bench.offer([GOOD, GOOD, packet(HEADER, PAYLOAD[:3], stomp=True), aborting], [HEADER])
        await cycles(dut, moment)
        dut.drain.value = 1
        await cycles(dut, 1)
        before = len(bench.log)
        await bench.said("abort")
        assert all(entry in (("abort",), ("accepted",)) for entry in bench.log[before + 1:]), bench.log
        assert bench.taken - taken == 2 * len(GOOD) + 7 + len(aborting)
        bench.withdraw()
        # Released in the middle of a packet.
        bench.offer([GOOD, GOOD], [HEADER])
        await cycles(dut, 3)
        dut.drain.value = 0
        bench.log.clear()
        await bench.said("done")
        assert bench.log.count(("accepted",)) == 1
        assert len(bench.words()) == len(PAYLOAD) - 1 + bool(bench.words()[-1][1])
        await cycles(dut, 3)
        assert bench.words()[-1] == (PAYLOAD[-1], 1)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def resynchronises_when_cleared(dut):
    await start(dut)
    bench = Receiving(dut)
    for moment in range(1, 14):
        bench.offer([GOOD], [HEADER])
        await cycles(dut, moment)
        dut.clear.value = 1
        bench.withdraw()
        await cycles(dut, 2)
        dut.clear.value = 0
        bench.log.clear()
        bench.offer([GOOD_RAW], [RAW_HEADER])
        await bench.said("done")
        await cycles(dut, 2)
        assert [entry for entry in bench.log if entry != ("done",)] == accepted_log([(RAW_HEADER, (1, 2, 3))])


def damage(generator, beats):
    """Change a stream of packets in one place, as a link, or a mistaken or malicious peer, might."""
    beats = [dict(beat) for beat in beats]
    at = generator.randrange(len(beats))
    kind = generator.choice(["data", "last", "lost", "doubled", "swapped", "trailer", "noise"])
    if kind == "data":
        beats[at]["data"] ^= 1 << generator.randrange(32)
    elif kind == "last":
        beats[at]["last"] ^= 1
    elif kind == "lost":
        del beats[at]
    elif kind == "doubled":
        beats.insert(at, dict(beats[at]))
    elif kind == "swapped":
        other = generator.randrange(len(beats))
        beats[at], beats[other] = beats[other], beats[at]
    elif kind == "noise":
        for beat in beats[at : at + generator.randrange(1, 9)]:
            beat["data"] = generator.getrandbits(32)
    packets, rest = split(beats)
    if kind == "trailer" and packets:
        # A packet that lies consistently: any change, with a CRC to match, or stomped.
        index = generator.randrange(len(packets))
        words = packets[index][:-1]
        for _ in range(generator.randrange(1, 3)):
            if words:
                words[generator.randrange(len(words))] ^= 1 << generator.randrange(32)
                del words[len(words) - generator.choice([0, 0, 1]) :]
        packets[index] = [*words, checksum(words) ^ generator.choice([0, 0xFFFFFFFF])]
        beats = [beat for words in packets for beat in framed(words)]
        packets, rest = split(beats)
    return beats, packets, rest


def judge(packets, rest, headers):
    """Verdicts of the model up to the first refusal, and how many words are taken by then or at the end."""
    verdicts, taken, records = [], 0, list(headers)
    for words in [*packets, rest]:
        header = Header.parse(words)
        needless = (header.epoch - EPOCH) % 256 >= 128 or (header.type == ABORT and header.epoch == EPOCH)
        whole = words is not rest
        if not records and not needless and not (whole and len(words) == 1):
            break  # waits for a record
        taken += len(words)
        if whole:
            verdicts.append(verdict(words, records[0] if records else None, epoch=EPOCH))
            if verdicts[-1].code is not None:
                break
            if not needless:
                records.pop(0)
    return verdicts, taken


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def survives_damage(dut):
    """Damaged streams get the model's verdict, never hang, and never let a damaged payload through to its end."""
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    bench = Receiving(dut, kind=p["stalls"], seed=p["seed"], prompt=True)
    seen = set()
    for number in range(p["count"]):
        message = f"seed {p['seed']}, number {number}"
        good = random_packets(
            generator, 3, length=generator.randrange(40), codecs=p.get("codecs", [RAW, ZERO_VALUE]))
        headers = [header for header, _ in good]
        beats, packets, rest = damage(generator, [beat for pair in good for beat in framed(packet(*pair))])
        due, taken = judge(packets, rest, headers)
        refusal = due[-1] if due and due[-1].code is not None else None
        seen.add(refusal and refusal.code)
        bench.log.clear()
        bench.taken = 0
        bench.offer_beats(beats, headers)
        taken = min(taken + 1, len(beats))  # the next word waits inside
        await bench.swallowed(taken)
        # The word taken last may still wait for room.
        await bench.said("done", "error", "abort",
                         count=sum(one.done + one.abort_seen for one in due) + (refusal is not None))
        await cycles(dut, 4)
        assert bench.taken == taken, message
        assert bench.log.count(("done",)) == sum(one.done for one in due), message
        verdicts = [("error", refusal.code, refusal.detail)] if refusal else []
        verdicts += [("abort",)] * sum(one.abort_seen for one in due)
        assert [entry for entry in bench.log if entry[0] in ("error", "abort")] == verdicts, message
        if refusal is None:
            await wait_for(dut, lambda: not dut.payload__valid.value, "last word")
        await bench.recover()
        dut.clear.value = 1
        await cycles(dut, 2)
        dut.clear.value = 0

        # Good payloads are complete; of a bad one the beginning may have been given on, but not its end.
        words = bench.words()
        complete = [(beat["data"], beat["last"]) for one in due if one.complete for beat in framed(one.offered)]
        assert words[: len(complete)] == complete, message
        assert sum(last for _, last in words) == sum(last for _, last in complete), message
        if refusal is not None:
            partial = [(word, 0) for word in refusal.offered]
            assert words[len(complete) :] == partial[: len(words) - len(complete)], message
    assert seen >= {None, Refusal.BAD_CRC, Refusal.PEER_ABORT, Refusal.WRONG_LENGTH}


DEPACKETIZER = dict(module=__name__, name="depacketizer")


@pytest.mark.parametrize("kind", STALLS)
def test_depacketizer(kind):
    regression.run(Depacketizer(), **DEPACKETIZER, testcase=["accepts_what_was_expected", "refuses"],
                   parameters={"stalls": kind, "seed": 200 + STALLS.index(kind)})


def test_depacketizer_timing():
    regression.run(Depacketizer(), **DEPACKETIZER, testcase=[
        "takes_a_word_per_cycle", "drops_old_packets_and_waits", "judges_waiting_packet_by_new_epoch", "drains",
        "resynchronises_when_cleared", "tells_old_epochs_from_new_ones", "refuses_every_mask_bit_beyond_the_length",
    ])


@pytest.mark.parametrize(("kind", "seed"), [("none", 300), ("geometric", 301), ("alternating", 302)])
def test_damage(kind, seed):
    regression.run(Depacketizer(), **DEPACKETIZER, testcase="survives_damage",
                   parameters={"stalls": kind, "seed": seed, "count": 400})


CODED_HEADER = dataclasses.replace(HEADER, codec=Codec.MX9.value, length=40)  # three blocks, 13.5 words
CODED_PAYLOAD = tuple(range(100, 114))
CODED_REFUSED = {
    "other_codec": (packet(dataclasses.replace(CODED_HEADER, codec=Codec.MX6.value), CODED_PAYLOAD), CODED_HEADER,
                    Refusal.WRONG_CODEC, 0x41 << 16 | 0x31),
    "raw": (packet(dataclasses.replace(CODED_HEADER, codec=RAW), range(40)), CODED_HEADER,
            Refusal.WRONG_CODEC, 0x01 << 16 | 0x31),
    "instead_of_raw": (packet(dataclasses.replace(CODED_HEADER, length=3), (1, 2, 3, 4, 5)), RAW_HEADER,
                       Refusal.WRONG_CODEC, 0x31 << 16 | 0x01),
    "short": (packet(CODED_HEADER, CODED_PAYLOAD[:-1]), CODED_HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "shorter": (packet(CODED_HEADER, CODED_PAYLOAD[:4]), CODED_HEADER, Refusal.WRONG_LENGTH, 10 << 16 | 0xFFFF),
    "long": (packet(CODED_HEADER, (*CODED_PAYLOAD, 0)), CODED_HEADER, Refusal.WRONG_LENGTH, 0xFFFF),
    "length": (packet(dataclasses.replace(CODED_HEADER, length=41), CODED_PAYLOAD), CODED_HEADER,
               Refusal.WRONG_LENGTH, 41 << 16 | 40),
}


# Three exponents in one word, two groups of codes of 8 bits.
TABLE_HEADER = dataclasses.replace(HEADER, codec=Codec.TABLE32.value, length=40)
TABLE_PAYLOAD = (0x60_60_50_40, *range(100, 116))
# Seven exponents: the last of them once more is in the second word.
LONG_TABLE = (0x43_42_41_40, 0x60_60_51_50)
TABLE_REFUSED = {
    "short": (packet(TABLE_HEADER, TABLE_PAYLOAD[:-1]), TABLE_HEADER, Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF),
    "shorter": (packet(TABLE_HEADER, TABLE_PAYLOAD[:8]), TABLE_HEADER, Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "only_table": (packet(TABLE_HEADER, TABLE_PAYLOAD[:1]), TABLE_HEADER, Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "no_end_of_table": (packet(TABLE_HEADER, LONG_TABLE[:1]), TABLE_HEADER, Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "long": (packet(TABLE_HEADER, (*TABLE_PAYLOAD, 0)), TABLE_HEADER, Refusal.WRONG_LENGTH, 0xFFFF),
    "wider_codes": (packet(TABLE_HEADER, (*LONG_TABLE, *range(17))), TABLE_HEADER, Refusal.WRONG_LENGTH,
                    1 << 16 | 0xFFFF),
    "disorder": (packet(TABLE_HEADER, (0x60_60_40_50, *range(16))), TABLE_HEADER, Refusal.WRONG_LENGTH,
                 2 << 16 | 0xFFFF),
    "disorder_between_words": (packet(TABLE_HEADER, (0x43_42_41_40, 0x60_60_51_42, *range(18))), TABLE_HEADER,
                               Refusal.WRONG_LENGTH, 2 << 16 | 0xFFFF),
    "length": (packet(dataclasses.replace(TABLE_HEADER, length=32), TABLE_PAYLOAD[:9]), TABLE_HEADER,
               Refusal.WRONG_LENGTH, 32 << 16 | 40),
}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def refuses_encoded_weights(dut):
    """As :func:`refuses`, of a node with a weight codec."""
    p = regression.parameters()
    await start(dut)
    bench = Receiving(dut, kind=p["stalls"], seed=p["seed"])
    refused, header, payload = CODED_REFUSED, CODED_HEADER, CODED_PAYLOAD
    if p["name"] == "table32":
        refused, header, payload = TABLE_REFUSED, TABLE_HEADER, TABLE_PAYLOAD
    for name, (words, expected, code, detail) in refused.items():
        assert verdict(words, expected, epoch=EPOCH).code == code, name
        bench.log.clear()
        bench.offer([words], [expected])
        await bench.said("error")
        await cycles(dut, 5)
        assert [entry for entry in bench.log if entry[0] == "error"] == [("error", code, detail)], name
        assert not any(last for _, last in bench.words()), name
        await bench.recover()
        bench.log.clear()
        bench.offer([packet(header, payload)], [header])
        await bench.said("done")
        await wait_for(dut, lambda: not dut.payload__valid.value, "last word")
        assert [entry for entry in bench.log if entry != ("done",)] == accepted_log([(header, payload)])


@pytest.mark.parametrize(("kind", "name"), [("none", "mx9"), ("geometric", "mx9"), ("geometric", "bf16"),
                                            ("alternating", "mxfp4_e2m1"), ("none", "table32"),
                                            ("geometric", "table32")])
def test_depacketizer_of_weights(kind, name):
    codec = Codec[name.upper()].value
    unit = Depacketizer(codec=WEIGHT_CODECS[name])
    regression.run(unit, **DEPACKETIZER, testcase=["accepts_what_was_expected", "survives_damage"], parameters={
        "stalls": kind, "seed": 400 + codec, "count": 150, "codecs": [RAW, ZERO_VALUE, codec, codec]})
    if name in ("mx9", "table32"):
        regression.run(unit, **DEPACKETIZER, testcase="refuses_encoded_weights",
                       parameters={"stalls": kind, "seed": 500, "name": name})


@pytest.mark.parametrize("name", ["raw", "mx6", "table32"])
def test_depacketizer_of_gradients(name):
    """A second codec, beside that of weights or alone."""
    unit = Depacketizer(codec=WEIGHT_CODECS[name], second=(Codec.MX9, WEIGHT_CODECS["mx9"]))
    codecs = [RAW, ZERO_VALUE, Codec.MX9.value, Codec[name.upper()].value]
    regression.run(unit, **DEPACKETIZER, testcase=["accepts_what_was_expected", "survives_damage",
                                                   "refuses_encoded_weights"],
                   parameters={"stalls": "geometric", "seed": 600, "count": 150, "codecs": codecs,
                               "name": "mx9"})


# ---- Layouts


def test_header_words():
    header = Header(type=1, codec=1, source=0x23, destination=0x45, epoch=0x67, sequence=0x89AB, iteration=0xCDEF,
                    block=0x12, segment=0x345, length=0x678)
    assert header_bits(header) == sum(word << 32 * n for n, word in enumerate(header.words()))


def test_packet_words():
    assert packet_words(256) == 268
    assert packet_words(33) == 39
    with pytest.raises(ValueError, match=r"^Segment must be between 1 and 4095 elements, not 4096$"):
        packet_words(4096)


def test_refusals_agree_with_model():
    for name, (words, expected, code, detail) in REFUSED.items():
        result = verdict(words, expected, epoch=EPOCH)
        assert (result.code, result.detail, result.done, result.complete) == (code, detail, False, False), name


# ---- The rule of handshakes, for all time


class PacketizerHolds(wiring.Component):
    """Whatever ``give_up`` and ``may_start`` do, a word on offer stays; sources keep the rule unless they give up."""

    header: In(stream.Signature(header_layout()))
    payload: In(stream.Signature(word_layout()))
    ready: In(1)
    may_start: In(1)
    give_up: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Packetizer()
        connect_stream(m, self.header, unit.header)
        connect_stream(m, self.payload, unit.payload)
        m.d.comb += [
            unit.o.ready.eq(self.ready),
            unit.may_start.eq(self.may_start),
            unit.give_up.eq(self.give_up),
            Assume(~ResetSignal()),
            Assert(formal.holds(m, "o", unit.o)),
        ]
        return m


class DepacketizerHolds(wiring.Component):
    """A word on offer stays unless it is drained, and ``done`` and ``error`` exclude each other."""

    i: In(stream.Signature(word_layout()))
    expected: In(stream.Signature(expected_layout()))
    ready: In(1)
    epoch: In(8)
    active: In(1)
    drain: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Depacketizer()
        connect_stream(m, self.i, unit.i)
        connect_stream(m, self.expected, unit.expected)
        drained = Signal()
        m.d.sync += drained.eq(self.drain)
        m.d.comb += [
            unit.payload.ready.eq(self.ready),
            unit.epoch.eq(self.epoch),
            unit.active.eq(self.active),
            unit.drain.eq(self.drain),
            Assume(~ResetSignal()),
            Assert(formal.holds(m, "payload", unit.payload) | drained),
            Assert(~(unit.done & unit.error)),
            Assert(~unit.drain | ~(unit.done | unit.error)),
        ]
        return m


@pytest.mark.parametrize("specification", [PacketizerHolds, DepacketizerHolds])
def test_offers_stand(specification):
    formal.prove(specification(), depth=4)
