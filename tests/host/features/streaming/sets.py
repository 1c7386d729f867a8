"""Helpers for tests of layer streaming: they run gradient sets like the trainer, and provide small data sets."""

import numpy as np

from host.models.digits import Dataset
from host.training.trainer import Trainer

__all__ = ["CLASSES", "WIDTH", "do", "examples", "resume", "state_of"]

WIDTH, CLASSES = 8, 4


def examples():
    """Data set of 160 examples in linearly separable classes."""
    generator = np.random.default_rng(7)
    x = np.maximum(generator.standard_normal((160, WIDTH)), 0).astype(np.float32)
    labels = (x @ generator.standard_normal((WIDTH, CLASSES))).argmax(axis=1)
    return Dataset(x, labels, x, labels, CLASSES)


def do(run, sets=1):
    Trainer(run, run.batches, total=run.batches.number + sets).train()
    return run.reports[-1]


def state_of(run):
    """State of a run, including the state of its trainer."""
    return Trainer(run, run.batches).state()


def resume(run, state):
    """Continue a run from the state of another run, including the state of its trainer."""
    Trainer(run, run.batches).resume(state)
