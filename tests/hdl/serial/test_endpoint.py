# amaranth: UnusedElaboratable=no
import random
from collections import deque

import cocotb
import pytest
from cocotb.triggers import FallingEdge, RisingEdge

from hdl.serial.endpoint import VERSION, Endpoint
from hdl.serial.frame import FrameKind, header_layout
from hdl.streams.stream import word_layout
from sim import regression
from sim.payload import from_int, to_int
from sim.streams import Monitor, Sink, Source, cycles, stalls, start
from tests.hdl.ring.links import framed
from tests.refusals import refused

BUFFER, FRAME = 16, 4
NUMBER, NODES = 1, 3


class Wire:
    """Host side of an endpoint test: frame units that send and accept one frame at a time."""

    def __init__(self, dut):
        self.dut = dut
        self.edge = RisingEdge(dut.clk)
        self.events = {"repeated": 0, "gap": 0}
        self.received = deque()
        for name in ("started", "write", "good", "taken", "o_payload__ready", "header", "index", "word"):
            getattr(dut, name).value = 0
        cocotb.start_soon(self._count())

    async def _count(self):
        edge = FallingEdge(self.dut.clk)
        while True:
            await edge
            for name in self.events:
                self.events[name] += int(getattr(self.dut, name).value)

    async def send(self, words=(), *, node=NUMBER, good=True, **fields):
        """Send a frame from the host to the node."""
        dut = self.dut
        values = {"kind": FrameKind.DATA.value, "last": 0, "again": 0, "reply": 0, "sequence": 0, "acknowledged": 0,
                  "limit": 0, **fields, "node": node, "length": len(words)}
        dut.header.value = to_int(header_layout(), {name: int(value) for name, value in values.items()})
        dut.started.value = 1
        await self.edge
        dut.started.value = 0
        await cycles(dut, 5)
        for index, word in enumerate(words):
            dut.index.value, dut.word.value, dut.write.value = index, word, 1
            await self.edge
            dut.write.value = 0
            await cycles(dut, 3)
        dut.good.value = int(good)
        await self.edge
        dut.good.value = 0
        await cycles(dut, 3)

    async def take(self, *, patience=300):
        """Wait for the next frame to the host; return its header and words, or None if no frame arrives."""
        dut = self.dut
        for _ in range(patience):
            await self.edge
            if dut.wanted.value:
                break
        else:
            return None
        header = from_int(header_layout(), int(dut.o_header.value))
        dut.taken.value = 1
        await self.edge
        dut.taken.value = 0
        words = []
        while len(words) < header["length"]:
            dut.o_payload__ready.value = 1
            await self.edge
            if dut.o_payload__valid.value:
                words.append(int(dut.o_payload__payload.value))
                dut.o_payload__ready.value = 0
                await cycles(dut, 2)
        dut.o_payload__ready.value = 0
        return header, words


async def start_endpoint(dut, *, sink="none", source="none", seed=1):
    wire = Wire(dut)
    dut.to_node__ready.value = dut.from_node__valid.value = 0
    await start(dut)
    node = Sink(dut, "to_node", word_layout(), stalls=stalls(sink, seed=seed))
    answers = Source(dut, "from_node", word_layout(), stalls=stalls(source, seed=seed + 1))
    Monitor(dut, "to_node", word_layout())
    await cycles(dut, 3)
    return wire, node, answers


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def takes_each_frame_once(dut):
    wire, node, _ = await start_endpoint(dut)
    await wire.send([1, 2, 3, 4], sequence=0)
    header, _ = await wire.take()
    assert (header["acknowledged"], header["again"], header["length"]) == (4, 0, 0)
    await wire.send([1, 2, 3, 4], sequence=0)  # repeat a frame, as if its acknowledgement was lost
    header, _ = await wire.take()
    assert (header["acknowledged"], header["again"]) == (4, 0)
    assert wire.events == {"repeated": 1, "gap": 0}
    await wire.send([9, 9], sequence=6, last=True)  # the frame before this one is missing; the node reports this once
    header, _ = await wire.take()
    assert (header["acknowledged"], header["again"]) == (4, 1)
    await wire.send([9], sequence=8)
    header, _ = await wire.take()
    assert (header["acknowledged"], header["again"]) == (4, 0)
    assert wire.events == {"repeated": 1, "gap": 2}
    await wire.send([7, 7], sequence=4, good=False)  # send a damaged frame
    await wire.send([8, 8], sequence=4, node=0)  # send a frame for another node
    await wire.send([8, 8], sequence=4, node=2)
    assert await wire.take() is None
    await wire.send([5, 6], sequence=4, last=True)
    assert await node.receive(6) == framed([[1, 2, 3, 4, 5, 6]])
    header, _ = await wire.take()
    assert (header["acknowledged"], header["reply"], header["node"]) == (6, 1, NUMBER)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def keeps_to_its_room(dut):
    wire, node, _ = await start_endpoint(dut)
    for sequence in range(0, BUFFER, 4):
        await wire.send(range(sequence, sequence + 4), sequence=sequence)
        header, _ = await wire.take()
        assert (header["acknowledged"], header["limit"]) == (sequence + 4, BUFFER)
    await wire.send([99], sequence=BUFFER)  # the buffer is full before this word arrives, and stays full
    header, _ = await wire.take()
    assert (header["acknowledged"], header["limit"]) == (BUFFER, BUFFER)
    assert [beat["data"] for beat in await node.receive(BUFFER // 2)] == list(range(BUFFER // 2))
    header, _ = await wire.take()  # the header reports that half of the buffer is free again
    assert (header["acknowledged"], header["limit"]) == (BUFFER, BUFFER * 3 // 2)
    await wire.send([16, 17], sequence=BUFFER, last=True)
    rest = await node.receive(BUFFER // 2 + 2)
    assert rest == framed([list(range(BUFFER // 2, BUFFER + 2))])


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def sends_again_what_is_not_acknowledged(dut):
    wire, _, answers = await start_endpoint(dut)
    packets = [[10, 11, 12, 13, 14], [20]]
    cocotb.start_soon(answers.send(framed(packets)))
    expected = [(0, 0, [10, 11, 12, 13]), (4, 1, [14]), (5, 1, [20])]

    async def frames(count):
        received = []
        for _ in range(count):
            header, words = await wire.take()
            received.append((header["sequence"], header["last"], words))
        return received

    assert await frames(3) == expected
    assert await wire.take() is None
    await wire.send(again=True, acknowledged=0)
    assert await frames(3) == expected
    await wire.send(again=True, acknowledged=4)
    assert await frames(2) == expected[1:]
    await wire.send(acknowledged=6)
    assert await wire.take() is None
    await wire.send(again=True, acknowledged=6)  # the host has nothing to send, but requests a reply
    header, _ = await wire.take()
    assert (header["length"], header["sequence"]) == (0, 6)
    await wire.send(again=True, acknowledged=9)  # acknowledge words that the node never sent
    header, _ = await wire.take()
    assert header["sequence"] == 6
    # The node waits while its buffer of unacknowledged words is full.
    sending = cocotb.start_soon(answers.send(framed([list(range(BUFFER + 3))])))
    assert len(await frames(BUFFER // FRAME)) == BUFFER // FRAME
    assert await wire.take() is None
    assert not sending.done()
    await wire.send(acknowledged=6 + 4)
    assert await frames(1) == [(6 + BUFFER, 1, [BUFFER, BUFFER + 1, BUFFER + 2])]
    assert sending.done()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def begins_anew(dut):
    wire, node, answers = await start_endpoint(dut)
    await wire.send(kind=FrameKind.OPEN.value, sequence=0xABCD)
    header, _ = await wire.take()
    fields = ("kind", "sequence", "acknowledged", "limit", "length", "reply")
    opened = (FrameKind.OPEN, 0xABCD, NODES | VERSION << 8, BUFFER, 0, 1)
    assert tuple(header[name] for name in fields) == tuple(map(int, (opened[0].value, *opened[1:])))
    await wire.send(kind=FrameKind.OPEN.value, again=True)  # an OPEN that serves only to request an answer
    header, _ = await wire.take()
    assert header["sequence"] == 0xABCD
    # The node receives one request and the beginning of another. The other words stay in the buffer and never reach
    # the node.
    await wire.send([1, 2], sequence=0, last=True)
    await wire.send([3, 4, 5], sequence=2)
    assert await node.receive(3) == [*framed([[1, 2]]), {"data": 3, "last": 0}]
    await wire.send(kind=FrameKind.OPEN.value, sequence=0x1234)
    ends = []
    while not ends or not ends[-1]["last"]:
        ends += await node.receive(1)
    assert len(ends) <= 2
    while (taken := await wire.take(patience=50)) is not None:
        assert taken[0]["kind"] == FrameKind.DATA.value  # this frame had been sent before the OPEN arrived
    assert int(dut.busy.value)
    # Two responses are still outstanding; the endpoint discards them.
    await answers.send(framed([[50, 51, 52], list(range(40))]))
    header, _ = await wire.take()
    assert (header["kind"], header["sequence"]) == (FrameKind.OPEN.value, 0x1234)
    await wire.send([6], sequence=0, last=True)
    assert await node.receive(1) == framed([[6]])
    await answers.send(framed([[60]]))
    header, words = await wire.take()
    if not words:  # the first frame is only the acknowledgement of the request
        header, words = await wire.take()
    assert (header["sequence"], header["acknowledged"], words) == (0, 1, [60])
    await wire.send(acknowledged=1)
    await cycles(dut, 5)
    assert not int(dut.busy.value)


@cocotb.test(timeout_time=30, timeout_unit="ms")
async def loses_nothing(dut):
    """If the host follows the protocol, each word arrives once and in order although the wires lose frames."""
    p = regression.parameters()
    generator = random.Random(p["seed"])
    wire, node, answers = await start_endpoint(dut, sink=p["sink"], source=p["source"], seed=p["seed"])
    requests = [[generator.getrandbits(32) for _ in range(generator.randint(1, 11))] for _ in range(60)]
    responses = [[generator.getrandbits(32) for _ in range(generator.randint(1, 19))] for _ in range(60)]
    pieces, start_at = [], 0
    for packet in requests:
        for at in range(0, len(packet), FRAME):
            words = packet[at:at + FRAME]
            pieces.append((start_at, words, at + len(words) == len(packet)))
            start_at += len(words)
    executed, got, partial = [], [], []

    async def serve():
        for response in responses:
            executed.append([beat["data"] for beat in await node.packet()])
            await answers.send(framed([response]))

    cocotb.start_soon(serve())
    position = acknowledged = expected = limit = 0
    limit = BUFFER
    silent = 0
    for _ in range(40_000):
        if len(got) == len(responses):
            break
        again = silent > 3
        silent = 0 if again else silent
        position = acknowledged if again else position
        piece = next((piece for piece in pieces if piece[0] == position), None)
        fields = {"acknowledged": expected % (1 << 16), "again": again}
        if piece is not None and position + len(piece[1]) <= limit:
            fields.update(sequence=position % (1 << 16), last=piece[2], words=piece[1])
            position += len(piece[1])
        if generator.random() < p["loss"]:
            await wire.send(**{**fields, "good": False})
        else:
            await wire.send(**fields)
        taken = await wire.take(patience=40)
        if taken is None or generator.random() < p["loss"]:
            silent += 1
            continue
        header, words = taken
        acknowledged += (header["acknowledged"] - acknowledged) % (1 << 16)
        limit = max(limit, acknowledged + (header["limit"] - acknowledged) % (1 << 16))
        position = acknowledged if header["again"] else max(position, acknowledged)
        silent = 0 if words and header["sequence"] == expected % (1 << 16) else silent + 1
        if words and header["sequence"] == expected % (1 << 16):
            expected += len(words)
            partial += words
            if header["last"]:
                got.append(partial)
                partial = []
    assert executed == requests, p["seed"]
    assert got == responses, p["seed"]
    assert any(wire.events.values()) == (p["loss"] > 0)


def endpoint():
    return Endpoint(number=NUMBER, nodes=NODES, buffer_words=BUFFER, frame_words=FRAME)


def test_protocol():
    regression.run(endpoint(), module=__name__, testcase=[
        "takes_each_frame_once", "keeps_to_its_room", "sends_again_what_is_not_acknowledged", "begins_anew"])


@pytest.mark.parametrize(("loss", "sink", "source", "seed"), [
    (0, "none", "none", 31), (0.1, "geometric", "freeze", 32), (0.4, "freeze", "geometric", 33)])
def test_random(loss, sink, source, seed):
    regression.run(endpoint(), module=__name__, testcase="loses_nothing", parameters={
        "loss": loss, "sink": sink, "source": source, "seed": seed})


_BUFFER = "Buffer must be a power of two, of at least two frames and at most 16384 words"
test_parameters = refused(Endpoint, {"number": 0}, [
    ({"nodes": 17}, "Node count must be between 1 and 16, not 17"),
    ({"number": 2, "nodes": 2}, "Node must be between 0 and 1, not 2"),
    ({"frame_words": 128}, "Frame must be between 1 and 127 words, not 128"),
    ({"buffer_words": 500}, f"{_BUFFER}, not 500"), ({"buffer_words": 64}, f"{_BUFFER}, not 64"),
])
