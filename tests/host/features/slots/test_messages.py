"""Requests are split into messages to rank 0 and reassembled, in tests without a ring."""

from collections import deque

import numpy as np
import pytest

from hdl.control.protocol import Opcode, Status
from host.driver.errors import TransportStatus
from host.features.slots.messages import PATIENCE, SLICE, WINDOW, MessageHub, place_of
from sim.golden.features.slots.messages import Header, message
from tests.refusals import refuses


def packet(words):
    return np.array(words, np.uint32)


def untagged(words):
    return [words[0] & ~(0xFF << 16), *words[1:]]


class FarNodes:
    """Stub of nodes that receive messages through rank 0 and send answers of a given length."""

    def __init__(self, answer=3):
        self.sent, self.done, self.packets = [], [], deque()
        self.requests, self.answers, self.answer = {}, {}, answer
        self.silent = set()

    def send(self, words):
        self.sent.append(words.tolist())
        header = Header.parse(int(words[0]))
        if int(words[0]) >> 24 != 0x40:
            self.packets.append(words + 1)
            return
        rank, payload = header.destination, words[1:].tolist()
        assert header == Header(rank, count=len(payload), number=header.number, begin=header.begin, end=header.end)
        if rank in self.silent:
            return
        if not payload:
            self._answer(rank)
            return
        if header.begin:
            self.requests[rank] = []
        assert header.number == len(self.requests[rank]) // 64 % 8
        self.requests[rank] += payload
        if not header.end:
            self.packets.append(packet([word for word, _ in message(Header(source=rank, response=1))]))
            return
        self.done.append((rank, untagged(self.requests[rank])))
        self.answers[rank] = self.answer_to(self.requests[rank])
        self._answer(rank, begin=1)

    def answer_to(self, request):
        return [request[0] & 0xFFFF0000 | 0x80000000 | self.answer - 2, *range(1, self.answer)]

    def _answer(self, rank, begin=0):
        part, self.answers[rank] = self.answers[rank][:64], self.answers[rank][64:]
        words = message(Header(source=rank, begin=begin, response=1), part)
        self.packets.append(packet([word for word, _ in words]))

    def receive(self, timeout_cycles):
        if not self.packets:
            raise TimeoutError("nothing")
        return self.packets.popleft()

    def close(self):
        self.packets = None


@pytest.mark.parametrize("nodes", [1, 16, True])
def test_parameters(nodes):
    refuses(f"Node count must be between 2 and 15, not {nodes!r}", MessageHub, FarNodes(), nodes=nodes)
    with pytest.raises(ValueError, match=r"^Packet must be one sequence of at least one word, not of shape \(0,\)$"):
        MessageHub(FarNodes(), nodes=2).transports[1].send(packet([]))


@pytest.mark.parametrize("answer", [2, 3, 64, 65, 128, 300])
@pytest.mark.parametrize("words", [1, 64, 65, 640])
def test_lengths(words, answer):
    """Requests and answers of any length, for several ranks at the same time, arrive complete and in order."""
    far = FarNodes(answer)
    hub = MessageHub(far, nodes=9)
    header = Opcode.WRITE_MEMORY << 24
    for tag in (1, 2):
        for rank in (8, 1, 3):
            hub.transports[rank].send(packet([header | tag << 16 | rank, *range(words - 1)]))
    hub.transports[0].send(packet([7, 8]))
    assert hub.transports[0].receive(10).tolist() == [8, 9]
    for rank in (3, 1, 8):
        for tag in (1, 2):
            response = hub.transports[rank].receive(10)
            assert response.tolist() == [(header | 0x80000000 | tag << 16) + answer - 2, *range(1, answer)]
    for rank in (3, 1, 8):
        assert [request for to, request in far.done if to == rank] == [
            [header | rank, *range(words - 1)] for _ in (1, 2)]
    hub.close()
    assert far.packets is None


class Memories(FarNodes):
    """Stub of nodes with memories of 1,000 words and no events, which can lose messages."""

    def __init__(self):
        super().__init__()
        self.memory, self.waits, self.losses = {}, [], 0

    def send(self, words):
        if self.losses:
            self.losses -= 1
            self.sent.append(words.tolist())
        else:
            super().send(words)

    def answer_to(self, request):
        opcode, count, start = request[0] >> 24, request[0] & 0xFFFF, request[1]
        head = (request[0] | 1 << 31) & 0xFFFF0000
        if opcode == Opcode.POP_EVENT:
            self.waits.append(request[1])
            return [head, Status.EMPTY]
        if start + count > 1000:
            return [head | 1, Status.BAD_ADDRESS, 0] if opcode == Opcode.WRITE_MEMORY else [head, Status.BAD_ADDRESS]
        if opcode == Opcode.WRITE_MEMORY:
            self.memory |= dict(zip(range(start, start + count), request[2:], strict=True))
            return [head | 1, 0, count]
        return [head | count, 0, *(self.memory[address] for address in range(start, start + count))]


def test_window():
    """The messages in flight never exceed the window, and each node has at most one request in flight."""
    far = FarNodes()
    far.silent = {1, 2}
    hub = MessageHub(far, nodes=3)
    hub.transports[1].send(packet([Opcode.WRITE_MEMORY << 24 | 998, *range(999)]))
    hub.transports[1].send(packet([5]))
    hub.transports[2].send(packet([6]))
    assert len(far.sent) == WINDOW
    assert {Header.parse(words[0]).destination for words in far.sent} == {1}


@pytest.mark.parametrize("count", [62, 63, 200, 1000])
def test_pieces(count):
    """Long writes and reads are split into messages of at most 64 words; out-of-range reads are rejected."""
    far = Memories()
    hub = MessageHub(far, nodes=3)
    way, values = hub.transports[1], list(range(1000, 1000 + count))

    def ask(opcode, tag, start, *words):
        way.send(packet([opcode << 24 | tag << 16 | count, start, *words]))
        return way.receive(10).tolist()

    head = Opcode.WRITE_MEMORY << 24 | 1 << 31 | 5 << 16
    assert ask(Opcode.WRITE_MEMORY, 5, 0, *values) == [head | 1, 0, count]
    head = Opcode.READ_MEMORY << 24 | 1 << 31 | 6 << 16
    assert ask(Opcode.READ_MEMORY, 6, 0) == [head | count, 0, *values]
    assert ask(Opcode.READ_MEMORY, 6, 1000) == [head, Status.BAD_ADDRESS]
    assert all(len(message) <= 65 for message in far.sent)


@pytest.mark.parametrize(("start", "written"), [(990, 0), (930, 62)])
def test_out_of_range(start, written):
    """If one message of a long write is rejected, the words of earlier messages have been written."""
    hub = MessageHub(Memories(), nodes=3)
    head = Opcode.WRITE_MEMORY << 24 | 7 << 16
    hub.transports[1].send(packet([head | 100, start, *range(100)]))
    assert hub.transports[1].receive(10).tolist() == [head | 1 << 31 | 1, Status.BAD_ADDRESS, written]


@pytest.mark.parametrize("words", [2, 100])
def test_repeat(words):
    """An unanswered request is sent again, with the same tag if it is a single message, and otherwise with a new
    tag."""
    far = Memories()
    hub = MessageHub(far, nodes=3)
    far.losses = 1
    hub.transports[2].send(packet([Opcode.LOAD_PROGRAM << 24 | words - 1, *range(words - 1)]))
    far.answer_to = lambda request: [(request[0] | 1 << 31) & 0xFFFF0000, 0]
    assert hub.transports[2].receive(2 * PATIENCE).tolist() == [(Opcode.LOAD_PROGRAM | 0x80) << 24, 0]
    assert hub.repeated == 1
    first, second = far.sent[:2]
    assert (first == second) == (words == 2)
    assert untagged(first[1:]) == untagged(second[1:])


def test_wait():
    """A long wait for an event is split into several short waits."""
    far = Memories()
    hub = MessageHub(far, nodes=2)
    request = Opcode.POP_EVENT << 24 | 9 << 16 | 4
    hub.transports[1].send(packet([request, 2 * SLICE + 5]))
    assert hub.transports[1].receive(10).tolist() == [(request | 1 << 31) & ~0xFFFF, Status.EMPTY]
    assert far.waits == [SLICE, SLICE, 5]
    assert place_of(5) == 5 << 4


def test_no_answer():
    """An unanswered request ends with NO_ANSWER. If its answer arrives later, it is not mistaken for the answer to
    another request."""
    far = FarNodes()
    hub = MessageHub(far, nodes=3)
    far.silent = {1}
    request = Opcode.PING << 24 | 7 << 16
    hub.transports[1].send(packet([request]))
    assert hub.transports[1].receive(10).tolist() == [request | 0x80000000, TransportStatus.NO_ANSWER]
    late = [word for word, _ in message(Header(source=1, begin=1, response=1), [request | 0x80000000, 0])]
    far.packets.append(packet(late))
    far.packets.append(packet([word for word, _ in message(Header(source=1, response=1), [1, 2])]))
    far.packets.append(packet([word for word, _ in message(Header(source=9, response=1), [1, 2])]))
    far.silent = set()
    hub.transports[1].send(packet([request + (1 << 16)]))
    assert hub.transports[1].receive(10).tolist() == [request + (1 << 16) | 0x80000001, 1, 2]
    with pytest.raises(TimeoutError):
        hub.transports[2].receive(10)
