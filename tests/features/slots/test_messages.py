# amaranth: UnusedElaboratable=no
"""Message gate, compared with its golden model: hdl/features/slots/messages.py."""

import random

import numpy as np
import pytest

from hdl.features.slots.layouts import MESSAGE_OPCODE, message_header_layout
from hdl.features.slots.messages import MessageGate
from sim.golden.features.slots.messages import Gate, Header, Inputs, check_of, message
from sim.golden.features.slots.messages import packet as made
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns, packet, payload


@pytest.fixture(scope="module")
def unit():
    return Unit(MessageGate())


class Node:
    """Model of a message gate that records its ports."""

    def __init__(self, rank):
        self.gate, self.columns, self.rank, self.offered = Gate(), Columns(), rank, {}
        self.wild = False  # whether the port sends unrequested answers

    def step(self, **inputs):
        at = Inputs(rank=self.rank, **inputs)
        out, columns = self.gate.look(at), self.columns
        columns.note(rank=self.rank, reset_link=at.reset_link, heard=at.heard is not None,
                     word=payload(at.heard))
        for name, beat, ready in (("host_i", at.host, out.takes_host), ("port_o", at.port, out.takes_port),
                                  ("host_o", out.host, at.host_ready), ("port_i", out.port, at.port_ready),
                                  ("message_o", out.message, at.message_ready)):
            columns.stream(name, beat, ready)
        self.gate.step(at)
        # An offered word remains until it is accepted, except that a link reset withdraws an offered message.
        for name, beat, ready in (("host", out.host, at.host_ready), ("port", out.port, at.port_ready),
                                  ("message", out.message, at.message_ready)):
            before = self.offered.get(name)
            assert self.wild or before in (None, beat) or (name == "message" and at.reset_link), name
            self.offered[name] = None if ready else beat
        return out


def play(node, cycles, *, heard=(), host=(), port=(), answers=()):
    """Run a node with received words (keyed by cycle), packets from host and port, and the port's ``answers``.

    Return all outgoing words with their cycles.
    """
    coming, waiting, answers = dict(heard), {"host": list(host), "port": list(port)}, list(answers)
    sent = {"host": [], "port": [], "message": []}
    for cycle in range(cycles):
        offers = {name: beats[0] if beats else None for name, beats in waiting.items()}
        out = node.step(heard=coming.get(cycle), **offers)
        for name, taken in (("host", out.takes_host), ("port", out.takes_port)):
            if offers[name] and taken:
                waiting[name].pop(0)
        for name, beats in sent.items():
            beat = getattr(out, name)
            if beat is not None:
                beats.append((cycle, *beat))
        if answers and out.port is not None and out.port[1]:
            waiting["port"] += answers.pop(0)
    return sent


def at(cycle, beats):
    return [(cycle + n, beat) for n, beat in enumerate(beats)]


def words_of(beats):
    return [(word, last) for _, word, last in beats]


def test_header():
    header = Header(destination=7, source=2, count=64, number=5, begin=1, end=1, response=1)
    assert message_header_layout().const({
        "type": 3, "destination": 7, "source": 2, "count": 64, "number": 5, "begin": 1, "end": 1,
        "opcode": MESSAGE_OPCODE | 0x80}).as_bits() == header.word
    assert Header.parse(header.word) == header


def test_check():
    """Two wrong bits in a message, or any number of wrong bits in one of its words, are detected."""
    numbers = [check_of([1 << bit, *[0] * behind]) for behind in range(66) for bit in range(32)]
    assert len({*numbers, 0}) == 66 * 32 + 1
    rows, rank = numbers[:32], 0
    while any(rows):
        pivot = max(rows)
        rows = [min(row, row ^ pivot) for row in rows if row != pivot]
        rank += 1
    assert rank == 32
    generator = np.random.default_rng(1)
    triples = generator.choice(np.array(numbers, np.uint64), (100_000, 3))
    assert (np.bitwise_xor.reduce(triples, axis=1) != 0).mean() > 0.999
    assert check_of([word for word, _ in message(Header(), range(9))]) == 0


def test_request(unit):
    """A one-message request reaches the port 4 cycles after its end; its answer becomes a message."""
    node, words = Node(3), [11, 12, 13]
    sent = message(Header(3, count=3, begin=1, end=1), words)
    out = play(node, 60, heard=at(5, sent), port=[])
    assert out["port"][0][0] == 5 + len(sent) - 1 + MessageGate.latency
    assert words_of(out["port"]) == packet(words)
    assert not out["host"]
    out = play(node, 20, port=packet([21, 22]))
    assert words_of(out["message"]) == made(Header(source=3, begin=1, response=1), [21, 22])
    node.columns.compare(unit)


def test_long_request_and_answer(unit):
    """A three-message request gets a three-message answer after two acknowledgements."""
    node, words = Node(2), list(range(150))
    parts = [words[:64], words[64:128], words[128:]]
    empty = made(Header(source=2, response=1))
    heard = [beat for n, part in enumerate(parts)
             for beat in at(100 * n, message(Header(2, 0, len(part), n, n == 0, n == 2), part))]
    out = play(node, 350, heard=heard)
    assert words_of(out["port"]) == packet(words)
    assert words_of(out["message"]) == empty + empty
    answer = packet(list(range(1000, 1130)))
    more = message(Header(2))
    out = play(node, 1000, port=answer, heard=[*at(300, more), *at(600, more)])
    parts = [1000 + np.arange(64), 1064 + np.arange(64), [1128, 1129]]
    assert words_of(out["message"]) == [beat for n, part in enumerate(parts) for beat in made(
        Header(source=2, begin=n == 0, response=1), map(int, part))]
    first = [cycle for cycle, word, _ in out["message"] if word >> 24 == 0xC0]
    assert first[0] < 5 < 300 < first[1] < 310 < 600 < first[2] < 610
    node.columns.compare(unit)


def test_rank_0(unit):
    """Rank 0 forwards the host's messages, passes requests to its own port, and drops excess words."""
    node = Node(0)
    header, long = Header(5, count=2, begin=1, end=1).word, Header(6, count=64).word
    host = [*packet([header, 1, 2]), *packet([0x01000001, 7]), *packet([long, *range(80)]), *packet([0x02000001])]
    out = play(node, 400, host=host, heard=at(10, message(Header(source=5, begin=1, response=1), [8, 9])),
               answers=[packet([91, 92]), packet([93])])
    assert words_of(out["message"]) == (made(Header(5, count=2, begin=1, end=1), [1, 2])
                                        + made(Header(6, count=64), range(64)))
    assert words_of(out["port"]) == [*packet([0x01000001, 7]), *packet([0x02000001])]
    answer = message(Header(source=5, begin=1, response=1), [8, 9])
    assert words_of(out["host"]) == [*packet([91, 92]), *answer, (93, 1)]
    node.columns.compare(unit)


@pytest.mark.parametrize("damage", ["bit", "cut", "long", "lost", "again"])
def test_malformed(unit, damage):
    """A corrupted message has no effect; an incomplete request ends when the next request begins."""
    node = Node(1)
    first = message(Header(1, count=64, begin=1), range(64))
    second = message(Header(1, count=64, number=1), range(64, 128))
    third = message(Header(1, count=1, number=2, end=1), [128])
    if damage == "bit":
        second[9] = second[9][0] ^ 1 << 5, 0
    elif damage == "cut":
        second = [*second[:30], (second[30][0], 1)]
    elif damage == "long":
        second = [*second[:-1], (second[-1][0], 0), *second[:5]]
    elif damage == "lost":
        second = []
    else:
        second = third
    out = play(node, 400, heard=[*at(0, first), *at(100, second), *at(200, third)])
    assert words_of(out["port"]) == [(word, 0) for word in range(64)]
    assert words_of(out["message"]) == made(Header(source=1, response=1))
    out = play(node, 200, heard=at(0, message(Header(1, count=2, begin=1, end=1), [5, 6])))
    # The incomplete request has been dropped, and the next one is waiting for its response.
    assert {last for _, last in words_of(out["port"])} == {1}
    out = play(node, 200, port=packet([31, 32]))
    assert words_of(out["message"]) == made(Header(source=1, begin=1, response=1), [31, 32])
    assert words_of(out["port"])[-2:] == packet([5, 6])
    node.columns.compare(unit)


@pytest.mark.parametrize("seed", range(4))
def test_lockstep(unit, seed):
    """Ports match the model for any requests, stalls, resets, random messages and unrequested answers."""
    generator, node = random.Random(seed), Node((0, 3, 9, 0)[seed])
    host, port, heard, seen, asked = [], [], [], set(), 0
    node.wild = seed > 1
    rates = [.5] * 5
    for cycle in range(12_000):
        if cycle % 600 == 0:
            rates = [generator.choice([.1, .6, 1]) for _ in range(5)]
            keen = generator.choice([.01, .05])

        def length():
            return generator.choice([1, 2, 5, 40, 63, 64, 65, 130])

        if not host and generator.random() < (.003 if node.rank else .02):
            words = [generator.getrandbits(32) for _ in range(length())]
            if generator.random() < .7:
                words[0] = Header(generator.randrange(16), count=generator.randrange(65)).word
            host = packet(words)
        if not port and generator.random() < .02:
            port = packet([generator.getrandbits(32) for _ in range(length())])
        if not heard and generator.random() < keen:
            count = generator.choice([0, 0, 1, 2, 5, 64])
            said = count if generator.random() < .9 else generator.randrange(128)
            state = node.gate.state
            header = Header(node.rank, generator.randrange(16), said,
                            state.due if generator.random() < .8 else generator.randrange(8),
                            int(generator.random() < .6), int(generator.random() < .6))
            heard = message(header, [generator.getrandbits(32) for _ in range(count)])
            if generator.random() < .1:
                index = generator.randrange(len(heard))
                heard[index] = heard[index][0] ^ 1 << generator.randrange(32), heard[index][1]
            heard += [None] * generator.choice([0, 1, 2, 6])
        offers = dict.fromkeys(("host", "port"))
        for name, beats, rate in (("host", host, rates[0]), ("port", port, rates[1])):
            offered = getattr(node, f"{name}_offered", False)
            if name == "port" and not (node.wild or asked):
                continue
            offers[name] = beats[0] if beats and (offered or generator.random() < rate) else None
        out = node.step(
            **offers, heard=heard.pop(0) if heard else None, host_ready=int(generator.random() < rates[2]),
            port_ready=int(generator.random() < rates[3]), message_ready=int(generator.random() < rates[4]),
            reset_link=int(generator.random() < .002))
        node.host_offered = offers["host"] and not out.takes_host
        node.port_offered = offers["port"] and not out.takes_port
        asked += out.port is not None and out.port[1] and node.columns["port_i__ready"][-1]
        asked -= bool(offers["port"] and offers["port"][1] and out.takes_port)
        for beats, name, taken in ((host, "host", out.takes_host), (port, "port", out.takes_port)):
            if offers[name] and taken:
                beats.pop(0)
        state = node.gate.state
        seen |= {name for name in ("local", "remote", "open", "owes", "held", "refused", "responding")
                 if getattr(state, name)}
        seen |= {len(state.kept), ("count", state.header and state.header.count == 64)}
    assert {"local", "held", "refused", 4} <= seen, seen
    assert not node.rank or {"remote", "open", "owes"} <= seen, seen
    node.columns.compare(unit)
