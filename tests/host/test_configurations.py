"""Nodes with unusual parameters, such as rows of 1 or 8 elements, and other segments, planes and speeds."""

import itertools

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from host.driver.diagnosis import RingError
from host.driver.memory import Allocation
from host.driver.optimizer_settings import Rule, Settings
from host.features.codebook.codebooks import codebook
from host.training.optimizers import SGD, Adam
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS
from tests.host import rings
from tests.host.rings import Reference, random

OPTIMIZERS = {"sgd": (SGD(learning_rate=0.1), False), "momentum": (SGD(learning_rate=0.5, momentum=0.9), False),
              "momentum, bfloat16": (SGD(learning_rate=0.5, momentum=0.9), True),
              "adam": (Adam(learning_rate=0.1), False), "adam, bfloat16": (Adam(learning_rate=0.1), True)}


@pytest.mark.parametrize(("nodes", "length"), [(1, 500), (2, 1), (2, 333), (3, 1000)])
@pytest.mark.parametrize("name", ["table", "centroid", "wide", "narrow"])
def test_values_words_and_state(name, nodes, length):
    """Two steps of each optimizer that the nodes' state planes allow, and a sum, match the golden model."""
    config = rings.CONFIGS[name]
    generator = np.random.default_rng(nodes * 10_000 + length)
    with rings.open_nodes(nodes, config=config) as (ring, _):
        for label, (optimizer, packed_state) in OPTIMIZERS.items():
            if optimizer.planes > config.memories.planes:
                continue
            ring.memory.require(Allocation(length=length, planes=optimizer.planes, packed_state=packed_state))
            weights = random(generator, length)
            centroids = codebook(config.weights.codec, weights) if ring.formats.has_codebook else None
            if centroids is not None:
                ring.memory.write_codebook(centroids)
            reference = Reference(ring, weights, planes=optimizer.planes, centroids=centroids)
            ring.collectives.distribute(weights)
            reference.compare(label)
            rings.train_twice(reference, optimizer, generator, packed_state=packed_state, message=label)
            gradients = random(generator, (nodes, length), density=0.6)
            ring.memory.write_gradients(list(gradients))
            ring.collectives.all_reduce(length)
            total = golden.all_reduce(golden.bits(gradients), residuals=reference.residuals,
                                      gradient_codec=GRADIENT_CODECS[config.gradients], segment=config.segment,
                                      lanes=config.lanes)[0]
            assert (ring.memory.read_gradients(length).view(np.uint32) == total).all(), label


@pytest.mark.parametrize(("name", "rule"), [("table", Rule.MOMENTUM), ("wide", Rule.ADAM), ("narrow", Rule.ADAM)])
def test_rules_without_planes(name, rule):
    """If the nodes lack state planes for a rule, it is rejected, and the next command runs normally."""
    length = 300
    with rings.open_nodes(2, config=rings.CONFIGS[name]) as (ring, _):
        ring.settings.write(Settings(rule=rule, gradient_scale=1, learning_rate=0.5))
        weights = random(np.random.default_rng(1), length)
        ring.memory.write_weights(weights)
        with pytest.raises(RingError, match="needs more state planes than the node has") as refused:
            ring.collectives.fused_update(length)
        assert [event.status for event in refused.value.events] == [EventStatus.BAD_RULE] * 2
        assert (ring.memory.read_weights(length) == weights).all()
        ring.collectives.all_gather(length)


def test_few_configurations():
    """There are few configurations, as each library takes almost a minute to build: add options to existing ones."""
    configs = list(dict.fromkeys(itertools.chain(rings.CONFIGS.values(), *rings.MIXED.values())))
    assert len(configs) <= 12
    assert len({config.hash for config in configs}) == len(configs)
