"""Two tenants that train alternately, each with its own ``Ring`` object."""

import dataclasses

import numpy as np
import pytest

from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.features.tenants.tenants import TenantHost
from host.training.optimizers import SGD
from sim.golden import optimizer
from sim.golden import ring as golden
from tests.host.rings import open_nodes
from tests.pairs.memories import CONFIG

NODES, LENGTH = 2, 450
HALVES = {number: {name: (first * CONFIG.memory_map[name].words // 2, CONFIG.memory_map[name].words // 2)
                   for name in ("gradients", "weights", "state_0")} for number, first in ((1, 0), (2, 1))}
OPTIMIZERS = {1: SGD(learning_rate=0.1, momentum=0.9), 2: SGD(learning_rate=0.25, momentum=0.5, nesterov=True)}


@dataclasses.dataclass
class _Job:
    """A tenant's job, and the memory contents and settings that are expected after its last turn."""

    ring: Ring
    weights: golden.Bits
    state: golden.Bits
    settings: Settings
    expected: optimizer.Settings


def test_tenants_train_in_turn():
    """A tenant continues with the weights, state and settings of its last turn, and gets the golden results."""
    generator = np.random.default_rng(3)
    with open_nodes(NODES, config=CONFIG) as (nodes, _):
        host = TenantHost(nodes.devices)
        jobs = {}
        for number, windows in HALVES.items():
            host.grant(number, windows)
            devices = [Device(device.transport, CONFIG, name=f"tenant {number} at {device.name}", tenant=number)
                       for device in nodes.devices]
            numbers = dataclasses.asdict(OPTIMIZERS[number].settings(1, gradient_scale=0.5))
            planned = Settings(**numbers)
            del numbers["packed_state"]
            jobs[number] = _Job(Ring(devices), golden.bits(generator.standard_normal(LENGTH)),
                                np.zeros(LENGTH, np.uint32), planned, golden.settings(**numbers))
        for turn in range(3):
            for number, job in jobs.items():
                host.change(number)
                job.ring.connect()
                if turn == 0:
                    job.ring.memory.write_weights(golden.floats(job.weights))
                    job.ring.settings.write(job.settings)
                gradients = golden.bits(generator.standard_normal((NODES, LENGTH)))
                job.ring.memory.write_gradients(list(golden.floats(gradients)))
                job.ring.collectives.fused_update(LENGTH)
                update = golden.fused_update(gradients, job.weights, [job.state], job.expected)
                job.weights, job.state = update.weights, update.state[0]
                assert (job.ring.memory.read_weights(LENGTH).view(np.uint32) == job.weights).all(), (turn, number)
                assert (job.ring.memory.read_state(LENGTH).view(np.uint32) == job.state).all(), (turn, number)
        with pytest.raises(RingError, match="must be recovered by the privileged host"):
            jobs[2].ring.recover()
        acting = Ring(host.devices(2))
        acting.recover()
        acting.collectives.all_reduce(32)
