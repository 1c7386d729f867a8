"""Costs of tiling plans: modelled cycles agree with cycles counted on a node, and no plan changes the result."""


import numpy as np
import pytest

from hdl.features.compute.layer_list import Place
from host.features.compute.instructions import Array
from host.features.compute.tiling.costs import GatewareCost, ModelCost, WrongProductError, estimated, node_of, product
from host.features.compute.tiling.space import Level, Nest, Plan, Space
from sim.golden import operands
from tests.host.rings import CONFIGS, open_nodes

CONFIG = CONFIGS["centroid"]
ARRAY = Array(rows=CONFIG.compute.rows, lanes=CONFIG.lanes, operands=CONFIG.compute.operands)


def drawn(nest, count, seed):
    """Random plans, including plans with several products."""
    plans = list(dict.fromkeys(plan for plan in map(nest.plan, nest.space) if isinstance(plan, Plan)))
    return [plans[number] for number in np.random.default_rng(seed).choice(len(plans), count, replace=False)]


def test_gateware():
    """For plans of several products, with all options of lists, cycles match the model, and results are right."""
    levels = Level.PRODUCTS, Level.OUTER, Level.PANEL
    with open_nodes(1, config=CONFIG, host_port=False) as (ring, _):
        for number, (sizes, space, options) in enumerate([
                ((16, 16, 16), (16, 16, 16), {}), ((16, 32, 8), (16, 32, 8), {"transpose_a": True}),
                ((14, 16, 16), (16, 16, 16), {"transpose_b": True, "starts": True}),
                ((14, 10, 16), (16, 16, 16), {"gated": True}), ((1, 14, 30), (1, 16, 32), {"ones": True})]):
            job = product(sizes, ARRAY, **options)
            nest = Nest(Space(space, (3, 2, 3)), ARRAY, job, levels if sizes == space else ())
            cost, model = GatewareCost(ring, job), ModelCost(job, ARRAY)
            plans = drawn(nest, 6 if sizes == space else 3, number)
            assert [cost(plan) for plan in plans] == [model(plan) for plan in plans], options
            assert len(cost.digest) == 64
            if options == {}:
                a = ring.memory.read_activations(0, 256)[0].view(np.float32).reshape(16, 16)
                b = ring.memory.read_weights(256)[0].view(np.float32).reshape(16, 16)
                c = ring.memory.read_gradients(256)[0].view(np.float32).reshape(16, 16)
                assert (c == operands.product(a, b, operands=CONFIG.compute.operands)).all()
                # A wrong result is detected.
                cost.digest = "0" * 64
                cost._known.clear()
                with pytest.raises(WrongProductError, match="Product 16 x 16 x 16 must be the same with all factors"):
                    cost(plans[0])


def test_estimate():
    """The estimated cycles of a command, including its list, are 0.8 to 1 times the modelled cycles."""
    nest = Nest(Space((32, 64, 32), (3, 2, 3)), Array(rows=4, lanes=4), product((32, 64, 32), Array(rows=4, lanes=4)))
    model, estimate = (kind(nest.job, nest.array) for kind in (ModelCost, estimated))
    assert all(0.8 < estimate(plan) / model(plan) <= 1 for plan in drawn(nest, 12, 1))


def test_node():
    """Memories have enough words for the operands and a list. Their sizes are rounded up to powers of two."""
    job = product((64, 64, 64), Array(rows=4, lanes=4), starts=True)
    node = node_of(job, Array(rows=4, lanes=4), products=63)
    assert (node.memories.gradient, node.memories.weight, node.compute.activations) == (4096, 8192, 8192)
    assert job.b.place == job.start.place == Place.WEIGHTS
    assert node.replace(lanes=4) == node
