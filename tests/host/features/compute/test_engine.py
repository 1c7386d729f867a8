"""Training on golden nodes with COMPUTE: results equal the host's, the words written are as expected, and invalid
runs are rejected."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from hdl.config import NodeConfig, Weights
from hdl.features.compute.feature import Compute
from hdl.group import GROUP
from host.driver.diagnosis import RingError
from host.features.compute.engine import differentiator_of, engine_node
from host.features.programs.execution import programmed
from host.models import layers
from host.training import reference, updates
from host.training.optimizers import SGD, OptimizerName, create
from host.training.record import DivergenceError, TrainingConfig
from host.training.trainer import make_trainer, train
from host.training.updates import check_run
from host.training.workloads import Classifier
from tests.host.golden import GoldenRing, compute_options, written_to
from tests.refusals import refuses

CONFIG = TrainingConfig(max_steps=7, interval=3, batch=22, hidden=(16, 8), compute="node", overlap="none")


def engine_ring(nodes, **options):
    return GoldenRing(nodes, **compute_options(**options))


def on_host(config):
    return dataclasses.replace(config, compute="host", overlap=None)


def host_task(data, config):
    """Task with the layers of ``config``; each layer starts at a new group of elements."""
    return Classifier(data, config.hidden, align=GROUP)


@pytest.fixture
def plain(few):
    ring = GoldenRing(3)
    return ring, train(ring, host_task(few, CONFIG), on_host(CONFIG))


class TestSameBits:
    @pytest.mark.parametrize("overlap", ["none", None])
    @pytest.mark.parametrize("check", [True, False])
    def test_as_on_the_host(self, few, plain, overlap, check):
        """Weights, momenta, losses and accuracies equal the host's."""
        other, expected = plain
        ring = engine_ring(3)
        training = train(ring, few, dataclasses.replace(CONFIG, overlap=overlap, check=check))
        np.testing.assert_array_equal(ring.weights, other.weights)
        np.testing.assert_array_equal(ring.state, other.state)
        assert [step.loss for step in training.steps] == [step.loss for step in expected.steps]
        assert (training.losses, training.measures) == (expected.losses, expected.measures)
        assert training.bit_exact is (True if check else None)

    def test_default_layers(self, data):
        """The README's model trains to the same weights if each layer is padded to whole groups."""
        config = TrainingConfig(max_steps=3, compute="node", overlap="none")
        ring, other = engine_ring(4), GoldenRing(4)
        training = train(ring, data, config)
        expected = train(other, data, on_host(config))
        np.testing.assert_array_equal(ring.weights[:, :4810], other.weights)
        assert not ring.weights[:, 4810:].any()
        assert [step.loss for step in training.steps] == [step.loss for step in expected.steps]

    @pytest.mark.parametrize("options", [
        {"weight_codec": "table32"}, {"gradient_codec": "mx9"}, {"weight_codec": "mx9", "gradient_codec": "mx9"}],
        ids=str)
    def test_codecs(self, few, options):
        ring, other = engine_ring(2, **options), GoldenRing(2, **options)
        train(ring, few, dataclasses.replace(CONFIG, refresh=2))
        train(other, host_task(few, CONFIG), dataclasses.replace(on_host(CONFIG), refresh=2))
        np.testing.assert_array_equal(ring.weights, other.weights)
        np.testing.assert_array_equal(ring.master, other.master)

    def test_density(self, few):
        """If a density is given, the host sends commands individually, since nodes drop elements before each
        update."""
        config = dataclasses.replace(CONFIG, density=0.3, overlap=None, optimizer=create(OptimizerName.ADAM))
        ring, other = engine_ring(2), GoldenRing(2)
        training = train(ring, few, config)
        train(other, host_task(few, config), on_host(config))
        np.testing.assert_array_equal(ring.weights, other.weights)
        assert all(step.compute_cycles is None for step in training.steps)  # golden nodes do not model these cycles


class TestSteps:
    def test_words(self, few):
        """In each step the host writes inputs and labels but no gradients; lists are written only once."""
        ring = engine_ring(3)
        written = written_to(ring)
        run = make_trainer(ring, Classifier(few, CONFIG.hidden, align=CONFIG.align), CONFIG)
        run.begin()
        lists = len(differentiator_of(ring, run.executor._workload, CONFIG).lists.words)
        assert written == {"gradients": 3 * run.executor._length, "activations": 3 * lists}
        run.advance()
        assert written == {"gradients": 3 * run.executor._length, "activations": 3 * lists + 17 * 65}

    def test_host_computes_nothing(self, few, plain, monkeypatch):
        """Without comparison, a run ends with the same bits, and the host calls no floating-point function."""
        class Nothing:
            def __getattr__(self, name):
                raise AssertionError(f"the host has used {name}")

        ring = engine_ring(3)
        run = make_trainer(ring, Classifier(few, CONFIG.hidden, align=CONFIG.align),
                           dataclasses.replace(CONFIG, check=False))
        run.begin()  # draws the initial weights
        for name in ("np", "product", "column_sums", "cross_entropy"):
            monkeypatch.setattr(layers, name, Nothing())
        monkeypatch.setattr(reference.Reference, "step", None)
        integers = SimpleNamespace(array_split=np.array_split)
        monkeypatch.setattr(updates, "np", integers)
        while not run.complete:
            run.advance()
        run.finish()
        training = run.executor.training
        monkeypatch.undo()
        np.testing.assert_array_equal(ring.weights, plain[0].weights)
        assert (training.losses, training.measures) == (plain[1].losses, plain[1].measures)

    def test_loads(self, few):
        """Batches of 17, 17 and 16 examples give nodes shares of two sizes; each change of size loads other
        programs."""
        ring = engine_ring(2)
        training = train(ring, few, CONFIG)
        assert [step.schedule for step in training.steps] == ["none"] * 7
        assert ring.hooks.loads == 5
        assert all(step.compute_cycles is None for step in training.steps)  # golden nodes do not model these cycles

    def test_measurement(self, few):
        """The test set is classified in several passes; a node may have no examples in the last one."""
        ring = engine_ring(7)
        config = dataclasses.replace(CONFIG, batch=7, max_steps=1)
        training = train(ring, few, config)
        task = host_task(few, config)
        task.parameters[...] = ring.weights[0].view(np.float32)
        assert training.measures == [task.measure(7, None, last=True)]

    def test_repeats(self, few, plain):
        """A step that failed on a node is repeated, including its lists, with the same result."""
        def fail(ring):
            if ring.lists == 40:
                ring.activations[...] = ring.gradients[...] = 0x7FC0_0002
                ring.hooks.lists += 1
                raise RingError("node 1 failed", cause=1, events=[])

        ring = engine_ring(3, broken=fail)
        said = []
        training = train(ring, few, CONFIG, on_repeat=said.append)
        assert training.repeats == 1
        assert said == ["step 3 is repeated: node 1 failed"]
        np.testing.assert_array_equal(ring.weights, plain[0].weights)
        with pytest.raises(RingError, match=r"^node 1 failed$"):
            train(engine_ring(3, broken=fail), few, dataclasses.replace(CONFIG, check=False))

    @pytest.mark.parametrize("check", [True, False])
    def test_goes_on_elsewhere(self, few, plain, check):
        config = dataclasses.replace(CONFIG, check=check)
        task = Classifier(few, config.hidden, align=config.align)
        run = make_trainer(engine_ring(3), task, config)
        run.begin()
        for _ in range(4):
            run.advance()
        state = run.state()
        ring = engine_ring(3)
        again = make_trainer(ring, Classifier(few, config.hidden, align=config.align), config)
        again.resume(state)
        while not again.complete:
            again.advance()
        again.finish()
        training = again.executor.training
        np.testing.assert_array_equal(ring.weights, plain[0].weights)
        np.testing.assert_array_equal(ring.state, plain[0].state)
        assert training.measures == plain[1].measures


class TestDivergence:
    def test_loss(self, few):
        def broken(ring):
            computer = differentiator_of(ring, Classifier(few, CONFIG.hidden, align=GROUP), CONFIG)
            if ring.lists == 30:
                ring.activations[1, computer.lists.places.loss] ^= 1

        with pytest.raises(DivergenceError, match=r"^Step 2: nodes have computed losses of [\d.]+, [\d.]+, [\d.]+, "
                                                  r"and must have computed [\d.]+, [\d.]+, [\d.]+$"):
            train(engine_ring(3, broken=broken), few, CONFIG)

    def test_scores(self, few):
        def broken(ring):
            computer = differentiator_of(ring, Classifier(few, CONFIG.hidden, align=GROUP), CONFIG)
            if ring.lists == 3 * 18 + 9:
                ring.activations[2, computer.lists.places.outputs[-1]] ^= 1

        refuses("Step 3: scores of 1 of 50 examples differ from the golden model, first those of example 12", train,
                engine_ring(3, broken=broken), few, CONFIG, error=DivergenceError)

    def test_gradient(self, few):
        def broken(ring):
            if ring.lists == 36:
                ring.gradients[0, 5] ^= 1 << 20

        with pytest.raises(DivergenceError, match=r"^Step 2: \d+ of \d+ weights of node 0 differ from the golden "):
            train(engine_ring(3, broken=broken), few, CONFIG)


class TestNodes:
    def test_room(self, data):
        """The engine has enough rows for the multiply-adds; the activation memory is doubled if needed."""
        task = Classifier(data, (64,), align=GROUP)
        config = TrainingConfig(compute="node")
        engine = engine_node(NodeConfig(), task, config, nodes=4)
        assert (engine.compute, engine.queues, engine.stub) == (Compute(rows=4, buffer_tags=True), 2, None)
        engine = engine_node(NodeConfig(), task, dataclasses.replace(config, macs=4), nodes=2)
        assert engine.compute == Compute(rows=1, activations=16384, buffer_tags=True)
        node = programmed(engine, task.parameters.size, 2)
        assert node == engine
        check_run(node, task, dataclasses.replace(config, macs=4), nodes=2)

    @pytest.mark.parametrize(("options", "node", "message"), [
        ({"hidden": (10,)}, {}, r"^Inputs and widths of hidden layers must be multiples of the 4 lanes of nodes that "
                                r"compute, not 10$"),
        ({"macs": 12}, {}, r"^Multiply-adds per cycle of nodes that compute must be one of 4, 8, 16, not 12$"),
        ({"macs": 16}, {"lanes": 2}, r"must be one of 2, 4, not 16$"),
        ({"batch": 2}, {}, r"^Batches must have an example for each of the 3 nodes that compute, not 1: take larger "
                           r"batches$"),
        ({"density": 0.1, "check": False}, {}, r"^Run of nodes that compute must be checked with a density or a "
                                               r"codebook, which are chosen by the golden model's values$"),
        ({"check": False}, {"weights": Weights(codec="table32")},
         r"^Run of nodes that compute must be checked with a density"),
        ({"density": 0.1, "overlap": "none"}, {}, r"^Density must not be given with a schedule, whose programs send "
                                                  r"everything$"),
        ({"overlap": "delayed:1"}, {}, r"^Nodes must count updates of weights and have masters for passes that "
                                     r"overlap$"),
    ])
    def test_errors(self, data, options, node, message):
        config = TrainingConfig(**{"compute": "node", **options})
        task = Classifier(data, config.hidden, align=GROUP)
        with pytest.raises(ValueError, match=message):
            check_run(engine_node(NodeConfig(**node), task, config, nodes=3), task, config, nodes=3)

    def test_other_nodes_and_workloads(self, data):
        config = TrainingConfig(compute="node", optimizer=SGD(learning_rate=0.1))
        task = Classifier(data, (64,), align=GROUP)
        refuses("Nodes must have a compute engine to compute", check_run, NodeConfig(), task, config, nodes=4)
        node = engine_node(NodeConfig(), task, config, nodes=4)
        refuses("Layers must each take whole groups of 32 elements for nodes that compute, 4,832 in all, not 4,810",
                check_run, node, Classifier(data, (64,)), config, nodes=4)
        # If nodes have only one queue, the driver sends a program's commands one by one.
        check_run(node.replace(programs=None), task, dataclasses.replace(config, overlap="none"), nodes=4)

    def test_unknown_choice(self):
        refuses("Compute must be host or node, not 'fpga'", TrainingConfig, compute="fpga")
