# amaranth: UnusedElaboratable=no
"""Compare each end of a link with a model in every cycle: hdl/ring/link.py."""

import dataclasses
import functools
import random
from collections import deque

import numpy as np
import pytest

from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.streams.stream import word_layout
from sim.payload import to_int
from sim.streams import STALLS, stalls
from sim.verilated.vectors import Unit
from tests.hdl.ring.links import PACKET_WORDS, framed, random_packets
from tests.refusals import refused
from tests.traces import compare

SEGMENTS = 3


class Words:
    """Model of a queue: a word is offered at least ``latency`` cycles after it has been accepted."""

    def __init__(self, latency):
        self._latency, self._cycle, self._words = latency, 0, deque()

    def __len__(self):
        return len(self._words)

    @property
    def offer(self):
        return self._words[0][1] if self._words and self._words[0][0] <= self._cycle else None

    def step(self, taken, leaves):
        if leaves:
            self._words.popleft()
        if taken is not None:
            self._words.append((self._cycle + self._latency, taken))
        self._cycle += 1


class Transmitter:
    """Cycle-accurate model of the transmitter: call ``outputs`` in each cycle, then ``step``."""

    def __init__(self):
        self.words, self.credits, self._first = Words(LinkTransmitter.latency), SEGMENTS, True

    def outputs(self, reset, enable):
        sent = self.words.offer if enable else None
        ports = {"i__ready": len(self.words) < PACKET_WORDS or reset, "may_start": self.credits > 0 and not reset,
                 "credits": self.credits, "ring_o__valid": sent is not None}
        return ports | {f"ring_o__{name}": value for name, value in (sent or {}).items()}

    def step(self, word, credit, reset, enable):
        if reset:
            self.__init__()
            return
        spent = word is not None and self._first
        assert self.credits or not spent
        self.credits = min(self.credits + credit - spent, SEGMENTS)
        self._first = self._first if word is None else bool(word["last"])
        self.words.step(word, self.words.offer is not None and enable)


class Receiver:
    """Cycle-accurate model of the receiver: call ``outputs`` in each cycle, then ``step``."""

    def __init__(self):
        self.words, self.credit, self.overrun, self.packets = Words(LinkReceiver.latency), False, False, 0
        self._place, self._dropping = 0, False

    def outputs(self):
        offer = self.words.offer
        return {"o__valid": offer is not None, **({"o__payload": to_int(word_layout(), offer)} if offer else {}),
                "ring_i__credit": self.credit, "level": len(self.words), "packets": self.packets,
                "overrun": self.overrun}

    def step(self, word, ready, reset):
        if reset:
            self.__init__()
            return
        offer, stored = self.words.offer, None
        self.credit, full = bool(offer and ready and offer["last"]), self.packets == SEGMENTS
        if word is not None:
            if not self._dropping:
                cut = self._place == PACKET_WORDS - 1 and not word["last"]
                if self._place or not full:
                    stored = {"data": word["data"], "last": word["last"] | cut}
                    self.packets += not self._place
                self._dropping = cut or stored is None
                self.overrun |= self._dropping
            self._dropping &= not word["last"]
            self._place = 0 if word["last"] else self._place + 1
        self.packets -= self.credit
        self.words.step(stored, offer is not None and ready)


@dataclasses.dataclass(frozen=True)
class Temper:
    """Probabilities per cycle that the peer exceeds its credit and that a link reset starts."""

    wrong: float = 0.0
    reset: float = 0.0


TEMPERS = {"obeys": Temper(), "wrong": Temper(wrong=0.1), "resets": Temper(reset=0.03),
           "wrong, resets": Temper(wrong=0.1, reset=0.01)}


def resets(generator, temper):
    """Yield the level of the link reset in each cycle, with pulses of one to six cycles."""
    while True:
        if generator.random() < temper.reset:
            yield from [True] * generator.randint(1, 6)
        yield False


@functools.cache
def transmitter(**options):
    return Unit(LinkTransmitter(segments=SEGMENTS, egress_words=PACKET_WORDS, **options))


@pytest.mark.parametrize("temper", TEMPERS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize(("lag", "enabled"), [(5, 1), (60, 1), (5, 0.3)])
def test_transmitter(temper, source, lag, enabled):
    """Credits arrive after packets or, as an error, at any time; credits above ``segments`` are ignored.

    With a throttle, words are sent only in the cycles that it enables.
    """
    generator, temper = random.Random(f"{temper}{source}{lag}"), TEMPERS[temper]
    model, willing, reset, before = Transmitter(), stalls(source, seed=lag), resets(generator, temper), False
    queued, due, inputs, expected, offers, levels = deque(), [], [], [], False, set()
    for cycle in range(4000):
        down, enable = next(reset), generator.random() < enabled
        out = model.outputs(down, enable)
        if not queued:
            queued.extend(framed(random_packets(generator, 1)))
            first, offers = True, False
        # The first word of a packet may arrive in the same cycle as ``may_start``, or one cycle later.
        may_start = out["may_start"] or (before and generator.random() < 0.5)
        offers = offers or (next(willing) and (may_start or not first))
        credit = generator.random() < temper.wrong
        if due and due[0] <= cycle:
            credit, due = True, due[1:]
        noise = generator.getrandbits(33)
        inputs.append({"i__valid": offers, "ring_o__credit": credit, "reset_link": down,
                       "i__payload": to_int(word_layout(), queued[0]) if offers else noise,
                       **({"enable": enable} if enabled < 1 else {})})
        expected.append(out)
        levels.add(out["credits"])
        word = queued.popleft() if offers and out["i__ready"] and not down else None
        before = out["may_start"]
        if out.get("ring_o__last"):
            due = sorted([*due, cycle + generator.randrange(1, lag)])
        model.step(word, credit, down, enable)
        first, offers = (False, False) if word is not None else (first, offers)
        if down:
            queued, due, offers = deque(), [], False
    compare(transmitter(**({"throttled": True} if enabled < 1 else {})), inputs, expected)
    assert levels == set(range(SEGMENTS + 1)) or lag == 5


def test_transmitter_rate():
    """The transmitter of a link sends one word per cycle."""
    beats = framed([[n] * PACKET_WORDS for n in range(SEGMENTS)])
    transmitter().reset()
    trace = transmitter().run({"i__valid": np.ones(len(beats)), "i__payload": np.array([
        to_int(word_layout(), beat) for beat in beats])}, drain=9)
    first = LinkTransmitter.latency
    assert np.flatnonzero(trace["ring_o__valid"]).tolist() == list(range(first, first + len(beats)))


@pytest.fixture(scope="module")
def receiver():
    return Unit(LinkReceiver(segments=SEGMENTS, packet_words=PACKET_WORDS))


@pytest.mark.parametrize("temper", TEMPERS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("sink", STALLS)
def test_receiver(receiver, temper, source, sink):
    """Packets without credit or with too many words are errors; resets may occur in the middle of a packet."""
    generator, temper = random.Random(f"{temper}{source}{sink}"), TEMPERS[temper]
    model, reset = Receiver(), resets(generator, temper)
    willing, ready = stalls(source, seed=1), stalls(sink, seed=2)
    packet, credits, inputs, expected, most = deque(), SEGMENTS, [], [], 0
    for _ in range(4000):
        down, takes = next(reset), next(ready)
        out = model.outputs()
        credits += out["ring_i__credit"]
        wrong = generator.random() < temper.wrong
        if not packet and (credits > 0 or wrong):
            longest = 3 * PACKET_WORDS if wrong and generator.random() < 0.5 else PACKET_WORDS
            packet.extend(framed(random_packets(generator, 1, longest=longest)))
            credits -= credits > 0
        word = packet.popleft() if packet and next(willing) else None
        sent = word or {"data": generator.getrandbits(32), "last": generator.getrandbits(1)}
        inputs.append({"ring_i__valid": word is not None, "ring_i__data": sent["data"], "ring_i__last": sent["last"],
                       "o__ready": takes, "reset_link": down})
        expected.append(out)
        model.step(word, takes, down)
        most = max(most, model.packets)
        if down:
            credits = SEGMENTS
            if generator.random() < 0.9 or not temper.wrong:
                packet.clear()
    trace = compare(receiver, inputs, expected)
    assert trace["overrun"].any() == bool(temper.wrong)
    assert most == SEGMENTS or source != "none" or sink == "none"


def test_receiver_rate(receiver):
    """The receiver accepts one word per cycle, whatever the packet length."""
    beats = framed([[n] * PACKET_WORDS for n in range(10)])
    receiver.reset()
    trace = receiver.run({"ring_i__valid": np.ones(len(beats)), "ring_i__data": [beat["data"] for beat in beats],
                          "ring_i__last": [beat["last"] for beat in beats], "o__ready": 1}, drain=9)
    first = LinkReceiver.latency
    assert np.flatnonzero(trace["o__valid"]).tolist() == list(range(first, first + len(beats)))


test_transmitter_parameters = refused(LinkTransmitter, {"segments": 2, "egress_words": 5}, [
    ({"segments": 1}, "Segment count must be an integer of at least 2, not 1"),
    ({"egress_words": 4}, "Egress depth must be an integer of at least 5, not 4"),
])
test_receiver_parameters = refused(LinkReceiver, {"segments": 2, "packet_words": 5}, [
    ({"segments": 2.0}, "Segment count must be an integer of at least 2, not 2.0"),
    ({"packet_words": None}, "Packet length must be an integer of at least 5, not None"),
])
