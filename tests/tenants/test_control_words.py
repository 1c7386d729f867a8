"""Tenants on nodes with control words and quorum updates, each with its own counts and pending gradients."""

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation, Space
from host.driver.command import Command, ProgramRun
from host.driver.device import Device
from host.features.tenants.tenants import TenantHost
from tests.host.rings import CONFIGS, library, open_nodes
from tests.tenants.hostile import attack
from tests.tenants.rounds import QuorumTwins

CONFIG = CONFIGS["wide"]
WINDOWS = {1: {"gradients": (1024, 1024), "weights": (0, 1024), "state_0": (0, 256), "masters": (0, 256),
               "scales": (0, 64)},
           2: {"gradients": (2048, 1024), "weights": (1024, 1024), "state_0": (256, 256), "masters": (256, 256)}}
NUMBER, TIMEOUT = 9, 2_000


@pytest.mark.parametrize(("nodes", "seed"), [(1, 11), (2, 22)])
def test_twins(nodes, seed):
    summary = attack(library(CONFIG), nodes, seed, 8, kind=QuorumTwins)
    assert not summary["leak"]
    assert summary["guarded"], f"{seed=}"
    assert {"OK", "OUT_OF_WINDOW", "OVER_BUDGET"} <= set(summary["statuses"]), f"{seed=}"


@pytest.fixture(scope="module")
def opened():
    with open_nodes(2, config=CONFIG) as (ring, simulation):
        host = TenantHost(ring.devices)
        for number, windows in WINDOWS.items():
            host.grant(number, windows)
        yield ring.devices, host, simulation


@pytest.fixture
def nodes(opened):
    """Devices of each tenant, tenant host, and simulation; tenant 1 is active, and there were no quorum updates
    yet."""
    devices, host, simulation = opened
    host.change(0)
    host.change(1)
    simulation.run(500)
    return ({number: [Device(device.transport, CONFIG, name=f"tenant {number} at {device.name}", tenant=number)
                      for device in devices] for number in (1, 2)}, host, simulation)


def begin(device, rank, tenant, *, remote=False, commands=1):
    """Run COMPUTEs in one queue, and in the other a QUIESCE, which may wait for the other node's COMPUTE."""
    device.write_register("TIMEOUT", TIMEOUT)
    device.load_program(0, [Command(operation=Operation.COMPUTE, tenant=tenant, duration=50)] * commands)
    device.load_program(1, [Command(operation=Operation.QUIESCE, tenant=tenant, remote=int(remote), unit=1 - rank,
                                    after_1=commands if remote else 0)])
    device.run(ProgramRun(1, number=NUMBER, rank=rank, size=2))


def ended(device, count):
    return sorted(device.pop_event(20_000).status for _ in range(count))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_counts_are_of_one_tenant(opened, first):
    """A command is released only by counts of its own tenant, not by those of another tenant or the host, even if
    their runs have the same number."""
    devices, host, simulation = opened
    second = 2 if first == 1 else 1
    of = {number: [Device(device.transport, CONFIG, name=device.name, tenant=number) if number else device
                   for device in devices] for number in range(3)}
    host.change(first)
    simulation.run(500)
    for rank, device in enumerate(of[first]):
        begin(device, rank, first, remote=True)
    for device in of[first]:
        assert ended(device, 2) == [EventStatus.OK] * 2
    host.change(second)
    simulation.run(500)
    begin(of[second][0], 0, second, remote=True)
    assert ended(of[second][0], 2) == [EventStatus.OK, EventStatus.AFTER_TIMEOUT]
    begin(of[second][0], 0, second, remote=True)
    begin(of[second][1], 1, second)
    for device in of[second]:
        assert ended(device, 2) == [EventStatus.OK] * 2


def test_control_words_of_nodes_of_different_tenants(nodes):
    """Nodes of different tenants do not count each other's commands, nor wait for each other's computation."""
    of, host, simulation = nodes
    TenantHost(host._devices[1:]).change(2)
    simulation.run(500)
    begin(of[2][1], 1, 2, commands=3)
    begin(of[1][0], 0, 1, remote=True)
    assert ended(of[1][0], 2) == [EventStatus.OK, EventStatus.AFTER_TIMEOUT]
    assert ended(of[2][1], 4) == [EventStatus.OK] * 4
    host.change(0)


def test_tenant_changes_while_links_are_reset(nodes):
    """Writing the register TENANT has no effect until links are reset, when the tenant changes."""
    of, host, _ = nodes
    device = host._devices[0]
    device.write_register("TENANT", 2)
    assert of[1][0].read_register("TIMEOUT")
    device.write_register("CONTROL", 1)
    assert of[2][0].read_register("TIMEOUT")
    device.write_register("TENANT", 1)
    device.write_register("CONTROL", 2)
    assert of[1][0].read_register("TIMEOUT")


def compute(device, number, **fields):
    device.push(Command(operation=Operation.COMPUTE, round=1, number=number, tenant=1, **fields))
    return device.pop_event(20_000).status


def test_gradients_that_wait_are_of_one_tenant(nodes):
    of, host, simulation = nodes
    own, other = of[1][0], of[2][0]
    own.write_register("GRADIENT_STRIDE", 64)
    assert compute(own, 3, gradient_base=0, state_base=512, length=40, duration=20) is EventStatus.OK
    assert own.read_fields("SLOT_0") == {"tag": 3, "computing": 0, "pending": 1, "taken": 0}
    host.change(2)
    simulation.run(500)
    assert not any(other.read_fields("SLOT_0").values())
    assert other.read_register("GRADIENTS_COMPUTED") == other.read_register("GRADIENTS_DROPPED") == 0
    host.change(1)
    assert not any(own.read_fields("SLOT_0").values())
    # Restoring a tenant's settings does not restore a gradient that RESUMED_SET has marked as pending.
    own.write_register("RESUMED_SET", 5 | 1 << 16 | 1 << 17)
    assert own.read_fields("SLOT_1")["pending"]
    host.change(2)
    host.change(1)
    simulation.run(500)
    assert not any(own.read_fields("SLOT_1").values())
    assert not any(own.read_fields("RESUMED_SET").values())


@pytest.mark.parametrize("stride", [992, 1024, 2016, 3072])
def test_slots_outside(nodes, stride):
    """The checker does not notice that the second gradient slot starts beyond the window, but a guard does."""
    of, host, _ = nodes
    own, device = of[1][0], host._devices[0]
    device.write_memory(Space.GRADIENT, 0, np.full(1024, 7, np.uint32))
    device.write_memory(Space.GRADIENT, 2048, np.full(2048, 7, np.uint32))
    own.write_memory(Space.GRADIENT, 0, np.full(1024, 3, np.uint32))
    own.write_register("GRADIENT_STRIDE", stride)
    assert compute(own, 1, gradient_base=0, state_base=512, length=64) is EventStatus.OK
    assert compute(own, 2, gradient_base=0, state_base=512, length=64) is EventStatus.OUT_OF_WINDOW
    outside = device.read_memory(Space.GRADIENT, 0, 4096)
    assert (np.delete(outside, np.s_[1024:2048]) == 7).all()
    assert (own.read_memory(Space.GRADIENT, 0, 1024) == 3).all()


def test_scale_outside(nodes):
    """If an update's scale is outside of its window, the update ends with OUT_OF_WINDOW, and the scale reads as
    zero."""
    of, host, simulation = nodes
    try:
        for number, spaces in enumerate((WINDOWS[1], WINDOWS[1].keys() - {"scales"})):
            host.grant(1, {name: WINDOWS[1][name] for name in spaces})
            for rank, (own, device) in enumerate(zip(of[1], host._devices, strict=True)):
                for name, value in (("GRADIENT_STRIDE", 128), ("QUORUM", 2), ("LEARNING_RATE", 1.0)):
                    own.write_register(name, value)
                device.write_memory(CONFIG.memory_map["scales"].number, 0, np.ones(512, np.float32))
                own.write_memory(Space.GRADIENT, 512, np.ones(64, np.float32))
                common = {"tenant": 1, "round": 1, "length": 64, "rank": rank, "size": 2}
                own.load_program(0, [Command(operation=Operation.COMPUTE, state_base=512, **common)])
                own.load_program(1, [Command(operation=Operation.APPLY_LATE, **common),
                                     Command(operation=Operation.FUSED_UPDATE, collective=number, **common)])
            for rank, own in enumerate(of[1]):
                own.run(ProgramRun(1, number=NUMBER, rank=rank, size=2))
            last = EventStatus.OUT_OF_WINDOW if number else EventStatus.OK
            for own in of[1]:
                assert ended(own, 3) == sorted([EventStatus.OK, EventStatus.OK, last])
                assert (own.read_memory(Space.WEIGHT, 0, 64).view(np.float32) == (0 if number else -2)).all()
            host.change(0)
            host.change(1)
            simulation.run(500)
    finally:
        host.grant(1, WINDOWS[1])
