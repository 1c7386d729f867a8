# amaranth: UnusedElaboratable=no
"""Requests of messages that come twice, and places that come from rank 0: hdl/ring/slots/access.py and place.py."""

import random

import pytest

from hdl.control.protocol import Opcode
from hdl.ring.replay.control_word import ControlType, control_layout
from hdl.ring.slots.access import ONCE, AnswerKeeper
from hdl.ring.slots.place import PlaceRelay
from sim.golden import message_access as golden
from sim.golden.message_access import place_word
from sim.verilated.vectors import Unit
from tests.hdl.ring.replay.columns import Columns


@pytest.fixture(scope="module")
def keeper():
    return Unit(AnswerKeeper())


@pytest.fixture(scope="module")
def relay():
    return Unit(PlaceRelay())


def bits(beat):
    return None if beat is None else beat[0] | beat[1] << 32


def packet(words):
    return [(word, int(n == len(words) - 1)) for n, word in enumerate(words)]


class Port:
    """The model of a keeper, with a record of its ports, and a port that answers each request by words of its own."""

    def __init__(self, generator=None):
        self.model, self.columns, self.generator = golden.AnswerKeeper(), Columns(), generator
        self.requests, self.answers, self.waiting, self.came = [], [], [], []

    def chance(self, rate):
        return self.generator is None or self.generator.random() < rate

    def ask(self, words, *, answer=2, direct=0, rate=1.0):
        """Ask, and wait for the answer; returns it."""
        asked, self.answers, came = packet(words), [], []
        served, offered = len(self.requests), None
        while not came or not came[-1][1]:
            word = asked[0] if asked and (offered or self.chance(rate)) else None
            port = self.waiting[0] if self.waiting else None
            inputs = {"word": word, "port": port, "port_ready": int(self.chance(rate)),
                      "ready": int(self.chance(rate)), "direct": direct}
            out = self.model.look(**inputs)
            self.columns.note(direct=direct)
            self.columns.stream("i", bits(word), out.takes)
            self.columns.stream("port_o", bits(port), out.takes_port)
            self.columns.stream("port_i", bits(out.port), inputs["port_ready"])
            self.columns.stream("o", bits(out.answer), inputs["ready"])
            self.model.step(**inputs)
            offered = word is not None and not out.takes
            if word is not None and out.takes:
                asked.pop(0)
            if out.port is not None and inputs["port_ready"] and out.port[1]:
                self.requests.append(words)
                self.waiting = packet([words[0] | 1 << 31, *(len(self.requests) + n for n in range(answer - 1))])
            elif port is not None and out.takes_port:
                self.waiting.pop(0)
            if out.answer is not None and inputs["ready"]:
                came.append(out.answer)
        return came, len(self.requests) - served


def request(opcode, tag, *words):
    return [opcode << 24 | tag << 16 | len(words), *words]


def test_twice(keeper):
    """A command that comes again has the answer that it had; one with another tag is executed, and so is a read."""
    port = Port()
    first, served = port.ask(request(Opcode.PUSH_COMMAND, 1, *range(16)))
    assert served == 1
    assert port.ask(request(Opcode.PUSH_COMMAND, 1, *range(16))) == (first, 0)
    assert port.ask(request(Opcode.PUSH_COMMAND, 1, 5)) == (first, 0)  # whatever follows
    assert port.ask(request(Opcode.RUN, 1, 5))[1] == 1
    assert port.ask(request(Opcode.PUSH_COMMAND, 2, *range(16)))[1] == 1
    assert port.ask(request(Opcode.READ_REGISTER, 3, 9))[1] == 1
    assert port.ask(request(Opcode.READ_REGISTER, 3, 9))[1] == 1
    assert port.ask(request(Opcode.PUSH_COMMAND, 2, *range(16)))[1] == 1
    port.columns.compare(keeper)


@pytest.mark.parametrize(("answer", "served"), [
    (1, 0), (AnswerKeeper.words, 0), (AnswerKeeper.words + 1, 1), (40, 1)])
def test_length(keeper, answer, served):
    port = Port()
    first, _ = port.ask(request(Opcode.POP_EVENT, 1, 7), answer=answer)
    again = port.ask(request(Opcode.POP_EVENT, 1, 7), answer=answer)
    assert again[1] == served
    assert served or again[0] == first
    assert port.ask(request(Opcode.POP_EVENT, 1, 7), answer=answer, direct=1)[1] == 1
    port.columns.compare(keeper)


@pytest.mark.parametrize("seed", range(2))
def test_lockstep(keeper, seed):
    generator = random.Random(seed)
    port, tag, last = Port(generator), 0, None
    for _ in range(400):
        if last is None or generator.random() < .5:
            tag, opcode = (tag + 1) % 256, generator.choice([*ONCE, Opcode.PING, Opcode.READ_MEMORY])
            last = request(opcode, tag, *range(generator.choice([0, 1, 2, 16])))
        port.ask(last, answer=generator.choice([1, 2, 6, 8, 9, 20]), direct=int(generator.random() < .1),
                 rate=generator.choice([.2, .7, 1]))
    port.columns.compare(keeper)


class Place:
    """The model of a relay of places, with a record of its ports."""

    def __init__(self, given=(0, 0)):
        self.model, self.columns, self.given = golden.PlaceRelay(), Columns(), given

    def step(self, word=None, ready=1):
        model, place = self.model, self.model.place(self.given)
        sent = model.o if ready else None
        self.columns.stream("i", None if word is None else word | 3 << 32, 1)
        self.columns.stream("o", None if model.o is None else model.o | 3 << 32, ready)
        self.columns.note(given=self.given[0] | self.given[1] << 4, place=place[0] | place[1] << 4,
                          moved=place != model.before)
        model.step(word=word, ready=ready, given=self.given)
        return sent


@pytest.mark.parametrize("nodes", [2, 5, 16])
def test_places(relay, nodes):
    """All nodes have their places when the word has gone round, it is sent again while it is lost, then no more; a
    ring of another size has other places."""
    ring = [Place() for _ in range(nodes)]
    ring[0].given = (0, nodes)
    wires = [None] * nodes
    sent = 0
    for cycle in range(8000):
        if cycle == 5000:
            assert [one.model.place(one.given) for one in ring] == [(rank, nodes) for rank in range(nodes)]
            assert sent == 4
            ring[0].given = (0, nodes ^ 1)
        lost = cycle < 1500
        wires = [one.step(wires[rank - 1] if not (lost and rank == 1) else None) for rank, one in enumerate(ring)]
        sent += wires[0] is not None
    assert ring[1].model.place((0, 0)) == (1, nodes ^ 1)
    for one in ring:
        one.columns.compare(relay)
    assert control_layout().const({"type": ControlType.PLACE, "tag": 5 | 9 << 4}).as_bits() == place_word(5, 9)


@pytest.mark.parametrize("seed", range(2))
def test_lockstep_of_places(relay, seed):
    generator, node = random.Random(seed), Place()
    for cycle in range(6000):
        if cycle % 700 == 0:
            node.given = generator.choice([(0, 0), (0, 2), (0, 16), (3, 5), (0, 1)])
        word = place_word(generator.randrange(16), generator.randrange(20))
        word ^= (generator.random() < .2) << generator.randrange(32)
        node.step(word if generator.random() < .1 else None, ready=int(generator.random() < .7))
    node.columns.compare(relay)
