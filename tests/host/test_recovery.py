# amaranth: UnusedElaboratable=no
"""Training on rings whose links fail now and then, and on some that never come back."""

import dataclasses
import functools
import hashlib

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus
from host.command import Event
from host.data import Dataset, digits
from host.failure import RingError
from host.optimizers import SGD, OptimizerName, create
from host.recovery import REPEATS
from host.trainer import TrainingConfig, train
from host.workloads import Classifier
from tests.host import rings
from tests.host.integers import golden_ring
from tests.host.test_codebooks import BOTH as CODEBOOK_AND_RESIDUALS
from tests.host.test_codebooks import CONFIGS as CODEBOOKS
from tests.host.test_gradient_codecs import BOTH as MASTERS_AND_RESIDUALS

PLAIN = SGD(learning_rate=0.5)
RUN = TrainingConfig(epochs=3, batch=100, hidden=())
#: Nodes, what is trained, and the step at which each fault strikes.
RUNS = {
    "momentum": (NodeConfig(), RUN),
    "adam, bfloat16": (NodeConfig(), dataclasses.replace(RUN, optimizer=create(OptimizerName.ADAM),
                                                         packed_state=True)),
    "momentum, density": (NodeConfig(), dataclasses.replace(RUN, density=0.2)),
    "momentum, mx9 gradients and weights": (MASTERS_AND_RESIDUALS, RUN),
    "codebook, mx9 gradients": (CODEBOOKS[CODEBOOK_AND_RESIDUALS],
                                dataclasses.replace(RUN, optimizer=PLAIN, refresh=5)),
}


@pytest.fixture(scope="module")
def few():
    """A third of the images, 479, of which an epoch is five steps."""
    data = digits()
    return Dataset(data.train_x[::3], data.train_y[::3], data.test_x, data.test_y, data.classes)


class Faults:
    """Faults of links, one at each of five updates of a ring.

    Members
    -------
    done : list of str
        Those that have struck.
    """

    def __init__(self, ring, simulation, generator):
        self.ring = ring
        self.simulation = simulation
        self.generator = generator
        self.update = ring.fused_update
        self.plan = {2: self.flip, 5: self.lose_word, 8: self.lose_credit, 11: self.cut_for_a_while,
                     14: self.flip_last}
        self.calls = 0
        self.done = []
        ring.fused_update = self

    def __call__(self, length):
        self.calls += 1
        fault = self.plan.pop(self.calls, None)
        if fault is None:
            return self.update(length)
        link = self.simulation.links[int(self.generator.integers(self.ring.nodes))]
        state = self.simulation.save()
        first, begun = link.status(), self.simulation.cycle
        self.update(length)
        last = link.status()
        self.simulation.restore(state)
        fault(link, first, last, begun)
        try:
            return self.update(length)
        finally:
            link.mend()
            self.done.append(fault.__name__)
            self.check(fault, first, link.status())

    def flip(self, link, first, last, begun):
        link.corrupt(word=int(self.generator.integers(first.words_carried, last.words_carried)),
                     bit=int(self.generator.integers(32)))

    def flip_last(self, link, first, last, begun):
        """The mark of a packet's last word."""
        link.corrupt(word=int(self.generator.integers(first.words_carried, last.words_carried)), bit=32)

    def lose_word(self, link, first, last, begun):
        link.cut(last.last_word, last.last_word + 1)

    def lose_credit(self, link, first, last, begun):
        """All credits behind the last word, so that a later update has none left."""
        link.cut(last.last_word + 1, last.last_credit + 1)

    def cut_for_a_while(self, link, first, last, begun):
        """The second half of the update."""
        link.cut((begun + last.last_word) // 2, last.last_word + 1)

    def check(self, fault, first, now):
        """The fault has been the one that was meant."""
        lost = now.words_dropped - first.words_dropped, now.credits_dropped - first.credits_dropped
        flipped = now.words_corrupted - first.words_corrupted
        if fault in (self.flip, self.flip_last):
            assert (lost, flipped) == ((0, 0), 1)
        elif fault == self.lose_credit:
            assert lost[0] == 0
            assert lost[1] > 0
        else:
            assert lost[0] > 0


def digest(ring, config, length):
    """Of everything that nodes keep from one step to the next."""
    vectors = [ring.read_weights(length)]
    if ring.devices[0].config.has_master:
        vectors.append(ring.read_master(length))
    vectors += [ring.read_state(length, plane, packed_state=config.packed_state)
                for plane in range(config.optimizer.planes)]
    if config.density is not None:
        vectors.append(ring.read_errors(length))
    if ring.has_residual:
        vectors.append(ring.read_residual(length))
    return hashlib.sha256(b"".join(vector.tobytes() for vector in vectors)).hexdigest()


def figures(training):
    """Everything but what has been repeated."""
    return dataclasses.replace(training, repeats=0,
                               steps=[dataclasses.replace(step, repeats=0) for step in training.steps])


class TestFaults:
    @pytest.mark.parametrize("name", RUNS)
    def test_same_bits_as_a_clean_run(self, few, name):
        node, config = RUNS[name]
        outcomes = []
        for faulty in (False, True):
            with rings.open_nodes(3, config=node) as (ring, simulation):
                faults = Faults(ring, simulation, np.random.default_rng(len(name))) if faulty else None
                said = []
                training = train(ring, few, config, on_repeat=said.append)
                outcomes.append((digest(ring, config, training.parameters), training))
        (clean, expected), (found, training) = outcomes
        assert sorted(faults.done) == ["cut_for_a_while", "flip", "flip_last", "lose_credit", "lose_word"]
        assert found == clean
        assert figures(training) == expected
        assert training.bit_exact is True
        print(said)
        assert training.repeats == len(said) >= 4
        assert sum(step.repeats for step in training.steps) == training.repeats
        assert all(" is repeated: fused-update failed: " in line for line in said)
