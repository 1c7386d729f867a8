"""The text model on Verilated nodes with far memories: same bits as on the host, and the planned cycles."""

import dataclasses

import numpy as np

from host.features.compute.memory.chain import Policy
from host.features.far.steps import run_text_policies
from host.training.trainer import train
from host.training.updates import check_run
from host.training.workloads import CharacterModel
from tests.host import rings
from tests.host.features.compute.test_text_nodes import FAR, TIMEOUT, node_of
from tests.host.golden import GoldenRing


def test_policies(text):
    """A sequence gives the same loss and gradient as on the host, with the planned moves and the modelled cycles. One
    of the two plans keeps all maps; the other moves some maps and recomputes some."""
    task, node = CharacterModel(text), node_of(text)
    task.initialize(2)
    with rings.open_nodes(1, config=node, host_port=False, timeout=TIMEOUT) as (ring, simulation):
        keep, mixed = run_text_policies(ring, simulation, task.model, text.train[0], share=0.5, rate=1 / 4,
                                        kinds=("keep", "mixed"))
    assert {*mixed.policies} == {*Policy}
    for result in (keep, mixed):
        assert result.same, result
        assert result.far_words == result.planned, result
        assert result.peak <= result.budget, result
        assert abs(result.cycles / result.timeline - 1) <= 0.03, result
    assert 1 < mixed.cycles / keep.cycles < 1.06


def test_far_memory(text):
    """A step of two nodes with three and two sequences is bit-identical to a step on the host, and takes nearly the
    modelled number of cycles."""
    config, node = dataclasses.replace(FAR, batch=5), node_of(text)
    check_run(node, CharacterModel(text), config, nodes=2)
    other = GoldenRing(2)
    train(other, CharacterModel(text), dataclasses.replace(config, compute="host", far=None))
    with rings.open_nodes(2, config=node, host_port=False, timeout=TIMEOUT) as (ring, simulation):
        simulation.set_far_speed(latency=40, rate=config.far.rate)
        training = train(ring, CharacterModel(text), config)
        np.testing.assert_array_equal(ring.memory.read_weights(len(other.master)).view(np.uint32), other.weights)
    assert training.bit_exact
    assert 0.97 < float(training.search[1].split(" cycles, ")[1].split()[0]) < 1.03
