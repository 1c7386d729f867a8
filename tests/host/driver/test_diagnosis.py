# amaranth: UnusedElaboratable=no
"""Errors from failed collectives identify slow links and links that lose words."""

import numpy as np
import pytest

from hdl.config import NodeConfig
from host.driver.diagnosis import RingError
from host.driver.ring_registers import RingCounters
from tests.host import rings

LENGTH = 1300
RINGS = [(nodes, link) for nodes in (2, 3, 5) for link in range(nodes)]


def check_usable(ring):
    ring.recover()
    ring.memory.write_gradients(list(np.ones((ring.nodes, LENGTH), dtype=np.float32)))
    ring.collectives.all_reduce(LENGTH)
    assert (ring.memory.read_gradients(LENGTH) == ring.nodes).all()


class TestSlowLinks:
    """A diagnosis neither counts words in flight as lost nor blames the first node that times out for a slow link."""

    def fail(self, ring, simulation, length):
        ring.memory.write_gradients(list(np.ones((ring.nodes, length), dtype=np.float32)))
        with pytest.raises(RingError) as caught:
            ring.collectives.all_reduce(length)
        assert [link.status().words_dropped for link in simulation.links] == [0] * ring.nodes
        assert caught.value.cause is None, caught.value
        assert caught.value.transient
        return str(caught.value).partition("\n")[0]

    @pytest.mark.parametrize(("nodes", "link"), RINGS)
    @pytest.mark.parametrize("kind", ["data", "credit"])
    def test_latency(self, nodes, link, kind):
        with rings.open_nodes(nodes, config=NodeConfig(), timeout=1000) as (ring, simulation):
            simulation.links[link].set_latency(**{kind: 2400})
            assert self.fail(ring, simulation, 5000) == (
                "all-reduce failed: nodes stood still, and every word that was sent has arrived: a credit was lost, "
                "a link is slower than TIMEOUT allows, or a node was not given the command")
            simulation.links[link].set_latency(data=16, credit=16)
            check_usable(ring)

    @pytest.mark.parametrize(("nodes", "link"), RINGS)
    def test_rate(self, nodes, link):
        """A slow link delivers all words, but so slowly that the receiver times out between two of them."""
        with rings.open_nodes(nodes, config=NodeConfig(), timeout=1000) as (ring, simulation):
            simulation.links[link].set_rate(1, 1500)
            assert self.fail(ring, simulation, LENGTH) == (
                "all-reduce failed: words still arrived long after nodes had given up: a link is slower than TIMEOUT "
                "allows")


class TestLostWords:
    @pytest.mark.parametrize(("nodes", "link"), RINGS)
    def test_as_many_as_were_lost(self, nodes, link):
        """If a link loses all words from some point on, it is named, even if the counters changed before that."""
        with rings.open_nodes(nodes, config=NodeConfig(), timeout=1000) as (ring, simulation):
            for after in (300, 700):
                cut = simulation.links[link]
                before = cut.status().words_dropped
                ring.memory.write_gradients(list(np.ones((nodes, LENGTH), dtype=np.float32)))
                cut.cut(simulation.cycle + after)
                with pytest.raises(RingError) as caught:
                    ring.collectives.all_reduce(LENGTH)
                lost = cut.status().words_dropped - before
                assert lost > 0
                assert caught.value.cause == link
                assert str(caught.value).partition("\n")[0] == (
                    f"all-reduce failed: the link from node {link} to node {(link + 1) % nodes} has not delivered "
                    f"{lost} words, and for 2,000 cycles no word has moved")
                cut.mend()
                check_usable(ring)

    @pytest.mark.parametrize("nodes", [2, 3, 5])
    def test_one_of_a_packet(self, nodes):
        """If one word of a packet is lost, the node at the end of the link reports it."""
        with rings.open_nodes(nodes, config=NodeConfig(), timeout=1000) as (ring, simulation):
            ring.memory.write_gradients(list(np.ones((nodes, LENGTH), dtype=np.float32)))
            state = simulation.save()
            link = simulation.links[nodes - 1]
            ring.collectives.all_reduce(LENGTH)
            middle = link.status().last_word - 20
            simulation.restore(state)
            link.cut(middle, middle + 1)
            with pytest.raises(RingError, match=r"^all-reduce failed: node 0: command with tag ") as caught:
                ring.collectives.all_reduce(LENGTH)
            assert link.status().words_dropped == 1
            assert caught.value.cause == 0
            link.mend()
            check_usable(ring)


def test_differences_of_counters():
    """Counter differences wrap around, and become negative when words arrive late."""
    counters = RingCounters([None] * 2)
    assert counters.missing([(5, 0), (7, 4)]) == [1, 7]
    assert counters.missing([(3, (1 << 32) - 2), ((1 << 32) - 2, 2)]) == [1, 0]
    assert [counters.missing([(sent, 0), (0, 0)])[0] for sent in (0, 203, (1 << 32) - 1, 1 << 31)] == [
        0, 203, -1, -(1 << 31)]
