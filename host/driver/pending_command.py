"""Commands of the nodes of a ring, and their results."""

from collections.abc import Callable
from typing import Generic, TypeVar

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command, Event
from host.driver.diagnosis import RingError

__all__ = ["PendingCommand"]

T = TypeVar("T")


class PendingCommand(Generic[T]):
    """A command with a pending result.

    Members
    -------
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

    def __init__(self, operation: Operation, commands: dict[int, Command], *, nodes: int, patience: int,
                 on_ring: bool, wait: Callable[["PendingCommand[T]"], object],
                 conclude: Callable[["PendingCommand[T]"], T]) -> None:
        self.operation = operation
        self.commands = commands
        self.events: dict[int, Event] = {}
        self.patience = patience
        self.on_ring = on_ring
        self.collected = False
        self._nodes = nodes
        self._wait = wait
        self._conclude = conclude
        self._outcome: T | None = None
        self._error: RingError | None = None
        self._concluded = False

    @property
    def every(self) -> list[Event | None]:
        """Event of each node of the ring; None for a node that gave none."""
        return [self.events.get(rank) for rank in range(self._nodes)]

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
        self._wait(self)
        return self.conclude()

    def abandon(self, error: RingError) -> None:
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
