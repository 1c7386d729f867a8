# amaranth: UnusedElaboratable=no
"""Nodes with tenants: operations of the privileged host, and operations that tenants are not allowed."""

import zlib

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Operation, Space
from host.driver.command import Command, ProgramRun
from host.driver.device import Device
from host.driver.errors import (
    BadAddressError,
    ForeignTenantError,
    OutOfWindowError,
    ProgramRunningError,
    WrongProgramError,
)
from host.features.programs.ring_programs import edit_words
from host.features.tenants.tenants import NotAtRestError, TenantHost
from tests.host.rings import CONFIGS, open_nodes
from tests.refusals import refuses

CONFIG = CONFIGS["engines"]
MINE = {"gradients": (64, 64), "weights": (32, 512)}
OTHER = {"gradients": (1024, 1024), "weights": (1024, 1024), "activations": (256, 256)}


def submit_edit(device, **fields):
    return device.submit_edit(edit_words(**fields), "an edit")


@pytest.fixture(scope="module")
def shared():
    with open_nodes(1, config=CONFIG) as (ring, _):
        yield ring.devices[0], TenantHost(ring.devices)


@pytest.fixture
def node(shared):
    """Yield the devices of the privileged host and of both tenants, and the tenant host, with tenant 1 active."""
    device, host = shared
    host.grant(1, MINE)
    host.grant(2, OTHER)
    host.change(1)
    yield device, *(Device(device.transport, CONFIG, name=f"tenant {n}", tenant=n) for n in (1, 2)), host
    while device.pop_event(0) is not None:
        pass
    host.change(0)
    for tenant in (1, 2):
        host.withdraw(tenant)


def ran(device, tenant=1, **fields):
    device.push(Command(tenant=tenant, **fields))
    return device.pop_event(10_000)


@pytest.mark.parametrize(("base", "length", "status"), [
    (64, 0, EventStatus.OK), (32, 32, EventStatus.OK), (32, 33, EventStatus.OUT_OF_WINDOW),
    (0xFFFFFFE0, 64, EventStatus.OUT_OF_WINDOW), (0, 65, EventStatus.OUT_OF_WINDOW), (33, 1, EventStatus.BAD_BASE)])
def test_known_answers(node, base, length, status):
    """Commands that stay in a window from 64 to 128 run; commands that extend beyond it are rejected."""
    _, own, _, _ = node
    event = ran(own, operation=Operation.ALL_REDUCE, gradient_base=base, length=length)
    assert event.status is status
    if status is EventStatus.OUT_OF_WINDOW:
        assert (event.cycles, event.detail) == (0, 32 if base == 32 else 64 if base == 0 else base)


def test_memory_is_that_of_the_window(node):
    device, own, other, _ = node
    own.write_memory(Space.GRADIENT, 0, np.arange(1, 65, dtype=np.uint32))
    assert device.read_memory(Space.GRADIENT, 0, 192).tolist() == [0] * 64 + list(range(1, 65)) + [0] * 64
    other.write_memory(Space.GRADIENT, 1000, np.full(24, 7, np.uint32))
    assert (device.read_memory(Space.GRADIENT, 2024, 24) == 7).all()
    for tenant, space, address, count in (
            (own, 0, 64, 1), (own, 0, 1, 64), (own, 0, (1 << 28) - 1, 1), (own, 2, 0, 1), (own, 3, 0, 1),
            (own, 4, 0, 1), (own, 9, 0, 1), (other, 2, 0, 1)):
        with pytest.raises(OutOfWindowError):
            tenant.read_memory(space, address, count)
        with pytest.raises(OutOfWindowError):
            tenant.write_memory(space, address, np.zeros(count, np.uint32))
    with pytest.raises(BadAddressError):
        device.read_memory(Space.GRADIENT, 2048, 1)
    assert own.ping(np.arange(3, dtype=np.uint32)).tolist() == [0, 1, 2]
    assert other.ping(np.arange(3, dtype=np.uint32)).tolist() == [0, 1, 2]


def test_what_is_not_the_tenants(node):
    device, own, other, _ = node
    for name in ("CONTROL", "THROTTLE_LINK", "THROTTLE_MEMORY", "THROTTLE_COMPUTE", "THROTTLE_HOST", "DELAY_LINK",
                 "TENANT", "WINDOW", "WINDOW_BASE", "WINDOW_BOUND", "BUDGET"):
        before = device.read_register(name)
        with pytest.raises(ForeignTenantError):
            own.write_register(name, 1)
        assert device.read_register(name) == before
    for name in ("TENANT", "WINDOW_BASE", "BUDGET"):
        with pytest.raises(ForeignTenantError):
            own.read_register(name)
    own.write_register("LEARNING_RATE", 0.25)
    assert own.read_register("LEARNING_RATE") == 0.25
    for refused in (lambda: other.read_register("LEARNING_RATE"), lambda: other.write_register("FLAGS", 1),
                    lambda: other.push(Command(operation=Operation.QUIESCE, tenant=2)), lambda: other.pop_event(0),
                    lambda: other.load_program(0, []), lambda: other.run(ProgramRun(1))):
        with pytest.raises(ForeignTenantError):
            refused()
    for tenant in (0, 2, 3, 0xFFFF):
        event = ran(own, tenant, operation=Operation.QUIESCE)
        assert (event.status, event.detail) == (EventStatus.FOREIGN_TENANT, tenant)
    event = ran(own, operation=Operation.SWITCH, gradient_base=0x291)
    assert (event.status, event.detail) == (EventStatus.FOREIGN_TENANT, Operation.SWITCH)


def test_guard_ends_a_command(node):
    """The guard ends a command that leaves its window through an address that was not checked in advance."""
    device, own, _, _ = node
    device.write_memory(Space.WEIGHT, 0, np.full(2048, 0xFFFFFFFF, np.uint32))
    own.write_memory(Space.WEIGHT, 0, np.zeros(512, np.uint32))
    # An INFER layer with 8 inputs and 8 outputs that writes its results to gradient address 1,024.
    layer = np.array([8 << 16 | 1 << 4 | 1 << 5, 8, 64, 0, 32, 1024, 0, 0], np.uint32)
    own.write_memory(Space.WEIGHT, 0, layer)
    before = device.read_memory(Space.GRADIENT, 0, 2048)
    event = ran(own, operation=Operation.INFER, length=1)
    assert event.status is EventStatus.OUT_OF_WINDOW
    assert event.cycles > 0
    assert (device.read_memory(Space.GRADIENT, 0, 2048) == before).all()
    assert ran(own, operation=Operation.ALL_REDUCE, length=64).status is EventStatus.OK


def test_budget(node):
    """Even a very long command ends when it exceeds the budget, and the next command has the full budget again."""
    _, own, _, host = node
    host.set_budget(500)
    event = ran(own, operation=Operation.COMPUTE, length=32, state_base=32, duration=1 << 30)
    assert event.status is EventStatus.OVER_BUDGET
    assert 500 <= event.cycles < 520
    assert ran(own, operation=Operation.COMPUTE, length=32, state_base=32, duration=100).status is EventStatus.OK
    host.set_budget(0)
    assert ran(own, operation=Operation.COMPUTE, length=32, state_base=32, duration=800).status is EventStatus.OK


def test_tenant_and_windows_stay_while_a_command_is_there(node):
    device, own, _, host = node
    own.push(Command(operation=Operation.QUIESCE, wait=1, tenant=1))
    for name in ("TENANT", "WINDOW", "WINDOW_BASE", "WINDOW_BOUND", "BUDGET"):
        with pytest.raises(ProgramRunningError):
            device.write_register(name, 0)
    for refused in (lambda: host.change(2), lambda: host.grant(2, OTHER), lambda: host.withdraw(1)):
        with pytest.raises(NotAtRestError, match=r"^node 0 must be at rest, and have no events, not \{'waiting': 1"):
            refused()
    own.write_register("FLAGS", 1)
    assert own.pop_event(1000).status is EventStatus.OK
    assert host.tenant == 1


def test_change(node):
    """A tenant's settings and flags are kept while another tenant is active, and its programs, events and errors are
    hidden from the other tenant."""
    _, own, other, host = node
    own.write_register("LEARNING_RATE", 0.5)
    own.write_register("FLAGS", 0x21)
    assert ran(own, operation=99).status is EventStatus.UNKNOWN_OPERATION
    own.load_program(0, [Command(operation=Operation.COMPUTE, tenant=1)] * 3, model=5)
    host.change(2)
    assert (other.read_register("LEARNING_RATE"), other.read_register("FLAGS")) == (0.0, 0)
    assert (other.read_register("LAST_ERROR"), other.read_register("PROGRAM_STATUS")) == (0, 0)
    assert other.read_register("COMMAND_CYCLES") == 0
    # A load at slot 3 does not change the slots before it. A run executes these too, so they must not hold another
    # tenant's commands.
    other.load_program(0, [Command(operation=Operation.QUIESCE, tenant=2)], slot=3)
    other.run(ProgramRun(1))
    event = other.pop_event(10_000)
    assert (event.status, event.detail) == (EventStatus.FOREIGN_TENANT, 0)  # these slots hold tenant 0's commands
    other.write_register("LEARNING_RATE", 0.125)
    host.change(1)
    assert (own.read_register("LEARNING_RATE"), own.read_register("FLAGS")) == (0.5, 0x21)
    host.change(2)
    assert other.read_register("LEARNING_RATE") == 0.125
    host.quiesce()


def digest(slot, words):
    """Return the digest that results from a load of the first queue into the idle bank."""
    header = np.array([slot | 1 << 23], "<u4")
    return zlib.crc32(np.concatenate([header, *(word.astype("<u4") for word in words)]).tobytes())


def test_banks(node):
    """A tenant's idle programs, edits and digests are hidden from other tenants, and no tenant can access the banks
    of the active tenant."""
    _, own, other, host = node
    command = Command(operation=Operation.QUIESCE, tenant=1)
    for refused in (lambda: other.load_program(0, [], idle=True),
                    lambda: submit_edit(other, number=1, set=0, digest=0).result()):
        with pytest.raises(ForeignTenantError):
            refused()
    own.load_program(0, [command] * 3, idle=True)
    submit_edit(own, number=7, set=0, digest=digest(0, [command.words()] * 3)).result()
    assert own.read_fields("PROGRAM_BANK")["pending"] == 1
    own.run(ProgramRun(1))
    assert [own.pop_event(10_000).status for _ in range(3)] == [EventStatus.OK] * 3
    assert own.read_fields("PROGRAM_BANK") == {"bank": 1, "pending": 0, "edit": 7}
    own.load_program(0, [command] * 3, idle=True)
    known = digest(0, [command.words()] * 3)

    host.change(2)
    assert other.read_register("PROGRAM_BANK") == other.read_register("PROGRAM_SET") == 0
    # The digest of the old load is no longer valid, even after a load with a header that does not begin a program.
    with pytest.raises(WrongProgramError):
        submit_edit(other, number=1, set=0, digest=known).result()
    other.load_program(0, [], slot=2, idle=True)
    for guess in (known, digest(2, []), 0):
        with pytest.raises(WrongProgramError):
            submit_edit(other, number=1, set=0, digest=guess).result()
    # In either bank, slots between loaded slots hold nothing from the previous tenant.
    quiesce = Command(operation=Operation.QUIESCE, tenant=2)
    other.load_program(0, [quiesce], idle=True)
    other.load_program(0, [], slot=3, idle=True)
    words = [np.array([1 << 23], np.uint32), quiesce.words(), np.array([3 | 1 << 23], np.uint32)]
    crc = zlib.crc32(np.concatenate(words).astype("<u4").tobytes())
    submit_edit(other, number=1, set=0, digest=crc).result()
    other.run(ProgramRun(1))
    assert other.pop_event(10_000).status is EventStatus.OK
    event = other.pop_event(10_000)
    assert (event.status, event.detail) == (EventStatus.FOREIGN_TENANT, 0)


def test_windows_are_scrubbed(node):
    device, own, _, host = node
    own.write_memory(Space.GRADIENT, 0, np.full(64, 9, np.uint32))
    host.withdraw(1)
    assert not device.read_memory(Space.GRADIENT, 64, 64).any()
    with pytest.raises(OutOfWindowError):
        own.read_memory(Space.GRADIENT, 0, 1)
    device.write_memory(Space.GRADIENT, 0, np.full(1024, 9, np.uint32))
    host.grant(1, {"gradients": (96, 32)})
    assert host.windows(1) == {"gradients": (96, 32)}
    assert not own.read_memory(Space.GRADIENT, 0, 32).any()
    assert device.read_memory(Space.GRADIENT, 0, 1024).sum() == 9 * (1024 - 32)


def test_arguments(shared):
    device, host = shared
    refuses("Tenant must be between 1 and 2, not 0", host.grant, 0, {})
    refuses("Tenant must be between 0 and 2, not 3", host.change, 3)
    refuses("Memory of a window must be one of gradients, weights, state_0, activations, not 'trace'", host.grant, 1,
            {"trace": (0, 32)})
    refuses("Window must be of multiples of 32 within the 2048 elements of weights, not 2048 from 32 on", host.grant,
            1, {"weights": (32, 2048)})
    host.grant(2, {"weights": (32, 64)})
    refuses("Window of tenant 1 in weights must be apart from that of tenant 2, 64 from 32 on, not 32 from 64 on",
            host.grant, 1, {"weights": (64, 32)})
    host.withdraw(2)
    other = Device(device.transport, NodeConfig())
    refuses("Nodes must have two tenants: take a configuration with feature Tenants()", TenantHost, [other])
