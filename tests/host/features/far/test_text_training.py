"""The text model trained on golden nodes with far memories: same bits as on the host, and node configuration."""

import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.features.compute.feature import Compute
from hdl.features.programs.feature import Programs
from host.features.compute.engine import engine_node
from host.features.compute.memory.chain import KINDS
from host.features.far.training import far_text_lists
from host.models.digits import digits
from host.training.optimizers import Adam
from host.training.record import FarMemory, TrainingConfig
from host.training.trainer import train
from host.training.updates import check_run
from host.training.workloads import CharacterModel, Classifier
from tests.host.golden import GoldenRing, far_options
from tests.refusals import refuses

CONFIG = TrainingConfig(max_steps=3, interval=3, batch=7, compute="node", optimizer=Adam(learning_rate=0.02),
                        far=FarMemory(activations=6144))
WORDS = 16_384


@pytest.fixture(scope="module")
def expected(text):
    """A ring of three nodes that has been trained with gradients from the host, and the results of training."""
    ring = GoldenRing(3)
    return ring, train(ring, CharacterModel(text), dataclasses.replace(CONFIG, compute="host", far=None))


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits(text, expected, kind):
    """Weights, moments and losses of three steps on three nodes, with two or three sequences each, equal the host's.
    Buffers stay in bounds, and words move as planned."""
    far = FarMemory(activations=8192 if kind == "keep" else 5760, rate=1 / 8, kind=kind)
    config = dataclasses.replace(CONFIG, far=far)
    other, there = expected
    ring = GoldenRing(3, **far_options(words=WORDS))
    runs, run_programs = [], ring.programs.run
    ring.programs.run = lambda **options: runs.append(options["collectives"]) or run_programs(**options)
    lists = far_text_lists(CharacterModel(text), config, ring.config, 3, WORDS)
    ring.activations[:, lists.end:] = 7
    training = train(ring, CharacterModel(text), config)
    np.testing.assert_array_equal(ring.weights, other.weights)
    np.testing.assert_array_equal(ring.state, other.state)
    assert [step.loss for step in training.steps] == [step.loss for step in there.steps]
    assert training.measures == there.measures
    assert training.bit_exact
    assert (ring.activations[:, lists.end:] == 7).all()
    assert lists.base <= far.activations
    run = lists.plan.decision.run
    assert (run.far_words > 0, run.multiplications > 0) == {
        "keep": (False, False), "swap": (True, False), "recompute": (False, True)}.get(kind, (
            run.far_words > 0, run.multiplications > 0))
    assert ring.hooks.moved == 3 * runs.count(0) * run.far_words
    assert training.search[0] == lists.line
    assert training.search[1] == "sequences: 3, one behind the other"


class TestNodes:
    def test_room(self, text):
        node = engine_node(NodeConfig(), CharacterModel(text), CONFIG, nodes=4)
        assert node == NodeConfig(masking=False, programs=Programs(move_queue=True), compute=Compute(
            rows=4, activations=8192, scale_mask=True, sequences=True, buffer_tags=True, far=8192))
        check_run(node, CharacterModel(text), CONFIG, nodes=4)

    @pytest.mark.parametrize(("options", "node", "message"), [
        ({}, {"compute": {"sequences": False}},
         r"^Nodes must scale and mask, and have functions of sequences, to compute text$"),
        ({}, {"programs": {"move_queue": False}},
         r"^Nodes must have three queues and a far memory for saved maps to be moved$"),
        ({}, {"compute": {"far": 0}}, r"^Nodes must have three queues and a far memory for saved maps to be moved$"),
        ({}, {"compute": {"far": 1024}},
         r"^Maps that are swapped must fit into the 1,024 words of the far memory, not take 2,560$"),
        ({}, {"compute": {"activations": 4096}}, r"^3 sequences of nodes that compute need [\d,]+ elements of the "),
        ({"far": FarMemory(activations=6144, kind="keep")}, {},
         r"^Activations must be at least 7,776 words for a plan of kind keep, not 6,144$"),
        ({"far": FarMemory(activations=4672)}, {},
         r"^Activations must be at least 5,664 words for a plan of kind mixed, not 4,672$")], ids=str)
    def test_errors(self, text, options, node, message):
        made = engine_node(NodeConfig(), CharacterModel(text), CONFIG, nodes=3)
        with pytest.raises(ValueError, match=message):
            check_run(made.replace(**node), CharacterModel(text), dataclasses.replace(CONFIG, **options),
                      nodes=3)

    def test_perceptron(self):
        task = Classifier(digits(), (16,), align=32)
        config = dataclasses.replace(CONFIG, hidden=(16,), batch=64)
        with pytest.raises(ValueError, match=r"^Workload of a far memory must be text, not digits$"):
            check_run(engine_node(NodeConfig(), task, config, nodes=2), task, config, nodes=2)

    @pytest.mark.parametrize(("options", "message"), [
        ({"activations": 0}, "Activations must be between 1 and 1,000,000,000 words, not 0"),
        ({"rate": 2}, "Rate of far memory must be between 1/1024 and 1 words per cycle, not 2"),
        ({"kind": "none"}, "Memory must be one of keep, swap, recompute, mixed, not 'none'")], ids=str)
    def test_far_memory(self, options, message):
        refuses(message, FarMemory, **{"activations": 6144, **options})

    def test_on_the_host(self):
        refuses("Compute must be node for a far memory, not host", dataclasses.replace, CONFIG, compute="host")
