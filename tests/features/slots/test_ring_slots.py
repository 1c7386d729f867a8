# amaranth: UnusedElaboratable=no
"""Slot packets and messages on rings with inexact TIMEs and wires of any latency: hdl/features/slots."""

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.slots.layouts import MESSAGE_TYPE, mode_layout, table_layout
from hdl.features.slots.path import SlotPath
from hdl.features.slots.table import SlotTable
from hdl.ring.header import packet_words
from hdl.ring.link import Ingress
from hdl.streams.stream import connect_stream
from sim.golden.features.slots.slots import Table, plan
from sim.verilated.vectors import Unit
from tests.features.slots.wires import FORWARD, PACKET, Source, Wires, in_order

NODES, LONGEST, MESSAGE = 8, packet_words(256), 65


class Ring(wiring.Component):
    """Ring of eight nodes with TIMEs and targets as inputs or, if ``direct``, with slots as inputs."""

    def __init__(self):
        each = {}
        for n in range(NODES):
            each |= {f"now_{n}": In(32), f"target_{n}": In(16), f"delay_{n}": In(6), f"on_{n}": In(1),
                     f"message_on_{n}": In(1), f"words_{n}": In(9), f"starts_{n}": In(1),
                     f"mode_{n}": In(mode_layout()), f"valid_{n}": Out(1), f"data_{n}": Out(32),
                     f"last_{n}": Out(1), f"heard_{n}": Out(1),
                     f"word_{n}": Out(33), f"lost_{n}": Out(1), f"overrun_{n}": Out(1), f"granted_{n}": In(1)}
        super().__init__({**each, "slots": In(table_layout()), "to": In(4), "direct": In(1)})

    def elaborate(self, platform):
        m = Module()
        paths = [SlotPath(depth=512) for _ in range(NODES)]
        wires = [Wires(sum(len(getattr(path.ring_o, name)) for name in FORWARD)) for path in paths]
        for n, path in enumerate(paths):
            table, ingress = SlotTable(), Ingress(segments=2, packet_words=LONGEST)
            packets, messages = Source(type=PACKET), Source(type=MESSAGE_TYPE)
            m.submodules += [path, wires[n], table, ingress, packets, messages]
            connect_stream(m, packets.o, path.i)
            connect_stream(m, messages.o, path.message_i)
            granted = Signal(name=f"has_table_{n}")
            with m.If(table.over):
                m.d.sync += granted.eq(1)
            inputs = {name: getattr(self, f"{name}_{n}") for name in (
                "now", "target", "granted", "delay", "on", "message_on", "words", "starts", "mode")}
            shown = {"valid": ingress.o.valid, "data": ingress.o.payload.data, "last": ingress.o.payload.last,
                     "heard": path.heard, "word": path.word, "lost": path.lost, "overrun": ingress.overrun}
            m.d.comb += [
                # The first superframe is empty, and exactly one other superframe follows.
                table.now.eq(inputs["now"]), table.target.eq(inputs["target"] - 100), table.gap.eq(100),
                table.sets.eq(inputs["granted"]), table.granted.eq(table.over & ~granted),
                table.slots.eq(self.slots), table.rank.eq(n),
                packets.on.eq(inputs["on"]), packets.words.eq(inputs["words"]), messages.on.eq(inputs["message_on"]),
                messages.words.eq(MESSAGE), messages.to.eq(self.to), path.rank.eq(n),
                path.starts.eq(Mux(self.direct, inputs["starts"], table.starts)),
                path.mode.eq(Mux(self.direct, inputs["mode"], table.mode)),
                wires[n].delay.eq(inputs["delay"]),
                wires[n].i.eq(Cat(getattr(path.ring_o, name) for name in FORWARD)),
                Cat(getattr(path.ring_i, name) for name in FORWARD).eq(wires[n - 1].o),
                ingress.i.valid.eq(path.arrived), ingress.i.payload.eq(path.word), ingress.o.ready.eq(1),
                *(getattr(self, f"{name}_{n}").eq(value) for name, value in shown.items()),
            ]
        return m


@pytest.fixture(scope="module")
def unit():
    return Unit(Ring(), name="RingOfSlots", level="-O0")


def pulse(cycles, at):
    rows = np.zeros(cycles, np.uint64)
    rows[at] = 1
    return rows


@pytest.mark.parametrize("hops", range(1, NODES))
def test_hops(unit, hops):
    """A packet of 268 words takes 3 cycles to the wires, 16 per hop, 1 per node, and 3 at the receiver."""
    assert LONGEST == 268
    cycles, start = 1200, 400
    rows = {"direct": 1, "on_0": pulse(cycles, 3), "starts_0": pulse(cycles, start), "mode_0": 1,
            **{f"mode_{n}": 2 for n in range(1, hops)}, "words_0": LONGEST,
            **{f"delay_{n}": 16 for n in range(NODES)}}
    unit.reset()
    trace = unit.run(rows, cycles=cycles)
    valid = np.flatnonzero(trace[f"valid_{hops}"])
    taken = valid[-1] + 1 - start
    print(f"{hops} hops: {taken} cycles")
    assert taken == (290, 307, 324, 341, 358, 375, 392)[hops - 1] == 3 + 17 * hops - 1 + 3 + LONGEST
    assert (np.diff(valid) == 1).all()
    assert len(valid) == LONGEST
    assert all(not trace[f"valid_{n}"].any() for n in range(NODES) if n != hops)


@pytest.mark.parametrize(("wire", "lean"), [([16], 0), ([1], 0), ([16, 3, 40, 9], 0), ([16], 12)])
@pytest.mark.parametrize("slots", [0, 3, 16])
def test_superframes(unit, wire, slots, lean):
    """Even with full slots and a TIME error of ``lean`` per link, no words are lost and messages end as planned."""
    cycles, generator = 8_000, np.random.default_rng(slots + lean + len(wire))
    table = Table(slots, LONGEST, 0, 0)
    ways = np.cumsum([0, *(wire[n % len(wire)] + 1 for n in range(NODES - 1))])
    start = 2000
    rows = {"slots": table.bits, "to": NODES - 1}
    for n in range(NODES):
        # TIME has an error of up to one cycle that varies with time.
        jitter = np.repeat(generator.integers(-1, 2, 1 + cycles // 700), 700)[:cycles] if n else 0
        now = np.arange(cycles, dtype=np.int64) + jitter + lean * n
        rows |= {f"now_{n}": now.astype(np.uint64) & 0xFFFFFFFF, f"target_{n}": start + int(ways[n]) + lean * n,
                 f"granted_{n}": pulse(cycles, 1500), f"delay_{n}": wire[n % len(wire)], f"on_{n}": 1,
                 f"message_on_{n}": n == 0, f"words_{n}": LONGEST}
    unit.reset()
    trace = unit.run(rows, cycles=cycles)
    assert all(not trace[f"{name}_{n}"].any() for n in range(NODES) for name in ("lost", "overrun"))
    for n in range(NODES):
        assert in_order(trace, n, PACKET) == slots * LONGEST
    frame = plan(table)
    due = [at for at, slot in zip(np.cumsum([start, *(slot.cycles for slot in frame)]), frame, strict=False)
           if slot.owner == 0]
    assert in_order(trace, NODES - 1, MESSAGE_TYPE) == len(due) * MESSAGE
    last = np.flatnonzero(trace[f"heard_{NODES - 1}"] & trace[f"word_{NODES - 1}"] >> np.uint64(32))
    # Parts of the latency: 1 cycle in the table, 3 to the wires, all links (without a node after the last link), the
    # words of the message, and 1 for its check.
    named = np.array(due) + 1 + 3 + ways[-1] - 1 + MESSAGE + 1
    print(f"{slots} slots, wires {wire}, lean {lean}: messages over 7 hops end at {(last - start).tolist()}, by the "
          f"table {(named - start).tolist()}")
    assert (last == named).all()


def test_answers(unit):
    """A node's messages reach rank 0 through its successors, in slots that alternate with rank 0's slots."""
    cycles, start, table = 8_000, 2000, Table(8, LONGEST, 3, 1)
    ways = 17 * np.arange(NODES)
    rows = {"slots": table.bits, "to": 0, "message_on_3": 1}
    for n in range(NODES):
        rows |= {f"now_{n}": np.arange(cycles), f"target_{n}": start + int(ways[n]), f"granted_{n}": pulse(cycles, 9),
                 f"delay_{n}": 16, f"words_{n}": LONGEST}
    unit.reset()
    trace = unit.run(rows, cycles=cycles)
    assert in_order(trace, 0, MESSAGE_TYPE) == MESSAGE
    first = np.flatnonzero(trace["heard_0"])[0]
    assert first == start + 4 * 272 + 1 + 3 + ways[3] + 5 * 17 - 1
