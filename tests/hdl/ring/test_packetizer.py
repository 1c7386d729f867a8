# amaranth: UnusedElaboratable=no
"""Compare the packetizer with a cycle-accurate model of it: hdl/ring/packetizer.py."""

import collections
import dataclasses
import functools
import random

import pytest

from hdl.ring.packetizer import Packetizer
from hdl.streams.stream import word_layout
from sim.golden.packet import ABORT, Header, checksum, packet
from sim.payload import to_int
from sim.streams import STALLS, stalls
from sim.verilated.vectors import Unit
from tests.hdl.ring.packets import RAW, extra_of, framed, random_packets
from tests.traces import compare

ABORTING = Header(type=ABORT, source=3, epoch=9, length=17)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs in one cycle: header words and payload beat, each None if not offered, and flags."""

    header: list | None
    extra: bool
    payload: dict | None
    ready: bool
    may_start: bool
    give_up: bool
    clear: bool

    def rows(self, noise):
        return {"header__valid": self.header is not None,
                "header__payload": self.header or [noise() for _ in range(3)], "extra": self.extra,
                "payload__valid": self.payload is not None,
                "payload__payload": noise() if self.payload is None else to_int(word_layout(), self.payload),
                "o__ready": self.ready, "may_start": self.may_start, "give_up": self.give_up, "clear": self.clear,
                "abort_header": ABORTING.words() if self.give_up else [noise() for _ in range(3)]}


class Model:
    """Cycle-accurate model of the packetizer; it keeps the words of all packets sent."""

    def __init__(self):
        self.sent, self.aborting, self.aborted, self.ends = [], False, False, False
        self.offer, self.packets = None, []

    def turn(self, inputs):
        """Return whether the packet is stomped, and the word that enters the output register, together with its
        ``last`` flag."""
        room = self.offer is None or inputs.ready
        stomp = inputs.give_up and bool(self.sent) and not self.aborting
        if not room or self.aborted:
            return stomp, None
        if stomp or self.ends:
            return stomp, (checksum(self.sent) ^ (0xFFFF_FFFF if stomp else 0), True)
        if not self.sent and not (inputs.may_start and (inputs.give_up or inputs.header)):
            return stomp, None
        if len(self.sent) >= 3:
            return stomp, inputs.payload and (inputs.payload["data"], False)
        abort = self.aborting if self.sent else inputs.give_up
        return stomp, ((ABORTING.words() if abort else inputs.header)[len(self.sent)], False)

    def outputs(self, inputs):
        stomp, word = self.turn(inputs)
        room = self.offer is None or inputs.ready
        starts, count = not self.sent and not self.aborted, len(self.sent)
        own = not stomp and not self.aborting and not self.ends
        return {
            "header__ready": inputs.give_up or (own and count == 2 and word is not None),
            "payload__ready": inputs.give_up or (own and count >= 3 and room),
            "stalled": starts and (inputs.give_up or inputs.header is not None) and not inputs.may_start,
            "idle": starts and self.offer is None, "aborted": self.aborted, "o__valid": self.offer is not None,
            **({"o__payload": to_int(word_layout(), self.offer)} if self.offer else {})}

    def step(self, inputs):
        if inputs.clear:
            self.__init__()
            return
        stomp, word = self.turn(inputs)
        if self.aborted and not inputs.give_up:
            self.aborted = False
        if self.offer is None or inputs.ready:
            self.offer = word and {"data": word[0], "last": word[1]}
        if word is None:
            return
        if not self.sent:
            self.aborting = inputs.give_up
        self.sent.append(word[0])
        if word[1]:
            self.packets.append((self.sent, stomp))
            self.aborted, self.sent, self.ends = self.aborting, [], False
        elif len(self.sent) == 3:
            self.ends = self.aborting or (inputs.header[1] >> 22 == 0 and not inputs.extra)
        elif len(self.sent) > 3:
            self.ends = bool(inputs.payload["last"])


@functools.cache
def unit():
    return Unit(Packetizer())


@pytest.mark.parametrize("given_up", [0, 0.005])
@pytest.mark.parametrize("cleared", [0, 0.002])
@pytest.mark.parametrize("kind", STALLS)
def test_packetizer(kind, cleared, given_up):
    """The packetizer sends complete packets, at most one stomped packet, and the ABORT packet; a reset clears
    everything."""
    check(kind, cleared, given_up, draw=lambda generator: random_packets(
        generator, 6, length=generator.choice([0, 1, 5, generator.randrange(70)])))


@pytest.mark.parametrize(("cleared", "given_up"), [(0, 0), (0.002, 0.005)])
@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_packetizer_of_extra_words(kind, cleared, given_up):
    """Packets are correct with words in addition to their elements, even if there are no elements."""
    check(kind, cleared, given_up, count=4_000, draw=lambda generator: random_packets(
        generator, 6, codecs=[RAW], extended=True, length=generator.choice([0, 0, 1, 5])))


def check(kind, cleared, given_up, *, draw, count=12_000):
    """Compare the unit with its model while it sends one packet after another, each drawn with ``draw``."""
    generator = random.Random(f"{kind}{cleared}{given_up}")
    header_willing, payload_willing, ready, may_start = (stalls(kind, seed=seed) for seed in range(4))
    model, inputs, expected, headers, beats, left = Model(), [], [], [], [], 0
    offers, packets, seen = [False, False], [], collections.Counter()
    for _ in range(40_000 if kind == "freeze" else count):
        if not headers and not beats and not model.sent and not left:
            packets = draw(generator)
            headers = [(header.words(), extra_of(header) > 0) for header, _ in packets]
            beats = [beat for _, words in packets for beat in framed(words)]
            offers, model.packets = [False, False], []
        if not left and not model.aborted and generator.random() < given_up:
            left = -1  # give_up stays high until a few cycles after the ABORT packet
        offers = [bool(queued) and (offered or willing) for queued, offered, willing in zip(
            (headers, beats), offers, (next(header_willing), next(payload_willing)), strict=True)]
        # While no header is offered, the input for extra words has no effect.
        header, extra = headers[0] if offers[0] else (None, len(expected) % 3 == 0)
        current = Inputs(header=header, extra=extra, payload=beats[0] if offers[1] else None,
                         ready=next(ready), may_start=next(may_start), give_up=left != 0,
                         clear=generator.random() < cleared)
        out = model.outputs(current)
        inputs.append(current.rows(lambda: generator.getrandbits(32)))
        expected.append(out)
        before = len(model.packets)
        model.step(current)
        if len(model.packets) > before:
            words, stomp = model.packets[-1]
            seen["ABORT" if model.aborted else "stomped" if stomp else "whole"] += 1
            if model.aborted:
                assert words == packet(ABORTING)
            else:  # at most one packet is stomped
                due = packet(*packets[before])
                assert words == due or (stomp and words[:-1] == due[:len(words) - 1])
                assert not any(stomp for _, stomp in model.packets[:before])
        for port, (queue, name) in enumerate(((headers, "header"), (beats, "payload"))):
            if offers[port] and out[f"{name}__ready"]:
                queue.pop(0)
                offers[port] = False
        if left > 0 or (left < 0 and model.aborted):
            left = generator.randrange(1, 20) if left < 0 else left - 1
        if current.clear or (current.give_up and not left):
            left, headers, beats = 0, [], []
    trace = compare(unit(), inputs, expected)
    assert min(seen[name] for name in ("whole", *(("ABORT", "stomped") if given_up else ()))) > 5, seen
    if kind == "none" and not given_up and not cleared:  # one word per cycle
        assert trace["o__valid"][Packetizer.latency:].all()
