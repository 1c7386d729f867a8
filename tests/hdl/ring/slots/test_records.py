# amaranth: UnusedElaboratable=no
"""Records of nodes, tables and slots that follow from them: hdl/ring/slots/records.py and table.py."""

import random

import pytest

from hdl.ring.replay.control_word import ControlType, control_layout
from hdl.ring.slots.layouts import record_layout, table_layout
from hdl.ring.slots.records import RecordLaps
from hdl.ring.slots.table import SlotTable
from sim.golden import slots as golden
from sim.golden.control_words import Message
from sim.golden.slots import Record, Slot, Table, plan
from sim.verilated.vectors import Unit
from tests.hdl.ring.replay.columns import Columns


@pytest.fixture(scope="module")
def laps_unit():
    return Unit(RecordLaps())


@pytest.fixture(scope="module")
def table_units():
    return [Unit(SlotTable(messages=messages)) for messages in (False, True)]


class Node:
    """The model of a node's records, with a record of its ports."""

    def __init__(self, rank, size):
        self.model, self.columns = golden.RecordLaps(), Columns()
        self.rank, self.size = rank, size

    def step(self, *, word=None, ready=True, record=Record(), ask=0, time=0, valid=1, way=0,  # noqa: B008
             reset_link=0):
        """One cycle; returns the word that is taken from it, and whether it takes one."""
        model, columns = self.model, self.columns
        sent, takes = (model.o if ready else None), model.ready(ready)
        columns.note(i__valid=word is not None, i__payload=0 if word is None else _bits(word), i__ready=takes)
        columns.stream("o", None if model.o is None else _bits(model.o), ready)
        columns.note(place=self.rank | self.size << 4, record=record.word, ask=ask, now=time, valid=valid,
                     way=way, reset_link=reset_link, granted=model.granted,
                     home=model.home)
        columns.value("slots", model.table.bits if model.granted else None)
        columns.value("target", model.target if model.granted else None)
        model.step(word=word, ready=ready, rank=self.rank, size=self.size, record=record, ask=ask, time=time,
                   valid=valid, way=way, reset_link=reset_link)
        return sent, takes


def _bits(message):
    return message.data | message.first << 32 | message.last << 33


def random_record(generator):
    return Record(generator.randrange(32), generator.randrange(32), generator.choice([0, 5, 268, 4095]),
                  int(generator.random() < .3))


def test_layouts():
    record = Record(3, 17, 268, 1)
    assert record_layout().const({"pending": 3, "room": 17, "longest": 268, "wants": 1}).as_bits() == record.word
    assert Record.parse(record.word) == record
    table = Table(16, 268, 5, 1)
    assert table_layout().const({"slots": 16, "longest": 268, "other": 5, "odd": 1}).as_bits() == table.bits


def test_plan():
    """Slots by hand."""
    assert Table.of([Record(20, 30, 10), Record(0, 16, 268, 1), Record(17, 20, 9, 1)], 6) == Table(16, 268, 1, 0)
    assert Table.of([Record(20, 3, 10, 1), Record(16, 16, 268)], 7) == Table(3, 268, 0, 1)
    assert Table.of([Record(2, 16, 10), Record(0, 5, 268), Record(1, 3, 9)], 6) == Table(2, 268, 0, 0)
    packet, first, other = Slot(272), Slot(72, 0), Slot(72, 3)
    assert plan(Table(6, 268, 3, 0)) == [*[packet] * 4, first, packet, packet, other]
    assert plan(Table(4, 268, 3, 1)) == [*[packet] * 4, other]
    assert plan(Table(0, 268, 0, 1)) == [first]
    assert sum(slot.cycles for slot in plan(Table(16, 268))) == 16 * 272 + 4 * 72
    # Messages of rank 3 in a ring of 8 pass 4 to 7, and end at rank 0.
    assert [rank for rank in range(8) if other.passes(rank)] == [4, 5, 6, 7]
    assert [rank for rank in range(8) if first.passes(rank)] == [1, 2, 3, 4, 5, 6, 7]
    assert [rank for rank in range(8) if first.drives(rank)] == [0]
    assert all(packet.drives(rank) and not packet.passes(rank) for rank in range(8))


def play(ring, *, records, cycles, wire=16, without=None, stalled=()):
    """Tables of the nodes of a ring, with the times at which their slots begin at rank 0. Rank 2 waits in the cycles
    ``stalled``, and one rank is without TIME."""
    wires = [[] for _ in ring]
    granted = [[] for _ in ring]
    for cycle in range(cycles):
        sent = []
        for rank, node in enumerate(ring):
            queue = wires[rank]
            word = queue[0][1] if queue and queue[0][0] <= cycle else None
            way = rank * wire
            word_out, takes = node.step(word=word, ready=rank != 2 or cycle not in stalled, record=records[rank],
                                        ask=cycle % 1500 == 20, time=cycle, valid=rank != without, way=way)
            if word is not None and takes:
                queue.pop(0)
            if node.model.granted:
                assert cycle < node.model.target
                granted[rank].append((node.model.table, node.model.target - way))
            sent.append(word_out)
        for rank, word in enumerate(sent):
            if word is not None:
                wires[(rank + 1) % len(ring)].append((cycle + wire, word))
    return granted


@pytest.mark.parametrize("nodes", [2, 3, 8, 15])
def test_ring(laps_unit, nodes):
    """All nodes have the table of all records, before its slots begin; a node without TIME has none."""
    generator = random.Random(nodes)
    ring = [Node(rank, nodes) for rank in range(nodes)]
    records = [random_record(generator) for _ in ring]
    granted = play(ring, records=records, cycles=3000, without=1)
    assert granted[1] == []
    assert [[table for table, _ in tables] for tables in granted] == [
        [Table.of(records, number) for number in (1, 2) if rank != 1] for rank in range(nodes)]
    assert len({tuple(target for _, target in tables) for rank, tables in enumerate(granted) if rank != 1}) == 1
    for node in ring[:3]:
        node.columns.compare(laps_unit)


def test_late(laps_unit):
    """A node to which GRANT comes when its slots have begun has no table; the others have it, and all the next."""
    ring = [Node(rank, 4) for rank in range(4)]
    granted = play(ring, records=[Record(9, 9, 9)] * 4, cycles=3000, stalled=range(120, 400))
    assert [len(tables) for tables in granted] == [2, 2, 1, 1]
    for node in ring:
        node.columns.compare(laps_unit)


@pytest.mark.parametrize("seed", range(4))
def test_laps_lockstep(laps_unit, seed):
    """Every port in every cycle, with words that no node sends."""
    generator = random.Random(seed)
    node = Node(seed % 3, 4)
    words, total = [], 0
    for cycle in range(20_000):
        if cycle % 1000 == 0:
            chance = generator.choice([.05, .5, 1])
            node.size = generator.choice([0, 1, 3, 4, 4, 4])
            words = []
        if not words and generator.random() < .2:
            size = node.size if generator.random() < .9 else generator.randrange(8)
            type = generator.choice([7, 7, 8])
            number = generator.choice([node.model._number, 1])
            words = [type | size + 1 << 4 | number << 12, *(random_record(generator).word for _ in range(size)),
                     (cycle + generator.randrange(-20, 200)) % (1 << 32)]
            if generator.random() < .05:
                words[0] ^= 1 << generator.randrange(32)
            words = [Message(word, int(not n), int(n == len(words) - 1)) for n, word in enumerate(words)]
        word = words[0] if words and generator.random() < .7 else None
        _, takes = node.step(
            word=word, ready=generator.random() < chance, record=random_record(generator),
            ask=generator.random() < .02, time=cycle, valid=generator.random() < .9, way=generator.randrange(50),
            reset_link=generator.random() < .001 or cycle % 1000 == 0)
        if word is not None and takes:
            words.pop(0)
        total += node.model.granted
    assert total > 20
    node.columns.compare(laps_unit)


def test_words():
    for type, value in ((ControlType.COLLECT, 7), (ControlType.GRANT, 8)):
        assert control_layout().const({"type": type, "words": 4, "tag": 9}).as_bits() == value | 4 << 4 | 9 << 12


class Player:
    """The model of a node's slots, with a record of its ports."""

    def __init__(self, rank, messages):
        self.model, self.columns = golden.SlotTable(messages=messages), Columns()
        self.rank = rank

    def step(self, *, time, table=Table(), target=0, granted=0, reset_link=0):  # noqa: B008
        slot, model = self.model.slot, self.model
        mode = 0 if slot is None else (slot.drives(self.rank) | slot.passes(self.rank) << 1
                                       | (slot.owner is not None) << 2)
        self.columns.note(now=time % (1 << 32), slots=table.bits, target=target, granted=granted,
                          reset_link=reset_link, rank=self.rank, starts=model.begin, mode=mode,
                          active=model.active)
        model.step(time=time % (1 << 32), table=table, target=target, granted=granted, reset_link=reset_link)


@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize("slots", [0, 1, 4, 16])
def test_slots(table_units, slots, messages):
    """Slots begin in the cycles that the table names, a cycle behind TIME, and end the same way."""
    node = Player(2, messages)
    start = (1 << 16) - 500
    table = Table(slots, 268, 1, 1)
    begins, first = [], start - 100
    for time in range(first, start + 5000):
        node.step(time=time, table=table, target=start & 0xFFFF, granted=time == first)
        if node.model.begin:
            begins.append(time)
    due, at = [], start
    for slot in plan(table, messages=messages):
        due.append(at)
        at += slot.cycles
    assert begins == due
    assert not node.model.active
    node.columns.compare(table_units[messages])


@pytest.mark.parametrize("seed", range(4))
def test_slots_lockstep(table_units, seed):
    generator = random.Random(seed)
    messages = seed != 3
    node, time = Player(seed, messages), 0
    for _ in range(20_000):
        time += generator.choice([1, 1, 1, 1, 0, 2]) + (generator.randrange(-300, 300)
                                                       if generator.random() < .0005 else 0)
        node.step(time=time, table=Table(generator.randrange(17), generator.choice([5, 20]), generator.randrange(4),
                                         generator.randrange(2)),
                  target=(time + generator.randrange(-3, 50)) & 0xFFFF, granted=generator.random() < .05,
                  reset_link=generator.random() < .0005)
    node.columns.compare(table_units[messages])
