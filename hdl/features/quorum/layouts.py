"""Layouts for quorum rounds and their control words, and the classification of gradients by age."""

from amaranth.hdl import Cat, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout

__all__ = [
    "AGES",
    "INDEX_BITS",
    "ONE",
    "SLOTS",
    "closing_layout",
    "counts_layout",
    "heard_layout",
    "judge",
    "own_ready_layout",
    "quorum_signature",
    "resumed_layout",
    "slot_layout",
    "weights_layout",
    "work_layout",
]

#: Number of gradient slots in a node.
SLOTS = 2
#: Maximum age, in rounds, at which a gradient still has a weight.
AGES = 15
#: Weight of an on-time gradient, in sixteenths.
ONE = 16
#: Width in bits of the index of a round's scale.
INDEX_BITS = 9


def weights_layout():
    """Layout of the weights of late gradients aged 1 to 15 rounds, in sixteenths."""
    return data.ArrayLayout(5, AGES)


def closing_layout():
    """Layout of a closed round: its number, masks of the on-time and late nodes, and the index of its scale."""
    return data.StructLayout({"tag": 16, "on_time": 16, "late": 16, "index": INDEX_BITS})


def own_ready_layout():
    """Layout of the announcement that this node has computed a gradient: its slot and round number."""
    return data.StructLayout({"slot": 1, "tag": 16})


def heard_layout():
    """Layout of the announcement at rank 0 that a node has computed a gradient: node, slot and round number."""
    return data.StructLayout({"source": 4, "slot": 1, "tag": 16})


def slot_layout():
    """Layout of the registers SLOT_0 and SLOT_1."""
    return data.StructLayout({"tag": 16, "computing": 1, "pending": 1, "taken": 1})


def resumed_layout():
    """Layout of the register RESUMED_SET."""
    return data.StructLayout({"tag": 16, "slot": 1, "ready": 1})


def work_layout():
    """Layout of a node's share of a round: slots of its on-time and late gradients, and the late one's weight."""
    return data.StructLayout({
        "fresh": 1, "late": 1, "fresh_slot": 1, "late_slot": 1, "weight": 5, "index": INDEX_BITS, "masks": 32})


def counts_layout():
    """Layout of the counter increments in a cycle, keyed by register name."""
    return data.StructLayout({"gradients_computed": 1, "gradients_applied": 1, "gradients_applied_late": 1,
                              "gradients_dropped": 2})


def quorum_signature():
    """Interface between the units for quorum rounds and the control words, as seen by these units.

    Members
    -------
    place : In(place_layout())
    alive : In(1)
        Pulse if any node of the ring is active.
    ready : Out(stream of own_ready_layout())
        Announcements of this node's gradients, to be sent to rank 0.
    heard : In(stream of heard_layout())
        Announcements from all nodes, at rank 0.
    close : Out(stream of closing_layout())
        Rounds that rank 0 has closed, to be sent to all nodes.
    closed : In(1)
        Pulse when a round is closed.
    closing : In(closing_layout())
        The closed round; held until the next one.
    """
    return wiring.Signature({
        "place": In(place_layout()),
        "alive": In(1),
        "ready": Out(stream.Signature(own_ready_layout())),
        "heard": In(stream.Signature(heard_layout())),
        "close": Out(stream.Signature(closing_layout())),
        "closed": In(1),
        "closing": In(closing_layout()),
    })


def judge(m, name, *, tag, present, of, weights):
    """Classify a gradient of round ``of`` when round ``tag`` is closed.

    Both rank 0 and the node itself use this function, because their results must agree.

    Returns
    -------
    fresh, weight, stale, age
        Whether the gradient is on time, its weight if late, whether it is too late for any weight, and its age.
    """
    age = Signal(16, name=f"{name}_age")
    weight = Signal(5, name=f"{name}_weight")
    fresh, old = Signal(name=f"{name}_fresh"), Signal(name=f"{name}_old")
    m.d.comb += [
        age.eq(tag - of),
        fresh.eq(present & (age == 0)),
        old.eq(present & (age != 0) & ~age[-1]),
        weight.eq(Mux(old & ~age[4:].any(), _choose(age[:4], [0, *(weights[n] for n in range(AGES))]), 0)),
    ]
    return fresh, weight, old & (weight == 0), age[:4]


def _choose(index, values):
    """Return the value at an index, selected by a multiplexer tree."""
    for bit in index:
        values = [Mux(bit, odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
    return Cat(values[0])[:5]
