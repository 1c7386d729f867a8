# amaranth: UnusedElaboratable=no
"""Unit that sums the integers of several addends: hdl/features/microbatches/addend_adder.py."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.microbatches.addend_adder import AddendAdder
from hdl.features.reproducible.exponents import MAX_GROUPS
from hdl.features.reproducible.layout import WIDTHS, integers_layout
from hdl.group import GROUP
from hdl.streams.stream import connect_stream
from sim.payload import pack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused_values
from tests.traces import taken

#: Numbers of addends to test: small numbers and the largest ones.
COUNTS = (*range(1, 9), 16, 254, 255)
#: Flags of an element, which stand for finite, +infinity, -infinity and NaN.
FLAGS = range(4)


def joined(integers, width):
    """Pack integers of ``width`` bits into 32-bit words."""
    codes = (integers & (1 << width) - 1).reshape(-1, 32 // width)
    return (codes << np.arange(32 // width) * width).sum(axis=1)


@dataclasses.dataclass(frozen=True)
class Packet:
    """Integers and flags of all addends of a packet, each of shape (addends, elements)."""

    width: int
    integers: np.ndarray
    flags: np.ndarray

    @property
    def group(self):
        """Number of words in a whole group of elements."""
        return GROUP * self.width // 32

    @property
    def words(self):
        """Number of words in each addend of the packet."""
        return self.integers.shape[1] * self.width // 32

    @property
    def groups(self):
        return -(-self.words // self.group)

    @functools.cached_property
    def total(self):
        """Sum of all addends, as a packet with one addend."""
        return Packet(self.width, self.integers.sum(axis=0, keepdims=True),
                      np.bitwise_or.reduce(self.flags, axis=0, keepdims=True))

    @functools.cached_property
    def order(self):
        """Indices of addends and words, in the order in which the words arrive."""
        return np.array([(addend, word) for start in range(0, self.words, self.group)
                         for addend in range(len(self.integers))
                         for word in range(start, min(start + self.group, self.words))])

    @functools.cached_property
    def rows(self):
        """Payloads of the input stream."""
        lanes = 32 // self.width
        addends, words = self.order.T
        return pack(integers_layout(self.width), {
            "data": joined(self.integers, self.width).reshape(-1, self.words)[addends, words],
            "special": self.flags.reshape(-1, self.words, lanes)[addends, words],
            "last": (words % self.group == self.group - 1) | (words == self.words - 1)})

    @functools.cached_property
    def sums(self):
        """Expected payloads of the output stream."""
        lanes = 32 // self.width
        return pack(integers_layout(self.width), {
            "data": joined(self.total.integers, self.width), "special": self.total.flags.reshape(-1, lanes),
            "last": np.arange(self.words) == self.words - 1})


def draw(generator, width, addends, words):
    """Draw a packet with ``words`` words per addend; no sum exceeds the range of an integer."""
    shape = addends, words * 32 // width
    limit = (2 ** (width - 1) - 1) // addends
    integers = generator.integers(-limit, limit, shape, endpoint=True)
    few = generator.choice([-limit, limit, 1 - limit, 0, 1, -1], shape)
    integers = np.where(generator.random(shape) < generator.choice([0, 0.3, 1]), few, integers)
    kind = generator.integers(6)
    if kind < 2:  # extreme integers, whose total wraps in a long packet
        integers[...] = (limit, -limit)[kind]
    flags = np.where(generator.random(shape) < generator.choice([0, 0.1, 0.5]), generator.integers(0, 4, shape), 0)
    if width == 16:  # fill only one half of the last word
        flags[:, -1], integers[:, -1] = generator.integers(2) * np.stack([flags[:, -1], integers[:, -1]])
    return Packet(width, np.where(flags, 0, integers), flags)


def drive_packets(drawn):
    """Stimuli for packets that all have the same number of addends."""
    beats = {"i": np.concatenate([packet.rows for packet in drawn]),
             "groups": np.array([packet.groups for packet in drawn], np.uint8)}
    return Drive(beats, drawn, {"addends": len(drawn[0].integers)}, cycles=12 * len(beats["i"]) + 1500)


def sizes_for(generator, width, count):
    """Word counts of packets: whole groups, short last groups, single words, and random counts."""
    group = GROUP * width // 32
    return [group + 1, 1, 1, group, 2, 3 * group - 1, 1, *generator.integers(1, 2 * group, count - 7).tolist()]


def _drive(generator, width, addends=None, count=10):
    addends = int(generator.choice([1, 1, 2, 3, 4, 7])) if addends is None else addends
    return drive_packets([draw(generator, width, addends, words)
                          for words in generator.permutation(sizes_for(generator, width, count)).tolist()])


def _model(_, drawn, willing, ready):
    return Want({"wrong": np.zeros(len(ready["o"]), np.uint8)},
                {"o": np.concatenate([packet.sums for packet in drawn])})


BENCH = UnitBench(lambda width: AddendAdder(width=width), _model, _drive)
CASES = [(width,) for width in WIDTHS]
test_sums = BENCH.lockstep(CASES)
test_resets = BENCH.resets(CASES, (1, 2, 3, 4, 5, 6, 7, 8, 17, 33, 34, 40, 67, 150))
test_widths = refused_values(AddendAdder, {}, "width", [0, 8, 31, 64, "16", None], "Integer width must be 16 or 32")


def test_vectors():
    """Known sums of two groups with two addends; the first element of a word is in the lowest bits."""
    flags = np.zeros((2, 34), np.uint8)
    flags[:, 32:] = [[1, 0], [2, 3]]
    packet = Packet(16, np.array([[*range(32), 0, -5], [*range(100, 132), 0, 0]]), flags)
    run = BENCH.check((16,), drive=drive_packets([packet]))
    _, taken_words = taken(run.trace, "i", integers_layout(16))
    assert taken_words["data"][[0, 15, 16, 31, 32, 33]].tolist() == [
        0x0001_0000, 0x001F_001E, 0x0065_0064, 0x0083_0082, 0xFFFB_0000, 0]
    assert np.flatnonzero(taken_words["last"]).tolist() == [15, 31, 32, 33]
    _, sums = taken(run.trace, "o", integers_layout(16))
    assert sums["data"].tolist() == [
        *(100 + 4 * word | 102 + 4 * word << 16 for word in range(16)), 0xFFFB_0000]
    assert sums["special"].tolist() == [*[[0, 0]] * 16, [3, 3]]
    assert sums["last"].tolist() == [0] * 16 + [1]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("addends", COUNTS)
def test_numbers_of_addends(width, addends):
    """Sums are correct for packets of up to 16 groups, and after the number of addends changes without a reset."""
    generator = np.random.default_rng(addends)
    group = GROUP * width // 32
    sizes = [groups * group - missing for groups in range(1, MAX_GROUPS + 1) for missing in (0, group - 1)]
    if addends > 3:
        sizes = [1, group + 1, 1, 2]
    for number, reset in ((addends, True), (addends % 3 + 1, False)):
        drawn = [draw(generator, width, number, words) for words in generator.permutation(sizes).tolist()]
        BENCH.check((width,), drive=drive_packets(drawn), reset=reset)


@pytest.mark.parametrize("width", WIDTHS)
def test_special_elements(width):
    """Sums are correct for all flags of three addends, at each position in a packet of two words."""
    drawn = []
    for flags, position in itertools.product(itertools.product(FLAGS, repeat=3), range(64 // width)):
        packet = Packet(width, np.array([[100], [20], [3]]) + np.zeros(64 // width, int),
                        np.zeros((3, 64 // width), int))
        packet.flags[:, position] = flags
        packet.integers[packet.flags != 0] = 0
        drawn.append(packet)
    BENCH.check((width,), drive=drive_packets(drawn))


@pytest.mark.parametrize("width", WIDTHS)
def test_extreme_totals(width):
    """The longest packets of the largest or smallest integers are correct, although their check totals wrap around.
    """
    for addends in (1, 2, 3):
        limit = (2 ** (width - 1) - 1) // addends
        drawn = [Packet(width, np.full((addends, MAX_GROUPS * GROUP), sign * limit),
                        np.zeros((addends, MAX_GROUPS * GROUP), int)) for sign in (1, -1)]
        BENCH.check((width,), drive=drive_packets(drawn))


def test_offers():
    """Every offered sum stays valid until it is accepted."""
    offers(lambda: AddendAdder(width=16), depth=4)()


# --- latency and throughput


def schedule(drawn):
    """Cycles in which words are accepted, packets end, and sums leave, if no stream stalls."""
    enters, ends, leaves = [], [], []
    free, second = 0, 0  # cycles in which the input and the second stage become free
    for packet in drawn:
        before = {}
        for number, (addend, word) in enumerate(packet.order.tolist()):
            cycle = max(free, before.get(word, 0))
            before[word] = cycle + AddendAdder.turnaround
            enters.append(cycle)
            free = cycle + 1
            if addend == len(packet.integers) - 1:
                offered = max(cycle + AddendAdder.latency, second)
                last = number == len(packet.order) - 1
                leaves.append(offered + last)
                second = leaves[-1] + 1
                free = max(free, offered - 1)
        ends.append(cycle)
    return enters, ends, leaves


@pytest.mark.parametrize("width", WIDTHS)
def test_latency_and_rate(width):
    """Each word is accepted, and each sum leaves, in the expected cycle."""
    for addends in COUNTS:
        run = BENCH.check((width,), drive=_drive(np.random.default_rng(addends), width, addends))
        enters, ends, leaves = schedule(run.drive.drawn)
        assert run.moves("i").tolist() == enters
        assert run.moves("groups").tolist() == ends
        assert run.moves().tolist() == leaves


@pytest.mark.parametrize("width", WIDTHS)
def test_declared_rate(width):
    """In one-word groups, each addend after the first waits a cycle; a packet of one addend takes an extra cycle."""
    sizes = np.array([1, 1, 5, 40, 1, 2, 1, 33])
    for addends in range(1, 5):
        drawn = [draw(np.random.default_rng(1), width, addends, words) for words in sizes]
        run = BENCH.check((width,), drive=drive_packets(drawn))
        cycles, sums = taken(run.trace, "o", integers_layout(width))
        waits = (sizes % drawn[0].group == 1) * (addends - 1) * (AddendAdder.turnaround - 1)
        ends = np.cumsum(sizes * addends + waits + (addends == 1)) - 1 - (addends == 1)
        assert cycles[sums["last"] != 0].tolist() == (ends + AddendAdder.latency + 1).tolist()


# --- faults


class FaultyAdder(AddendAdder):
    """Adder that inverts the bits of its sums that are set in ``fault``."""

    def __init__(self, *, width):
        super().__init__(width=width)
        self.fault = Signal(32)

    def _added(self, word, before):
        return Cat(super()._added(word, before)) ^ self.fault


class Faulty(wiring.Component):
    """Wrapper of the faulty adder, with ``fault`` as an input port."""

    def __init__(self, width):
        self._unit = FaultyAdder(width=width)
        super().__init__({**self._unit.signature.members, "fault": In(32)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        for source, sink in ((self.i, unit.i), (self.groups, unit.groups), (unit.o, self.o)):
            connect_stream(m, source, sink)
        m.d.comb += [unit.addends.eq(self.addends), unit.fault.eq(self.fault), self.wrong.eq(unit.wrong)]
        return m


@functools.cache
def faulty(width):
    return Unit(Faulty(width))


def simulate(drawn, cycles, *, fault=None, stalls=None, seed=1):
    """Run the faulty adder; ``fault`` gives a cycle and the bits to invert in this cycle."""
    unit, drive = faulty(drawn[0].width), drive_packets(drawn)
    willing = {name: stall_array(kind, cycles, seed=seed + number)
               for number, (name, kind) in enumerate((stalls or dict.fromkeys(("i", "groups", "o"), "none")).items())}
    faults = np.zeros(cycles, np.uint32)
    if fault is not None:
        faults[fault[0]] = fault[1]
    unit.reset()
    return unit.lockstep(sources={name: Feed(rows, willing[name]) for name, rows in drive.beats.items()},
                         sinks={"o": willing["o"]}, inputs={**drive.inputs, "fault": faults}, seed=seed)


def check_fault(drawn, trace, *, harmed=1):
    """Check that packet ``harmed`` has no last word and that ``wrong`` stays high; return the first such cycle."""
    width = drawn[0].width
    cycles, words = taken(trace, "o", integers_layout(width))
    expected = np.concatenate([packet.sums for packet in drawn])
    count = sum(packet.words for packet in drawn[:harmed])
    np.testing.assert_array_equal(trace["o__payload"][cycles][:count], expected[:count])
    assert len(cycles) == count + drawn[harmed].words - 1
    assert not words["last"][count:].any()
    high = np.flatnonzero(trace["wrong"])
    assert len(high)
    assert high.tolist() == list(range(high[0], len(trace["wrong"])))
    return high[0]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("addends", [1, 3])
def test_each_wrong_bit(width, addends):
    """Inverting any bit of any sum is detected, whether it happens at the first, a middle or the last addend."""
    generator = np.random.default_rng(addends)
    drawn = [draw(generator, width, addends, words) for words in (3, 2, 1, 4)]
    enters, ends, leaves = schedule(drawn)
    words = [len(packet.rows) for packet in drawn]
    for cycle, bit in itertools.product(enters[words[0]:words[0] + words[1]], range(32)):
        trace = simulate(drawn, leaves[-1] + 40, fault=(cycle, 1 << bit))
        assert check_fault(drawn, trace) == ends[1] + AddendAdder.latency + 1
    # After a reset, the adder works again.
    trace = simulate(drawn, leaves[-1] + 40)
    np.testing.assert_array_equal(trace["o__payload"][taken(trace, "o", integers_layout(width))[0]],
                                  np.concatenate([packet.sums for packet in drawn]))
    assert not trace["wrong"].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_wrong_bit_of_each_word(width):
    """An inverted bit in any sum of a packet of several groups is detected, with and without stalls."""
    generator = np.random.default_rng(1)
    addends, group = 2, GROUP * width // 32
    drawn = [draw(generator, width, addends, words) for words in (1, 2 * group + 1, 5)]
    patterns = [None, *(dict(zip(("i", "groups", "o"), kinds, strict=True)) for kinds in (
        ("geometric", "none", "alternating"), ("none", "alternating", "geometric")))]
    for seed, stalls in enumerate(patterns):
        correct = simulate(drawn, 1000, stalls=stalls, seed=seed)
        enters = taken(correct, "i", integers_layout(width))[0]
        assert len(enters) == addends * sum(packet.words for packet in drawn)
        assert not correct["wrong"].any()
        first = addends * drawn[0].words
        for cycle in enters[first:first + addends * drawn[1].words]:
            bit = int(generator.integers(32))
            check_fault(drawn, simulate(drawn, 1000, fault=(cycle, 1 << bit), stalls=stalls, seed=seed))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("harmed", range(4))
def test_fault_in_each_packet(width, harmed):
    """All packets before the faulty one are complete, and no packet after it is output, whatever stalls occur."""
    for seed, sink in enumerate(STALLS):
        generator = np.random.default_rng(seed)
        drawn = [draw(generator, width, 2, words) for words in (2, 1, 6, 3)]
        stalls = {"i": STALLS[seed - 1], "groups": STALLS[seed - 2], "o": sink}
        correct = simulate(drawn, 2500, stalls=stalls, seed=seed)
        assert np.count_nonzero(taken(correct, "o", integers_layout(width))[1]["last"]) == len(drawn)
        enters = taken(correct, "i", integers_layout(width))[0]
        first = 2 * sum(packet.words for packet in drawn[:harmed])
        fault = generator.choice(enters[first:first + 2 * drawn[harmed].words]), 1 << int(generator.integers(32))
        trace = simulate(drawn, 2500, fault=fault, stalls=stalls, seed=seed)
        check_fault(drawn, trace, harmed=harmed)
