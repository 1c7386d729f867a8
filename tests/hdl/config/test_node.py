"""Tests of node configurations: hdl/config/node.py."""


import pytest

from hdl.config import Memories, NodeConfig, Peer, RootReduce, SingleRing, Weights, max_nodes_for
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.int16.feature import Int16Config, Int16Memories
from hdl.features.programs.feature import Programs
from hdl.features.replay.feature import Replay
from hdl.features.slots.feature import Slots
from hdl.features.streaming.feature import Server, ServerConfig, ServerMemories, Worker
from tests.refusals import refuses


def test_segments_of_a_block():
    """A ring of one node sends no packets, so its blocks may have any number of segments."""
    assert NodeConfig(memories=Memories(gradient=1 << 19)).memories.gradient == 1 << 19
    assert NodeConfig(memories=Memories(gradient=1 << 20), segment=512).segment == 512
    alone = NodeConfig(memories=Memories(gradient=1 << 24), topology=SingleRing(max_nodes=1))
    assert alone.memories.gradient == 1 << 24


def test_spaces():
    """Memory spaces are in the order state planes, master weights, codebooks, residuals."""
    def words(memories=None, **options):
        return NodeConfig(memories=Memories(gradient=96, weight=64, state=32, **memories or {}),
                          **options).memory_map.words

    none = {"planes": 0}
    assert words() == (96, 64, 32, 32)
    assert words(none) == (96, 64)
    assert words(weights=Weights(codec="mx9")) == (96, 64, 32, 32, 32)
    assert words(none, weights=Weights(codec="bf16")) == (96, 64, 32)
    assert words(none, weights=Weights(master=True)) == (96, 64, 32)
    assert words(weights=Weights(codec="table32")) == (96, 64, 32, 32, 32, 64)
    assert words(none, weights=Weights(codec="centroid64")) == (96, 64, 32, 128)
    assert NodeConfig(weights=Weights(codec="mx9")).codebook_words == NodeConfig().codebook_words == 0
    assert words(weights=Weights(codec="centroid16"), gradients="mx9") == (96, 64, 32, 32, 32, 32, 96)
    assert words(gradients="mx9", compute=Compute(rows=1, activations=128), programs=Programs()) == (
        96, 64, 32, 32, 96, 128, 512)
    assert words(gradients="raw") == (96, 64, 32, 32)
    assert words(gradients="mx9") == (96, 64, 32, 32, 96)
    assert words(none, weights=Weights(codec="mx9"), gradients="bf16") == (96, 64, 32, 96)
    stub = ComputeStub(quorum=True)
    assert words(none, stub=stub, link=Replay(), programs=Programs()) == (96, 64, 512, 512)


def test_gradient_codecs():
    assert [(config.adds_compressed, config.has_residual)
            for config in (NodeConfig(gradients=name) for name in ("zero_value", "raw", "bf16", "mx4"))
            ] == [(True, False), (False, False), (False, True), (False, True)]


def test_queues_and_control_words():
    """Control words require two queues and links with replay, and exclude a third queue."""
    moves = Programs(move_queue=True)
    nodes = [NodeConfig(), NodeConfig(programs=Programs()), NodeConfig(programs=moves),
             NodeConfig(programs=Programs(banks=2), link=Replay()), NodeConfig(programs=moves, link=Replay()),
             NodeConfig(programs=Programs(), link=Slots()), NodeConfig(link=Replay())]
    assert [node.queues for node in nodes] == [1, 2, 3, 2, 3, 2, 1]
    assert [node.has_signals for node in nodes] == [False, False, False, True, False, True, False]
    assert [node.has_banks for node in nodes] == [False, False, False, True, False, False, False]


def test_chains_and_far_memories():
    server = ServerConfig(memories=ServerMemories(weight=64, state=32, planes=1, far=128))
    assert server.far_bases == {"weights": 0, "state_0": 64}
    assert (server.far_words, server.memories.served) == (128, 96)
    assert NodeConfig(compute=Compute(far=64)).far_words == 64
    assert NodeConfig().far_words == Int16Config().far_words == 0
    assert NodeConfig(compute=Compute(far=64)).far_bases == {}
    nodes = [NodeConfig(), NodeConfig(role=Peer(interleaved=True)), NodeConfig(role=RootReduce()),
             NodeConfig(role=Worker()), server]
    assert [node.has_chains for node in nodes] == [False, False, True, True, True]
    assert [node.role.streams for node in nodes] == [False, False, False, True, True]
    formats = ServerConfig(role=Server(broadcast_formats=True))
    assert (formats.serves_formats, server.serves_formats) == (True, False)
    assert not NodeConfig(role=Worker(broadcast_formats=True)).serves_formats
    assert formats.memory_map.words == (16384, 16384, 8192, 8192, 256)


def test_kinds_of_nodes():
    node, server, int16 = NodeConfig(), ServerConfig(), Int16Config(memories=Int16Memories(gradient=96))
    assert [(each.has_ring, each.is_server, each.element) for each in (node, server, int16)] == [
        (True, False, "fp32"), (True, True, "fp32"), (False, False, "int16")]
    assert int16.memory_map.words == (96, 16384)
    assert (int16.lanes, int16.queues, int16.topology.ports, int16.has_signals) == (1, 1, 1, False)
    assert len({node.hash, server.hash, int16.hash}) == 3


@pytest.mark.parametrize(("config", "nodes", "message"), [
    (NodeConfig(), 17, "Ring must have between 1 and 16 nodes, not 17"),
    (NodeConfig(topology=Grid(max_nodes=4)), 0, "Ring must have between 1 and 4 nodes, not 0"),
    (Int16Config(), 2, "Ring must have 1 node, not 2"),
    (ServerConfig(), "2", "Ring must have between 1 and 16 nodes, not '2'"),
])
def test_rings(config, nodes, message):
    refuses(message, config.check_ring, nodes)
    config.check_ring(1)


def test_largest_rings():
    assert [max_nodes_for(nodes) for nodes in (0, 1, 16, 17, 255)] == [255, 16, 16, 255, 255]


def test_hash():
    """The hash covers the text of all sections, regardless of argument order."""
    assert NodeConfig().hash == NodeConfig().hash == NodeConfig(lanes=4, role=Peer(), programs=None).hash
    assert 0 <= NodeConfig().hash < 1 << 32
    assert NodeConfig().hash == 2386177031  # must never change, since hosts recognise nodes by this hash
