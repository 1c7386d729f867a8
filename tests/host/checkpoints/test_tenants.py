# amaranth: UnusedElaboratable=no
"""A tenant's job resumes as another tenant on other nodes, in windows at different addresses."""

import dataclasses

import numpy as np
import pytest

from hdl.control.protocol import Operation
from host.checkpoints.checkpoint import Expectation, Stamp, make, restore
from host.checkpoints.device_frame import digest, read, scrub
from host.checkpoints.rejections import ForeignTenantError, TooSmallError
from host.driver.command import Command
from host.driver.errors import OutOfWindowError
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.features.tenants.tenants import TenantHost
from host.training.optimizers import OptimizerName, create
from tests.host.rings import CONFIGS, TIMEOUT, Reference, open_nodes, random

CONFIG = CONFIGS["engines"]
KEY = b"k" * 32
LENGTH, STEPS, MOVED = 300, 6, 3
#: Base addresses of the windows of tenant 1 on the source and tenant 2 on the target; their sizes are equal.
HERE = {"gradients": 64, "weights": 1024, "state_0": 0, "activations": 0}
THERE = {"gradients": 1504, "weights": 32, "state_0": 320, "activations": 480}
SIZES = {"gradients": 512, "weights": 512, "state_0": 192, "activations": 32}
LIVE = {"weights": [(0, LENGTH)], "state_0": [(0, 160)]}


def windows(bases, **sizes):
    return {name: (base, {**SIZES, **sizes}[name]) for name, base in bases.items()}


def job_of(host, tenant):
    """Driver of the job of the tenant that the nodes currently serve."""
    ring = Ring(host.devices(tenant), timeout=TIMEOUT)
    ring.connect()
    return ring


def program():
    """Program that updates the vector after a COMPUTE."""
    return [[[Command(operation=Operation.COMPUTE, tag=1, length=32, duration=50, gradient_base=480)],
             [Command(operation=Operation.FUSED_UPDATE, tag=2, rank=rank, size=2, length=LENGTH, after_0=1)]]
            for rank in range(2)]


def step(ring, reference, number, gradients):
    """Run one momentum step of the program and compare it with the golden model."""
    optimizer = create(OptimizerName.MOMENTUM)
    settings = Settings(**dataclasses.asdict(optimizer.settings(number, gradient_scale=0.5)))
    ring.settings.write(settings)
    ring.memory.write_gradients(list(gradients))
    ring.programs.run(collectives=1, traced=False)
    reference.step(gradients, settings)
    reference.ring = ring
    reference.compare(f"step {number}")


@pytest.fixture(scope="module")
def opened():
    with open_nodes(2, config=CONFIG) as here, open_nodes(2, config=CONFIG, latency=40) as there:
        yield here[0], there[0]


def others(ring, outside):
    """Contents of all memories of the nodes, except the given windows."""
    words = []
    for device in ring.devices:
        for space in CONFIG.memory_map:
            if space.name != "trace":
                read = device.read_memory(space.number, 0, space.words)
                base, count = outside.get(space.name, (0, 0))
                words.append(np.delete(read, np.s_[base:base + count]))
    return words


def test_same_bits(opened):
    """Momentum steps before and after a tenant's job moves match the golden model. Commands, lists, the program and
    everything outside the window stay unchanged."""
    source, target = opened
    generator = np.random.default_rng(8)
    weights = random(generator, LENGTH)
    gradients = random(generator, (STEPS, 2, LENGTH))
    for device in target.devices:
        for space in CONFIG.memory_map:
            if space.name != "trace":
                device.write_memory(space.number, 0, random(generator, space.words))
    here, there = TenantHost(source.devices), TenantHost(target.devices)
    here.grant(1, windows(HERE))
    there.grant(1, {name: (0, 32) for name in ("gradients", "weights")})
    there.grant(2, windows(THERE))
    here.change(1)
    there.change(1)
    neighbour = job_of(there, 1)
    for _ in range(MOVED):  # tenants share the update count, so it cannot be set
        neighbour.collectives.fused_update(32)
    there.change(2)
    ring, other = job_of(here, 1), job_of(there, 2)
    ring.memory.write_weights(weights)
    ring.memory.clear_state(LENGTH)
    ring.programs.load(program(), model=9)
    reference = Reference(ring, weights, planes=1)
    for number in range(MOVED):
        step(ring, reference, number + 1, gradients[number])
    frame = read(ring, LIVE)
    assert [node["windows"] for node in frame.fields["nodes"]] == [
        {name: [list(window) for window in windows_of_space] for name, windows_of_space in LIVE.items()}] * 2
    data = make(None, frame, key=KEY, stamp=Stamp(tenant=1))
    before = others(target, windows(THERE))
    with pytest.raises(ForeignTenantError, match=r"^FOREIGN_TENANT: checkpoint must be of tenant 2, not 1$"):
        restore(data, other, key=KEY, expected=Expectation(tenant=2))
    restore(data, other, key=KEY, expected=Expectation(tenant=1))
    scrub(ring)
    assert not any(device.read_memory(1, HERE["weights"], 512).any() for device in source.devices)
    for number in range(MOVED, STEPS):
        step(other, reference, number + 1, gradients[number])
    for plane, expected in enumerate(reference.state):
        assert (other.memory.read_state(LENGTH, plane).view(np.uint32) == expected).all()
    assert all((window == old).all() for window, old in zip(others(target, windows(THERE)), before, strict=True))
    here.change(0)
    there.change(0)


def test_refused(opened):
    """A move to a window that is too small is rejected for lack of memory, and changes nothing on the target."""
    source, target = opened
    here, there = TenantHost(source.devices), TenantHost(target.devices)
    here.grant(1, windows(HERE))
    there.grant(2, windows(THERE, weights=288))
    here.change(1)
    there.change(2)
    ring, other = job_of(here, 1), job_of(there, 2)
    data = make(None, read(ring, LIVE), key=KEY, stamp=Stamp(tenant=1))
    before = digest(other)
    with pytest.raises(TooSmallError, match=r"^TOO_SMALL: node 0 must have 300 words of weights, not 288$"):
        restore(data, other, key=KEY, expected=Expectation(tenant=1))
    assert digest(other) == before
    with pytest.raises(OutOfWindowError):
        other.devices[0].read_memory(1, 288, 1)
    here.change(0)
    there.change(0)
