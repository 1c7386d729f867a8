# amaranth: UnusedElaboratable=no
"""Test the unit that sends and forwards KEEPALIVE words: hdl/features/replay/keepalive.py."""

import random

import pytest

from hdl.features.replay.control_word import ControlType, keepalive_layout
from hdl.features.replay.keepalive import KeepAlive
from sim.golden.features.replay import control_words
from sim.golden.features.replay.control_words import keepalive_word
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns


@pytest.fixture(scope="module")
def unit():
    return Unit(KeepAlive())


class Node:
    """Model of a node's KEEPALIVE unit that also records its port values."""

    def __init__(self, size):
        self.model, self.columns = control_words.KeepAlive(), Columns()
        self.size = size

    def step(self, *, word=None, ready=True, at_work=False):
        """Advance the model by one cycle; return the word sent, or None."""
        sent = self.model.o if ready else None
        self.columns.stream("i", word, 1)
        self.columns.stream("o", self.model.o, ready)
        self.columns.note(at_work=at_work, place=self.size << 4, alive=self.model.hops(word) is not None)
        self.model.step(word=word, ready=ready, at_work=at_work, size=self.size)
        return sent


def test_period(unit):
    """A node sends one KEEPALIVE per 1,024 cycles of work, stalled or not; the count restarts when work ends."""
    node = Node(4)
    sent = [cycle for cycle in range(8000) if node.step(at_work=cycle != 3000, ready=not 5100 <= cycle < 5200)]
    assert sent == [1025, 2049, 4026, 5050, 6074, 7098]
    assert set(node.columns["o__payload"]) == {0, keepalive_word(3)}
    node.columns.compare(unit)
    bits = keepalive_layout().const({"type": ControlType.KEEPALIVE, "hops": 2}).as_bits()
    assert bits == keepalive_word(2)


def test_hand_on(unit):
    """Forwarded words have the specified latency and end after their last hop.

    If two words wait, the one with more hops left is kept.
    """
    node = Node(0)
    words = {0: keepalive_word(3), 10: keepalive_word(0), 20: keepalive_word(5), 21: keepalive_word(9),
             22: keepalive_word(2), 40: keepalive_word(4) ^ 1, 42: keepalive_word(4) | 1 << 4,
             44: keepalive_word(4) | 1 << 20}
    sent = {}
    for cycle in range(60):
        word = node.step(word=words.get(cycle), ready=cycle not in range(21, 30))
        if word is not None:
            sent[cycle] = word
    assert sent == {KeepAlive.latency: keepalive_word(2), 30: keepalive_word(4), 31: keepalive_word(8)}
    node.columns.compare(unit)


@pytest.mark.parametrize("seed", range(3))
def test_lockstep(unit, seed):
    generator = random.Random(seed)
    node = Node(0)
    for cycle in range(6000):
        if cycle % 500 == 0:
            node.size = generator.choice([0, 1, 2, 5, 16])
            chance = generator.choice([.02, .5, 1])
        word = keepalive_word(generator.randrange(16)) ^ (generator.random() < .1) << generator.randrange(32)
        node.step(word=word if generator.random() < .3 else None, ready=generator.random() < chance,
                  at_work=generator.random() < .9995)
    node.columns.compare(unit)


@pytest.mark.parametrize("nodes", [2, 3, 16])
def test_ring(nodes):
    """In each period, every node receives one word from each working node, and no word circulates forever."""
    generator = random.Random(nodes)
    ring = [Node(nodes) for _ in range(nodes)]
    wires = [[] for _ in ring]
    told = [0] * nodes
    for cycle in range(5000):
        sent = []
        for rank, node in enumerate(ring):
            word = wires[rank].pop(0) if wires[rank] and cycle % 7 else None
            told[rank] += word is not None
            sent.append(node.step(word=word, ready=generator.random() < .6, at_work=rank == 1 and cycle < 4000))
        for rank, word in enumerate(sent):
            if word is not None:
                wires[(rank + 1) % nodes].append(word)
    assert told == [3] * nodes
    assert not any(wires)
