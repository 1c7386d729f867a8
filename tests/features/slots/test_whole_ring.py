# amaranth: UnusedElaboratable=no
"""All slot units of a ring, from SYNC messages and records to packets in slots: hdl/features/slots."""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.replay.control_hub import ControlHub
from hdl.features.replay.control_transmitter import ControlTransmitter
from hdl.features.replay.control_word import ControlType
from hdl.features.replay.receiver import ReplayReceiver
from hdl.features.slots.clock import DRIFT_BITS, Clock, Departures
from hdl.features.slots.layouts import MESSAGE_TYPE
from hdl.features.slots.link import ask_for_laps, connect_units
from hdl.features.slots.path import SlotPath
from hdl.features.slots.records import RecordLaps
from hdl.features.slots.table import SlotTable
from hdl.ring.link import Ingress
from hdl.streams.stream import connect_stream
from sim.golden.features.slots.slots import Table, plan
from sim.verilated.vectors import Unit
from tests.features.slots.wires import PACKET, Source, WiredRing, in_order

NODES, LONGEST, MESSAGE, SLOTS = 4, 36, 65, 6


class Node(wiring.Component):
    """All slot units of one node, connected to a packet source and a packet sink."""

    def __init__(self, rank):
        self._rank = rank
        self.path, self.clock = SlotPath(depth=128), Clock(arrival=ReplayReceiver.latency - 2)
        self.laps, self.table = RecordLaps(), SlotTable()
        self.ingress = Ingress(segments=SLOTS, packet_words=LONGEST)
        super().__init__({"wants": In(1)})

    def elaborate(self, platform):
        m = Module()
        path, clock, laps, table, ingress = self.path, self.clock, self.laps, self.table, self.ingress
        transmitter = ControlTransmitter(window=31)
        receiver = ReplayReceiver(segments=2, packet_words=5)
        hub = ControlHub(takes=[
            (ControlType.SYNC,), (ControlType.LAP, ControlType.RECORD)])
        departures = Departures()
        packets, messages = Source(type=PACKET), Source(type=MESSAGE_TYPE)
        m.submodules += [path, clock, laps, table, ingress, transmitter, receiver, hub, departures, packets, messages]
        connect_units(m, path=path, clock=clock, laps=laps, table=table, departures=departures,
                      transmitter=transmitter, receiver=receiver, rank=self._rank)
        connect_stream(m, receiver.control, hub.i)
        connect_stream(m, hub.o, transmitter.control)
        for number, unit in enumerate((clock, laps)):
            connect_stream(m, hub.take[number], unit.i)
            connect_stream(m, unit.o, hub.give[number])
            m.d.comb += [unit.place.rank.eq(self._rank), unit.place.size.eq(NODES)]
        connect_stream(m, packets.o, path.i)
        connect_stream(m, messages.o, path.message_i)
        ask_for_laps(m, laps=laps, table=table, clock=clock.clock, reset_link=0)
        m.d.comb += [
            laps.record.pending.eq(path.whole + SLOTS), laps.record.room.eq(SLOTS - ingress.packets),
            laps.record.longest.eq(LONGEST), laps.record.wants.eq(self.wants),
            path.starts.eq(table.starts),
            packets.on.eq(1), packets.words.eq(LONGEST), messages.words.eq(MESSAGE),
            messages.on.eq((self._rank == 0) | self.wants), messages.to.eq(0 if self._rank else NODES - 1),
            ingress.i.valid.eq(path.arrived), ingress.i.payload.eq(path.word), ingress.o.ready.eq(1),
        ]
        return m


@pytest.fixture(scope="module")
def unit():
    return Unit(WiredRing(
        NODES, Node, lambda node: (node.path.ring_o, node.path.ring_i), {
            "drift": (signed(DRIFT_BITS), lambda node: node.clock.clock.drift),
            "wants": (1, lambda node: node.wants)}, {
            "time": (32, lambda node: node.clock.clock.time), "valid": (1, lambda node: node.ingress.o.valid),
            "data": (32, lambda node: node.ingress.o.payload.data), "heard": (1, lambda node: node.path.heard),
            "word": (33, lambda node: node.path.word), "lost": (1, lambda node: node.path.lost),
            "overrun": (1, lambda node: node.ingress.overrun), "granted": (1, lambda node: node.laps.granted),
            "slots": (22, lambda node: node.laps.slots)}, (1, lambda damage, _: damage << 9)),
        name="WholeRing", level="-O0")


def play(unit, *, forward, back, cycles=9000, wants=(), **more):
    rows = {}
    for n, drift in enumerate((0, 105, -105, 77)):
        rows |= {f"drift_{n}": drift % 256, f"forward_{n}": forward[n % len(forward)],
                 f"back_{n}": back[n % len(back)], f"wants_{n}": n in wants}
    for _ in range(2):  # discard words from an earlier run that are still on the wires
        unit.reset()
        unit.run(rows, cycles=64)
    unit.reset()
    trace = unit.run(rows | more, cycles=cycles)
    assert all(not trace[f"{name}_{n}"].any() for n in range(NODES) for name in ("lost", "overrun"))
    return trace


#: Number of packet words that each node receives per superframe.
WORDS = SLOTS * LONGEST


@pytest.mark.parametrize(("forward", "back"), [([16], [16]), ([1, 40, 16], [1, 40, 16]), ([16, 3], [40, 3]),
                                               ([40, 3], [16, 3])])
@pytest.mark.parametrize("wants", [(), (2,), (1, 3)])
def test_superframes(unit, forward, back, wants):
    """For any latency, tables agree, packets and messages arrive, and superframes are one trip around the ring apart.
    """
    trace = play(unit, forward=forward, back=back, wants=wants)
    cycles = [np.flatnonzero(trace[f"granted_{n}"]) for n in range(NODES)]
    least = min(len(grants) for grants in cycles) - 1
    assert least >= 8
    due = [Table(SLOTS, LONGEST, min(wants, default=0), number % 2) for number in range(1, 1 + least)]
    for n in range(NODES):
        tables = trace[f"slots_{n}"][cycles[n]][:least].tolist()
        assert tables == [table.bits for table in due]
    frame = sum(slot.cycles for slot in plan(due[0]))
    print(f"wires {forward}, {back}: {np.diff(cycles[0])[1:] - frame} cycles between superframes")
    # A trip around the ring includes the latency of all links, plus one cycle per node.
    lap = sum(forward[n % len(forward)] + 1 for n in range(NODES)) + RecordLaps.hop * NODES + RecordLaps.margin
    assert set(np.diff(cycles[0])[1:]) <= {frame + lap - 1, frame + lap, frame + lap + 1}
    for n in range(NODES):
        assert in_order(trace, n, PACKET) // WORDS in (least, least + 1)
    owners = [slot.owner for table in due for slot in plan(table)]
    more = [slot.owner for slot in plan(dataclasses.replace(due[0], odd=(least + 1) % 2))]
    for to, owner in ((NODES - 1, 0), *([(0, min(wants))] if wants else [])):
        heard = in_order(trace, to, MESSAGE_TYPE)
        assert owners.count(owner) * MESSAGE <= heard <= (owners + more).count(owner) * MESSAGE
    if not wants:
        assert in_order(trace, 0, MESSAGE_TYPE) == 0


@pytest.mark.parametrize("at", range(4820, 4970, 20))
def test_damage(unit, at):
    """If records are damaged, nodes may skip a superframe, but tables never differ between nodes."""
    damage = np.zeros(7000, np.uint64)
    damage[at:at + 30] = 1
    trace = play(unit, forward=[16], back=[16], cycles=len(damage), damage_1=damage)
    tables = []
    for n in range(NODES):
        cycles = np.flatnonzero(trace[f"granted_{n}"])
        tables.append([(int(cycle - 17 * n) // 100, int(trace[f"slots_{n}"][cycle])) for cycle in cycles])
    print(tables)
    # No word is lost, even if words in slots are damaged; later superframes are the same at all nodes.
    assert len({tuple(entry for entry in each if entry[0] in (62, 63, 64, 65, 66)) for each in tables}) == 1
