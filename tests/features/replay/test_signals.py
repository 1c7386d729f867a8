# amaranth: UnusedElaboratable=no
"""SIGNAL relays, tested in a ring and in lockstep with a model: hdl/features/replay/signals.py."""

import random

import pytest

from hdl.features.replay.control_word import ControlType, signal_layout
from hdl.features.replay.signals import SOURCES, SignalRelay
from sim.golden.features.replay import control_words
from sim.golden.features.replay.control_words import Signal
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns
from tests.refusals import refused_values

QUEUES = 2


@pytest.fixture(scope="module")
def unit():
    return Unit(SignalRelay(queues=QUEUES))


class Relay:
    """Model of a relay that records its port values; ``queue`` holds the words on the wires to the relay."""

    def __init__(self, rank, size):
        self.model = control_words.SignalRelay(queues=QUEUES)
        self.place = {"rank": rank, "size": size}
        self.columns = Columns()
        self.queue = []
        self.run, self.done = 0, [0] * QUEUES

    def step(self, *, offers=True, ready=True, of_node=0, of_queue=0, reset_link=0):
        """Run the relay for one cycle; return the word that it sends, or None."""
        model, columns = self.model, self.columns
        word = self.queue[0] if self.queue and offers else None
        sent = model.o if ready and not reset_link else None
        columns.stream("i", word, model.ready)
        columns.stream("o", model.o, ready)
        columns.note(place=self.place["rank"] | self.place["size"] << 4, run=self.run,
                     done=sum(count % 65_536 << 16 * n for n, count in enumerate(self.done)), of_node=of_node,
                     of_queue=of_queue, reset_link=reset_link, current=model.current)
        columns.value("count", model.count)
        if word is not None and model.ready and not reset_link:
            self.queue.pop(0)
        model.step(word=word, ready=ready, run=self.run, done=[count % 65_536 for count in self.done],
                   of_node=of_node, of_queue=of_queue, reset_link=reset_link, **self.place)
        return sent


def settle(relays, cycles, generator=None, after=lambda cycle: None):
    """Run a ring of relays for some cycles, with random stalls and queries if a generator is given."""
    for cycle in range(cycles):
        after(cycle)
        asked = {"of_node": generator.randrange(len(relays)), "of_queue": generator.randrange(QUEUES)} if (
            generator) else {}
        stall = generator.getrandbits(2 * len(relays)) & generator.getrandbits(2 * len(relays)) if generator else 0
        sent = [relay.step(offers=not stall >> 2 * n & 1, ready=not stall >> 2 * n + 1 & 1, **asked)
                for n, relay in enumerate(relays)]
        for n, word in enumerate(sent):
            if word is not None:
                relays[(n + 1) % len(relays)].queue.append(word)


@pytest.mark.parametrize("nodes", [2, 5, SOURCES])
def test_ring(unit, nodes):
    """Even while runs start at different times, no node reads too high a count; all nodes get the final counts."""
    generator = random.Random(nodes)
    relays = [Relay(rank, nodes) for rank in range(nodes)]
    totals = {}  # number of completed commands, keyed by node and run
    seen = {}

    def work(cycle):
        for rank, relay in enumerate(relays):
            if cycle % 500 == 20 + 7 * rank and cycle < 1500:  # with 16 nodes, the starts span 105 cycles
                relay.run, relay.done = cycle // 500 + 1, [0] * QUEUES
            elif relay.run and cycle % 500 >= 130 and generator.random() < .02:
                relay.done[generator.randrange(QUEUES)] += generator.choice([1, 1, 200])
            totals[rank, relay.run] = list(relay.done)
        for reader, relay in enumerate(relays):
            columns = relay.columns
            if cycle > 1 and relay.model.current and columns["run"][-1] == relay.run:
                node, queue = columns["of_node"][-1], columns["of_queue"][-1]
                if node != reader:
                    key = reader, node, queue, relay.run
                    assert seen.get(key, 0) <= relay.model.count <= totals[node, relay.run][queue]
                    seen[key] = relay.model.count

    settle(relays, 1900, generator, work)
    settle(relays, 80 * nodes)
    for node in range(nodes):
        for queue in range(QUEUES):
            for relay in relays:
                relay.step(of_node=node, of_queue=queue)
                if relay.place["rank"] != node:
                    assert relay.model.current
                    assert relay.model.count == relays[node].done[queue]
    assert len(seen) > 2 * nodes
    for relay in relays[:3]:
        relay.columns.compare(unit)


@pytest.mark.parametrize("seed", range(4))
def test_lockstep(unit, seed):
    """The relay matches its model for arbitrary words, positions, runs, counts and resets."""
    generator = random.Random(100 + seed)
    relay = Relay(3, 8)
    for _ in range(3000):
        if generator.random() < .01:
            relay.place = {"rank": generator.randrange(16), "size": generator.choice([0, 1, 2, 8, 16])}
        if generator.random() < .02:
            relay.run = generator.choice([0, 1, 2, 63])
        if generator.random() < .1:
            relay.done[generator.randrange(QUEUES)] = generator.choice([0, 1, 65_535])
        if generator.random() < .5:
            relay.queue.append(Signal(
                generator.randrange(16), generator.randrange(4), generator.choice([0, 1, 2, 63]),
                generator.choice([0, 1, 65_535])).word ^ (generator.random() < .05))
            if generator.random() < .2:
                relay.queue[-1] = Signal(relay.place["rank"], 0, 1, 7).word
        relay.step(ready=generator.random() < generator.choice([.1, .9]), of_node=generator.randrange(16),
                   of_queue=generator.randrange(4), reset_link=generator.random() < .003)
    relay.columns.compare(unit)


def test_model_by_hand():
    """The model has the documented latency, keeps at most one own word in flight, drops words, and handles new runs.
    """
    relay = Relay(3, 8)
    settle([relay], SOURCES)

    def play(*words, cycles=8):
        relay.queue += words
        return [relay.step() for _ in range(cycles)]

    def word(source, queue, run, done):
        fields = {"source": source, "queue": queue, "run": run, "done": done}
        bits = signal_layout().const({"type": ControlType.SIGNAL, **fields}).as_bits()
        assert Signal.parse(bits) == Signal(**fields)
        return bits

    foreign = [word(5, 1, 1, 77), word(0, 0, 1, 1)]
    sent = play(*foreign)
    assert sent.index(foreign[0]) == SignalRelay.latency
    assert [value for value in sent if value is not None] == foreign
    # Dropped words: from a node outside the ring, for a nonexistent queue, without a run, or of another type.
    assert set(play(word(8, 0, 1, 9), word(4, 2, 1, 9), word(4, 0, 0, 9), word(4, 0, 1, 9) ^ 1)) == {None}
    # The counts of a run are sent one at a time; the next word leaves once the previous one has returned.
    relay.run, relay.done = 1, [0, 6]
    own = [value for value in play() if value is not None]
    assert own in ([word(3, 0, 1, 0)], [word(3, 1, 1, 6)])
    assert word(3, 1, 1, 6) in (own[0], *play(own[0]))
    # The first word of a new run clears both counts of the old run.
    relay.run, relay.done = 2, [0, 0]
    play(word(6, 0, 2, 4), word(6, 1, 2, 5))
    relay.step(of_node=6, of_queue=1)
    assert (relay.model.current, relay.model.count) == (1, 5)
    play(word(6, 0, 3, 1))
    relay.step(of_node=6, of_queue=1)
    assert not relay.model.current
    relay.run = 3
    relay.step(of_node=6, of_queue=1)
    assert (relay.model.current, relay.model.count) == (1, 0)


def test_alone():
    """A node without a position only forwards words; a single node sends nothing."""
    for size, run in ((0, 5), (1, 5), (8, 0)):
        relay = Relay(0, size)
        relay.run, relay.done = run, [3, 4]
        relay.queue += [Signal(15, 0, 1, 9).word]
        sent = [relay.step() for _ in range(60)]
        assert [word for word in sent if word is not None] == ([Signal(15, 0, 1, 9).word] if size == 0 else [])


test_parameters = refused_values(SignalRelay, {}, "queues", [0, 5, 1.0], "Queue count must be an integer from 1 to 4")
