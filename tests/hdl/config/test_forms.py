"""Conversion of configurations to dictionaries and options: hdl/config/forms.py."""

import json

import pytest

from hdl.board import BOARDS
from hdl.config import Memories, NodeConfig, Peer, Weights
from hdl.config.forms import as_dict, as_options, from_dict, name_of, with_options
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.int16.feature import Int16Config
from hdl.features.programs.feature import Programs
from hdl.features.quantization.feature import Quantization
from hdl.features.replay.feature import Replay
from hdl.features.settable_version.feature import SettableVersion
from hdl.features.slots.feature import JobSlots, Slots
from hdl.features.streaming.feature import ServerConfig, ServerMemories, Worker
from hdl.features.tenants.feature import Tenants
from hdl.features.throttles.feature import Throttles
from hdl.registry import section, section_names
from tests.refusals import refuses

#: Comma-separated names of all types of sections that ``features`` may contain.
KINDS = ", ".join(name_of(section(name)) for name in section_names("features"))

NODES = [
    *(board.node for board in BOARDS.values()), NodeConfig(), ServerConfig(), Int16Config(masking=False),
    NodeConfig(role=Worker(broadcast_formats=True), programs=Programs(move_queue=True), compute=Compute(far=64),
               features=(Tenants(), Throttles())),
    NodeConfig(link=JobSlots(ingress=15), role=Peer(interleaved=True), programs=Programs(),
               weights=Weights(codec="mx9")),
    ServerConfig(memories=ServerMemories(far=1 << 20), features=(SettableVersion(),)),
]


@pytest.mark.parametrize("node", NODES, ids=str)
def test_round_trips(node):
    """A configuration is restored from JSON, or from its options applied to a default node of its kind."""
    assert from_dict(json.loads(json.dumps(as_dict(node)))) == node
    options = as_options(node)
    assert with_options(type(node)(), options) == node
    assert with_options(node, {}) == node


def test_dictionary():
    """A dictionary contains each section that is present, and its kind if the section has several kinds."""
    assert as_dict(NodeConfig(link=Replay(), programs=Programs(), features=(Tenants(),))) == {
        "kind": "node", "lanes": 4, "segment": 256, "topology": {"kind": "single_ring", "max_nodes": 16},
        "memories": {"gradient": 16384, "weight": 16384, "state": 8192, "planes": 2},
        "optimizer": {"lanes": 1, "interval": 1, "dsps": 4}, "weights": {"codec": "raw", "master": False},
        "gradients": "zero_value", "masking": True, "sparsify": True, "link": {"kind": "replay", "ingress": 4},
        "role": {"kind": "peer", "interleaved": False},
        "programs": {"depth": 64, "banks": 1, "versions": False, "move_queue": False},
        "features": [{"kind": "tenants"}]}
    assert as_dict(Int16Config()) == {"kind": "int16", "memories": {"gradient": 16384, "weight": 16384},
                                      "masking": True, "sparsify": True}
    assert [name_of(kind) for kind in (NodeConfig, ServerConfig, JobSlots, Grid)] == [
        "node", "server", "job_slots", "grid"]
    assert from_dict({"lanes": 8, "link": {"kind": "slots"}, "programs": {}}) == NodeConfig(
        lanes=8, link=Slots(), programs=Programs())
    assert from_dict({"programs": None}) == NodeConfig()


@pytest.mark.parametrize(("values", "message"), [
    ({"kind": "nod"}, "Kind of Configuration must be one of node, server, int16, not 'nod': did you mean node?"),
    ({"memory": {}}, "Field of NodeConfig must be one of lanes, segment, topology, memories, optimizer, weights, "
                     "gradients, masking, sparsify, link, role, programs, compute, stub, features, not 'memory': did "
                     "you mean memories?"),
    ({"memories": {"weights": 32}}, "Field of Memories must be one of gradient, weight, state, planes, not "
                                    "'weights': did you mean weight?"),
    ({"memories": 32}, "NodeConfig.memories must be a table of fields, not 32"),
    ({"link": {"kind": "slot"}}, "Kind of NodeConfig.link must be one of credits, replay, slots, job_slots, not "
                                 "'slot': did you mean slots?"),
    ({"features": "tenants"}, "NodeConfig.features must be a list, not 'tenants'"),
    ({"features": [{"kind": "tenant"}]}, f"Kind of NodeConfig.features must be one of {KINDS}, not 'tenant': did you "
                                         "mean tenants?"),
    ({"features": [{}]}, "NodeConfig.features must have a kind in each table, not {}"),
    ({"link": {"kind": {}}}, "Kind of NodeConfig.link must be one of credits, replay, slots, job_slots, not '{}'"),
    ({"memories": {1: 2}}, "Field of Memories must be one of gradient, weight, state, planes, not '1'"),
    ({"lanes": 3}, "NodeConfig.lanes must be 1, 2, 4 or 8, not 3"),
    ({"kind": "int16", "lanes": 1}, "Field of Int16Config must be one of memories, masking, sparsify, not 'lanes'"),
])
def test_wrong_dictionaries(values, message):
    refuses(message, from_dict, values)


@pytest.mark.parametrize(("options", "node"), [
    ({"lanes": 8, "weights.codec": "mx9"}, NodeConfig(lanes=8, weights=Weights(codec="mx9"))),
    ({"link": "slots", "link.ingress": 5, "programs": True}, NodeConfig(link=Slots(ingress=5), programs=Programs())),
    ({"link.ingress": 5}, NodeConfig().replace(link={"ingress": 5})),
    ({"programs.depth": 5}, NodeConfig(programs=Programs(depth=5))), ({"programs": False}, NodeConfig()),
    ({"compute.rows": 2, "compute": True}, NodeConfig(compute=Compute(rows=2))),
    ({"stub": True}, NodeConfig(stub=ComputeStub())), ({"topology": "grid"}, NodeConfig(topology=Grid())),
    ({"features": "tenants,quantization"}, NodeConfig(features=(Quantization(), Tenants()))),
    ({"features": "none", "memories.planes": 0}, NodeConfig(memories=Memories(planes=0))),
])
def test_options(options, node):
    assert with_options(NodeConfig(), options) == node


def test_options_change_what_is_there():
    node = NodeConfig(link=Replay(ingress=3), programs=Programs(depth=5, banks=2), features=(Tenants(),))
    assert with_options(node, {"programs.depth": 6, "link.ingress": 9}) == NodeConfig(
        link=Replay(ingress=9), programs=Programs(depth=6, banks=2), features=(Tenants(),))
    assert with_options(node, {"programs": False, "link": "credits", "features": ""}) == NodeConfig()
    assert with_options(node, {"programs": True, "link": "replay"}) == node


@pytest.mark.parametrize(("options", "message"), [
    ({"wieghts.codec": "mx9"}, "Option must be one of the 39 of docs/node.md, not 'wieghts.codec': did you mean "
                               "weights.codec?"),
    ({"weights": "mx9"}, "Option must be one of the 39 of docs/node.md, not 'weights': did you mean weights.codec or "
                         "weights.master?"),
    ({"link": "slot"}, "Kind of link must be one of credits, replay, slots, job_slots, not 'slot': did you mean "
                       "slots?"),
    ({"link.messages": True}, "Field of link credits must be one of ingress, not 'messages'"),
    ({"programs": False, "programs.depth": 3}, "Option programs.depth must be left out with programs=False"),
    ({"programs": 3}, "Option programs must be True or False, not 3"),
    ({"link": True, "link.messages": True}, "Field of link credits must be one of ingress, not 'messages'"),
    ({"features": "tenant"}, f"Kind of features must be one of {KINDS}, not 'tenant': did you mean tenants?"),
    ({"segment": "long"}, "NodeConfig.segment must be 32, 64, 128, 256 or 512, not 'long'"),
])
def test_wrong_options(options, message):
    refuses(message, with_options, NodeConfig(), options)
