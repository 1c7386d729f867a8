"""Golden model of collectives with a single root, and their cycle model."""

import numpy as np
import pytest

from sim.golden import ring as golden
from sim.golden import root_reduce
from sim.golden.optimizer import Rule
from sim.golden.ring_cycles import best_owner, update_cycles
from sim.golden.root_reduce import GATHER, SCATTER
from tests.refusals import refuses
from tests.sim.golden.test_interleaved import has_circle

SR, AG = SCATTER, GATHER


def test_order():
    assert root_reduce.order(0) == []
    assert root_reduce.order(1) == [(SR, 0), (AG, 0)]
    assert root_reduce.order(3) == [(SR, 0), (SR, 1), (SR, 2), (AG, 0), (AG, 1), (AG, 2)]
    assert root_reduce.order(5) == [(SR, 0), (SR, 1), (SR, 2), (SR, 3), (AG, 0), (SR, 4), (AG, 1), (AG, 2), (AG, 3),
                                  (AG, 4)]
    assert root_reduce.order(3, lag=1) == [(SR, 0), (SR, 1), (AG, 0), (SR, 2), (AG, 1), (AG, 2)]


@pytest.mark.parametrize("nodes", [2, 3, 4, 16])
def test_packets(nodes):
    """Each rank receives the packets that its predecessor sends, and each link of the root carries only one phase."""
    for owner in range(nodes):
        every = [root_reduce.packets(6, nodes, owner, rank) for rank in range(nodes)]
        for rank, (sent, _) in enumerate(every):
            assert sent == every[(rank + 1) % nodes][1]
            phases = {phase for phase, _ in sent}
            expected = {SR} if (rank + 1) % nodes == owner else {AG} if rank == owner else {SR, AG}
            assert phases == expected
            assert len(sent) == 6 * len(phases)


def test_known_sums():
    """2^24 + 1 rounds to 2^24, so sums depend on the order of additions."""
    big = np.float32(1 << 24)
    gradients = golden.bits([[1], [1], [big], [-big]])
    sums = {owner: float(golden.floats(root_reduce.total(gradients, owner))[0]) for owner in range(4)}
    # Addends in order, starting after the root: 1, big, -big, 1; big, -big, 1, 1; -big, 1, 1, big; 1, 1, big, -big.
    assert sums == {0: 1.0, 1: 2.0, 2: 2.0, 3: 2.0}
    assert float(golden.floats(root_reduce.total(golden.bits([[3], [4]]), 1))[0]) == 7.0


@pytest.mark.parametrize("nodes", [2, 3, 5, 8])
def test_sums_are_those_of_a_block(nodes):
    """A vector with only one group has one owner in any case, so results and words match an ordinary fused update."""
    generator = np.random.default_rng(nodes)
    gradients = golden.bits(generator.standard_normal((nodes, 32)).astype(np.float32) * (generator.random(
        (nodes, 32)) < 0.5))
    weights = golden.bits(generator.standard_normal(32))
    settings = golden.settings(Rule.MOMENTUM, gradient_scale=0.25, learning_rate=0.5, first_decay=0.5,
                               first_gain=1)
    state = [golden.bits(generator.standard_normal(32)) for _ in range(2)]
    for owner in range(nodes):
        block_offset = (owner + 1) % nodes
        expected = golden.fused_update(gradients, weights, state, settings, block_offset=block_offset,
                                       packed_state=True)
        result = root_reduce.fused_update(gradients, weights, state, settings, owner, packed_state=True)
        for name in ("weights", "master", "total"):
            assert (getattr(result, name) == getattr(expected, name)).all()
        for actual, other in zip(result.state, expected.state, strict=True):
            assert (actual == other).all()
        packets = np.array([len(root_reduce.packets(1, nodes, owner, rank)[0]) for rank in range(nodes)])
        overhead = golden.PACKET_OVERHEAD
        assert (result.traffic.words - overhead * packets
                == expected.traffic.words - overhead * 2 * (nodes - 1)).all()
        total, traffic = root_reduce.all_reduce(gradients, owner)
        expected_total, expected_traffic = golden.all_reduce(gradients, block_offset=block_offset)
        assert (total == expected_total).all()
        assert traffic.scatter_words.sum() < expected_traffic.scatter_words.sum()


def test_words():
    """Number of words that each rank sends if all gradients are nonzero: 4 for header and CRC of each packet, 8 for
    the masks of 256 gradients, and 1 per element."""
    gradients = golden.bits(np.ones((4, 600)))
    traffic = root_reduce.fused_update(gradients, gradients[0], [], golden.settings(
        Rule.SGD, gradient_scale=1, learning_rate=1), 2).traffic
    sums, gathered = 3 * 4 + 19 + 600, 3 * 4 + 600
    assert traffic.words.tolist() == [sums + gathered, sums, gathered, sums + gathered]
    assert traffic.bound == 19 + 1200


def test_errors():
    refuses("Segments must be zero or more, not -1", root_reduce.order, -1)
    refuses("Lag must be zero or more, not -1", root_reduce.order, 1, lag=-1)
    refuses("Ring must have at least 2 nodes for one of them to be the owner, not 1", root_reduce.packets, 1, 1, 0, 0)
    refuses("Owner must be a rank below 3, not 3", root_reduce.total, golden.bits(np.ones((3, 1))), 3)
    with pytest.raises(ValueError, match=r"^Rates must be one above 0 and up to 1 for each of 2 nodes or more, not "):
        update_cycles(100, 3, rates=[1, 1])


class TestCycles:
    """Tests of the cycle model, which docs/ring/root_reduce.md compares with measurements."""

    @pytest.mark.parametrize(("nodes", "bar"), [(4, 1.36), (8, 1.18)])
    def test_half_rate(self, nodes, bar):
        rates = [1.0] * nodes
        rates[1] = 0.5
        clean = update_cycles(16384, nodes)
        cycles = {lag: update_cycles(16384, nodes, rates=rates, owner=1, lag=lag) for lag in range(5)}
        assert update_cycles(16384, nodes, rates=rates) > 1.95 * clean
        # The slow link's load is a lower limit for the cycles. Of all lags, the gateware's takes the fewest cycles.
        assert nodes / (nodes - 1) * 0.99 * clean < cycles[3] < bar * clean
        assert cycles[3] == min(cycles.values())
        assert cycles[0] > 2 * clean  # phases follow one another
        assert best_owner(16384, nodes, rates=rates)[0] == 1

    def test_choice(self):
        """No root is chosen if links are equally fast, if there are two nodes, or if a link is only slightly
        slower."""
        assert best_owner(16384, 4, rates=[1] * 4)[0] is None
        assert best_owner(16384, 2, rates=[0.5, 1])[0] is None
        assert best_owner(16384, 8, rates=[1] * 7 + [0.95])[0] is None
        assert best_owner(16384, 8, rates=[1] * 7 + [0.25])[0] == 7

    def test_slow_optimizer(self):
        """If a root's optimizer would be the bottleneck, because it must update all elements, no root is chosen."""
        assert update_cycles(4096, 8, owner=0, update_rate=0.25) > 4 * 4096
        assert best_owner(4096, 8, rates=[1] * 7 + [0.5], update_rate=0.25)[0] is None


def waits(nodes, segments, *, lag, credits, room):
    """Return the prerequisites of each event of a command. An ingress has room for ``credits``
    packets, and the root for ``room`` sums that the gather has not consumed. Nodes are numbered along the chain,
    which ends at the root."""
    last = nodes - 1
    sent, received = zip(*(root_reduce.packets(segments, nodes, last, rank, lag=lag) for rank in range(nodes)),
                         strict=True)
    events = {}
    for node in range(nodes):
        before = (node - 1) % nodes
        for number, packet in enumerate(sent[node]):
            event = events["send", node, packet] = []
            phase, segment = packet
            if number:
                event.append(("send", node, sent[node][number - 1]))
            if number >= credits:
                event.append(("receive", (node + 1) % nodes, sent[node][number - credits]))
            if packet in received[node]:  # the node forwards the packet
                at = received[node].index(packet)
                event += [("send", before, packet), *(("receive", node, prior) for prior in received[node][:at][-1:])]
            elif phase == AG:
                event.append(("receive", node, (SR, segment)))
        for number, packet in enumerate(received[node]):
            event = events["receive", node, packet] = [("send", node if packet in sent[node] else before, packet)]
            event += [("receive", node, prior) for prior in received[node][:number][-1:]]
            if node == last and packet[1] >= room:
                event.append(("send", node, (AG, packet[1] - room)))
    return events


def ends(nodes, **shape):
    return not has_circle(waits(nodes, 9, **shape))


@pytest.mark.parametrize("nodes", range(2, 17))
def test_no_deadlock(nodes):
    """A ring cannot deadlock if the lag is less than the packets that an ingress buffers plus the sums that a root
    buffers. Two of each are enough for the gateware's lag."""
    for credits in (1, 2, 4):
        for room in (1, 2, 4):
            assert all(ends(nodes, lag=lag, credits=credits, room=room) for lag in range(min(credits + room, 6)))
    assert root_reduce.LAG < 2 + 2


def test_deadlock():
    """A lag of more steps than all nodes can buffer causes a deadlock. The buffer in each node's ingress counts
    too."""
    longest = {(credits, room): max(lag for lag in range(9) if ends(3, lag=lag, credits=credits, room=room))
               for credits in (1, 2) for room in (1, 2)}
    assert longest == {(1, 1): 2, (1, 2): 3, (2, 1): 5, (2, 2): 6}
