# amaranth: UnusedElaboratable=no
"""Tests of the adder of integers, which also adds checksums: hdl/features/reproducible/integer_adder.py."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from amaranth.hdl import Const, Mux

from hdl.features.reproducible.integer_adder import IntegerAdder, kind_layout
from hdl.features.reproducible.layout import integers_layout
from hdl.streams.stream import word_layout
from sim.golden.features.reproducible.packet import addend_of, codes_of, field_hash, pack, packet_checksum, unpack
from sim.golden.features.reproducible.sums import Addend, partial_sums
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from sim.verilated.vectors import pack as rows_of
from tests.features.reproducible.words import own_rows, sum_hash
from tests.refusals import refused_values
from tests.traces import taken

WIDTHS = (16, 32)
LONGEST = 512
#: Flags of an element, which stand for finite, +infinity, -infinity and NaN.
FLAGS = (0, 1, 2, 3)
PORTS = ("a", "b", "kind", "hash", "sent", "total")
#: Upper half of an integer that makes a faulty adder invert a bit; the lower half is the position of this bit.
MARK = 0x2D


class FaultyAdder(IntegerAdder):
    """Faulty adder that inverts one bit of the sums of marked integers."""

    def _add(self, own, received):
        half, bits = self._width // 2, (self._width - 1).bit_length()
        return super()._add(own, received) ^ Mux(own[half:] == MARK, Const(1, self._width) << own[:bits], 0)


class FaultyRegister(IntegerAdder):
    """Faulty adder that inverts a bit of the node's own integers while loading them, if their word is marked."""

    def _load(self, word):
        return super()._load(word) ^ Mux(word[8:16] == MARK, Const(1, 32) << word[:5], 0)


@functools.cache
def adder(width, kind):
    return Unit(kind(width=width))


def elements_in(words, width):
    """Number of integers in ``words`` 32-bit words."""
    return words * 32 // width


def flagged(integers, flags):
    """Addend with the given flags, where the integers of special elements are zero."""
    flags = np.asarray(flags)
    return Addend(np.where(flags, 0, integers), flags & 1 != 0, flags & 2 != 0)


def flags_of(addend):
    return addend.positive + 2 * addend.negative


def weighted(integers):
    """Checksum of integers: each integer is multiplied by its weight, and the products are added modulo 2**32."""
    return int((integers * (1 + 2 * np.arange(len(integers), 0, -1))).sum()) % 2 ** 32


def sealed(addend, width, hashed):
    """Words of a packet on the ring: codes, and a checksum that includes the hash of the exponents."""
    codes = codes_of(addend, width)
    return np.append(pack(codes, width), np.uint32((weighted(codes) + hashed) % 2 ** 32))


def random_hash(generator):
    return int(generator.choice([0, 2 ** 32 - 1, *generator.integers(0, 2 ** 32, 6)]))


@dataclasses.dataclass
class Packet:
    """A node's own integers, the packet received from the ring (or None), and the hash of the node's exponents."""

    width: int
    own: Addend
    received: np.ndarray | None = None
    hash: int = 0
    final: bool = False
    faults: np.ndarray | int = 0  # bits of the sums that are inverted
    contradicts: bool = False  # whether the packet's kind has a wrong bit
    spoilt: np.ndarray | int = 0  # own integers' bits inverted after the parity check

    @property
    def words(self):
        return len(self.own.integers) * self.width // 32

    @property
    def _own(self):
        """The node's own addend, with the bits that are inverted before it is added."""
        return dataclasses.replace(self.own, integers=self.own.integers ^ self.spoilt)

    def _parts(self):
        """Addend and checksum of the received packet; the checksum does not include the hash."""
        count = len(self.own.integers)
        if self.received is None:
            return flagged(np.zeros(count, np.int64), np.zeros(count, np.uint8)), 0
        received = addend_of(unpack(self.received[:-1], count, self.width), self.width)
        return received, (int(self.received[-1]) - self.hash) % 2 ** 32

    @property
    def total(self):
        """Sum of both addends; integers that are too large wrap."""
        total = self._own + self._parts()[0]
        limit = 1 << self.width - 1
        wrapped = ((total.integers + limit) % (2 * limit) ^ self.faults) - limit
        return flagged(wrapped, flags_of(total))

    @property
    def check(self):
        """Expected checksum of the sum, without the hash: the received checksum plus the checksum of all changes."""
        received, check = self._parts()
        total = self._own + received
        difference = codes_of(total, self.width) - codes_of(received, self.width)
        changes = np.where(flags_of(total), difference, self._own.integers)
        return (check + weighted(changes)) % 2 ** 32

    @property
    def sent_check(self):
        """Checksum in the packet that the node sends."""
        return 0 if self.received_wrong or self._unsure else (self.check + self.hash) % 2 ** 32

    @property
    def total_hash(self):
        return sum_hash(pack(codes_of(self.total, self.width), self.width))

    @property
    def _unsure(self):
        """Whether the packet's kind or the parity of one of its words is wrong."""
        return bool(self.contradicts or np.any(self.spoilt))

    @property
    def received_wrong(self):
        received, check = self._parts()
        return weighted(codes_of(received, self.width)) != check

    @property
    def added_wrong(self):
        return weighted(codes_of(self.total, self.width)) != (self.check + self._unsure) % 2 ** 32


def random_flags(generator, count, rate):
    return np.where(generator.random(count) < rate, generator.integers(1, 4, count), 0)


def random_integers(generator, count, limit):
    """Draw integers with magnitudes of at most ``limit``, some of them extreme or small."""
    integers = generator.integers(-limit, limit, count, endpoint=True)
    few = generator.choice([-limit, limit, 1 - limit, limit - 1, 0, 1, -1], count)
    return np.where(generator.random(count) < generator.choice([0, 0.3, 1]), few, integers)


def random_packet(generator, width, words, *, paired, final, rate=0.1):
    count = elements_in(words, width)
    limit = 2 ** (width - 1) - 1  # real sums stay below the special codes
    hashed = random_hash(generator)
    if not paired:
        own = random_integers(generator, count, limit - (not final))
        return Packet(width, flagged(own, random_flags(generator, count, rate)), None, hashed, final)
    received = random_integers(generator, count, limit - 1)
    total = random_integers(generator, count, limit - 1)
    own = np.clip(total - received, -limit, limit)
    if generator.random() < 0.2:  # values for which the checksum wraps
        received, own = np.full(count, limit // 2), np.full(count, limit // 3)
    received = flagged(received, random_flags(generator, count, rate))
    own = flagged(own, random_flags(generator, count, rate))
    return Packet(width, own, sealed(received, width, hashed), hashed, final)


def random_packets(seed, width, count=30):
    generator = np.random.default_rng(seed)
    words = [LONGEST * width // 32, 1, 1, 2, 3, *generator.integers(1, 40, count - 5).tolist()]
    return [random_packet(generator, width, size, paired=generator.random() < 0.7, final=generator.random() < 0.5,
                          rate=generator.choice([0, 0.1, 0.8])) for size in generator.permutation(words).tolist()]


def beats(packets, generator):
    """Payloads of all inputs; the field ``last`` of words from the ring is random."""
    width = packets[0].width
    lanes = 32 // width
    received = [packet.received for packet in packets if packet.received is not None]
    received = np.concatenate([np.zeros(0, np.uint32), *received])
    return {
        "a": own_rows(
            width, np.concatenate([pack(packet.own.integers, width) for packet in packets]),
            np.concatenate([flags_of(packet.own) for packet in packets]).reshape(-1, lanes),
            np.concatenate([np.arange(packet.words) == packet.words - 1 for packet in packets])),
        "b": rows_of(word_layout(), {"data": received, "last": generator.integers(0, 2, len(received))}),
        "kind": rows_of(kind_layout(), {"paired": [packet.received is not None for packet in packets],
                                        "final": [packet.final for packet in packets],
                                        "first": [(packet.received is None) != packet.contradicts
                                                  for packet in packets]}),
        "hash": np.array([packet.hash for packet in packets], np.uint32)}


def expected_sent(packets):
    """Words of all packets that are sent, and the flag ``last`` of each word."""
    payloads = [np.append(pack(codes_of(packet.total, packet.width), packet.width), np.uint32(packet.sent_check))
                for packet in packets if not packet.final]
    return (np.concatenate([np.zeros(0, np.uint32), *payloads]).tolist(),
            [place == len(payload) - 1 for payload in payloads for place in range(len(payload))])


def expected_total(packets):
    """Words, flags and ``last`` of final packets; the output ends just before the last word of a wrong packet."""
    words, flags, last = [], [], []
    for packet in packets:
        if packet.final:
            words += pack(packet.total.integers, packet.width).tolist()
            flags += flags_of(packet.total).reshape(packet.words, -1).tolist()
            last += [place == packet.words - 1 for place in range(packet.words)]
            if packet.received_wrong or packet.added_wrong:
                return words[:-1], flags[:-1], last[:-1]
    return words, flags, last


def run(packets, kinds=None, *, seed=1, kind=IntegerAdder):
    """Run the unit on all packets, check all of its outputs, and return the trace."""
    width = packets[0].width
    unit = adder(width, kind)
    unit.reset()
    generator = np.random.default_rng(seed)
    kinds = dict(zip(PORTS, kinds or ["none"] * len(PORTS), strict=True))
    slots = sum(packet.words + 1 for packet in packets)
    slow = 120 if "freeze" in kinds.values() else 12
    cycles = 50 + slots if set(kinds.values()) == {"none"} else 500 + slow * slots
    stalls = {name: stall_array(stall, cycles, seed=seed + number)
              for number, (name, stall) in enumerate(kinds.items())}
    sources = {name: Feed(rows, stalls[name]) for name, rows in beats(packets, generator).items()}
    trace = unit.lockstep(sources=sources, sinks={name: stalls[name] for name in ("sent", "total")}, seed=seed)
    note = f"{width=}, {kinds=}, {seed=}"
    payload = taken(trace, "sent", word_layout())[1]
    assert (payload["data"].tolist(), payload["last"].astype(bool).tolist()) == expected_sent(packets), note
    payload = taken(trace, "total", integers_layout(width))[1]
    words, flags, last = expected_total(packets)
    assert payload["data"].tolist() == words, note
    assert payload["special"].reshape(-1, 32 // width).tolist() == flags, note
    assert payload["last"].tolist() == last, note
    ends = taken(trace, "kind", kind_layout())[0]
    assert len(ends) == len(packets), note
    np.testing.assert_array_equal(np.flatnonzero(trace["hash__valid"] & trace["hash__ready"]), ends, note)
    for name in ("received_wrong", "added_wrong"):
        assert np.count_nonzero(trace[name]) == sum(getattr(packet, name) for packet in packets), f"{name}, {note}"
    checked = np.flatnonzero(trace["checked"])
    assert trace["complete"][checked].tolist() == [packet.final for packet in packets], note
    assert trace["total_hash"][checked].tolist() == [packet.total_hash for packet in packets], note
    for name in ("sent", "total"):  # an offered word stays until it is accepted
        held = np.flatnonzero((trace[f"{name}__valid"] & ~trace[f"{name}__ready"] & 1)[:-1])
        assert trace[f"{name}__valid"][held + 1].all(), note
        np.testing.assert_array_equal(trace[f"{name}__payload"][held + 1], trace[f"{name}__payload"][held], note)
    return trace


test_widths = refused_values(IntegerAdder, {}, "width", [0, 8, 31, 64, "16", None], "Integer width must be 16 or 32")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("final", [False, True])
def test_special_elements(width, final):
    """Sums of finite numbers, infinities and NaNs are correct at each position of a word and of a packet."""
    for words in (1, 2, 3):
        count = elements_in(words, width)
        packets = []
        for place, own, received in itertools.product(range(count), FLAGS, FLAGS):
            addends = []
            for sign, flag in ((1, own), (-1, received)):
                flags = np.zeros(count, np.uint8)
                flags[place] = flag
                addends.append(flagged(sign * (1000 + np.arange(count)), flags))
            hashed = 2 ** 31 + place
            packets += [Packet(width, addends[0], sealed(addends[1], width, hashed), hashed, final),
                        Packet(width, addends[0], None, hashed, final)]
        assert not any(packet.received_wrong or packet.added_wrong for packet in packets)
        run(packets)


@pytest.mark.parametrize("width", WIDTHS)
def test_extreme_integers(width):
    """Sums at the limits are correct, even if checksums of the longest packets wrap in either direction."""
    limit = 2 ** (width - 1) - 2
    packets = []
    for size, sign, final in itertools.product((1, 2, LONGEST * width // 32), (1, -1), (False, True)):
        count = elements_in(size, width)
        nothing = np.zeros(count, np.uint8)
        for own, received in ((limit, 0), (0, limit), (limit // 2, limit - limit // 2), (limit, -limit), (-1, 1)):
            hashed = own % 2 ** 32
            packets.append(Packet(width, flagged(np.full(count, sign * own), nothing), sealed(
                flagged(np.full(count, sign * received), nothing), width, hashed), hashed, final))
        # A sum with a single addend may be equal to a special code.
        packets.append(Packet(width, flagged(np.full(count, sign * (limit + final)), nothing), None, 1, final))
    prefixes = [packet.total.integers.cumsum().sum() for packet in packets]
    assert min(prefixes) < -2 ** 32 < 2 ** 32 < max(prefixes)
    run(packets)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sink", STALLS)
def test_random_packets(width, sink):
    """Packets of all kinds are correct with stalls on every port."""
    number = STALLS.index(sink)
    for turn in range(4):
        seed = 100 * number + turn
        others = [STALLS[(number + turn * step) % len(STALLS)] for step in range(1, 6)]
        run(random_packets(seed, width), [*others[:4], sink, others[4]], seed=seed)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_order_of_kinds(width):
    """Short packets of any two kinds in succession are correct, without stalls and with stalls on one port."""
    generator = np.random.default_rng(3)
    kinds = list(itertools.product((False, True), repeat=2))
    for sizes in ((1, 1), (1, 2), (3, 1)):
        packets = [random_packet(generator, width, size, paired=paired, final=final)
                   for pair in itertools.product(kinds, kinds)
                   for size, (paired, final) in zip(sizes, pair, strict=True)]
        run(packets)
        for port in range(len(PORTS)):
            run(packets, ["geometric" if port == number else "none" for number in range(len(PORTS))], seed=port)


@pytest.mark.parametrize("width", WIDTHS)
def test_ring(width):
    """Packets from node to node match the golden model, and so does the complete sum on the last node."""
    generator = np.random.default_rng(4)
    nodes, count = 5, 256
    addends = generator.standard_normal((nodes, count), np.float32).view(np.uint32)
    special = generator.random((nodes, count)) < 0.02
    addends[special] = generator.choice([0x7F800000, 0xFF800000, 0x7FC00000], np.count_nonzero(special))
    parts = partial_sums(addends, width=width)
    sums, fields = parts.sums, parts.fields[-1]
    received = None
    for node, addend in enumerate(addends):
        own = partial_sums(np.stack([addend, *np.delete(addends, node, axis=0)]), width=width).sums[0]
        packet = Packet(width, own, received, field_hash(fields), final=node == nodes - 1)
        trace = run([packet])
        if not packet.final:
            received = taken(trace, "sent", word_layout())[1]["data"]
            words = pack(codes_of(sums[node], width), width)
            assert received.tolist() == [*words.tolist(), packet_checksum(words, fields, width)]
    total = taken(trace, "total", integers_layout(width))[1]
    expected = addend_of(codes_of(sums[-1], width), width)
    np.testing.assert_array_equal(unpack(total["data"], count, width), expected.integers)
    np.testing.assert_array_equal(total["special"].ravel(), flags_of(expected))


def flips(packet):
    """Yield copies of a packet, each with one bit of a received word inverted."""
    for word, bit in itertools.product(range(len(packet.received)), range(32)):
        received = packet.received.copy()
        received[word] ^= np.uint32(1 << bit)
        yield dataclasses.replace(packet, received=received)


@pytest.mark.parametrize("width", WIDTHS)
def test_wrong_bits_of_received_packets(width):
    """Any wrong bit in a received packet is reported, and so are swapped words if they change the checksum."""
    for seed, words in enumerate((1, 2, 7)):
        generator = np.random.default_rng(seed)
        packet = random_packet(generator, width, words, paired=True, final=False, rate=0.2)
        copies = list(flips(packet))
        assert all(copy.received_wrong for copy in copies)
        for word in range(words - 1):
            received = packet.received.copy()
            received[[word, word + 1]] = received[[word + 1, word]]
            copies.append(dataclasses.replace(packet, received=received))
        # Each wrong packet is followed by a correct final packet, whose words must still get through. Stalls must not
        # repeat error pulses.
        correct = dataclasses.replace(packet, final=True)
        both = [part for copy in copies for part in (copy, correct)]
        for sink in ("alternating", "geometric"):
            run(both, ["none"] * 4 + [sink] * 2, seed=seed)
        trace = run(both, seed=seed)
        # Error pulses come at the end of their packets.
        ends = taken(trace, "kind", kind_layout())[0][::2]
        for name in ("received_wrong", "added_wrong"):
            assert np.flatnonzero(trace[name]).tolist() == [
                end + IntegerAdder(width=width).latency
                for end, copy in zip(ends, copies, strict=True) if getattr(copy, name)]


@pytest.mark.parametrize("width", WIDTHS)
def test_final_packet_with_a_wrong_bit_never_ends(width):
    """After the first wrong final packet, ``total`` offers no more words, while ``sent`` continues."""
    generator = np.random.default_rng(1)
    packet = random_packet(generator, width, 2, paired=True, final=True, rate=0)
    following = [random_packet(generator, width, words, paired=paired, final=final)
                 for words, paired, final in ((1, True, True), (3, False, True), (2, True, False), (1, True, True))]
    before = random_packet(generator, width, 3, paired=True, final=True)
    for number, copy in enumerate(flips(packet)):
        assert copy.received_wrong
        assert copy.added_wrong
        stalls = None if number % 2 else ["geometric"] * len(PORTS)
        trace = run([before, copy, *following], stalls, seed=number)
        assert np.count_nonzero(taken(trace, "total", integers_layout(width))[1]["last"]) == 1
    run([before, packet, *following])  # after a reset, ``total`` works again


@pytest.mark.parametrize("width", WIDTHS)
def test_only_one_check_fails(width):
    """If an adder fault happens to correct a wrong received integer, only the received packet is reported."""
    count = elements_in(1, width)
    bit, flags = 3, np.zeros(count, np.uint8)
    own = np.full(count, MARK << width // 2 | bit)
    received = sealed(flagged(np.full(count, 1 << 9), flags), width, 7)
    received[0] ^= np.uint32(1 << bit)
    faults = np.where(np.arange(count) == 0, 1 << bit, 0)
    own[1:] = 0
    corrected = Packet(width, flagged(own, flags), received, 7, True, faults)
    assert corrected.received_wrong
    assert not corrected.added_wrong
    run([corrected], kind=FaultyAdder)


@pytest.mark.parametrize("width", WIDTHS)
def test_faults_of_the_adder(width):
    """A wrong bit in a sum is reported by the node that added it, and by the next node as a wrong packet."""
    generator = np.random.default_rng(5)
    count = elements_in(3, width)
    packets = []
    for place, bit in itertools.product(range(count), range(width)):
        limit = 2 ** (width - 2) - 1
        own = random_integers(generator, count, limit)
        own[own >> width // 2 == MARK] = 0
        own[place] = MARK << width // 2 | bit
        faults = np.zeros(count, np.int64)
        faults[place] = 1 << bit
        flags = np.zeros(count, np.uint8)
        hashed = random_hash(generator)
        received = sealed(flagged(random_integers(generator, count, limit), flags), width, hashed)
        packet = Packet(width, flagged(own, flags), received, hashed, False, faults)
        final = dataclasses.replace(packet, final=True)
        for each in (packet, final):
            assert each.added_wrong
            assert not each.received_wrong
        run([final], kind=FaultyAdder)
        own[place] = 0
        packets += [packet, Packet(width, flagged(own, flags), received, hashed)]
    trace = run(packets, kind=FaultyAdder)
    ends = taken(trace, "kind", kind_layout())[0][::2]
    assert np.flatnonzero(trace["added_wrong"]).tolist() == (ends + IntegerAdder(width=width).latency).tolist()
    sent = taken(trace, "sent", word_layout())[1]["data"].reshape(len(packets), -1)
    following = [Packet(width, packet.own, words, packet.hash) for packet, words in zip(packets, sent, strict=True)]
    assert [packet.received_wrong for packet in following] == [True, False] * len(ends)
    run(following)


@pytest.mark.parametrize("width", WIDTHS)
def test_wrong_bits_of_kinds(width):
    """A packet with a contradictory kind is reported by the receiving node, and never ends if it is final."""
    generator = np.random.default_rng(7)
    for paired, words in itertools.product((False, True), (1, 2, 5)):
        packet = random_packet(generator, width, words, paired=paired, final=False)
        wrong = dataclasses.replace(packet, contradicts=True)
        assert wrong.added_wrong
        assert not wrong.received_wrong
        run([packet, wrong, packet, wrong, wrong])
        final = dataclasses.replace(wrong, final=True)
        trace = run([packet, dataclasses.replace(packet, final=True), final, packet])
        assert np.count_nonzero(taken(trace, "total", integers_layout(width))[1]["last"]) == 1


def own_packets(width):
    """For each bit of a word of own integers, a packet with this bit inverted, followed by a correct packet."""
    generator = np.random.default_rng(8)
    count, packets = elements_in(3, width), []
    for bit, paired in itertools.product(range(32), (False, True)):
        packet = random_packet(generator, width, 3, paired=paired, final=False, rate=0)
        own = generator.integers(-100, 100, count)
        first, spoilt = elements_in(1, width), np.zeros(count, np.int64)
        own[first] = MARK << 8 | bit
        wrong = np.int64(1) << bit % width
        spoilt[first + bit // width] = wrong - 2 * wrong * (bit % width == width - 1)
        packet = dataclasses.replace(packet, own=flagged(own, np.zeros(count, np.uint8)))
        packets += [dataclasses.replace(packet, spoilt=spoilt),
                    random_packet(generator, width, 2, paired=paired, final=False, rate=0)]
        packets[-1].own.integers[:] = 1
    return packets


@pytest.mark.parametrize("width", WIDTHS)
def test_wrong_bits_of_the_own_register(width):
    """If a bit of a node's own integers flips, this node and the next one report it, and a complete sum never ends.
    """
    packets = own_packets(width)
    assert [packet.added_wrong for packet in packets] == [True, False] * (len(packets) // 2)
    assert not any(packet.received_wrong for packet in packets)
    sent = expected_sent(packets)[0]
    assert sent[3:7 * len(packets) // 2:7] == [0] * (len(packets) // 2)  # wrong packets have a checksum of 0
    run(packets, kind=FaultyRegister)
    run(packets, ["geometric"] * len(PORTS), kind=FaultyRegister)
    for packet in packets[:8:2]:
        trace = run([dataclasses.replace(packet, final=True)], kind=FaultyRegister)
        assert not taken(trace, "total", integers_layout(width))[1]["last"].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_wrong_bits_of_own_words(width):
    """A word at ``a`` with an inverted bit, and thus the wrong parity, is reported once; so is an inverted flag."""
    packet = random_packet(np.random.default_rng(9), width, 3, paired=False, final=False, rate=0)
    layout, unit = integers_layout(width, parity=True), adder(width, IntegerAdder)
    right = beats([packet], np.random.default_rng(0))
    bits = [bit for name, field in layout if name != "last"
            for bit in range(field.offset, field.offset + field.width)]
    rows = np.concatenate([np.where(np.arange(3) == 1, right["a"] ^ np.uint64(1 << bit), right["a"]) for bit in bits])
    unit.reset()
    sources = {"a": Feed(rows), "b": Feed(right["b"]), "kind": Feed(np.repeat(right["kind"], len(bits))),
               "hash": Feed(np.repeat(right["hash"], len(bits)))}
    trace = unit.lockstep(sources=sources, sinks={"sent": True, "total": True}, cycles=50 + 4 * len(bits))
    assert trace["added_wrong"].sum() == trace["checked"].sum() == len(bits)
    assert not trace["received_wrong"].any()
    assert taken(trace, "sent", word_layout())[1]["data"][3::4].tolist() == [0] * len(bits)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("place", range(4))
def test_wrong_hash_of_a_node(width, place):
    """A wrong bit in one node's hash is reported by this node (unless it is the first) and by all later nodes.

    The ring has four nodes. The last node never ends its sum.
    """
    generator = np.random.default_rng(place)
    nodes, words, hashed = 4, 3, random_hash(generator)
    count, turns = elements_in(words, width), range(32)
    nothing = np.zeros(count, np.uint8)
    own = random_integers(generator, count, 2 ** (width - 4))
    own[:place] = 0  # nodes before it change nothing
    received = [None for _ in turns]
    for node in range(nodes):
        wrong = [hashed ^ (node == place) << bit for bit in turns]
        packets = [Packet(width, flagged(own if node != 2 else 0 * own, nothing), words, each, node == nodes - 1)
                   for words, each in zip(received, wrong, strict=True)]
        assert [packet.received_wrong for packet in packets] == [node >= max(place, 1)] * len(turns)
        if node < nodes - 1:
            sent = taken(run(packets), "sent", word_layout())[1]["data"]
            received = list(sent.reshape(len(turns), -1))
        else:
            for packet in packets:
                trace = run([packet, dataclasses.replace(packet, hash=hashed)])
                assert not taken(trace, "total", integers_layout(width))[1]["last"].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_rate_and_latency(width):
    """A packet of n words takes n + 1 cycles, and its sums leave at the same rate."""
    generator = np.random.default_rng(6)
    latency = IntegerAdder(width=width).latency
    sizes = [1, 2, 1, 9, LONGEST * width // 32, 3]
    for final, paired in itertools.product((False, True), repeat=2):
        trace = run([random_packet(generator, width, size, paired=paired, final=final) for size in sizes])
        start = taken(trace, "a", integers_layout(width, parity=True))[0][0]
        ends = start + np.cumsum(np.array(sizes) + 1) - 1
        assert taken(trace, "kind", kind_layout())[0].tolist() == ends.tolist()
        slots = np.arange(start, ends[-1] + 1)
        if paired:
            assert taken(trace, "b", word_layout())[0].tolist() == slots.tolist()
        if final:
            # There is no sum in the cycle before the packet's end; the last sum leaves together with the end.
            words = np.setdiff1d(slots, ends - 1)
            assert taken(trace, "total", integers_layout(width))[0].tolist() == (words + latency).tolist()
        else:
            assert taken(trace, "sent", word_layout())[0].tolist() == (slots + latency).tolist()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 40])
def test_reset(width, cut):
    """A reset in the middle of a packet discards everything, including partial checksums."""
    generator = np.random.default_rng(cut)
    packets = [random_packet(generator, width, size, paired=True, final=final, rate=0.3)
               for size, final in ((3, cut % 2 == 0), (1, cut % 2 == 1), (30, cut % 4 < 2))]
    packets[0].received[0] ^= np.uint32(4)
    unit = adder(width, IntegerAdder)
    unit.reset()
    unit.lockstep(sources={name: Feed(rows) for name, rows in beats(packets, generator).items()},
                  sinks={"sent": cut % 3 != 0, "total": cut % 3 != 0}, cycles=cut)
    run(random_packets(cut, width, 6), seed=cut)
