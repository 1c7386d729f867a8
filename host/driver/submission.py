"""Queue of the commands on the nodes of a ring, the wait for their events, and the diagnosis of failures."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from hdl.control.protocol import QUEUE_DEPTH, EventStatus, Operation
from hdl.engines import operations
from hdl.ring.slots.job_table import JobFrame
from hdl.ring.slots.link import PERIOD
from hdl.ring.topology import RingTopology
from host.driver.command import Command, Event
from host.driver.device import Device
from host.driver.diagnosis import RingError, explain, report
from host.driver.errors import DeviceError
from host.driver.nodes import TIMEOUT
from host.driver.vectors import RingVectors

__all__ = ["PendingCommand", "RingCommands"]

T = TypeVar("T")

_SETTLING = 8
"""Times that links are waited for to come to rest."""

_SYNCS = 8
"""Periods of SYNCs in which nodes should have a TIME."""


class PendingCommand(Generic[T]):
    """A command that nodes have been given, whose result is pending.

    Members
    -------
    operation : Operation
    commands : dict of int to Command
        The command of each node that has one, by rank.
    events : dict of int to Event
        Events that have come, by rank.
    patience : int
        Cycles that each look for an event takes at most.
    on_ring : bool
        Whether nodes carry the command out together, so that words move on the ring while it is under way.
    collected : bool
        Whether all events that will come have come.
    """

    def __init__(self, ring: "RingCommands", operation: Operation, commands: dict[int, Command], *, patience: int,
                 on_ring: bool, conclude: Callable[["PendingCommand[T]"], T]) -> None:
        self.operation = operation
        self.commands = commands
        self.events: dict[int, Event] = {}
        self.patience = patience
        self.on_ring = on_ring
        self.collected = False
        self._ring = ring
        self._conclude = conclude
        self._outcome: T | None = None
        self._error: RingError | None = None
        self._concluded = False

    @property
    def every(self) -> list[Event | None]:
        """Event of each node of the ring; None for a node that gave none."""
        return [self.events.get(rank) for rank in range(self._ring.nodes)]

    @property
    def well(self) -> bool:
        """Whether every node that has the command has ended it well."""
        return all(rank in self.events and self.events[rank].status == EventStatus.OK for rank in self.commands)

    def result(self) -> T:
        """Wait for the command and all that were queued before it. A second call returns the same result.

        Raises
        ------
        RingError
            The command failed on at least one node.
        """
        outcome: T = self._ring.wait(self)[0]
        return outcome

    def give_up(self, error: RingError) -> None:
        """Make this error the result, in place of events that will not come."""
        self.collected = self._concluded = True
        self._error = error

    def explain(self) -> None:
        """Find out the result of the command, once its events have been collected."""
        if not self._concluded:
            self._concluded = True
            try:
                self._outcome = self._conclude(self)
            except RingError as error:
                self._error = error

    def conclude(self) -> T:
        """Return the result of the collected command, or raise its error; see :meth:`result`."""
        self.explain()
        if self._error is not None:
            raise self._error
        return self._outcome  # type: ignore[return-value]


class RingCommands(RingVectors):
    """Nodes in a ring, and the queue of their commands.

    Parameters
    ----------
    devices, timeout
        Parameters of :class:`~host.driver.nodes.RingNodes`.
    """

    def __init__(self, devices: Sequence[Device], *, timeout: int = TIMEOUT):
        super().__init__(devices, timeout=timeout)
        self._privileged = all(device.privileged for device in devices)
        self._epoch = 0
        self._latest = 0
        self._queued: list[PendingCommand[Any]] = []
        # Of each operation, in nodes with several; one that may be in any is pushed to the last.
        last = self._config.queues - 1
        self._queues = {operation.code: last if operation.queue is None else min(operation.queue, last)
                        for config in self._configs for operation in operations(config)}

    def connect(self) -> None:
        """Check that every device is a node of the expected configuration, and put the ring in order.

        The ring of a tenant's own driver is in order when the privileged host has changed the tenant.

        Raises
        ------
        ConfigurationError
            A device is another design, or a node of another configuration.
        """
        for device in self._devices:
            device.connect()
        self._write_register("TIMEOUT", self._timeout)
        if self._privileged:
            self.recover()

    def recover(self) -> None:
        """Put the ring in order after a failure: stop all commands, drop all words on the links and all events.

        Memories and settings stay as they are. Pending commands have failed. In nodes with tenants this is for a ring
        of devices of the privileged host alone, which may be for the job of a tenant.

        Raises
        ------
        RingError
            These are devices of a tenant.
        """
        if not self._privileged:
            raise RingError("The ring must be brought in order by the privileged host: Ring(host.devices(tenant))"
                            ".recover()", cause=None, events=[])
        for pending in self._queued:
            name = pending.operation.name.lower().replace("_", "-")
            pending.give_up(RingError(f"{name} failed: the ring was brought in order before it had ended", cause=None,
                                      events=pending.every))
        self._queued.clear()
        self._settings = {}
        self._write_register("CONTROL", 1)
        # With the links held in reset, the running command ends at once, and a queued one when it starts.
        self._drain()
        if self._config.jobs > 1:  # packets of this job that still pass other nodes, which have the ring in common
            self._devices[0].submit_pop_event(JobFrame.of(self._config).cycles).result()
        elif self._config.slots:
            self._all(lambda rank, device: device.submit_write_register("SLOT_PLACE", rank | self.nodes << 4))
        self._write_register("CONTROL", 0)
        self._drain()
        if self._config.slots:
            self.wait_for_time()
        self._lost = _differences(self._moved(), self._topology)
        self._epoch = (self._epoch + 1) % 256

    def wait_for_time(self) -> None:
        """Wait until all nodes have a valid TIME: slots need one, a ring of one node does not.

        Raises
        ------
        RingError
            A node has none after several SYNCs of rank 0.
        """
        for _ in range(_SYNCS if self.nodes > 1 else 0):
            lacks = [rank for rank, device in enumerate(self._devices)
                     if not device.read_fields("TIME_STATUS")["valid"]]
            if not lacks:
                return
            self._devices[0].submit_pop_event(PERIOD).result()  # there is none: this takes so many cycles
        if self.nodes > 1:
            raise RingError(f"nodes without valid TIME after {_SYNCS * PERIOD:,} cycles: "
                            f"{', '.join(self._devices[rank].name for rank in lacks)}; check the links of the ring",
                            cause=lacks[0], events=[None] * self.nodes)

    @property
    def numbers(self) -> tuple[int, int]:
        """Epoch, and number of the latest collective."""
        return self._epoch, self._latest

    def go_on_from(self, epoch: int, collective: int) -> None:
        """Number the next commands as another ring would, on nodes whose links have been reset since."""
        self._epoch, self._latest = epoch, collective

    def _drain(self) -> None:
        """Take events until no node has an event or a command."""
        waiting = list(self._devices)
        while waiting:
            found = [pending.result() for pending in
                     [device.submit_pop_event(4 * self._timeout if device.read_fields("STATUS")["running"] else 0)
                      for device in waiting]]
            waiting = [device for device, event in zip(waiting, found, strict=True) if event is not None]

    # The queue.

    def wait(self, *pending: PendingCommand[Any]) -> list[Any]:
        """Wait for commands, and for all that were queued before them.

        Parameters
        ----------
        *pending : PendingCommand
            Commands to wait for; by default, all that are pending.

        Returns
        -------
        list
            Result of each, in order.

        Raises
        ------
        RingError
            A command failed. The error is that of the first failure, raised after all have been waited for.
        """
        wanted = pending or tuple(self._queued)
        while self._queued and not all(one.collected for one in wanted):
            self._collect()
        return [one.conclude() for one in wanted]

    def _next_tag(self) -> int:
        """Number of the next command: the tag of its event, and the number that packets of a collective carry."""
        self._latest = (self._latest + 1) % (1 << 16)
        return self._latest

    def _push(self, operation: Operation, commands: dict[int, Command], *, patience: int, on_ring: bool,
              conclude: Callable[[PendingCommand[T]], T]) -> PendingCommand[T]:
        """Queue a command on the nodes that have one, and wait for the oldest first if their queues are full.

        Two queues of a node do not wait for each other, so a command for the other one waits until this one is empty.
        """
        queue = self._queues.get(operation)
        while self._queued and (len(self._queued) >= QUEUE_DEPTH
                                or self._queues.get(self._queued[0].operation) != queue):
            self._collect()
        self._all(lambda rank, device: device.submit_push(device.named(commands[rank])), commands)
        pending = PendingCommand(self, operation, commands, patience=patience, on_ring=on_ring,
                                 conclude=conclude)
        self._queued.append(pending)
        return pending

    def _collect(self) -> None:
        """Take the events of the oldest command. A collective may take any time while words move on the ring.

        A failure is explained as soon as all commands queued behind it have ended: while they move words on the
        ring, missing words cannot be counted.
        """
        pending = self._queued[0]
        moved = -1
        while missing := [rank for rank in pending.commands if rank not in pending.events]:
            found = self._all(lambda rank, device: device.submit_pop_event(pending.patience), missing)
            for rank, event in zip(missing, found, strict=True):
                if event is not None:
                    self._owner(event, rank).events[rank] = event
            if all(rank in pending.events for rank in missing) or not pending.on_ring:
                break
            before, moved = moved, sum(counters["WORDS_SENT"] for counters in self.counters())
            if moved == before:
                break
        self._queued.remove(pending)
        pending.collected = True
        if not pending.well:
            while self._queued:
                self._collect()
            pending.explain()

    def _owner(self, event: Event, rank: int) -> PendingCommand[Any]:
        """Find the queued command that an event belongs to: the oldest one, unless another has the event's tag."""
        return next((one for one in self._queued if rank in one.commands and one.commands[rank].tag == event.tag),
                    self._queued[0])

    # Commands that nodes carry out together.

    def _submit(self, operation: Operation, conclude: Callable[[PendingCommand[T]], T],
                fields: Sequence[dict[str, int]]) -> PendingCommand[T]:
        """Queue one collective on all nodes, with further fields of each node's command, in order of rank."""
        tag = self._next_tag()
        commands = {rank: Command(operation=operation, epoch=self._epoch, collective=tag, tag=tag,
                                  **{"rank": rank, "size": self.nodes, **mine}) for rank, mine in enumerate(fields)}

        def checked(pending: PendingCommand[T]) -> T:
            if not pending.well:
                events = pending.every
                missing, rest = self._settle(events)
                # The epoch tells packets that this command leaves on the ring from those of the next one.
                self._epoch = (self._epoch + 1) % 256
                raise explain(operation, events, devices=self._devices, missing=missing, rest=rest)
            return conclude(pending)

        return self._push(operation, commands, patience=4 * self._timeout, on_ring=True, conclude=checked)

    def _settle(self, events: list[Event | None]) -> tuple[list[int] | None, int]:
        """Wait until no word moves any more, and take late events.

        Returns
        -------
        list of int or None
            Words missing behind each link since the ring was last in order; None if words do not cease to move.
        int
            Cycles without a word before the count.
        """
        rest = 2 * self._timeout
        moved = self._moved()
        for _ in range(_SETTLING):
            rank = next((rank for rank, event in enumerate(events) if event is None), 0)
            event = self._devices[rank].submit_pop_event(rest).result()
            if events[rank] is None:
                events[rank] = event
            before, moved = moved, self._moved()
            if moved == before and event is None:
                return [_signed(now - then) for now, then in zip(_differences(moved, self._topology), self._lost,
                                                                 strict=True)], rest
        return None, rest

    def _moved(self) -> list[tuple[int, int]]:
        """Counts of words that each node has sent and received."""
        return [(counters["WORDS_SENT"], counters["WORDS_RECEIVED"]) for counters in self.counters()]

    # Commands that need no other node.

    def _submit_apart(self, commands: dict[int, Command], *, patience: int = 0) -> PendingCommand[dict[int, Event]]:
        """Queue a command of its own on each node that has one, by rank; wait ``patience`` cycles longer than
        usual."""
        tag = self._next_tag()
        tagged = {rank: dataclasses.replace(command, tag=tag) for rank, command in commands.items()}
        # At most one element and one word of a mask per cycle.
        patience += 4 * self._timeout + 2 * max(command.length for command in commands.values())

        def checked(pending: PendingCommand[dict[int, Event]]) -> dict[int, Event]:
            if pending.well:
                return {rank: pending.events[rank] for rank in pending.commands}
            rank = next(rank for rank in pending.commands if rank not in pending.events
                        or pending.events[rank].status != EventStatus.OK)
            event = pending.events.get(rank)
            # An operation that this driver does not know goes by its code.
            operation = pending.commands[rank].operation
            name = operation.name.lower() if isinstance(operation, Operation) else f"operation {operation}"
            if event is None:
                raise RingError(f"{name} failed: {report(rank, event, self._devices).strip()}", cause=rank,
                                events=pending.every)
            try:
                event.check(self._devices[rank].name)
            except DeviceError as error:
                raise RingError(f"{name} failed: {error}", cause=rank, events=pending.every) from None
            raise AssertionError("a command that has not ended well has an event that says so")

        operation = next(iter(commands.values())).operation
        return self._push(operation, tagged, patience=patience, on_ring=False, conclude=checked)

    def _run_apart(self, commands: dict[int, Command], *, patience: int = 0) -> dict[int, Event]:
        """Run a command of its own on each node that has one, and wait for all."""
        return self._submit_apart(commands, patience=patience).result()


def _differences(moved: Sequence[tuple[int, int]], topology: RingTopology) -> list[int]:
    """Words that each link has taken and not delivered, modulo 2**32."""
    return [(moved[start][0] - moved[end][1]) % (1 << 32) for start, end in topology.links]


def _signed(difference: int) -> int:
    """Signed difference of counters, which wrap at 32 bits: negative if words have come late."""
    return (difference + (1 << 31)) % (1 << 32) - (1 << 31)
