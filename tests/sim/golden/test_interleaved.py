"""Golden model of the interleaved order of packets, and cycle models for links with credits and with slots."""

import graphlib

import pytest

from sim.golden import interleaved
from sim.golden.features.slots.slot_cycles import DENSE, MX9, Form, slot_cycles
from sim.golden.interleaved import GATHER as AG
from sim.golden.interleaved import SCATTER as SR
from sim.golden.interleaved import blockwise, order
from sim.golden.ring_cycles import update_cycles
from tests.refusals import refuses

#: Measured cycles of a dense update on links with credits, by (elements, nodes): docs/ring/interleaved.md.
MEASURED = {(16384, 2): 17030, (16384, 4): 25486, (16384, 8): 29714, (4832, 4): 7624, (4832, 8): 8887}


def test_order():
    assert order(0, 2, 2) == []
    assert order(1, 2, 2) == [(SR, 0, 0), (SR, 0, 1), (AG, 0, 0), (AG, 0, 1)]
    assert order(2, 2, 2) == [(SR, 0, 0), (SR, 1, 0), (SR, 0, 1), (SR, 1, 1),
                              (AG, 0, 0), (AG, 1, 0), (AG, 0, 1), (AG, 1, 1)]
    assert order(4, 1, 1) == [(SR, 0, 0), (SR, 1, 0), (SR, 2, 0), (AG, 0, 0), (SR, 3, 0), (AG, 1, 0), (AG, 2, 0),
                              (AG, 3, 0)]
    assert order(3, 2, 0) == [(SR, 0, 0), (SR, 1, 0), (SR, 0, 1), (SR, 1, 1), (SR, 2, 0), (SR, 2, 1)]
    assert order(2, 0, 1) == [(AG, 0, 0), (AG, 1, 0)]
    # A node with fewer steps keeps its place in the common order of all nodes.
    assert order(3, 2, 0, both=True) == [(SR, 0, 0), (SR, 1, 0), (SR, 0, 1), (SR, 1, 1), (SR, 2, 0), (SR, 2, 1)]
    assert order(3, 3, 1) == [(SR, 0, 0), (SR, 1, 0), (SR, 0, 1), (SR, 1, 1), (SR, 0, 2), (SR, 1, 2), (SR, 2, 0),
                              (AG, 0, 0), (SR, 2, 1), (SR, 2, 2), (AG, 1, 0), (AG, 2, 0)]
    assert blockwise(2, 2) == [(SR, 0, 0), (SR, 0, 1), (SR, 1, 0), (SR, 1, 1), (AG, 0, 0), (AG, 0, 1), (AG, 1, 0),
                               (AG, 1, 1)]


@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 16])
def test_distances(nodes):
    """If a block has two segments, a packet is forwarded two slots after it arrives; if it holds new weights, three
    slots after."""
    for segments in range(1, 9):
        for scatter, gather in ((nodes - 1, nodes - 1), (nodes - 1, 0), (0, nodes - 1)):
            packets = order(segments, scatter, gather)
            assert sorted(packets) == sorted(
                (phase, segment, step) for phase, steps in ((SR, scatter), (AG, gather))
                for segment in range(segments) for step in range(steps))
            index = {packet: number for number, packet in enumerate(packets)}
            lone = {packets[-1][1]} if segments % 2 and not (scatter and gather) else {0} if segments == 1 else {}
            for phase, segment, step in packets:
                if step:
                    distance = index[phase, segment, step] - index[phase, segment, step - 1]
                    assert distance == (1 if segment in lone else 2)
            if scatter and gather and segments > 2:
                assert min(index[AG, segment, 0] - index[SR, segment, nodes - 2] for segment in range(segments)) == 3


def has_circle(waits):
    """Return whether events wait for each other in a cycle, where ``waits`` maps each event to its prerequisites."""
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError:
        return True
    return False


def ends(*shape, **room):
    return not has_circle(interleaved.waits(*shape, **room))


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 16])
def test_no_deadlock(nodes):
    """Rings do not deadlock if each ingress has room for three packets and each node for two sums, in any phases."""
    for segments in (1, 2, 3, 4, 7):
        for phases in ((SR, AG), (SR,), (AG,)):
            assert ends(nodes, segments, credits=3, room=2, phases=phases), (segments, phases)
            assert ends(nodes, segments, credits=4, room=2, phases=phases), (segments, phases)


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_deadlock(nodes):
    """Rings deadlock if an ingress has room for only two packets, or a node for only one sum."""
    for phases in ((SR, AG), (SR,), (AG,)):
        assert not ends(nodes, 4, credits=2, room=2, phases=phases)
    assert not ends(nodes, 4, credits=3, room=1)


class TestCycles:
    """Tests of the cycle models, which docs/ring/interleaved.md compares with measurements."""

    @pytest.mark.parametrize("nodes", [2, 4, 8])
    def test_credits(self, nodes):
        """On links with credits, the interleaved order takes no additional cycles."""
        for length in (1024, 4832, 16384):
            assert update_cycles(length, nodes, interleaves=True) == update_cycles(length, nodes)

    @pytest.mark.parametrize(("nodes", "bar"), [(2, 1.06), (4, 1.12), (8, 1.23)])
    def test_slots(self, nodes, bar):
        """On links with slots, the modelled cycles of an update are at most ``bar`` times the measured cycles, and no
        slot is lost."""
        measured = MEASURED[16384, nodes]
        two, single = (slot_cycles(16384, nodes, laps=laps) for laps in (2, 1))
        assert single.cycles <= bar * measured
        assert two.cycles <= (bar if nodes > 2 else 1.07) * measured
        steps = 2 * (nodes - 1) * -(-16384 // nodes // 256)
        assert (two.slots, two.lost) == (steps, 0)
        # An update takes more cycles than the slots that it uses.
        assert single.cycles > (268 + 4) * steps

    def test_other_order(self):
        """Without interleaving, packets that are forwarded miss the next slot, except on rings of two nodes."""
        for nodes in (4, 8):
            result = slot_cycles(16384, nodes, interleaves=False)
            assert result.cycles > 1.65 * MEASURED[16384, nodes]
            assert result.lost > 0.5 * (result.slots - result.lost)
        assert slot_cycles(16384, 2, interleaves=False).lost <= 2

    def test_room(self):
        """Buffering more packets than one superframe has slots, plus one in transit, does not save any cycles."""
        full = slot_cycles(16384, 8, room=17)
        assert full == slot_cycles(16384, 8, room=30)
        assert full.superframes < slot_cycles(16384, 8, room=15).superframes
        assert full.cycles < slot_cycles(16384, 8, room=8).cycles < slot_cycles(16384, 8, room=4).cycles

    def test_short(self):
        for length in (0, 1, 33, 300, 1000):
            for nodes in (2, 3, 5, 8):
                for options in ({}, {"messages": True}, {"laps": 0}, {"form": MX9}, {"egress_words": 600}):
                    result = slot_cycles(length, nodes, **options)
                    assert result.cycles >= update_cycles(length, nodes) or options.get("form") == MX9

    def test_form(self):
        assert [DENSE.words(SR, elements) for elements in (0, 1, 32, 33, 256)] == [4, 6, 37, 39, 268]
        assert DENSE.words(AG, 256) == 260
        assert MX9.words(SR, 256) == MX9.words(AG, 256) == 76
        assert Form(scatter=(0.5, 0)).words(SR, 64) == 36

    def test_errors(self):
        refuses("Ring must have 2 nodes or more, not 1", slot_cycles, 100, 1)
