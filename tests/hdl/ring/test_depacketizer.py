# amaranth: UnusedElaboratable=no
"""Depacketizer, which checks and unpacks packets: hdl/ring/depacketizer.py."""

import dataclasses
import itertools
import random

import cocotb
import pytest

from hdl.compression.registry import CODECS
from hdl.config.node import SEGMENTS
from hdl.ring.depacketizer import Depacketizer
from hdl.ring.header import OVERHEAD_WORDS
from sim import regression
from sim.golden.packet import ABORT, Header, Refusal, packet, verdict
from sim.streams import STALLS, cycles, start
from tests.hdl.ring.damage import damage, judge
from tests.hdl.ring.packets import (
    EPOCH,
    GOOD,
    HEADER,
    PAYLOAD,
    RAW,
    RAW_HEADER,
    ZERO_VALUE,
    Trace,
    extra_of,
    framed,
    random_packets,
    record,
    wait_for,
)
from tests.hdl.ring.receiving import Receiving
from tests.hdl.ring.refusals import REFUSALS


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def accepts_what_was_expected(dut):
    p = regression.parameters()
    await start(dut)
    extended = p.get("extended", False)
    bench = Receiving(dut, kind=p["stalls"], seed=p["seed"], extended=extended)
    generator, codecs = random.Random(p["seed"]), p.get("codecs", [RAW, ZERO_VALUE])
    packets = random_packets(generator, 60, codecs=codecs, extended=extended)
    if p["stalls"] == "none":
        # A packet has at most 1023 payload words.
        lengths = (128, 1016) if extended else (128, 129, 255, 256, 512, 1023)
        for codec, length in itertools.product(dict.fromkeys(codecs), lengths):
            packets += random_packets(generator, 1, codecs=[codec], extended=extended, length=length)
    if extended:
        for length, extra in itertools.product((0, 1, 2, 33), range(8)):
            packets += random_packets(generator, 1, codecs=codecs, extended=True, length=length, extra=extra)
    await bench.passes(packets)

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def takes_a_word_per_cycle(dut):
    """Payload words leave after the latency without bubbles; only the last word waits for the verdict."""
    p = regression.parameters()
    await start(dut)
    extended = p.get("extended", False)
    bench = Receiving(dut, extended=extended)
    trace = Trace(dut, "i__valid", "accepted", "payload__valid", "done", "starved")
    packets = random_packets(random.Random(1), 20, codecs=p.get("codecs", [RAW, ZERO_VALUE]), extended=extended)
    packets += [(Header(epoch=EPOCH), [])] * 5
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

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def refuses(dut):
    """Each kind of fault in a packet is reported, and the packet's last payload word is withheld; the next packet is
    accepted."""
    p = regression.parameters()
    await start(dut)
    bench = Receiving(dut, kind=p["stalls"], seed=p["seed"], extended=p.get("extended", False))
    refused, *good = REFUSALS[p.get("name", "zero_value")]
    for name, (words, expected, code, detail) in refused.items():
        bench.forget()
        bench.offer([words, packet(*good)], [] if expected is None else [expected, good[0]])
        await bench.said("error")
        await cycles(dut, 5)
        assert bench.taken <= len(words) + 1, f"{name}: more than the next word was taken before drain"
        assert bench.entries("error") == [("error", code, detail)], name
        assert not any(last for _, last in bench.words()), name
        assert ("done",) not in bench.log, name
        assert bench.log.count(("abort",)) == (name in ("abort", "abort_when_expecting")), name
        await bench.recover()
        await bench.passes([good])

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def drops_old_packets_and_waits(dut):
    """When a command becomes active, old packets are dropped, and the packet after them waits for its record."""
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
    assert bench.taken == 1  # the packet waits inside the depacketizer
    dut.active.value = 1
    await bench.swallowed(total + 1)
    await cycles(dut, 20)
    assert (bench.taken, bench.log) == (total + 1, [])
    await bench.expected.send([record(HEADER)])
    await bench.said("done")
    assert bench.words()[-1] == (PAYLOAD[-1], 1)

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def tells_old_epochs_from_new_ones(dut):
    """Packets of the previous 128 epochs are old, and packets of the next 127 epochs wait. An ABORT of the current
    epoch is rejected."""
    await start(dut)
    bench = Receiving(dut)
    for epoch in (0, 1, 2, 4, 8, 16, 32, 64, 127, 128, 171, 254, 255):
        def header(difference, epoch=epoch, **fields):
            return dataclasses.replace(Header(source=4, epoch=(epoch + difference) % 256), **fields)

        dut.epoch.value = epoch
        await cycles(dut, 1)
        old = [packet(header(-age, type=kind, length=length), range(length) if kind != ABORT else ())
               for age in (1, 2, 3, 64, 127, 128) for kind in (1, ABORT) for length in (0, 2)]
        bench.forget()
        bench.offer(old)
        await bench.swallowed(sum(map(len, old)))
        await cycles(dut, 5)
        assert bench.log == [], f"epoch {epoch}"
        due = header(0)
        for difference in (1, 2, 64, 127):
            for kind in (1, ABORT):
                words = packet(header(difference, type=kind))
                bench.forget()
                bench.offer([words])
                await cycles(dut, 8)
                assert (bench.taken, bench.log) == (1, []), f"epoch {epoch}, {difference} later"
                await bench.expected.send([record(due)])
                await bench.said("error")
                expected = verdict(words, due, epoch=epoch)
                assert bench.log == [("error", expected.code, expected.detail)], f"epoch {epoch}, {difference} later"
                assert expected.code == Refusal.WRONG_SEQUENCE
                await bench.recover()
        words = packet(header(0, type=ABORT, length=9))
        bench.log.clear()
        bench.offer([words])
        await bench.said("error")
        assert set(bench.log) == {("error", Refusal.PEER_ABORT, 4 << 16 | 9), ("abort",)}, f"epoch {epoch}"
        await bench.recover()
        await bench.passes([(due, ())])

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def refuses_every_mask_bit_beyond_the_length(dut):
    """A mask bit beyond the last element is rejected, for every length modulo 32."""
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
                assert not bench.entries("error"), f"bit {bit} of length {length}"
                continue
            await bench.said("error")
            assert bench.entries("error") == [
                ("error", Refusal.WRONG_LENGTH, 1 << 16 | 0xFFFF)], f"bit {bit} of length {length}"
            assert bench.words() == [], f"bit {bit} of length {length}"
            dut.drain.value = 1
            await cycles(dut, 2)
            dut.drain.value = 0
            await cycles(dut, 1)

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def judges_waiting_packet_by_new_epoch(dut):
    """When a command becomes active, a waiting packet is dropped if its epoch is earlier than the command's, and
    accepted if it is the same."""
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
        assert [kind for kind, *_ in bench.entries("done", "error")] == said
        assert bench.tasks[0].done()

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def drains(dut):
    """Draining may start in any cycle; it reports the ABORT packet and discards packets up to their end."""
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
        # Draining ends in the middle of a packet.
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
        await bench.passes([(RAW_HEADER, (1, 2, 3))])

@cocotb.test(timeout_time=20, timeout_unit="ms")
async def survives_damage(dut):
    """Damaged streams get the model's verdict and never hang the unit or complete a damaged payload."""
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    extended = p.get("extended", False)
    bench = Receiving(dut, kind=p["stalls"], seed=p["seed"], prompt=True, extended=extended)
    seen = set()
    for number in range(p["count"]):
        message = f"seed {p['seed']}, number {number}"
        good = random_packets(
            generator, 3, length=generator.randrange(p.get("longest", 40)),
            codecs=p.get("codecs", [RAW, ZERO_VALUE]), extended=extended)
        headers = [header for header, _ in good]
        beats, packets, rest = damage(generator, [beat for pair in good for beat in framed(packet(*pair))])
        due, taken = judge(packets, rest, headers)
        refusal = due[-1] if due and due[-1].code is not None else None
        seen.add(refusal and refusal.code)
        bench.forget()
        bench.offer_beats(beats, headers)
        taken = min(taken + 1, len(beats))  # the depacketizer can hold one more word
        await bench.swallowed(taken)
        # There may be no room yet for the last accepted word.
        await bench.said("done", "error", "abort",
                         count=sum(each.done + each.abort_seen for each in due) + (refusal is not None))
        await cycles(dut, 4)
        assert bench.taken == taken, message
        assert bench.log.count(("done",)) == sum(each.done for each in due), message
        verdicts = [("error", refusal.code, refusal.detail)] if refusal else []
        verdicts += [("abort",)] * sum(each.abort_seen for each in due)
        assert bench.entries("error", "abort") == verdicts, message
        if refusal is None:
            await wait_for(dut, lambda: not dut.payload__valid.value, "last word")
        await bench.recover()
        dut.clear.value = 1
        await cycles(dut, 2)
        dut.clear.value = 0

        # Valid payloads are output completely. Of a damaged payload, the beginning may have been output, but not the
        # end.
        words = bench.words()
        complete = [(beat["data"], beat["last"]) for each in due if each.complete for beat in framed(each.offered)]
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


@pytest.mark.parametrize(("kind", "name"), [("none", "mx9"), ("geometric", "mx9"), ("geometric", "bf16"),
                                            ("alternating", "mxfp4_e2m1"), ("none", "table32"),
                                            ("geometric", "table32")])
def test_depacketizer_of_weights(kind, name):
    codec = CODECS[name].code
    unit = Depacketizer(codecs=[CODECS[each] for each in ("raw", "zero_value", name)])
    regression.run(unit, **DEPACKETIZER, testcase=["accepts_what_was_expected", "survives_damage"], parameters={
        "stalls": kind, "seed": 400 + codec, "count": 150, "codecs": [RAW, ZERO_VALUE, codec, codec]})
    if name in ("mx9", "table32"):
        regression.run(unit, **DEPACKETIZER, testcase="refuses",
                       parameters={"stalls": kind, "seed": 500, "name": name})


@pytest.mark.parametrize("name", ["raw", "mx6", "table32"])
def test_depacketizer_of_gradients(name):
    """A second codec works both together with the weight codec and as the only codec."""
    names = dict.fromkeys(("raw", "zero_value", "mx9", name))
    unit = Depacketizer(codecs=[CODECS[each] for each in names])
    codecs = [CODECS[each].code for each in ("raw", "zero_value", "mx9", name)]
    regression.run(unit, **DEPACKETIZER, testcase=["accepts_what_was_expected", "survives_damage", "refuses"],
                   parameters={"stalls": "geometric", "seed": 600, "count": 150, "codecs": codecs,
                               "name": "mx9"})


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_depacketizer_of_extra_words(kind):
    """Packets with extra words are handled correctly, and so are packets with too few or too many words or a wrong
    CRC."""
    names = ("raw", "mx9")
    unit = Depacketizer(codecs=[CODECS[name] for name in names], extended=True)
    cases = ["takes_a_word_per_cycle"] if kind == "none" else ["refuses", "survives_damage"]
    regression.run(unit, module=__name__, name="depacketizer_of_extra_words",
                   testcase=["accepts_what_was_expected", *cases],
                   parameters={"stalls": kind, "seed": 700 + len(kind), "count": 60, "longest": 5, "extended": True,
                               "codecs": [CODECS[name].code for name in names], "name": "extended"})


@pytest.mark.parametrize("table", REFUSALS)
def test_refusals_agree_with_model(table):
    for name, (words, expected, code, detail) in REFUSALS[table][0].items():
        result = verdict(words, expected, epoch=EPOCH, extra=extra_of(expected))
        assert (result.code, result.detail, result.done, result.complete) == (code, detail, False, False), name


@pytest.mark.parametrize(("names", "extended", "longest"), [
    (("raw",), False, 1023), (("raw",), True, 1016), (("raw", "zero_value"), False, 992), (("mx9",), True, 1023)])
def test_limit(names, extended, longest):
    """A segment length is rejected if a payload, including its extra words, could have more words than the word
    counter can count."""
    codecs = [CODECS[name] for name in names]
    Depacketizer(codecs=codecs, segment=longest, extended=extended)
    with pytest.raises(ValueError, match=r"^Segment must have at most 1,023 elements and payload words, not "
                                         rf"{longest + 1} and [\d,]+: lower it$"):
        Depacketizer(codecs=codecs, segment=longest + 1, extended=extended)


def test_configured_segments():
    """The longest possible segment of a node is within the limit in every format, even with extra words."""
    for codec in CODECS.values():
        Depacketizer(codecs=[codec], segment=max(SEGMENTS), extended=True)
