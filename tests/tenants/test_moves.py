"""Tenants on nodes with far memories: moves, and a worker with its parameter server."""

import fractions

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation, Space
from host.driver.command import Command
from host.driver.device import Device
from host.driver.errors import DeviceError, ForeignTenantError, OutOfWindowError, ProgramRunningError
from host.features.tenants.tenants import NotAtRestError, TenantHost
from tests.host.rings import library, open_nodes
from tests.refusals import refuses
from tests.tenants.hostile import attack
from tests.tenants.moves import SERVER, WORKER, MovingTwins

ACTIVATIONS = WORKER.memory_map["activations"].number
WINDOWS = {1: {"activations": (64, 128), "far": (64, 64)}, 2: {"activations": (192, 128), "far": (512, 256)}}


@pytest.mark.parametrize(("nodes", "seed"), [(1, 307), (2, 301)])
def test_twins(nodes, seed):
    """Twins give the same answers to every batch of MOVE_OUT, MOVE_IN, FETCH and PUSH commands."""
    configs = [WORKER, SERVER][:nodes]
    summary = attack([library(config) for config in configs], nodes, seed, 12, kind=MovingTwins, configs=configs)
    assert not summary["leak"]
    assert summary["requests"] == 12 * 40 * nodes, f"{seed=}"
    assert {"OK", "OUT_OF_WINDOW", "FOREIGN_TENANT", "OVER_BUDGET"} <= set(summary["statuses"]), f"{seed=}"


@pytest.fixture
def worker():
    """Devices of the privileged host and of both tenants, tenant host and simulation, with tenant 1 active."""
    with open_nodes(1, config=WORKER) as (ring, simulation):
        device, host = ring.devices[0], TenantHost(ring.devices)
        for tenant, windows in WINDOWS.items():
            host.grant(tenant, windows)
        host.change(1)
        own, other = (Device(device.transport, WORKER, name=f"tenant {n}", tenant=n) for n in (1, 2))
        yield device, own, other, host, simulation


def moved(device, tenant, operation, near, far, length):
    device.push(Command(operation=operation, tenant=tenant, weight_base=near, state_base=far, length=length))
    return device.pop_event(20_000)


@pytest.mark.parametrize("operation", [Operation.MOVE_OUT, Operation.MOVE_IN])
def test_known_answers(worker, operation):
    """Moves have known results for windows from 64 to 128 in far memory and from 64 to 192 in activations."""
    _, own, _, _, simulation = worker
    far = simulation.far_memory(0)[0]
    far[:] = np.arange(1, 1025)
    before = far.copy()
    for near, address, length, detail in (
            (0, 64, 0, None), (0, 32, 32, None), (0, 32, 33, 32), (0, 0xFFFFFFE0, 64, 0xFFFFFFE0), (0, 0, 65, 64),
            (96, 0, 33, 32), (160, 0, 0, 160)):
        event = moved(own, 1, operation, near, address, length)
        if detail is None:
            assert (event.status, event.detail) == (EventStatus.OK, length)
        else:
            assert (event.status, event.detail) == (EventStatus.OUT_OF_WINDOW, detail)
    outside = np.r_[0:64, 128:1024]
    assert (far[outside] == before[outside]).all()
    if operation is Operation.MOVE_IN:
        assert own.read_memory(ACTIVATIONS, 0, 32).tolist() == list(range(97, 129))


def test_windows_of_the_far_memory(worker):
    """The host can scrub far memory, by moving zeros from activation memory, whose contents are restored. No request
    reads or writes far memory directly."""
    device, own, _, host, simulation = worker
    far = simulation.far_memory(0)[0]
    for space in (15, ACTIVATIONS + 2):
        with pytest.raises(OutOfWindowError):
            own.read_memory(space, 0, 1)
        with pytest.raises(OutOfWindowError):
            own.write_memory(space, 0, np.zeros(1, np.uint32))
    device.write_register("BUDGET", 20)  # applies only to tenants
    kept = np.arange(7, 519, dtype=np.uint32)
    device.write_memory(ACTIVATIONS, 0, kept)
    far[:] = 5
    host.grant(2, {"far": (128, 800)})  # instead of 512 to 768
    assert np.flatnonzero(far == 0).tolist() == list(range(128, 928))
    host.withdraw(1)
    assert np.flatnonzero(far == 0).tolist() == list(range(64, 928))
    kept[64:320] = 0  # windows of a withdrawn tenant are cleared
    assert (device.read_memory(ACTIVATIONS, 0, 512) == kept).all()
    assert (host.tenant, device.read_register("TENANT"), device.read_register("BUDGET")) == (1, 1, 20)
    assert moved(own, 1, Operation.MOVE_OUT, 0, 0, 1).status is EventStatus.OUT_OF_WINDOW
    simulation.set_far_speed(latency=16, rate=0)
    device.write_register("TIMEOUT", 100)
    with pytest.raises(DeviceError, match=r"^node 0: a move of zeros to the far memory ended with .*FAR_TIMEOUT"):
        host.withdraw(2)


def test_no_row_comes_to_the_next_tenant(worker):
    """If a move ends early or times out, the tenant changes only after all outstanding answers have arrived."""
    device, own, other, host, simulation = worker
    simulation.far_memory(0)[0][:] = np.arange(1024)
    simulation.set_far_speed(latency=200, rate=fractions.Fraction(1, 4))
    device.write_register("BUDGET", 30)
    assert moved(own, 1, Operation.MOVE_IN, 0, 0, 64).status is EventStatus.OVER_BUDGET
    assert device.read_fields("STATUS")["running"] == 0
    with pytest.raises(ProgramRunningError, match="was refused with BUSY"):
        device.write_register("TENANT", 2)
    host.change(2)
    device.write_register("BUDGET", 0)
    assert moved(other, 2, Operation.MOVE_IN, 0, 0, 64).status is EventStatus.OK
    assert other.read_memory(ACTIVATIONS, 0, 64).tolist() == list(range(512, 576))
    simulation.set_far_speed(latency=200, rate=1)
    device.write_register("TIMEOUT", 100)
    assert moved(other, 2, Operation.MOVE_IN, 0, 0, 64).status is EventStatus.FAR_TIMEOUT
    assert moved(other, 2, Operation.MOVE_IN, 0, 128, 64).status is EventStatus.FAR_TIMEOUT
    simulation.set_far_speed(latency=1_000_000, rate=1)
    simulation.run(1000)
    device.write_register("TIMEOUT", 1000)
    assert moved(other, 2, Operation.MOVE_IN, 0, 0, 64).status is EventStatus.FAR_TIMEOUT
    device.write_register("CONTROL", 1)  # the reset does not clear outstanding answers
    refuses("node 0: the far memory must give the answers that it owes", host.change, 1, error=NotAtRestError)
    assert device.read_register("TENANT") == 2


def test_relay():
    """FETCH and PUSH change only the tenant's windows. A server accepts no request from tenants except PING."""
    windows = {1: {"gradients": (32, 64), "weights": (32, 64), "state_0": (0, 32)},
               2: {"gradients": (128, 64), "weights": (128, 64), "state_0": (32, 64)}}
    with open_nodes(2, config=[WORKER, SERVER]) as (ring, simulation):
        host = TenantHost(ring.devices)
        for tenant, granted in windows.items():
            host.grant(tenant, granted)
        host.change(2)
        worker, server = ring.devices
        own = Device(worker.transport, WORKER, name="tenant", tenant=2)
        weights = np.arange(64, dtype=np.float32)
        server.write_memory(Space.WEIGHT, 0, np.full(512, 7, np.float32))
        server.write_memory(Space.WEIGHT, 128, weights)
        own.write_memory(Space.GRADIENT, 0, np.full(64, 2, np.float32))
        server.write_register("LEARNING_RATE", 0.5)
        server.write_register("GRADIENT_SCALE", 1.0)
        for number, operation in enumerate((Operation.PUSH, Operation.BROADCAST)):
            for rank, device in enumerate((own, server)):
                device.push(Command(operation=operation, rank=rank, size=2, root=1, length=64, tenant=2,
                                    collective=number))
        events = [device.pop_event(50_000) for device in (own, server) for _ in range(2)]
        assert [event.status for event in events] == [EventStatus.OK] * 4
        expected = np.full(512, 7, np.float32)
        expected[128:192] = weights - 1
        assert (server.read_memory(Space.WEIGHT, 0, 512).view(np.float32) == expected).all()
        assert (own.read_memory(Space.WEIGHT, 0, 64).view(np.float32) == weights - 1).all()
        server.push(Command(operation=Operation.BROADCAST, rank=1, size=2, root=1, weight_base=32, length=64,
                            tenant=2))
        event = server.pop_event(50_000)
        assert (event.status, event.detail) == (EventStatus.OUT_OF_WINDOW, 32)
        asks = Device(server.transport, SERVER, name="tenant at the server", tenant=2)
        assert asks.ping(np.arange(3, dtype=np.uint32)).tolist() == [0, 1, 2]
        for refused in (lambda: asks.read_memory(1, 0, 1), lambda: asks.write_memory(1, 0, np.zeros(1, np.uint32)),
                        lambda: asks.push(Command(operation=Operation.QUIESCE, tenant=2)), lambda: asks.pop_event(0),
                        lambda: asks.read_register("STATUS"), lambda: asks.load_program(0, [])):
            with pytest.raises(ForeignTenantError):
                refused()
        simulation.set_far_speed(latency=16, rate=0, node=1)
        server.write_register("TIMEOUT", 50)
        refuses("node 1: the far memory must take zeros, and is silent", host.withdraw, 2, error=DeviceError)
