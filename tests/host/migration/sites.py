"""Migration sites on simulated rings, shared by several tests."""

import contextlib
import dataclasses
import functools

import numpy as np

from host.migration.migrate import Entry, Ledger
from host.migration.site import Fabric, Keys, Site
from host.models.digits import Dataset, digits
from host.training.optimizers import OptimizerName, create
from host.training.record import TrainingConfig
from host.training.workloads import Classifier
from tests.host.rings import CONFIGS, open_nodes

KEYS = Keys(b"m" * 32, b"o" * 32)
MOMENTUM, ADAM = create(OptimizerName.MOMENTUM), create(OptimizerName.ADAM)


@functools.cache
def few(examples=48):
    data = digits()
    return Dataset(data.train_x[:examples], data.train_y[:examples], data.test_x[:20], data.test_y[:20], data.classes)


#: A run of 24 steps, 12 in each epoch.
CONFIG = TrainingConfig(epochs=2, batch=4, hidden=(), interval=100)


def fabric_of(name, *, nodes, **options):
    """Return a function that opens a ring of nodes with one of the shared configurations."""
    @contextlib.contextmanager
    def opens():
        with open_nodes(nodes, config=CONFIGS[name], **options) as (ring, simulation):
            yield Fabric(ring, lambda: simulation.cycle)
    return opens


def site_of(name, folder, fabric, *, config=CONFIG, keys=KEYS, data=None, **options):
    folder.mkdir(parents=True, exist_ok=True)
    return Site(name, folder / name, fabric=fabric, workload=lambda: Classifier(data or few(), config.hidden),
                config=config, keys=keys, **options)


def ledger_of(folder, owner):
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder / "ledger.json")
    ledger.commit(Entry(owner, 0))
    return ledger


def advance(site, steps):
    for _ in range(steps):
        assert site.running
        site.run.advance()


def result(site):
    """Finish a run; return the final bits of its model and node memories, its losses and its versions."""
    while not site.run.complete:
        advance(site, 1)
    site.run.finish()
    training = site.run.executor.training
    assert training.bit_exact is True
    state = site.run.state()
    reference = state["memory"]["reference"]
    arrays = [state["parameters"], reference["weights"], reference["master"], *reference["state"]]
    if reference["residuals"] is not None:
        arrays.append(reference["residuals"])
    versions = [device.read_register("WEIGHT_VERSION") for device in site.open().devices]
    return ([np.ascontiguousarray(array).tobytes() for array in arrays], training.losses,
            [step.loss for step in training.steps], versions)


def with_optimizer(optimizer, **options):
    return dataclasses.replace(CONFIG, optimizer=optimizer, **options)
