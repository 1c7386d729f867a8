# amaranth: UnusedElaboratable=no
import itertools
import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge, RisingEdge

from hdl.serial.frame import ESCAPE, FLAG, FrameKind, FrameReceiver, FrameTransmitter, header_layout
from host.transports.serial_link import Frame, FrameDecoder
from sim import regression
from sim.payload import from_int
from sim.streams import Monitor, Sink, Source, cycles, stalls, start

SPECIAL = [FLAG, ESCAPE, FLAG ^ 0x20, ESCAPE ^ 0x20]


def random_frame(generator, *, reply, longest=12):
    length = generator.choice([0, 1, longest, generator.randint(0, longest)])
    payload = bytes(generator.choice([*SPECIAL, generator.randrange(256)]) for _ in range(4 * length))
    last, again = (generator.random() < 0.5 for _ in range(2))
    return Frame(kind=generator.choice(list(FrameKind)), last=last, again=again, node=generator.randrange(16),
                 reply=reply, sequence=generator.randrange(1 << 16),
                 acknowledged=generator.choice([FLAG, generator.randrange(1 << 16)]),
                 limit=generator.choice([ESCAPE << 8, generator.randrange(1 << 16)]), payload=payload)


def header(frame):
    return {**{name: int(getattr(frame, name)) for name in ("last", "again", "node", "reply", "sequence",
                                                             "acknowledged", "limit")},
            "kind": frame.kind.value, "length": len(frame.payload) // 4}


def words(frame):
    return [int.from_bytes(frame.payload[n:n + 4], "little") for n in range(0, len(frame.payload), 4)]


def damaged(generator, data, rate):
    """Flip random bits and drop random bytes."""
    result = bytearray()
    for byte in data:
        what = generator.random()
        if what < rate:
            byte ^= 1 << generator.randrange(8)
        if what < rate or what > rate / 3:
            result.append(byte)
    return bytes(result)


# Tests of the host's codec without gateware.


def test_codec():
    generator = random.Random(1)
    frames = [random_frame(generator, reply=True) for _ in range(200)]
    data = b"".join(frame.encode() for frame in frames)
    assert FrameDecoder().feed(data) == frames
    decoder = FrameDecoder()
    assert list(itertools.chain.from_iterable(decoder.feed(bytes([byte])) for byte in data)) == frames
    assert (decoder.crc_errors, decoder.resyncs) == (0, 0)


def test_a_frame_as_bytes():
    frame = Frame(last=True, node=2, sequence=0x7E01, acknowledged=0x1234, limit=0x5678, payload=b"\x7d\1\2\3")
    assert frame.encode() == bytes.fromhex("7e 24 01 01 7d5e 3412 7856 7d5d 010203 b8ce83e4")


@pytest.mark.parametrize("rate", [0.001, 0.02])
def test_codec_with_damage(rate):
    """However the bytes are damaged, the decoder returns only frames that have been sent."""
    generator = random.Random(2)
    frames = [random_frame(generator, reply=True) for _ in range(500)]
    data = [damaged(generator, frame.encode(), rate) for frame in frames]
    decoder = FrameDecoder()
    decoded = decoder.feed(b"".join(data))
    whole = [frame for frame, chunk in zip(frames, data, strict=True) if chunk == frame.encode()]
    assert all(frame in frames for frame in decoded)
    # If a flag is lost, only its own frame is lost, because each frame's length is known.
    assert len(decoded) >= len(whole) - 2
    assert decoder.crc_errors + decoder.resyncs > 0


# Tests of the frame gateware.


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def makes_bytes(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    frames = [random_frame(generator, reply=False) for _ in range(60)]
    source = Source(dut, "header", header_layout(), stalls=stalls(p["source"], seed=p["seed"]))
    payload = Source(dut, "payload", 32, stalls=stalls(p["source"], seed=p["seed"] + 1))
    sink = Sink(dut, "o", 8, stalls=stalls(p["sink"], seed=p["seed"] + 2))
    Monitor(dut, "o", 8)
    done = []

    async def count():
        edge = FallingEdge(dut.clk)
        while True:
            await edge
            done.append(int(dut.done.value))

    cocotb.start_soon(count())
    cocotb.start_soon(source.send([header(frame) for frame in frames]))
    cocotb.start_soon(payload.send([word for frame in frames for word in words(frame)]))
    for frame in frames:
        expected = list(frame.encode())
        assert await sink.receive(len(expected)) == expected, p["seed"]
    await cycles(dut, 3)
    assert sum(done) == len(frames)


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def takes_frames_apart(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    dut.received.value = dut.broken.value = 0
    await start(dut)
    received, counts = [], {"bad_crc": 0, "resync": 0}

    async def watch():
        edge = FallingEdge(dut.clk)
        beginning, got = False, {}
        while True:
            await edge
            for name in counts:
                counts[name] += int(getattr(dut, name).value)
            if dut.started.value:
                beginning, got = True, {}
            if dut.write.value:
                assert beginning
                assert int(dut.index.value) == len(got)
                got[len(got)] = int(dut.word.value)
            if dut.good.value:
                received.append((from_int(header_layout(), int(dut.header.value)), list(got.values())))
                beginning = False

    cocotb.start_soon(watch())
    edge = RisingEdge(dut.clk)
    frames = [random_frame(generator, reply=generator.random() < 0.1) for _ in range(150)]
    data = damaged(generator, b"".join(frame.encode() for frame in frames), p["rate"])
    for byte in data:
        dut.value.value = byte
        dut.received.value = 1
        await edge
        dut.received.value = 0
        dut.value.value = generator.randrange(256)
        for _ in range(generator.randint(2, 4)):
            await edge
    await cycles(dut, 6)
    model = FrameDecoder()
    expected = [(header(frame), words(frame)) for frame in model.feed(data) if not frame.reply]
    assert received == expected, p["seed"]
    assert (counts["bad_crc"], counts["resync"]) == (model.crc_errors, model.resyncs), p["seed"]
    assert bool(model.crc_errors + model.resyncs) == bool(p["rate"])
    # A byte with a framing error ends the current frame; between frames, such a byte is ignored.
    frame = Frame(payload=bytes(8))
    for byte in [*frame.encode()[:9], None, *frame.encode()[9:], None, *frame.encode()]:
        dut.value.value = byte or 0
        (dut.broken if byte is None else dut.received).value = 1
        await edge
        dut.received.value = dut.broken.value = 0
        await cycles(dut, 3)
    await cycles(dut, 4)
    assert len(received) == len(expected) + 1
    assert counts["resync"] == model.resyncs + 1


@pytest.mark.parametrize(("source", "sink"), [
    ("none", "none"), ("geometric", "geometric"), ("freeze", "alternating")])
def test_transmitter(source, sink):
    regression.run(FrameTransmitter(), module=__name__, testcase="makes_bytes",
                   parameters={"source": source, "sink": sink, "seed": 21})


@pytest.mark.parametrize("rate", [0, 0.003, 0.03])
def test_receiver(rate):
    regression.run(FrameReceiver(), module=__name__, testcase="takes_frames_apart",
                   parameters={"rate": rate, "seed": 22})
