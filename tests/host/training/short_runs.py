"""Short training runs on golden models that print a digest of the weights, losses and measures.

They are a separate program because numpy checks the processor and the environment only when it is imported.
"""

import dataclasses
import hashlib
import json

import numpy as np

from hdl.group import GROUP
from host.models.digits import digits
from host.models.text import Text, topics
from host.training.optimizers import Adam
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.training.workloads import CharacterModel, Classifier
from tests.host.golden import GoldenRing, compute_options


def runs():
    """Yield the name, ring, workload and configuration of each run."""
    config = TrainingConfig(max_steps=6, interval=3)
    yield "momentum", GoldenRing(4), Classifier(digits(), (64,)), config
    yield "codebook", GoldenRing(3, weight_codec="table32"), Classifier(digits(), (16,)), dataclasses.replace(
        config, refresh=2)
    yield "density", GoldenRing(2), Classifier(digits(), (16,)), dataclasses.replace(
        config, density=0.2, optimizer=Adam(learning_rate=0.01))
    yield "node", GoldenRing(3, **compute_options()), Classifier(digits(), (16,), align=GROUP), dataclasses.replace(
        config, compute="node", overlap="none")
    yield "host", GoldenRing(3), Classifier(digits(), (16,), align=GROUP), config
    source = topics(context=16)
    yield "text", GoldenRing(2), CharacterModel(Text(source.train[:400], source.test[:40])), dataclasses.replace(
        config, batch=32, optimizer=Adam(learning_rate=0.03))


def digest(ring, training):
    numbers = [*(step.loss for step in training.steps), *training.measures]
    return hashlib.sha256(ring.weights.tobytes() + np.array(numbers).tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    print(json.dumps({name: digest(ring, train(ring, workload, config)) for name, ring, workload, config in runs()}))
