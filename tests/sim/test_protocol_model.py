import pytest

from hdl.config import NodeConfig
from hdl.ring.header import packet_words
from sim.protocol_model import Kind, Ring, order, simulate
from tests.refusals import refuses

PACKET = packet_words(NodeConfig().segment)
SEEDS = {3: 3000, 4: 3000, 5: 2000, 8: 2000}


def ring(nodes, ingress_words, **parameters):
    return Ring(nodes=nodes, packet_words=PACKET, ingress_words=ingress_words, segments=3, **parameters)


def test_order():
    sent, received = order(Ring(nodes=4, segments=2, packet_words=4, ingress_words=8))
    m, f, o = Kind.MEMORY, Kind.FORWARD, Kind.OPTIMIZER
    assert sent.tolist() == [m, f, f, m, f, f, o, f, f, o, f, f]  # SR(0) SR(1) AG(0) AG(1)
    assert received.tolist() == [f, f, o, f, f, o, f, f, m, f, f, m]


@pytest.mark.parametrize(("nodes", "count"), SEEDS.items())
def test_two_packets_suffice(nodes, count):
    outcome = simulate(ring(nodes, 2 * PACKET), count=count, seed=nodes)
    assert outcome.finished.all()
    assert not outcome.deadlocked.any()


@pytest.mark.parametrize(("nodes", "count"), SEEDS.items())
def test_a_word_less_deadlocks(nodes, count):
    """If the buffer has one word less than two packets, rings of three or more nodes always deadlock, whatever the
    timing."""
    outcome = simulate(ring(nodes, 2 * PACKET - 1), count=count, seed=nodes)
    assert outcome.deadlocked.all()


def test_two_nodes_never_forward():
    outcome = simulate(ring(2, PACKET), count=500, seed=2)
    assert outcome.finished.all()


@pytest.mark.parametrize("banks", [1, 2])
@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 16])
def test_default_ingress(nodes, banks):
    outcome = simulate(ring(nodes, NodeConfig().link.ingress * PACKET, banks=banks), count=200, seed=7)
    assert outcome.finished.all()


def test_parameters():
    refuses("Ingress must hold a packet of 268 words, not 267", ring, 4, PACKET - 1)
    refuses("Node count must be at least 2, not 1", ring, 1, PACKET)
    with pytest.raises(ValueError, match=r"^Segment count must be at least 1, not 0$"):
        Ring(nodes=2, segments=0, packet_words=PACKET, ingress_words=PACKET)
