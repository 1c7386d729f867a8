"""The estimated cycles of collectives agree with cycles counted on Verilated nodes."""

import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig
from host.cycles.estimate import Collective, Costs
from host.driver.optimizer_settings import Settings
from host.training.optimizers import SGD
from tests.host.rings import open_nodes, random

#: Lengths that the cost table does not contain: three layers of 32, the deep network's last layer, and the full
#: network.
LENGTHS = (3168 - 32, 384, 10_880)


@pytest.mark.parametrize("nodes", [2, 4])
def test_dense_gradients(nodes):
    generator = np.random.default_rng(nodes)
    costs = Costs(examples=1)
    with open_nodes(nodes, config=NodeConfig(), host_port=False) as (ring, _):
        settings = SGD(learning_rate=0.1, momentum=0.9).settings(1, gradient_scale=1 / nodes)
        ring.settings.write(Settings(**dataclasses.asdict(settings)))
        for length in LENGTHS:
            ring.collectives.distribute(np.zeros(length, dtype=np.float32))
            ring.memory.clear_state(length, packed_state=False)
            ring.memory.write_gradients(list(random(generator, (nodes, length))))
            for kind, command in ((Collective.FUSED_UPDATE, ring.collectives.fused_update),
                                  (Collective.REDUCE_SCATTER, ring.collectives.reduce_scatter),
                                  (Collective.ALL_GATHER, ring.collectives.all_gather)):
                cycles = command(length).cycles
                assert costs.collective(kind, length, nodes=nodes) == pytest.approx(cycles, rel=0.06), \
                    f"{kind.name} of {length} elements"
