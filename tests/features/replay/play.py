"""Golden models of both ends of a link, connected by wires with optional faults; every port is recorded."""

import collections
import dataclasses
import random
from collections.abc import Callable

import numpy as np

from tests.features.replay.columns import compare
from tests.features.replay.link_model import Receiver, Transmitter, Word

WIRES = {"valid": 1, "data": 32, "last": 1, "kind": 1, "check": 8, "line": 1}


def flip(wire, bit=0):
    """Return a fault that inverts one bit of a wire in one cycle."""
    def damage(word, line):
        if wire == "line":
            return word, line ^ 1
        return dataclasses.replace(word, **{wire: getattr(word, wire) ^ 1 << bit}), line
    return damage


def cut(word, line):
    """Fault that cuts the wires: both the word and the bit on the return line are lost."""
    return dataclasses.replace(word, valid=0), 0


def any_flip(generator):
    """Return a fault that inverts one bit of the forward wires or the return line, chosen uniformly."""
    bit = generator.randrange(sum(WIRES.values()))
    for wire, width in WIRES.items():
        if bit < width:
            return flip(wire, bit)
        bit -= width
    raise AssertionError


def random_play(seed, **options):
    """Run a link with random stalls on all sides, control words, and faults in up to 3 % of all cycles."""
    generator = random.Random(seed)
    rate = generator.choice([0, .001, .01, .03])
    cut_at, length = generator.randrange(300, 900), generator.randrange(1, 200)

    def faults(cycle):
        if rate and cut_at <= cycle < cut_at + length:
            return cut
        return any_flip(generator) if generator.random() < rate else None

    return Play(packets(generator, 30), **{
        "controls": [generator.getrandbits(32) for _ in range(20)], "faults": faults,
        "latency": generator.choice([0, 1, 5, 16, 40, 64]), "back": generator.choice([0, 1, 16, 64]),
        "willing": geometric(generator, generator.choice([.3, 1])),
        "takes": geometric(generator, generator.choice([.4, 1])),
        "control_willing": geometric(generator, .1), "control_takes": geometric(generator, .7), **options})


def reset_plays(moments, cycles, make=random_play, **options):
    """For each cycle in ``moments``, yield a random run of ``cycles`` cycles with a link reset in that cycle."""
    for moment in moments:
        play = make(moment, resets=lambda cycle, moment=moment: moment <= cycle < moment + 3, **options)
        for _ in range(cycles):
            play.step()
        yield play


class SlowWires:
    """Wires that carry one word every ``pace`` cycles; words that are sent faster are queued."""

    def __init__(self, *, latency, pace):
        self._latency, self._pace = latency, pace
        self._words = collections.deque()  # words in flight, each with its arrival cycle
        self._cycle = self._free = 0

    def __len__(self):
        return len(self._words)

    def append(self, word):
        if word.valid:
            self._free = max(self._cycle + self._latency, self._free + self._pace)
            self._words.append((self._free, word))

    def popleft(self):
        arrives = self._words and self._words[0][0] <= self._cycle
        self._cycle += 1
        return self._words.popleft()[1] if arrives else Word()


@dataclasses.dataclass
class Play:
    #: Packet words to send, as (data, last); ``controls`` holds control words, which use port 0.
    sent: list
    controls: list = dataclasses.field(default_factory=list)
    segments: int = 3
    packet_words: int = 70
    rows: int = 512
    window: int = 255
    latency: int = 1
    back: int | None = None
    faults: Callable = lambda cycle: None  # function that corrupts the wires in a given cycle, or None
    willing: Callable = lambda: True  # whether the next word is offered in this cycle
    takes: Callable = lambda: True
    control_willing: Callable = lambda: True
    control_takes: Callable = lambda: True
    resets: Callable = lambda cycle: False
    route: list | None = None  # port (0 or 1) of each packet, or None for a link with one port
    pace: int = 1  # cycles per word on the wires; must be 1 with two ports

    def __post_init__(self):
        ports = 1 if self.route is None else 2
        self.transmitter = Transmitter(segments=self.segments, rows=self.rows, window=self.window, ports=ports)
        self.receivers = [Receiver(segments=self.segments, packet_words=self.packet_words) for _ in range(ports)]
        self.receiver = self.receivers[0]
        self.wires = [collections.deque([Word()] * (self.latency + 9 * port)) for port in range(ports)]
        if self.pace > 1:
            self.wires = [SlowWires(latency=self.latency, pace=self.pace)]
        back = self.latency if self.back is None else self.back
        self.lines = [collections.deque([0] * (back + 9 * port)) for port in range(ports)]
        self.received, self.heard, self.moments = [], [], []
        self.by_port = [[] for _ in range(ports)]  # words received at each port
        self.packet = 0  # number of the packet that the next word belongs to
        self.cycle = 0
        self.restarts = self.repeated = self.failed = self.fresh = 0
        self._word = self._control = 0  # indices of the next packet word and control word
        self._offers = self._control_offers = False
        self._first = True
        self.trace = collections.defaultdict(list)

    def step(self):
        transmitter, receiver, trace = self.transmitter, self.receiver, self.trace
        reset = int(self.resets(self.cycle))
        at = transmitter.at
        port = at if self.route is None or self.packet == len(self.route) else self.route[self.packet]
        words, bits = [], []
        for number, (wires, lines, peer) in enumerate(zip(self.wires, self.lines, self.receivers, strict=True)):
            wires.append(transmitter.word if number == at else Word())
            lines.append(peer.line)
            words.append(wires.popleft())
            bits.append(lines.popleft())
            damage = self.faults(self.cycle)
            if damage is not None:
                words[number], bits[number] = damage(words[number], bits[number])
        word, line = words[0], bits[at]

        if not self._offers and self._word < len(self.sent):
            self._offers = bool(self.willing()) and (not self._first or (transmitter.credits != 0 and port == at))
        if not self._control_offers and self._control < len(self.controls):
            self._control_offers = bool(self.control_willing())
        offered = self.sent[self._word] if self._offers else None
        control = self.controls[self._control] if self._control_offers and at == 0 else None
        enters, control_enters = transmitter.ready(control is not None, reset, port)
        takes, control_takes = int(self.takes()), int(self.control_takes())

        def note(**values):
            for name, value in values.items():
                trace[name].append(value)

        data, last = offered or (0xdead, 1)
        note(t_i__valid=self._offers, t_i__payload=data | last << 32, t_control__valid=control is not None,
             t_control__payload=control or 0, t_ring_o__line=line, t_reset_link=reset, r_reset_link=reset,
             t_i__ready=enters, t_control__ready=control_enters, t_credits=transmitter.credits,
             t_may_start=transmitter.credits != 0 and not reset and port == at, t_settled=transmitter.settled(),
             t_delay=transmitter.delay, t_fresh=transmitter.fresh, t_repeated=transmitter.repeated,
             t_restarted=transmitter.restarted, **{f"t_ring_o__{k}": v for k, v in vars(transmitter.word).items()})
        if self.route is not None:
            note(t_port=port, t_at=at, t_home=transmitter.home)
        got = receiver.o
        note(**{f"r_ring_i__{k}": v for k, v in vars(word).items()}, r_ring_i__line=receiver.line,
             r_o__ready=takes, r_control__ready=control_takes, r_o__valid=got is not None,
             r_o__payload=0 if got is None else got[0] | got[1] << 32, r_control__valid=receiver.control is not None,
             r_control__payload=receiver.control or 0, r_level=len(receiver.held), r_packets=receiver.packets,
             r_overrun=receiver.overrun, r_failed=receiver.failed, r_arrived=receiver.arrived, r_ended=receiver.ended)
        self.restarts += transmitter.restarted
        self.repeated += transmitter.repeated
        self.fresh += transmitter.fresh
        self.failed += receiver.failed
        if not reset:
            for got, peer in zip(self.by_port, self.receivers, strict=True):
                if peer.o is not None and takes:
                    got.append(peer.o)
                    self.received.append(peer.o)
                    self.moments.append(self.cycle)
            if receiver.control is not None and control_takes:
                self.heard.append(receiver.control)
        transmitter.step(word=offered, control=control, line=line, reset_link=reset, port=port)
        for word, peer in zip(words, self.receivers, strict=True):
            peer.step(word=word, ready=takes, control_ready=control_takes, reset_link=reset)
        if self._offers and enters:
            self._first = bool(offered[1])
            self.packet += offered[1]
            self._offers, self._word = False, self._word + 1
        if control is not None and control_enters:
            self._control_offers, self._control = False, self._control + 1
        self.cycle += 1

    def run(self, limit):
        """Run until all words have arrived and been acknowledged, for at most ``limit`` cycles."""
        while self.cycle < limit:
            self.step()
            if self.whole and self.transmitter.settled():
                return self
        raise AssertionError(f"{len(self.received)} of {len(self.sent)} words in {limit} cycles")

    @property
    def whole(self):
        return (len(self.received), len(self.heard)) == (len(self.sent), len(self.controls))

    def assert_mended(self):
        due, packet = [[] for _ in self.receivers], 0
        for word in self.sent:
            due[0 if self.route is None else self.route[packet]].append(word)
            packet += word[1]
        assert self.by_port == due
        assert self.heard == self.controls

    def columns(self, end):
        """Recorded port values of one end, keyed by name; ``end`` is "t_" (transmitter) or "r_" (receiver)."""
        return {name.removeprefix(end): np.array(rows, np.uint64) for name, rows in self.trace.items()
                if name.startswith(end)}


def packets(generator, count, longest=70):
    """Draw the words of packets with random lengths."""
    words = []
    for _ in range(count):
        length = generator.randint(2, longest)
        words += [(generator.getrandbits(32), int(n == length - 1)) for n in range(length)]
    return words


def geometric(generator, chance):
    return lambda: generator.random() < chance


def assert_lockstep(unit, play, end):
    """Run the Verilated end "t_" or "r_" with its model's inputs, comparing every port in every cycle."""
    compare(unit, play.columns(end))
