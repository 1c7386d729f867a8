# amaranth: UnusedElaboratable=no
"""Tests of a node's TIME and SYNC words against the golden model: hdl/features/slots/clock.py."""

import random

import pytest

from hdl.features.replay.control_word import ControlType, control_layout, sync_layout
from hdl.features.slots.clock import Clock, Departures
from sim.golden.features.replay.control_words import Message
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns, whole
from tests.features.slots import clock_model as golden
from tests.features.slots.clock_model import Link, follow_words, sync_word
from tests.refusals import refused

PERIOD, ARRIVAL = 256, 2


@pytest.fixture(scope="module")
def unit():
    return Unit(Clock(period=PERIOD, arrival=ARRIVAL))


class Node:
    """Model of a node's clock that also records port values."""

    def __init__(self, rank, size):
        self.model, self.columns = golden.Clock(period=PERIOD, arrival=ARRIVAL), Columns()
        self.rank, self.size = rank, size

    def step(self, *, word=None, ready=True, link=Link(), drift=0, shift=None, reset_link=0):  # noqa: B008
        """Run the model for one cycle; return the word that is sent, or None."""
        model, columns = self.model, self.columns
        sent = model.o if ready else None
        columns.stream("i", word, 1)
        columns.stream("o", model.o, ready)
        columns.note(
            place=self.rank | self.size << 4, reset_link=reset_link,
            clock__link=link.departed | link.repaired << 1 | link.settled << 2 | link.round << 3,
            clock__drift=drift % 256, clock__shift=(shift or 0) % (1 << 32), clock__shifts=shift is not None,
            clock__time=model.time, clock__valid=model.valid, clock__way=model.way, clock__error=model.error,
            clock__looped=model.looped)
        model.step(word=word, ready=ready, rank=self.rank, size=self.size, link=link, drift=drift, shift=shift,
                   reset_link=reset_link)
        return sent


test_parameters = refused(Clock, {}, [
    ({"period": 100}, "Period must be a power of two from 256 to 32768 cycles, not 100"),
    ({"period": 65536}, "Period must be a power of two from 256 to 32768 cycles, not 65536"),
    ({"arrival": 16}, "Arrival must be an integer from 1 to 15 cycles, not 16"),
    ({"arrival": True}, "Arrival must be an integer from 1 to 15 cycles, not True"),
])


def test_words():
    tag = sync_layout().const({"number": 5}).as_bits()
    assert control_layout().const({"type": ControlType.SYNC, "tag": tag}).as_bits() == sync_word(5)
    tag = sync_layout().const({"number": 5, "follows": 1}).as_bits()
    assert control_layout().const(
        {"type": ControlType.SYNC, "words": 2, "tag": tag}).as_bits() == follow_words(5, 0, 0)[0]


def test_by_hand(unit):
    """A SYNC that left its sender at TIME 1,000 and passed links with a total round trip of 33 cycles arrives at TIME
    1,016. Odd cycles are not lost, because round trips are added before halving."""
    node = Node(3, 8)
    words = dict(enumerate(whole(follow_words(9, 1000, 33)), 200))
    words[100] = Message(sync_word(9), 1, 1)
    sent, times = {}, {}
    for cycle in range(300):
        times[cycle] = node.model.time, node.model.valid
        word = node.step(word=words.get(cycle), ready=cycle >= 150,
                         link=Link(departed=cycle == 170, settled=cycle >= 230, round=33))
        if word is not None:
            sent[cycle] = word.data
    # The SYNC was on this node's wires in cycle 98, which is therefore the cycle with TIME 1,016.
    assert times[205] == (205, 0)
    assert times[206] == (1000 + 16 + 206 - 98, 1)
    assert times[299] == (1000 + 16 + 299 - 98, 1)
    assert node.model.way == 16
    assert sent == {150: sync_word(9), **dict(enumerate(follow_words(9, 1000 + 170 - 98, 66), 231))}
    node.columns.compare(unit)


def test_latency(unit):
    node = Node(3, 8)
    cycles = [cycle for cycle in range(20)
              if node.step(word=Message(sync_word(9), 1, 1) if cycle == 7 else None) is not None]
    assert cycles == [7 + Clock.latency]
    node.columns.compare(unit)


@pytest.mark.parametrize("spoil", ["repaired", "reset", "number", "late", "again"])
def test_refused(unit, spoil):
    """A node sends no FOLLOW if its link has repeated words since the SYNC, and ignores a FOLLOW that does not match.
    """
    node = Node(1, 4)
    words = dict(enumerate(whole(follow_words(9 + (spoil == "number"), 1000, 20)), 200))
    words[100] = Message(sync_word(9), 1, 1)
    if spoil == "again":  # a second SYNC arrives before the FOLLOW of the first
        words[150] = Message(sync_word(10), 1, 1)
    if spoil == "late":
        words = {cycle + (2 * PERIOD if cycle >= 200 else 0): word for cycle, word in words.items()}
    sent = []
    for cycle in range(max(words) + 700):
        word = node.step(word=words.get(cycle), reset_link=spoil == "reset" and cycle == 150, link=Link(
            departed=cycle in (110, 160), repaired=spoil == "repaired" and cycle == 130, settled=0, round=20))
        sent += [word.data] if word is not None else []
    assert node.model.valid == (spoil == "repaired")
    assert sent == [sync_word(9), *([sync_word(10)] if spoil == "again" else [])]
    node.columns.compare(unit)


def test_busy(unit):
    """If words are never acknowledged, a FOLLOW waits only until a restart would have arrived."""
    node = Node(1, 4)
    words = dict(enumerate(whole(follow_words(9, 1000, 20)), 120))
    words[100] = Message(sync_word(9), 1, 1)
    sent = [cycle for cycle in range(600) if node.step(
        word=words.get(cycle), link=Link(departed=cycle == 110, settled=0, round=20)) is not None]
    assert sent == [102, *range(110 + 20 + 257, 110 + 20 + 260)]
    node.columns.compare(unit)


@pytest.mark.parametrize("drift", [-105, 1, 127])
def test_drift(unit, drift):
    """Drift, in units of 2^-20, changes TIME by at most two cycles in 20,000; rank 0 ignores drift and shift."""
    node, master = Node(1, 4), Node(0, 4)
    for _ in range(20_000):
        node.step(drift=drift)
        master.step(drift=drift, shift=7)
    assert node.model.time == 20_000 + (20_000 * drift >> 20)
    for shift in (-30_000, None, None, None):
        node.step(shift=shift)
    assert node.model.time == (20_004 + (20_000 * drift >> 20) - 30_000) % (1 << 32)
    assert master.model.time == 20_000
    for clock in (node, master):
        clock.columns.compare(unit)


@pytest.mark.parametrize("seed", range(4))
def test_lockstep(unit, seed):
    """All ports match the model in every cycle, even for words that no node sends."""
    generator = random.Random(seed)
    node = Node(seed % 2, 4)
    words, number = [], 0
    for cycle in range(30_000):
        if cycle % 1000 == 0:
            chance, busy = generator.choice([.05, .5, 1]), generator.choice([.01, .1, .5])
            node.rank = generator.choice([0, 1, 2]) if generator.random() < .3 else node.rank
            node.size = generator.choice([0, 1, 4])
        if not words and generator.random() < busy:
            number = (generator.choice([number, number + 1, node.model._number])) % 32768
            words = generator.choice([
                [sync_word(number)], follow_words(number, generator.getrandbits(32), generator.getrandbits(16))])
            if generator.random() < .1:
                words = [word ^ (generator.random() < .5) << generator.randrange(32) for word in words]
            words = whole(words)
        word = words.pop(0) if words and generator.random() < .7 else None
        link = Link(departed=generator.random() < .1, repaired=generator.random() < .01,
                    settled=generator.random() < .2, round=generator.randrange(100))
        shift = generator.randrange(-1000, 1000) if generator.random() < .001 else None
        node.step(word=word, ready=generator.random() < chance, link=link, drift=generator.choice([127, -128]),
                  shift=shift, reset_link=generator.random() < .001)
    node.columns.compare(unit)


@pytest.mark.parametrize("seed", range(2))
def test_departures(seed):
    """Every SYNC on the wires is detected; no other word is mistaken for one."""
    generator = random.Random(seed)
    model, columns = golden.Departures(), Columns()
    for _ in range(10_000):
        data = generator.choice([sync_word(3), follow_words(3, 0, 0)[0], generator.getrandbits(32), 0x35, 2])
        row = {"fresh": generator.random() < .7, "kind": generator.random() < .8, "data": data,
               "reset_link": generator.random() < .01}
        columns.note(**row, departed=model.step(**row))
    assert 100 < sum(columns["departed"]) < 4000
    columns.compare(Unit(Departures()))
