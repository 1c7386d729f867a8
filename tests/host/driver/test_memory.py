import dataclasses

import pytest

from hdl.config import Memories, NodeConfig, SingleRing, Weights
from host.driver.device import Device
from host.driver.memory import Allocation, errors_base
from host.driver.ring import Ring
from tests.present import needs
from tests.refusals import refuses

needs("mx")


@pytest.mark.parametrize(("length", "base"), [(0, 0), (1, 32), (32, 32), (33, 64), (5000, 5024)])
def test_errors_base(length, base):
    assert errors_base(length) == base


@pytest.mark.parametrize(("config", "nodes", "most", "message"), [
    ({}, 1, Allocation(length=16384),
     "Vector must have at most the 16,384 elements of a node's memories, not 16,385: take a smaller model, or "
     "nodes with larger memories"),
    ({}, 1, Allocation(length=8192, planes=1),
     "Block must have at most the 8,192 elements of a node's state plane, not 8,193: take more nodes, state as "
     "bfloat16, or an optimizer without state"),
    ({"memories": Memories(state=4096)}, 1, Allocation(length=8192, planes=2, packed_state=True),
     "Block must have at most the 8,192 elements of a node's state plane, not 8,193: take more nodes, or an "
     "optimizer without state"),
    ({"memories": Memories(state=2048)}, 2, Allocation(length=4096, planes=2),
     "Block must have at most the 2,048 elements of a node's state plane, not 2,049: take more nodes, state as "
     "bfloat16, or an optimizer without state"),
    # Master weights are never packed.
    ({"weights": Weights(codec="mx9")}, 1, Allocation(length=8192),
     "Block must have at most the 8,192 elements of a node's master weights, not 8,193: take more nodes, or raw "
     "weights"),
    ({"weights": Weights(codec="mx9")}, 1, Allocation(length=8192, packed_state=True),
     "Block must have at most the 8,192 elements of a node's master weights, not 8,193: take more nodes, or raw "
     "weights"),
    ({"memories": Memories(gradient=512, weight=512)}, 1, Allocation(length=256, errors=True),
     "Weights and the errors of what was not sent must take at most the 512 elements of a node's weight memory, not "
     "545: take a model of at most 256 parameters, nodes with more weight memory, or no density, which sends "
     r"everything"),
])
def test_most_that_fits(config, nodes, most, message):
    config = NodeConfig(**config)
    most.check(config, nodes=nodes)
    refuses(message, dataclasses.replace(most, length=most.length + 1).check, config, nodes=nodes)


def test_too_many_planes():
    config = NodeConfig(memories=Memories(planes=1))
    Allocation(length=1, planes=1).check(config, nodes=1)
    with pytest.raises(ValueError, match=r"^Optimizer must need at most the 1 state planes of a node, not 2$"):
        Allocation(length=1, planes=2).check(config, nodes=1)


@pytest.mark.parametrize(("most", "message"), [
    (1, r"^Ring must have 1 node, not 3$"), (2, r"^Ring must have between 1 and 2 nodes, not 3$")])
def test_too_many_nodes(most, message):
    with pytest.raises(ValueError, match=message):
        Ring([Device(None, NodeConfig(topology=SingleRing(max_nodes=most)))] * 3).memory.require(Allocation(length=1))
