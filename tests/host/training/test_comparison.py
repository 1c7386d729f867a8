"""A comparison with the golden model detects a fault in a single bit or word."""

import numpy as np
import pytest

from host.training.optimizers import Adam
from host.training.record import DivergenceError, TrainingConfig
from host.training.trainer import train
from tests.host.golden import GoldenRing, after


class TestDivergence:
    def flip(self, ring):
        ring.weights[2, 7] ^= 1

    def test_one_bit_of_one_node(self, few):
        message = (r"^Step 2: 1 of 650 weights of node 2 differ from the golden model, first number 7, which is "
                   r"0x[0-9a-f]{8} and must be 0x[0-9a-f]{8}; nodes with the same weights: 2$")
        with pytest.raises(DivergenceError, match=message):
            train(GoldenRing(4, fault=after(2, self.flip)), few, TrainingConfig(batch=25, hidden=()))

    def test_all_nodes_alike(self, few):
        def fault(ring):
            ring.weights[:, 0] ^= 1

        with pytest.raises(DivergenceError, match=r"nodes with the same weights: 0, 1$"):
            train(GoldenRing(2, fault=after(1, fault)), few, TrainingConfig(batch=25))

    def test_negative_zero_is_another_pattern(self, few):
        def fault(ring):
            ring.weights[1, -1] = 0x8000_0000

        with pytest.raises(DivergenceError, match="which is 0x80000000"):
            train(GoldenRing(2, fault=after(1, fault)), few, TrainingConfig(batch=25))

    def test_words(self, few):
        def fault(ring):
            ring.golden.counters["WORDS_SENT"][1] += 1

        with pytest.raises(DivergenceError, match=r"^Step 1: nodes have sent (\d+), (\d+) words, and must "):
            train(GoldenRing(2, fault=after(1, fault)), few, TrainingConfig(batch=25))

    def test_momenta(self, few):
        def fault(ring):
            momenta = ring.state[0]
            momenta[345] ^= 1
            ring.memory.write_state(momenta)

        message = r"^Step 2: 1 of 650 momenta differ from the golden model, first number 345, on node 1, which is "
        with pytest.raises(DivergenceError, match=message):
            train(GoldenRing(2, fault=after(2, fault)), few, TrainingConfig(epochs=1, batch=25, hidden=()))

    @pytest.mark.parametrize(("plane", "name"), [(0, "first"), (1, "second")])
    @pytest.mark.parametrize("packed_state", [False, True])
    def test_moments(self, few, plane, name, packed_state):
        def fault(ring):
            moments = ring.memory.read_state(650, plane, packed_state=packed_state).view(np.uint32)
            moments[5] ^= 1 << 16
            ring.memory.write_state(moments.view(np.float32), plane, packed_state=packed_state)

        message = rf"^Step 2: 1 of 650 {name} moments differ from the golden model, first number 5, on node 1, "
        config = TrainingConfig(epochs=1, batch=25, hidden=(), optimizer=Adam(), packed_state=packed_state)
        with pytest.raises(DivergenceError, match=message):
            train(GoldenRing(2, fault=after(2, fault)), few, config)
