# amaranth: UnusedElaboratable=no
"""Node records, and the tables and slots derived from them: hdl/features/slots/records.py and table.py."""

import itertools
import random

import pytest

from hdl.features.replay.control_word import ControlType
from hdl.features.slots.layouts import lap_layout, record_layout, record_word_layout, table_layout
from hdl.features.slots.records import RecordLaps
from hdl.features.slots.table import SlotTable
from sim.golden.features.replay.control_words import Message
from sim.golden.features.slots import slots as golden
from sim.golden.features.slots.slots import Record, Slot, Table, plan
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns


@pytest.fixture(scope="module")
def laps_unit():
    return Unit(RecordLaps())


@pytest.fixture(scope="module")
def table_units():
    return [Unit(SlotTable(messages=messages)) for messages in (False, True)]


class Node:
    """Model of a node's part in collecting records, which also records its port values."""

    def __init__(self, rank, size):
        self.model, self.slots = golden.RecordLaps(), golden.SlotTable(messages=False)
        self.columns = Columns()
        self.rank, self.size = rank, size

    def step(self, *, word=None, ready=True, record=Record(), ask=0, over=0, left=0, time=0, valid=1,  # noqa: B008
             way=0, error=0, reset_link=0):
        """Run one cycle; return the word that is sent (or None), and whether a received word is accepted."""
        model, columns = self.model, self.columns
        sent, takes = (model.o if ready else None), model.ready(ready)
        columns.stream("i", word, takes)
        columns.stream("o", model.o, ready)
        columns.note(place=self.rank | self.size << 4, record=record.bits, ask=ask, over=over, left=left,
                     now=time & 0xFFFF, valid=valid, way=way, error=error % (1 << 16),
                     reset_link=reset_link, granted=model.granted,
                     home=model.home, gathers=model.gathers, sets=model.sets, gap=model.gap)
        columns.value("slots", model.table.bits if model.granted else None)
        columns.value("target", model.target(self.rank, way) if model.sets else None)
        model.step(word=word, ready=ready, rank=self.rank, size=self.size, record=record, ask=ask, over=over,
                   left=left, time=time, valid=valid, way=way, error=error, reset_link=reset_link)
        return sent, takes


def random_record(generator):
    return Record(generator.randrange(32), generator.randrange(32), generator.choice([0, 5, 268, 4095]),
                  int(generator.random() < .3))


def test_layouts():
    record = Record(3, 17, 268, 1)
    fields = {"pending": 3, "room": 17, "longest": 268, "wants": 1}
    assert record_layout().const(fields).as_bits() == record.bits
    assert record_word_layout().const(
        {"type": ControlType.RECORD, "rank": 5, "odd": 1, "record": fields}).as_bits() == record.word(5, 1)
    assert Record.parse(record.word(5, 1)) == record
    table = Table(16, 268, 5, 1)
    assert table_layout().const({"slots": 16, "longest": 268, "other": 5, "odd": 1}).as_bits() == table.bits


def test_plan():
    """Slot tables and the plans of their slots match known examples."""
    assert Table.of([Record(20, 30, 10), Record(0, 16, 268, 1), Record(17, 20, 9, 1)], 6) == Table(16, 268, 1, 0)
    assert Table.of([Record(20, 3, 10, 1), Record(16, 16, 268)], 7) == Table(3, 268, 0, 1)
    assert Table.of([Record(2, 16, 10), Record(0, 5, 268), Record(1, 3, 9)], 6) == Table(2, 268, 0, 0)
    packet, first, other = Slot(272), Slot(72, 0), Slot(72, 3)
    assert plan(Table(6, 268, 3, 0)) == [*[packet] * 4, first, packet, packet, other]
    assert plan(Table(4, 268, 3, 1)) == [*[packet] * 4, other]
    assert plan(Table(0, 268, 0, 1)) == [first]
    assert sum(slot.cycles for slot in plan(Table(16, 268))) == 16 * 272 + 4 * 72
    # Messages from rank 3 in a ring of 8 pass ranks 4 to 7 and end at rank 0.
    assert [rank for rank in range(8) if other.passes(rank)] == [4, 5, 6, 7]
    assert [rank for rank in range(8) if first.passes(rank)] == [1, 2, 3, 4, 5, 6, 7]
    assert [rank for rank in range(8) if first.drives(rank)] == [0]
    assert all(packet.drives(rank) and not packet.passes(rank) for rank in range(8))


def play(ring, *, records, cycles, wire=16, without=None, stalled=(), delays=8, moved=None):
    """Run a ring; return the tables of each node and the number of times that rank 0 has collected records.

    Each table has the start time of its slots at rank 0. Rank 2 stalls in the cycles ``stalled``, rank ``without``
    has no TIME, and ``moved`` shifts rank 1's TIME.
    """
    wires = [[] for _ in ring]
    granted, last = [[] for _ in ring], 0
    asked = 0
    for cycle in range(cycles):
        sent = []
        for rank, node in enumerate(ring):
            queue, model, slots = wires[rank], node.model, node.slots
            word = queue[0][1] if queue and queue[0][0] <= cycle else None
            way = (rank or len(ring)) * (wire + 1)
            time = cycle + (moved(cycle) if moved and rank == 1 else 0)
            ask = rank == 0 and cycle - last == 20
            if rank == 0 and (slots.active or slots.over or model.gathers or model.granted or cycle - last > 1000):
                last = cycle
            asked += ask
            told = {"table": model.table, "granted": model.granted, "sets": model.sets,
                    "target": model.target(rank, way) if model.sets else 0, "gap": model.gap}
            word_out, takes = node.step(word=word, ready=rank != 2 or cycle not in stalled, record=records[rank],
                                        ask=ask, over=slots.over, left=slots.left(time), time=time,
                                        valid=rank != without, way=way)
            if word is not None and takes:
                queue.pop(0)
            if told["granted"] and not slots.active:
                begins = cycle + slots.left(time) + 1
                assert begins < cycle + (1 << 15)
                granted[rank].append((told["table"], begins - (way if rank else 0)))
            slots.step(time=time, **told)
            sent.append(word_out)
        for rank, word in enumerate(sent):
            if word is not None:  # a hop takes the wire latency plus ``delays`` cycles
                wires[(rank + 1) % len(ring)].append((cycle + wire + delays - 1, word))
    return granted, asked


def small_record(generator):
    return Record(generator.randrange(1, 32), generator.randrange(1, 32), generator.choice([5, 20]),
                  int(generator.random() < .3))


@pytest.mark.parametrize("wire", [1, 16])
@pytest.mark.parametrize("nodes", [2, 3, 8, 15])
def test_ring(laps_unit, nodes, wire):
    """At the stated interval, all nodes receive the same table of all records, before the table's slots begin."""
    generator = random.Random(nodes)
    ring = [Node(rank, nodes) for rank in range(nodes)]
    records = [small_record(generator) for _ in ring]
    granted, asked = play(ring, records=records, cycles=3000, wire=wire)
    assert asked == 1
    least = min(len(tables) for tables in granted)  # some nodes may not have received the latest table yet
    assert least > 3
    assert all(tables[:least] == granted[0][:least] and len(tables) <= least + 1 for tables in granted)
    table = Table.of(records, 1)
    lap = (wire + 1) * nodes + RecordLaps.hop * nodes + RecordLaps.margin
    begins = [begin for _, begin in granted[0]]
    assert [seen for seen, _ in granted[0]] == [Table.of(records, number % 2) for number in range(1, len(begins) + 1)]
    assert {after - before for before, after in itertools.pairwise(begins)} == {
        sum(slot.cycles for slot in plan(table, messages=False)) + lap}
    for node in ring[:3]:
        node.columns.compare(laps_unit)


def test_without(laps_unit):
    """A node without TIME sends no record, so no node receives a table; rank 0 keeps collecting records."""
    ring = [Node(rank, 4) for rank in range(4)]
    granted, asked = play(ring, records=[Record(2, 9, 9)] * 4, cycles=2000, without=1)
    assert granted == [[]] * 4
    assert asked > 5
    for node in ring[:2]:
        node.columns.compare(laps_unit)


@pytest.mark.parametrize("begin", range(120, 1000, 40))
def test_late(laps_unit, begin):
    """If a restart delays words, a node may miss a slot table but never receives a wrong one; later tables arrive."""
    ring = [Node(rank, 4) for rank in range(4)]
    granted, asked = play(ring, records=[Record(3, 9, 9)] * 4, cycles=3000, stalled=range(begin, begin + 70))
    assert asked <= 3
    begins = [{begin: table for table, begin in tables} for tables in granted]
    for received in begins:
        assert all(begins[0].get(begin, table) == table for begin, table in received.items())
    ends = [[(table, begin) for table, begin in tables if begin > 2000] for tables in granted]
    assert len({tuple(tables[:5]) for tables in ends}) == 1
    for node in ring[::2] if begin % 200 == 0 else ():
        node.columns.compare(laps_unit)


@pytest.mark.parametrize("seed", range(4))
def test_laps_lockstep(laps_unit, seed):
    """Every port matches the model in every cycle, even for words that no node would send."""
    generator = random.Random(seed)
    node = Node(seed % 3, 4)
    words, total, left = [], 0, 0
    for cycle in range(20_000):
        if cycle % 1000 == 0:
            chance = generator.choice([.05, .5, 1])
            node.size = generator.choice([0, 1, 3, 4, 4, 4])
            words = []
        if not words and generator.random() < .2:
            # Words are usually the expected records, but sometimes LAP or an arbitrary word.
            ranks = [rank for rank in node.model._turn if rank != node.rank] or [1]
            words = [random_record(generator).word(rank, node.model._odd) for rank in ranks]
            if generator.random() < .2:
                words = [generator.getrandbits(32) & ~15 | generator.choice([7, 7, 8, 9])]
            if generator.random() < .05:
                words[0] ^= 1 << generator.randrange(32)
            words = [Message(word, 1, 1) for word in words]
        word = words[0] if words and generator.random() < .7 else None
        _, takes = node.step(
            word=word, ready=generator.random() < chance, record=random_record(generator),
            ask=generator.random() < .02, over=node.size > 1 and generator.random() < .02, left=left, time=cycle,
            valid=generator.random() < .9, way=generator.randrange(50),
            error=generator.randrange(-20, 20),
            reset_link=generator.random() < .001 or cycle % 1000 == 0)
        if word is not None and takes:
            words.pop(0)
        left = generator.choice([left - 1, left - 1, left - 1, generator.randrange(80)]) % (1 << 16)
        total += node.model.granted
    print(f"seed {seed}: {total} tables")
    assert total > 20
    node.columns.compare(laps_unit)


def test_words():
    assert lap_layout().const({"type": ControlType.LAP, "odd": 1, "gap": 300, "begin": 999}).as_bits() == (
        7 | 1 << 4 | 300 << 5 | 999 << 17)


class Player:
    """Model of a node's slot table, which also records its port values."""

    def __init__(self, rank, messages):
        self.model, self.columns = golden.SlotTable(messages=messages), Columns()
        self.rank = rank

    def step(self, *, time, table=Table(), granted=0, target=0, sets=0, gap=0, reset_link=0):  # noqa: B008
        slot, model = self.model.slot, self.model
        mode = 0 if slot is None else (slot.drives(self.rank) | slot.passes(self.rank) << 1
                                       | (slot.owner is not None) << 2)
        self.columns.note(now=time % (1 << 32), slots=table.bits, granted=granted, target=target, sets=sets,
                          gap=gap, reset_link=reset_link, rank=self.rank, starts=model.begin, mode=mode,
                          active=model.active, over=model.over, left=model.left(time))
        model.step(time=time % (1 << 32), table=table, granted=granted, target=target, sets=sets, gap=gap,
                   reset_link=reset_link)


@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize("slots", [0, 1, 4, 16])
def test_slots(table_units, slots, messages):
    """Slots of two tables begin and end as planned, with the stated gaps after the target time and between slots."""
    node = Player(2, messages)
    start = (1 << 16) - 500
    table = Table(slots, 268, 1, 1)
    begins, first, gap, overs = [], start - 100, 150, []
    for time in range(first, start + 11_000):
        node.step(time=time, table=table, target=start & 0xFFFF, sets=time == first,
                  granted=time - 70 in overs[:2], gap=gap)
        if node.model.begin:
            begins.append(time)
        if node.model.over:
            overs.append(time)
    due, ends, at = [], [start], start + gap
    for _ in range(2):
        for slot in plan(table, messages=messages):
            due.append(at)
            at += slot.cycles
        ends.append(at)
        at += gap
    assert overs == ends
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
                  target=(time + generator.randrange(-3, 50)) & 0xFFFF, sets=generator.random() < .05,
                  granted=generator.random() < .05, gap=generator.randrange(60),
                  reset_link=generator.random() < .0005)
    node.columns.compare(table_units[messages])
