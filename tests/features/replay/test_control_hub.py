# amaranth: UnusedElaboratable=no
"""Dispatch of control words, in lockstep with its model: hdl/features/replay/control_hub.py."""

import random

import pytest

from hdl.features.replay.control_hub import ControlHub
from hdl.features.replay.control_word import ControlType, control_layout
from sim.golden.features.replay import control_words
from sim.golden.features.replay.control_words import Signal, keepalive_word, marked, parted
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns, whole
from tests.refusals import refuses

TAKES = [(ControlType.SIGNAL,), (ControlType.KEEPALIVE,), (ControlType.READY, ControlType.CLOSE)]


@pytest.fixture(scope="module")
def unit():
    return Unit(ControlHub(takes=TAKES))


@pytest.fixture(scope="module")
def shared():
    return Unit(ControlHub(takes=TAKES, tenants=True))


def first_word(type, words, tag=0x1234):
    return control_layout().const({"type": type, "words": words, "tag": tag}).as_bits()


def messages(generator, count):
    """Draw messages (lists of words) of all types, including unknown types and damaged messages."""
    drawn = []
    for _ in range(count):
        type = generator.choice([*ControlType, 9, 15])
        if type is ControlType.SIGNAL:
            drawn.append([Signal(*(generator.getrandbits(bits) for bits in (4, 2, 6, 16))).word])
        elif type in (ControlType.RESTART, ControlType.READY):
            drawn.append([type.value | generator.getrandbits(28) << 4])
        elif type is ControlType.KEEPALIVE:
            drawn.append([keepalive_word(generator.randrange(16))])
        else:
            words = generator.choice([0, 0, 1, 2, 5, 255]) if generator.random() < .3 else generator.randrange(3)
            number = getattr(type, "value", type)
            first = number | words << 4 | generator.getrandbits(16) << 12
            drawn.append([first, *(generator.getrandbits(32) for _ in range(words))])
            if generator.random() < .1:
                drawn[-1] = [first | 1 << generator.randrange(28, 32)]
    return drawn


class Bench:
    """The model, with a record of its ports, the words handed to each unit and the words sent to the link."""

    def __init__(self, tenant=None):
        self.model = control_words.ControlHub(takes=[[type.value for type in types] for types in TAKES],
                                              tenant=tenant)
        self.columns = Columns()
        self.handed, self.sent = [[] for _ in TAKES], []
        self.words, self.gives = [], [[] for _ in TAKES]
        self._offered = [False] * len(TAKES)

    def step(self, *, ready=1, takes=None, willing=None, offers=True, reset_link=0):
        model, columns = self.model, self.columns
        takes = [1] * len(TAKES) if takes is None else takes
        word = self.words[0] if self.words and offers else None
        for n, give in enumerate(self.gives):  # an offered word remains offered until it is accepted
            self._offered[n] = bool(give) and (self._offered[n] or willing is None or willing[n])
        heads = [give[0] if offered else None for give, offered in zip(self.gives, self._offered, strict=True)]
        unit, seen = model.handed(word or 0)
        taken = model.ready(word or 0, takes)
        granted = model.granted(heads, ready)
        columns.stream("i", word, taken)
        columns.stream("o", model.o, ready)
        columns.note(reset_link=reset_link, **({} if model.tenant is None else {"tenant": model.tenant}))
        for n in range(len(TAKES)):
            selected = word is not None and unit == n
            columns.stream(f"take__{n}", seen if selected else None, takes[n])
            columns.stream(f"give__{n}", heads[n], granted == n)
            if selected and taken:
                self.handed[n].append(seen)
        if model.o is not None and ready:
            self.sent.append(model.o)
        model.step(word=word, takes=takes, offers=heads, ready=ready, reset_link=reset_link)
        if word is not None and taken:
            self.words.pop(0)
        if granted is not None and heads[granted] is not None:
            self.gives[granted].pop(0)
            self._offered[granted] = False


def test_types(unit):
    """Messages are passed to the unit for their type; unknown messages are skipped, malformed ones word by word."""
    bench = Bench()
    known = [[Signal(1, 0, 2, 3).word], [keepalive_word(2)], [first_word(ControlType.READY, 0)],
             [first_word(ControlType.CLOSE, 1), Signal(1, 0, 2, 3).word]]
    skipped = [[first_word(ControlType.SYNC, 2), Signal(1, 0, 2, 3).word, keepalive_word(1)],
               [9 | 1 << 4, keepalive_word(1)], [ControlType.CLOSE.value | 3 << 4 | 1 << 30],
               [1 | 0x123456 << 4]]
    for message, other in zip(known, skipped, strict=True):
        bench.words += [*other, *message]
    for _ in range(40):
        bench.step()
    assert bench.handed == [whole(known[0]), whole(known[1]), [*whole(known[2]), *whole(known[3])]]
    bench.columns.compare(unit)


def test_messages_are_not_mixed(unit):
    """Messages of several units are sent one at a time, without mixing words and with the stated latency."""
    bench = Bench()
    bench.gives = [whole([10]), whole([20, 21, 22]), whole([30, 31])]
    for cycle in range(20):
        bench.step(willing=[cycle > 3, cycle > 0 and cycle != 3, cycle > 2])
    assert bench.sent == [20, 21, 22, 10, 30, 31]
    bench.columns.compare(unit)
    bench = Bench()
    bench.gives[1] = whole([5])
    bench.step()
    assert bench.model.o == 5
    assert ControlHub.latency == 1


@pytest.mark.parametrize("seed", range(4))
def test_lockstep(unit, seed):
    generator = random.Random(seed)
    bench = Bench()
    bench.words = [word for message in messages(generator, 300) for word in message]
    bench.gives = [[word for message in messages(generator, 200) for word in whole(message)] for _ in TAKES]
    for _ in range(3000):
        bench.step(ready=generator.random() < .8, offers=generator.random() < .8, takes=[
            int(generator.random() < .8) for _ in TAKES], willing=[generator.random() < .2 for _ in TAKES],
            reset_link=generator.random() < .002)
    assert all(bench.handed)
    bench.columns.compare(unit)


def test_marks_by_hand():
    """Known positions of tenant marks: a SIGNAL's type, zeros of a READY, and reserved bits of other messages."""
    signal, ready, alive = Signal(1, 0, 2, 3).word, ControlType.READY.value | 5 << 4 | 7 << 16, keepalive_word(2)
    assert [marked(signal, tenant) for tenant in range(3)] == [signal, signal - 2 + 9, signal - 2 + 10]
    assert marked(ready, 2) == ready | 2 << 9
    assert marked(alive, 1) == alive | 1 << 28
    for word in (signal, ready, alive):
        for tenant in range(3):
            assert parted(marked(word, tenant)) == (tenant, word)
    assert parted(alive | 3 << 28)[0] is parted(ready | 4 << 9)[0] is None


@pytest.mark.parametrize("tenant", range(3))
def test_tenants(shared, tenant):
    """Only messages of the node's tenant reach the units; sent messages carry the tenant mark in their first word."""
    bench = Bench(tenant)
    known = [[Signal(1, 0, 2, 3).word], [keepalive_word(2)], [first_word(ControlType.READY, 0) & ~0xFE00],
             [first_word(ControlType.CLOSE, 4), 9, 10, 0xFFFFFFF3, 0xFFFFFFF4]]
    for message in known:
        for owner in (0, 1, 2):
            bench.words += [marked(message[0], owner), *message[1:]]
    bench.gives = [whole(known[0]), whole(known[1]), [*whole(known[2]), *whole(known[3])]]
    for _ in range(50):
        bench.step()
    assert bench.handed == [whole(known[0]), whole(known[1]), [*whole(known[2]), *whole(known[3])]]
    assert bench.sent == [word for message in known for word in (marked(message[0], tenant), *message[1:])]
    bench.columns.compare(shared)


def test_lockstep_of_tenants(shared):
    """The hub matches its model on words of all tenants while link resets change the node's tenant."""
    generator = random.Random(2)
    bench = Bench(0)
    bench.words = [word for message in messages(generator, 600)
                   for word in (marked(message[0], generator.randrange(3)), *message[1:])]
    bench.gives = [[word for message in messages(generator, 200) for word in whole(message)] for _ in TAKES]
    for _ in range(3000):
        reset = generator.random() < .005
        bench.step(ready=generator.random() < .8, offers=generator.random() < .8, takes=[
            int(generator.random() < .8) for _ in TAKES], willing=[generator.random() < .2 for _ in TAKES],
            reset_link=reset)
        if reset:
            bench.model.tenant = generator.randrange(3)
    assert all(bench.handed)
    bench.columns.compare(shared)


@pytest.mark.parametrize("takes", [[], [[]], [[ControlType.SIGNAL], [ControlType.SIGNAL]], [[99]]])
def test_types_are_checked(takes):
    message = f"Types must be of ControlType, one at least, and each of one unit, not {[tuple(t) for t in takes]!r}"
    refuses(message, ControlHub, takes=takes)
