# amaranth: UnusedElaboratable=no
"""Training on rings with links that fail from time to time or permanently."""

import dataclasses
import hashlib

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus
from host.driver.command import Event
from host.driver.diagnosis import RingError
from host.training.optimizers import SGD, OptimizerName, create
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.training.updates import REPEATS
from host.training.workloads import CharacterModel
from tests.host import rings
from tests.host.features.int16.integers import golden_ring
from tests.host.golden import SMALL, TEXT, GoldenRing

PLAIN = SGD(learning_rate=0.5)
RUN = TrainingConfig(epochs=3, batch=100, hidden=())
#: For each run, the configuration of its nodes and of its training.
RUNS = {
    "momentum": (NodeConfig(), RUN),
    "adam, bfloat16": (NodeConfig(), dataclasses.replace(RUN, optimizer=create(OptimizerName.ADAM),
                                                         packed_state=True)),
    "momentum, density": (NodeConfig(), dataclasses.replace(RUN, density=0.2)),
    "momentum, mx9 gradients and weights": (rings.CONFIGS["mx9"], RUN),
    "codebook, mxfp8 gradients": (rings.CONFIGS["table"],
                                dataclasses.replace(RUN, optimizer=PLAIN, refresh=5)),
}


class Faults:
    """Injects a fault of a link into each of five updates of a ring.

    Members
    -------
    done : list of str
        Faults that have occurred.
    """

    def __init__(self, ring, simulation, generator):
        self.ring = ring
        self.simulation = simulation
        self.generator = generator
        # Nodes that support programs run a program for each update.
        part, name = ((ring.collectives, "fused_update") if ring.config.programs is None else (ring.programs, "run"))
        self.update = getattr(part, name)
        self.plan = {2: self.flip, 4: self.lose_word, 6: self.lose_credit, 13: self.cut_for_a_while,
                     16: self.flip_last}
        self.calls = 0
        self.done = []
        self.struck = False  # whether the last update had a fault
        setattr(part, name, self)

    def __call__(self, *arguments, **options):
        self.calls += 1
        fault = self.plan.pop(self.calls, None)
        if fault is None:
            return self.update(*arguments, **options)
        if fault != self.lose_credit or not self.struck:
            self.link = self.simulation.links[int(self.generator.integers(self.ring.nodes))]
        link = self.link
        state = self.simulation.save()
        first, begun = link.status(), self.simulation.cycle
        try:
            self.update(*arguments, **options)
        except RingError:
            assert fault == self.lose_credit
            assert self.struck
            self.done.append(fault.__name__)
            raise
        last = link.status()
        self.simulation.restore(state)
        fault(link, first, last, begun)
        self.struck = True
        try:
            outcome = self.update(*arguments, **options)
        except RingError:
            self.done.append(fault.__name__)
            self.struck = False
            raise
        finally:
            link.mend()
            self.check(fault, first, link.status())
        # The update succeeds if only some of a link's credits are lost, so the fault is repeated.
        assert fault == self.lose_credit
        self.plan[self.calls + 1] = fault
        return outcome

    def flip(self, link, first, last, begun):
        link.corrupt(word=int(self.generator.integers(first.words_carried, last.words_carried)),
                     bit=int(self.generator.integers(32)))

    def flip_last(self, link, first, last, begun):
        link.corrupt(word=int(self.generator.integers(first.words_carried, last.words_carried)), bit=32)

    def lose_word(self, link, first, last, begun):
        link.cut(last.last_word, last.last_word + 1)

    def lose_credit(self, link, first, last, begun):
        """Drop all credits after the last word of each update, until the link has no credits left."""
        link.cut(last.last_word + 1, last.last_credit + 1)

    def cut_for_a_while(self, link, first, last, begun):
        """Cut a link during the second half of the update."""
        link.cut((begun + last.last_word) // 2, last.last_word + 1)

    def check(self, fault, first, now):
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
    """Digest of everything that nodes keep between steps."""
    vectors = [ring.memory.read_weights(length)]
    if ring.devices[0].config.weights.has_master:
        vectors.append(ring.memory.read_master(length))
    vectors += [ring.memory.read_state(length, plane, packed_state=config.packed_state)
                for plane in range(config.optimizer.planes)]
    if config.density is not None:
        vectors.append(ring.memory.read_errors(length))
    if ring.formats.has_residual:
        vectors.append(ring.memory.read_residual(length))
    return hashlib.sha256(b"".join(vector.tobytes() for vector in vectors)).hexdigest()


def figures(training):
    """Figures of a training run except for repeats and cycles. (With fewer credits, steps take more cycles.)"""
    return dataclasses.replace(training, repeats=0, steps=[
        dataclasses.replace(step, repeats=0, cycles=0, scatter_cycles=0) for step in training.steps])


class TestFaults:
    @pytest.mark.parametrize("name", RUNS)
    def test_same_bits_as_a_clean_run(self, third, name):
        node, config = RUNS[name]
        outcomes = []
        for faulty in (False, True):
            with rings.open_nodes(3, config=node) as (ring, simulation):
                faults = Faults(ring, simulation, np.random.default_rng(len(name))) if faulty else None
                said = []
                training = train(ring, third, config, on_repeat=said.append)
                outcomes.append((digest(ring, config, training.parameters), training))
        (clean, expected), (actual, training) = outcomes
        assert sorted(faults.done) == ["cut_for_a_while", "flip", "flip_last", "lose_credit", "lose_word"]
        assert actual == clean
        assert figures(training) == figures(expected)
        assert training.bit_exact is True
        assert training.repeats == len(said) == 5
        assert sum(step.repeats for step in training.steps) == training.repeats
        assert all(" is repeated: fused-update failed: " in line for line in said)

    def test_cut_link(self, third):
        """If a link is cut permanently, the run ends after the maximum number of attempts, each with a recovery."""
        said = []
        with rings.open_nodes(3, config=NodeConfig()) as (ring, simulation):
            def cut(training):
                if len(training.steps) == 2:
                    simulation.links[1].cut()

            with pytest.raises(RingError) as caught:
                train(ring, third, RUN, on_step=cut, on_repeat=said.append)
            assert str(caught.value).startswith(
                "step 3 failed 4 times in a row, which is no passing disturbance: check the links of the ring; the "
                "last time fused-update failed: the link from node 1 to node 2 has not delivered ")
            assert caught.value.cause == 1
            assert len(said) == REPEATS
            simulation.links[1].mend()
            ring.recover()
            assert train(ring, third, dataclasses.replace(RUN, epochs=1)).bit_exact is True


class Failing:
    """Makes some calls of a method fail after they have done their work. Calls are numbered from 1."""

    def __init__(self, ring, name, numbers, *, status=EventStatus.LINK_RESET):
        part, _, method = name.partition(".")
        self.method = getattr(getattr(ring, part), method)
        self.numbers = numbers
        self.status = status
        self.calls = 0
        setattr(getattr(ring, part), method, self)

    def __call__(self, *arguments, **options):
        self.calls += 1
        outcome = self.method(*arguments, **options)
        if self.calls in self.numbers:
            event = Event(tag=0, status=self.status, flags=0, detail=0, cycles=9, weight_version=0)
            raise RingError("it failed: so it did\nnode by node", cause=None, events=[event])
        return outcome


class TestTries:
    """On golden integer nodes, a step is repeated after a command that fails although it has changed memories."""

    CONFIG = TrainingConfig(epochs=2, batch=100, hidden=(), optimizer=SGD(learning_rate=1.2), density=0.3)

    def run(self, third, name="collectives.fused_update", numbers=(), *, config=CONFIG, **options):
        ring, said = golden_ring(), []
        failing = Failing(ring, name, numbers, **options)
        training = train(ring, third, config, on_repeat=said.append)
        return digest(ring, config, training.parameters), training, said, failing.calls

    @pytest.mark.parametrize(("name", "numbers"), [
        ("collectives.fused_update", (1, 2, 3)), ("collectives.fused_update", (2, 4, 6, 8, 10)),
        ("local.sparsify", (1, 3, 4)), ("collectives.distribute", (1, 2)),
        ("collectives.fused_update", (10, 11, 12))])
    def test_same_bits(self, third, name, numbers):
        """Failed calls, up to the retry limit, change no bit, either in steps or when weights are sent."""
        clean, expected, _, calls = self.run(third, name)
        actual, training, said, more = self.run(third, name, numbers)
        assert actual == clean
        assert figures(training) == figures(expected)
        assert training.bit_exact is True
        assert training.repeats == len(said) == len(numbers) == more - calls

    def test_without_comparison(self, third):
        config = dataclasses.replace(self.CONFIG, check=False)
        clean, expected, _, _ = self.run(third, config=config)
        actual, training, said, _ = self.run(third, numbers=(3, 4), config=config)
        assert (actual, figures(training)) == (clean, figures(expected))
        assert said == ["step 3 is repeated: it failed: so it did"] * 2

    @pytest.mark.parametrize(("name", "what"), [
        ("collectives.fused_update", "step 2"), ("local.sparsify", "step 2"),
        ("collectives.distribute", "distribution of the first weights")])
    def test_limit(self, third, name, what):
        first = 1 if name == "collectives.distribute" else 2
        with pytest.raises(RingError, match=rf"^{what} failed 4 times in a row, .*; the last time it failed: so it "):
            self.run(third, name, range(first, first + 1 + REPEATS))

    @pytest.mark.parametrize("status", [EventStatus.BAD_LENGTH, EventStatus.BAD_RULE])
    def test_refused_commands_are_not_repeated(self, third, status):
        with pytest.raises(RingError, match=r"^it failed: so it did\nnode by node$"):
            self.run(third, numbers=(2,), status=status)


def test_masks(lines):
    """Failures of MASK commands in a step, in a measurement, and in the sample after training."""
    outcomes = []
    for numbers in ((), (3, 6, 13, 60)):
        ring = GoldenRing(2)
        Failing(ring, "local.mask", numbers)
        workload = CharacterModel(lines, SMALL, chunk=5)
        said = []
        training = train(ring, workload, TEXT, on_repeat=said.append)
        outcomes.append((workload.parameters.tobytes(), figures(training)))
        assert [line.partition(" is repeated")[0] for line in said] == [
            "step 2", "measurement after step 2", "step 5", "sample"][:len(numbers)], said
    assert outcomes[0] == outcomes[1]
