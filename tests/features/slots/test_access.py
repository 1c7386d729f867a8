# amaranth: UnusedElaboratable=no
"""Cache that answers repeated requests: hdl/features/slots/access.py."""

import random

import pytest

from hdl.control.protocol import Opcode
from hdl.features.slots.access import ONCE, AnswerCache
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns, packet
from tests.features.slots import access_model as golden


@pytest.fixture(scope="module")
def keeper():
    return Unit(AnswerCache())


class Port:
    """Model of an answer cache that records its ports; its host port numbers the words of its answers."""

    def __init__(self, generator=None):
        self.model, self.columns, self.generator = golden.AnswerCache(), Columns(), generator
        self.requests, self.answers, self.waiting, self.came = [], [], [], []

    def chance(self, rate):
        return self.generator is None or self.generator.random() < rate

    def ask(self, words, *, answer=2, direct=0, rate=1.0):
        """Send a request and wait for the answer; return the answer and the number of requests at the port."""
        asked, self.answers, came = packet(words), [], []
        served, offered = len(self.requests), None
        while not came or not came[-1][1]:
            word = asked[0] if asked and (offered or self.chance(rate)) else None
            port = self.waiting[0] if self.waiting else None
            inputs = {"word": word, "port": port, "port_ready": int(self.chance(rate)),
                      "ready": int(self.chance(rate)), "direct": direct}
            out = self.model.look(**inputs)
            self.columns.note(direct=direct)
            self.columns.stream("i", word, out.takes)
            self.columns.stream("port_o", port, out.takes_port)
            self.columns.stream("port_i", out.port, inputs["port_ready"])
            self.columns.stream("o", out.answer, inputs["ready"])
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
    """A repeated command gets the same answer; commands with a new tag, and repeated reads, are executed."""
    port = Port()
    first, served = port.ask(request(Opcode.PUSH_COMMAND, 1, *range(16)))
    assert served == 1
    assert port.ask(request(Opcode.PUSH_COMMAND, 1, *range(16))) == (first, 0)
    assert port.ask(request(Opcode.PUSH_COMMAND, 1, 5)) == (first, 0)  # only opcode and tag of a command count
    assert port.ask(request(Opcode.RUN, 1, 5))[1] == 1
    assert port.ask(request(Opcode.PUSH_COMMAND, 2, *range(16)))[1] == 1
    assert port.ask(request(Opcode.READ_REGISTER, 3, 9))[1] == 1
    assert port.ask(request(Opcode.READ_REGISTER, 3, 9))[1] == 1
    assert port.ask(request(Opcode.PUSH_COMMAND, 2, *range(16)))[1] == 1
    port.columns.compare(keeper)


@pytest.mark.parametrize(("answer", "served"), [
    (1, 0), (AnswerCache.words, 0), (AnswerCache.words + 1, 1), (40, 1)])
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
