"""Hand-over of memories by the driver when the ring changes: host/features/grid/owners.py."""

import contextlib
import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig
from host.driver.device import Device
from host.driver.memory import Allocation
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.features.grid.grid import Part, Shape, Topology
from host.features.grid.owners import carry_over, hand_over
from host.training.optimizers import SGD, Adam
from sim.golden import masking
from sim.golden import ring as golden
from sim.golden.codecs import CODECS
from tests.host.rings import CONFIGS, open_nodes, random
from tests.refusals import refuses

LENGTH = 700


class Model:
    """Golden model of the active nodes, with residuals and errors of all nodes of the grid."""

    def __init__(self, config, plan, weights):
        self.codecs = {"weight_codec": CODECS[config.weights.codec], "gradient_codec": CODECS[config.gradients]}
        self.segment = config.segment
        self.plan = plan
        self.master = golden.bits(weights)
        self.weights = golden.distribute(self.master, len(plan.active), weight_codec=self.codecs["weight_codec"],
                                         segment=config.segment)
        self.state = [np.zeros(LENGTH, np.uint32) for _ in range(config.memories.planes)]
        self.residuals, self.errors = ({node: np.zeros(LENGTH, np.uint32) for node in plan.active} for _ in range(2))

    def sparsify(self, gradients, threshold):
        """Sparsify the gradients and return the elements that are sent."""
        ring = self.plan.rings[0]
        kept, errors = masking.sparsify(golden.bits(gradients), np.stack([self.errors[node] for node in ring]),
                                        int(golden.bits([threshold])[0]))
        self.errors = dict(zip(ring, errors, strict=True))
        return kept

    def step(self, gradients, settings):
        ring = self.plan.rings[0]
        residuals = np.stack([self.residuals[node] for node in ring])
        numbers = dataclasses.asdict(settings)
        packed_state = numbers.pop("packed_state")
        update = golden.fused_update(gradients, self.master, self.state, golden.settings(**numbers),
                                     residuals=residuals, packed_state=packed_state, segment=self.segment,
                                     **self.codecs)
        self.weights, self.master, self.state = update.weights, update.master, update.state
        self.residuals = dict(zip(ring, residuals, strict=True))

    def change(self, plan):
        self.residuals = hand_over(self.residuals, self.plan, plan).rows
        self.errors = hand_over(self.errors, self.plan, plan).rows
        self.plan = plan

    def compare(self, ring, *, packed_state, errors):
        order = self.plan.rings[0]
        assert (ring.memory.read_weights(LENGTH).view(np.uint32) == self.weights).all()
        if self.codecs["weight_codec"] is not CODECS["raw"]:
            assert (ring.memory.read_master(LENGTH).view(np.uint32) == self.master).all()
        for plane, expected in enumerate(self.state):
            state = ring.memory.read_state(LENGTH, plane, packed_state=packed_state)
            assert (state.view(np.uint32) == expected).all()
        if ring.formats.has_residual:
            residuals = ring.memory.read_residual(LENGTH).view(np.uint32)
            assert (residuals == [self.residuals[node] for node in order]).all()
        if errors:
            assert (ring.memory.read_errors(LENGTH).view(np.uint32) == [self.errors[node] for node in order]).all()


CHANGES = ["", "card1", "", "node5", "card0 node5"]


@pytest.mark.parametrize(("name", "packed", "errors"), [("mx9", False, False), ("engines", True, True)])
def test_training_through_changes(name, packed, errors):
    """Nodes leave and join between steps; memories match the golden model after each change and step."""
    config = CONFIGS[name]
    generator = np.random.default_rng(len(name))
    weights = random(generator, LENGTH)
    grid = Topology(2, 4)
    plans = [grid.disable(*map(Part.parse, change.split())).plan(Shape.FLAT) for change in CHANGES]
    assert [len(plan.active) for plan in plans] == [8, 4, 8, 7, 3]
    optimizer = Adam(learning_rate=0.01) if config.memories.planes > 1 else SGD(learning_rate=0.01, momentum=0.9)
    model = Model(config, plans[0], weights)
    accounts = []
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(open_nodes(len(plan.active), config=config))[0] for plan in plans]
        rings[0].collectives.distribute(weights)
        rings[0].memory.clear_state(LENGTH, packed_state=packed)
        if errors:
            rings[0].memory.clear_errors(LENGTH)
        for number, (ring, plan) in enumerate(zip(rings, plans, strict=True)):
            if number:
                vector = Allocation(length=LENGTH, planes=config.memories.planes, packed_state=packed, errors=errors)
                accounts.append(carry_over(rings[number - 1], ring, vector, old=model.plan, new=plan))
                model.change(plan)
            model.compare(ring, packed_state=packed, errors=errors)
            scale = plan.gradient_scale(plan.active[0])
            settings = dataclasses.replace(Settings(**dataclasses.asdict(
                optimizer.settings(number + 1, gradient_scale=scale))), packed_state=packed)
            ring.settings.write(settings)
            gradients = random(generator, (ring.nodes, LENGTH))
            ring.memory.write_gradients(list(gradients))
            sent = golden.bits(gradients)
            if errors:
                ring.local.sparsify(LENGTH, threshold=0.5)
                sent = model.sparsify(gradients, 0.5)
            ring.collectives.fused_update(LENGTH)
            model.step(sent, settings)
            model.compare(ring, packed_state=packed, errors=errors)
    assert [(account.left, account.joined) for account in accounts] == [
        ((4, 5, 6, 7), ()), ((), (4, 5, 6, 7)), ((5,), ()), ((0, 1, 2, 3), ())]
    assert all(account.moved > LENGTH // 2 for account in accounts)
    assert [bool(account.heirs) for account in accounts] == [True, False, True, True]


@pytest.mark.parametrize(("old", "new", "length", "message"), [
    ("", "card1", 700, "Old ring must have the 4 nodes of its plan, not 2"),
    ("card1", "", 700, "New ring must have the 4 nodes of its plan, not 2"),
    ("card1", "card0", 20000, "Vector must have at most the 16,384 elements of a node's memories, not 20,000: take a "
                              "smaller model, or nodes with larger memories"),
])
def test_impossible(old, new, length, message):
    """An impossible change is rejected before any device is read (the devices in this test have no transport)."""
    plans = [Topology(2, 2).disable(*map(Part.parse, text.split())).plan(Shape.FLAT) for text in (old, new)]
    rings = [Ring([Device(None, NodeConfig()) for _ in range(2)]) for _ in plans]
    refuses(message, carry_over, *rings, Allocation(length=length), old=plans[0], new=plans[1])


def test_rings_apart():
    """If each row is a separate ring, every ring holds the whole vector, and nothing can be handed over."""
    plan = Topology(2, 2).plan(Shape.HORIZONTAL)
    ring = Ring([Device(None, NodeConfig()) for _ in range(4)])
    refuses("Elements must have one owner each, not 2: nodes of one flat ring or of a grid own each element once",
            carry_over, ring, ring, Allocation(length=100), old=plan, new=plan)
