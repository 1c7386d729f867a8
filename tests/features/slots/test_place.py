"""Position relay, which distributes node positions from rank 0."""

import random

import pytest

from hdl.features.replay.control_word import ControlType, control_layout
from hdl.features.slots.place import PositionRelay
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns
from tests.features.slots import access_model as golden
from tests.features.slots.access_model import place_word


@pytest.fixture(scope="module")
def relay():
    return Unit(PositionRelay())


class Place:
    """Model of a position relay that also records the values of its ports."""

    def __init__(self, position=(0, 0)):
        self.model, self.columns, self.given = golden.PositionRelay(), Columns(), position

    def step(self, word=None, ready=1):
        model, position = self.model, self.model.place(self.given)
        sent = model.o if ready else None
        self.columns.stream("i", None if word is None else word | 3 << 32, 1)
        self.columns.stream("o", None if model.o is None else model.o | 3 << 32, ready)
        self.columns.note(given=self.given[0] | self.given[1] << 4, place=position[0] | position[1] << 4,
                          moved=position != model.before)
        model.step(word=word, ready=ready, given=self.given)
        return sent


@pytest.mark.parametrize("nodes", [2, 5, 16])
def test_places(relay, nodes):
    """All nodes receive their positions, even if words are lost, and new positions if the ring size changes."""
    ring = [Place() for _ in range(nodes)]
    ring[0].given = (0, nodes)
    wires = [None] * nodes
    sent = 0
    for cycle in range(8000):
        if cycle == 5000:
            assert [node.model.place(node.given) for node in ring] == [(rank, nodes) for rank in range(nodes)]
            assert sent == 4
            ring[0].given = (0, nodes ^ 1)
        lost = cycle < 1500
        wires = [node.step(wires[rank - 1] if not (lost and rank == 1) else None) for rank, node in enumerate(ring)]
        sent += wires[0] is not None
    assert ring[1].model.place((0, 0)) == (1, nodes ^ 1)
    for node in ring:
        node.columns.compare(relay)
    assert control_layout().const({"type": ControlType.PLACE, "tag": 5 | 9 << 4}).as_bits() == place_word(5, 9)


@pytest.mark.parametrize("seed", range(2))
def test_lockstep(relay, seed):
    generator, node = random.Random(seed), Place()
    for cycle in range(6000):
        if cycle % 700 == 0:
            node.given = generator.choice([(0, 0), (0, 2), (0, 16), (3, 5), (0, 1)])
        word = place_word(generator.randrange(16), generator.randrange(20))
        word ^= (generator.random() < .2) << generator.randrange(32)
        node.step(word if generator.random() < .1 else None, ready=int(generator.random() < .7))
    node.columns.compare(relay)
