"""Tenant management for the privileged host of nodes: memory windows and the running tenant.

Example
-------
::

    host = TenantHost(devices)
    host.grant(1, {"gradients": (0, 1024), "weights": (0, 1024)})
    host.change(1)      # from now on the nodes execute the commands of tenant 1
    ring = Ring(host.devices(1))
    host.change(2)
    host.withdraw(1)
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hdl.control.engine import FAR
from hdl.control.protocol import EventStatus, Opcode, Operation
from hdl.control.registers import PRIVILEGED, REGISTERS, Access, register
from hdl.control.tenancy import MAX_TENANTS, windowed
from hdl.control.tenancy import PRIVILEGED as PRIVILEGED_HOST
from hdl.group import GROUP
from hdl.memory_map import MemorySpace
from host.driver.command import CollectiveError, Command
from host.driver.device import Device
from host.driver.devices import Devices
from host.driver.errors import DeviceError, ProgramRunningError
from host.driver.far_contents import clear_far
from host.driver.transport import Request
from host.driver.words import Words, from_bits

__all__ = ["SAVED", "NotAtRestError", "TenantDevice", "TenantHost"]

_PRIVILEGED = frozenset(register(name).address for name in PRIVILEGED)

#: Settings that belong to a tenant and are saved while another tenant is running. RESUMED_SET is not
#: included: a resumed gradient is dropped together with all gradients that wait for a round.
SAVED = tuple(entry.name for entry in REGISTERS
              if entry.access is Access.SETTING and entry.name not in (*PRIVILEGED, "RESUMED_SET"))

#: Reset values of a tenant's settings.
_RESET = {entry.name: from_bits(entry, np.array([entry.reset], np.uint32), integers=False)
          for entry in REGISTERS if entry.name in SAVED}

_PATIENCE = 100_000  # maximum number of cycles that a node may take to complete QUIESCE

_TRIES = 1_000  # maximum number of attempts while the far memory still owes answers


class NotAtRestError(DeviceError):
    """Raised if a node still has commands to execute, or events that the host has not read."""


class TenantDevice(Device):
    """A node that its privileged host uses on behalf of a tenant.

    Requests carry the tenant's number, except for writes to privileged registers. While the nodes execute the
    tenant's commands, a ring of these devices can be used like a ring without tenants. Addresses are relative to the
    tenant's windows, which have a base and a length for each memory. ``device`` is the node of the privileged host.
    """

    def __init__(self, device: Device, *, tenant: int, windows: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(device.transport, device.config, name=device.name, tenant=tenant)
        self._windows = dict(windows)

    @property
    def privileged(self) -> bool:
        return True

    def room(self, name: str) -> int:
        return self._windows.get(name, (0, 0))[1]

    def _submit(self, opcode: Opcode, asked: str, *, count: int, words: Sequence[Words], answer: int,
                patience: int = 0) -> Request:
        privileged = opcode is Opcode.WRITE_REGISTER and int(words[0][0]) in _PRIVILEGED
        self._asks[0][0] = PRIVILEGED_HOST if privileged else self._tenant
        return super()._submit(opcode, asked, count=count, words=words, answer=answer, patience=patience)


class TenantHost:
    """Privileged host of a ring. All nodes have the same memory windows and serve the same tenant."""

    def __init__(self, devices: Sequence[Device]) -> None:
        for device in devices:
            if not device.config.has("tenants"):
                raise ValueError("Nodes must have two tenants: take a configuration with feature Tenants()")
        self._devices = list(devices)
        #: Settings and flags of each node, keyed by tenant, saved when the nodes stopped serving that tenant.
        self._kept: dict[int, list[tuple[dict[str, int | float], int]]] = {}
        self._windows: dict[int, dict[str, tuple[int, int]]] = {}
        self.tenant = int(PRIVILEGED_HOST)  # tenant that the nodes serve; 0 means this privileged host

    def windows(self, tenant: int) -> dict[str, tuple[int, int]]:
        """Return the windows of a tenant, with a base and a length for each memory."""
        return dict(self._windows.get(tenant, {}))

    def devices(self, tenant: int) -> list[TenantDevice]:
        """Return devices that a tenant's job can use, with the tenant's current memory windows."""
        return [TenantDevice(device, tenant=tenant, windows=self.windows(tenant)) for device in self._devices]

    def grant(self, tenant: int, windows: Mapping[str, tuple[int, int]]) -> None:
        """Give a tenant zero-filled windows, which replace its current ones.

        A window is a memory's (base, length) in elements: multiples of 32, within the memory, and disjoint from the
        other tenant's windows. Memories not listed have no window; ``far`` is for nodes that move activations.

        Raises ``NotAtRestError`` if a node is busy, or has events while a window is in its far memory; nothing is
        changed then.
        """
        self._check(tenant, windows)
        self._require_rest(events=FAR in {**windows, **self._windows.get(tenant, {})})
        self.withdraw(tenant)
        self._scrub(windows)
        for device in self._devices:
            for name, (base, length) in windows.items():
                if name in _spaces(device):
                    _set(device, tenant, name, base, length)
        self._windows[tenant] = dict(windows)

    def withdraw(self, tenant: int) -> None:
        """Remove all windows of a tenant and fill their memory with zeros."""
        windows = self._windows.get(tenant, {})
        self._require_rest(events=FAR in windows)
        for device in self._devices:
            for name in _spaces(device):
                _set(device, tenant, name, 0, 0)
        self._scrub(windows)
        self._windows.pop(tenant, None)

    def change(self, tenant: int) -> None:
        """Make the nodes execute another tenant's commands, or this host's commands if it is 0.

        The previous tenant's settings and flags are saved and the new tenant's are restored; initially they have
        their reset values. Programs are overwritten in all banks, links are reset, counters are cleared, and
        gradients that wait for a round are dropped. Raises ``NotAtRestError`` if a node is busy, has events, or waits
        for answers of its far memory; nothing is changed then.
        """
        if not PRIVILEGED_HOST <= tenant < MAX_TENANTS:
            raise ValueError(f"Tenant must be between 0 and {MAX_TENANTS - 1}, not {tenant!r}")
        self._require_rest(events=True)
        devices = self._devices
        self._kept[self.tenant] = [({name: device.read_register(name) for name in SAVED},
                                     int(device.read_register("FLAGS"))) for device in devices]
        for device in devices:
            self._forget_programs(device)
            device.write_register("CONTROL", 1)  # makes the links discard the state of the last collective
        kept = self._kept.get(tenant, [(_RESET, 0)] * len(devices))
        for device, (settings, flags) in zip(devices, kept, strict=True):
            device.write_register("TENANT", tenant)  # a write to TENANT also clears flags, events and programs
            for name, value in settings.items():
                device.write_register(name, value)
            device.write_register("RESUMED_SET", 0)
            device.write_register("FLAGS", flags)
        for device in devices:
            device.write_register("CONTROL", 2)
        self.tenant = tenant

    def set_budget(self, cycles: int) -> None:
        """Set the maximum number of cycles for a command of any tenant; 0 means no limit."""
        for device in self._devices:
            device.write_register("BUDGET", cycles)

    def quiesce(self) -> None:
        """Wait for all previous commands of the current tenant. The tenant's host must have read all events first."""
        for device in self._devices:
            device.push(Command(operation=Operation.QUIESCE, tenant=self.tenant))
        for device in self._devices:
            event = device.pop_event(_PATIENCE)
            if event is None or event.status is not EventStatus.OK:
                raise NotAtRestError(f"{device.name}: QUIESCE ended with {event}")

    def _check(self, tenant: int, windows: Mapping[str, tuple[int, int]]) -> None:
        """Raise ``ValueError`` if a tenant or a window is invalid."""
        if not PRIVILEGED_HOST < tenant < MAX_TENANTS:
            raise ValueError(f"Tenant must be between 1 and {MAX_TENANTS - 1}, not {tenant!r}")
        known = {name: None for device in self._devices for name in _spaces(device)}
        for name in windows:
            if name not in known:
                raise ValueError(f"Memory of a window must be one of {', '.join(known)}, not {name!r}")
        for device in self._devices:
            spaces = _spaces(device)
            for name, (base, length) in windows.items():
                if name not in spaces:
                    continue
                if base % GROUP or length % GROUP or base < 0 or not 0 <= length <= spaces[name].words - base:
                    raise ValueError(f"Window must be of multiples of {GROUP} within the {spaces[name].words} "
                                     f"elements of {name}, not {length!r} from {base!r} on")
                for other, theirs in self._windows.items():
                    begin, size = theirs.get(name, (0, 0))
                    if other != tenant and max(base, begin) < min(base + length, begin + size):
                        raise ValueError(f"Window of tenant {tenant} in {name} must be apart from that of tenant "
                                         f"{other}, {size} from {begin} on, not {length} from {base} on")

    def _require_rest(self, *, events: bool) -> None:
        for device in self._devices:
            status = device.read_fields("STATUS")
            waiting = {name: status[name] for name in ("running", "waiting", "commands", *(["events"] * events))
                       if status[name]}
            if device.config.queues > 1 and device.read_fields("PROGRAM_STATUS")["running"]:
                waiting["program"] = 1
            if waiting:
                raise NotAtRestError(f"{device.name} must be at rest, and have no events, not {waiting}")
            if FAR in _spaces(device):
                self._await_far(device)

    @staticmethod
    def _await_far(device: Device) -> None:
        """Wait until the far memory has answered all requests; until then, the node reports that it is busy."""
        for _ in range(_TRIES):
            with contextlib.suppress(ProgramRunningError):
                device.write_register("WINDOW", 0)  # raises an error while the node is busy; 0 defines no window
                return
        raise NotAtRestError(f"{device.name}: the far memory must give the answers that it owes")

    @contextlib.contextmanager
    def _privileged(self) -> Iterator[None]:
        """Context manager that makes the nodes execute this host's commands, with no cycle limit."""
        tenant, budgets = self.tenant, [device.read_register("BUDGET") for device in self._devices]
        if tenant != PRIVILEGED_HOST:
            self.change(PRIVILEGED_HOST)
        self.set_budget(0)
        yield
        if tenant != PRIVILEGED_HOST:
            self.change(tenant)
        for device, budget in zip(self._devices, budgets, strict=True):
            device.write_register("BUDGET", budget)

    def _scrub(self, windows: Mapping[str, tuple[int, int]]) -> None:
        """Fill memory windows of all nodes with zeros."""
        for device in self._devices:
            if device.config.is_server:
                device.write_register("CONTROL", 2)  # clears the status, so that words lost from now on are noticed
            for name, (base, length) in windows.items():
                if name in device.config.memory_map:
                    device.write_memory(device.config.memory_map[name].number, base, np.zeros(length, np.uint32))
            if device.config.is_server and device.read_fields("STATUS")["far_lost"]:
                raise DeviceError(f"{device.name}: the far memory must take zeros, and is silent")
        base, length = windows.get(FAR, (0, 0))
        if length:
            with self._privileged():
                devices = Devices(device for device in self._devices if FAR in _spaces(device))
                try:
                    clear_far(devices, {number: [(base, length)] for number in range(len(devices))})
                except CollectiveError as error:
                    raise DeviceError(f"{error.name}: a move of zeros to the far memory ended with "
                                      f"{error.event.status.name}") from None

    @staticmethod
    def _forget_programs(device: Device) -> None:
        """Overwrite the programs of all queues in all banks of a node."""
        config = device.config
        for queue in range(config.queues if config.queues > 1 else 0):
            for idle in range(1 + config.has_banks):
                device.load_program(queue, [Command(operation=Operation.QUIESCE)] * config.programs.depth,
                                    idle=bool(idle))
                device.load_program(queue, [], idle=bool(idle))


def _set(device: Device, tenant: int, name: str, base: int, length: int) -> None:
    """Set a tenant's memory window. The window's registers count in groups of 32 elements."""
    window = _spaces(device)[name].number | tenant << 4
    for setting, value in (("WINDOW_BASE", base // GROUP), ("WINDOW_BOUND", (base + length) // GROUP),
                           ("WINDOW", window | 1 << 6), ("WINDOW", window)):
        device.write_register(setting, value)


def _spaces(device: Device) -> dict[str, MemorySpace]:
    """Return the memory spaces of a node that can have windows."""
    return {space.name: space for space in windowed(device.config)}
