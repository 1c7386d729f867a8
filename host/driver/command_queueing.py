"""Queue commands on the nodes of a ring, collect their events, and diagnose failures."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from hdl.control.protocol import QUEUE_DEPTH, EventStatus, Operation
from hdl.engines import operations
from host.driver.command import CollectiveError, Command, Event
from host.driver.devices import Devices
from host.driver.diagnosis import RingError, report
from host.driver.diagnosis import explain as explain_failure
from host.driver.ring_registers import RingCounters
from host.driver.transport import results_of

__all__ = ["CommandQueueing", "PendingCommand"]

T = TypeVar("T")

_SETTLING = 8
"""Maximum number of checks for words that are still moving on the links."""


@dataclasses.dataclass(eq=False)
class PendingCommand(Generic[T]):
    """A command with a pending result."""

    operation: Operation
    commands: dict[int, Command]  # each participating node's command, keyed by rank
    nodes: int  # number of nodes of the ring
    patience: int  # maximum number of cycles to wait per poll for an event
    # whether the nodes run the command together, exchanging words on the ring meanwhile
    on_ring: bool
    _wait: Callable[["PendingCommand[T]"], object]
    _conclude: Callable[["PendingCommand[T]"], T]
    events: dict[int, Event] = dataclasses.field(default_factory=dict)  # events so far, keyed by rank
    collected: bool = False  # whether no more events are expected
    _outcome: T | None = None
    _error: RingError | None = None
    _concluded: bool = False

    @property
    def every(self) -> list[Event | None]:
        """The event reported by each node of the ring, or None for nodes that have not reported one."""
        return [self.events.get(rank) for rank in range(self.nodes)]

    @property
    def well(self) -> bool:
        """Whether the command has succeeded on all of its nodes."""
        return all(rank in self.events and self.events[rank].status == EventStatus.OK for rank in self.commands)

    def result(self) -> T:
        """Wait for this command and all earlier ones. Calling it again returns the same result.

        Raises ``RingError`` if the command failed on at least one node.
        """
        self._wait(self)
        return self.conclude()

    def abandon(self, error: RingError) -> None:
        """Fail the command with ``error``, because its events will never arrive."""
        self.collected = self._concluded = True
        self._error = error

    def conclude(self) -> T:
        """Return the result of a command with all its events, or raise its error; see :meth:`result`."""
        if not self._concluded:
            self._concluded = True
            try:
                self._outcome = self._conclude(self)
            except RingError as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._outcome  # type: ignore[return-value]


class CommandQueueing:
    """Queue of the commands on all nodes."""

    def __init__(self, devices: Devices, counters: RingCounters):
        self.nodes = len(devices)
        self._devices = devices
        self._counters = counters
        self._timeout = devices.timeout
        self._epoch = 0
        self._latest = 0
        self._queued: list[PendingCommand[Any]] = []
        # Queue that runs each operation. Operations accepted by any queue go to the last one.
        last = devices.config.queues - 1
        self._queues = {operation.code: last if operation.queue is None else min(operation.queue, last)
                        for config in devices.configs for operation in operations(config)}

    @property
    def numbers(self) -> tuple[int, int]:
        """Current epoch, and sequence number of the latest collective."""
        return self._epoch, self._latest

    def resume_from(self, epoch: int, collective: int) -> None:
        """Continue another ring's epoch and sequence numbers, after the links of this ring were reset."""
        self._epoch, self._latest = epoch, collective

    def take_numbers(self, count: int) -> int:
        """Reserve ``count`` consecutive sequence numbers for collectives, and return the first."""
        first = (self._latest + 1) % (1 << 16)
        self._latest = (self._latest + count) % (1 << 16)
        return first

    def begin_epoch(self) -> None:
        """Start a new epoch, so that packets left on the ring can be distinguished from new ones."""
        self._epoch = (self._epoch + 1) % 256

    def knows(self, operation: Operation) -> bool:
        """Whether the nodes support an operation."""
        return operation in self._queues

    def abandon(self) -> None:
        """Fail all pending commands before the ring is recovered."""
        for pending in self._queued:
            name = pending.operation.name.lower().replace("_", "-")
            pending.abandon(RingError(f"{name} failed: the ring was recovered before it had ended", cause=None,
                                      events=pending.every))
        self._queued.clear()

    def drain(self) -> None:
        """Discard events until all nodes are idle and have no events left."""
        waiting = list(self._devices)
        while waiting:
            events = results_of([
                device.submit_pop_event(4 * self._timeout if device.read_fields("STATUS")["running"] else 0)
                for device in waiting])
            waiting = [device for device, event in zip(waiting, events, strict=True) if event is not None]

    def wait(self, *pending: PendingCommand[Any]) -> list[Any]:
        """Wait for the given commands (by default all pending ones) and all commands queued before them.

        Returns their results in order. If commands fail, the first ``RingError`` is raised after all have completed.
        """
        wanted = pending or tuple(self._queued)
        while self._queued and not all(command.collected for command in wanted):
            self._collect()
        return [command.conclude() for command in wanted]

    def _push(self, operation: Operation, commands: dict[int, Command], *, patience: int, on_ring: bool,
              conclude: Callable[[PendingCommand[T]], T]) -> PendingCommand[T]:
        """Queue a command on its nodes; if their queues are full, first wait for the oldest command.

        The two queues of a node are not synchronized, so a command for one queue waits until the other is empty.
        """
        queue = self._queues.get(operation)
        while self._queued and (len(self._queued) >= QUEUE_DEPTH
                                or self._queues.get(self._queued[0].operation) != queue):
            self._collect()
        self._devices.ask(lambda rank, device: device.submit_push(device.named(commands[rank])), commands)
        pending = PendingCommand(operation, commands, self.nodes, patience, on_ring, self.wait, conclude)
        self._queued.append(pending)
        return pending

    def _collect(self) -> None:
        """Collect the oldest command's events. A collective does not time out while words move on the ring.

        Failures are diagnosed only after all later commands have completed, since missing words cannot be counted
        while these commands move words on the ring.
        """
        pending = self._queued[0]
        moved = -1
        while missing := [rank for rank in pending.commands if rank not in pending.events]:
            events = self._devices.ask(lambda rank, device: device.submit_pop_event(pending.patience), missing)
            for rank, event in zip(missing, events, strict=True):
                if event is not None:
                    self._owner(event, rank).events[rank] = event
            if all(rank in pending.events for rank in missing) or not pending.on_ring:
                break
            before, moved = moved, sum(counters["WORDS_SENT"] for counters in self._counters.read())
            if moved == before:
                break
        self._queued.remove(pending)
        pending.collected = True
        if not pending.well:
            while self._queued:
                self._collect()
            with contextlib.suppress(RingError):  # `result` will raise it
                pending.conclude()

    def _owner(self, event: Event, rank: int) -> PendingCommand[Any]:
        """Return the queued command that an event belongs to: the command with its tag, or else the oldest."""
        return next((command for command in self._queued
                     if rank in command.commands and command.commands[rank].tag == event.tag), self._queued[0])

    # Commands that nodes carry out together.

    def submit_together(self, operation: Operation, conclude: Callable[[PendingCommand[T]], T],
                        fields: Sequence[dict[str, int]], *,
                        explain: Callable[[PendingCommand[T]], RingError] | None = None) -> PendingCommand[T]:
        """Queue one collective on all nodes. ``fields`` holds extra fields of each node's command, in rank order,
        which may override rank and size.

        ``conclude`` computes the result of a command that succeeded on every node. ``explain`` creates the error of a
        failed command, by default :meth:`diagnose`.
        """
        tag = self.take_numbers(1)
        commands = {rank: Command(operation=operation, epoch=self._epoch, collective=tag, tag=tag,
                                  **{"rank": rank, "size": self.nodes, **own}) for rank, own in enumerate(fields)}

        def checked(pending: PendingCommand[T]) -> T:
            if not pending.well:
                error = explain(pending) if explain else self.diagnose(operation, pending.every)
                self.begin_epoch()  # packets of this command may still be on the ring
                raise error
            return conclude(pending)

        return self._push(operation, commands, patience=4 * self._timeout, on_ring=True, conclude=checked)

    def diagnose(self, operation: Operation, events: list[Event | None]) -> RingError:
        """Wait until the ring is quiet, and create a failed command's error. Late events are added to ``events``."""
        missing, rest = self.settle(events)
        return explain_failure(operation, events, devices=self._devices, missing=missing, rest=rest)

    def settle(self, events: list[Event | None]) -> tuple[list[int] | None, int]:
        """Wait until the ring is quiet, and add late events to ``events``.

        Returns the number of words missing after each link since the ring was last recovered (None if words are still
        moving), and the number of cycles without any word before the words were counted.
        """
        rest = 2 * self._timeout
        moved = self._counters.moved()
        for _ in range(_SETTLING):
            rank = next((rank for rank, event in enumerate(events) if event is None), 0)
            event = self._devices[rank].submit_pop_event(rest).result()
            if events[rank] is None:
                events[rank] = event
            before, moved = moved, self._counters.moved()
            if moved == before and event is None:
                return self._counters.missing(moved), rest
        return None, rest

    # Commands of single nodes.

    def submit_apart(self, commands: dict[int, Command], *, patience: int = 0) -> PendingCommand[dict[int, Event]]:
        """Queue a separate command for each rank; each command may take ``patience`` extra cycles."""
        tag = self.take_numbers(1)
        tagged = {rank: dataclasses.replace(command, tag=tag) for rank, command in commands.items()}
        # A node processes at least one element or one mask word per cycle.
        patience += 4 * self._timeout + 2 * max(command.length for command in commands.values())

        def checked(pending: PendingCommand[dict[int, Event]]) -> dict[int, Event]:
            if pending.well:
                return {rank: pending.events[rank] for rank in pending.commands}
            rank = next(rank for rank in pending.commands if rank not in pending.events
                        or pending.events[rank].status != EventStatus.OK)
            event, operation = pending.events.get(rank), pending.commands[rank].operation
            # Operations unknown to this driver are shown as numbers.
            name = operation.name.lower() if isinstance(operation, Operation) else f"operation {operation}"
            reason = (report(rank, event, self._devices).strip() if event is None
                      else CollectiveError(event, self._devices[rank].name))
            raise RingError(f"{name} failed: {reason}", cause=rank, events=pending.every)

        operation = next(iter(commands.values())).operation
        return self._push(operation, tagged, patience=patience, on_ring=False, conclude=checked)

    def run_apart(self, commands: dict[int, Command], *, patience: int = 0) -> dict[int, Event]:
        """Run a separate command on each node, keyed by rank, and wait for all of them; see :meth:`submit_apart`."""
        return self.submit_apart(commands, patience=patience).result()
