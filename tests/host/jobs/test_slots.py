"""Splitting a vector into parts, and the longest part that fits on the nodes."""

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from host.driver.memory import Allocation
from host.jobs.slots import largest_part, parts_of


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize(("planes", "packed_state", "errors"), [
    (0, False, False), (1, False, True), (2, True, False)])
def test_largest(nodes, planes, packed_state, errors):
    """The longest part fits on the nodes, and a part that is 32 elements longer does not."""
    config = NodeConfig(memories=Memories(gradient=1024, weight=960, state=192))
    shape = {"planes": planes, "packed_state": packed_state, "errors": errors}
    longest = largest_part(config, nodes=nodes, **shape)
    assert longest % 32 == 0
    Allocation(length=longest, **shape).check(config, nodes=nodes)
    with pytest.raises(ValueError, match=r"must"):
        Allocation(length=longest + 32, **shape).check(config, nodes=nodes)


def test_no_room():
    with pytest.raises(ValueError, match=r"^Optimizer must need at most the 1 state planes of a node, not 2$"):
        largest_part(NodeConfig(memories=Memories(planes=1)), nodes=2, planes=2, packed_state=False, errors=False)


def test_parts():
    parts = parts_of([slice(0, 100), slice(128, 192)], 64)
    assert [number for number, _ in parts] == [0, 0, 1]
    np.testing.assert_array_equal(np.concatenate([places for _, places in parts]),
                                  [*range(100), *range(128, 192)])
    assert [len(places) for _, places in parts] == [64, 36, 64]
