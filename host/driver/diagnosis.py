"""Diagnose a failed collective from the events and counters of its nodes.

A node that rejects a packet reports the reason. A node that times out does not know the cause; therefore, once words
have stopped moving, the diagnosis names a link after which words are missing.
"""

from collections.abc import Sequence

from hdl.control.protocol import EventStatus, Operation
from hdl.ring.topology import RingTopology
from host.driver.command import REFUSED, CollectiveError, Event
from host.driver.device import Device
from host.errors import ExpectedError

__all__ = ["RingError", "explain", "report"]

_BLAMELESS = (EventStatus.OK, EventStatus.PEER_ABORT, EventStatus.LINK_RESET)
_STANDSTILL = (EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT)


class RingError(ExpectedError):
    """Raised if a collective failed on at least one node."""

    def __init__(self, message: str, *, cause: int | None, events: list[Event | None]):
        super().__init__(message)
        # rank of the node that rejected a packet or a command (not of a node that timed out as a consequence);
        # otherwise, rank of the node before the only link with undelivered words; None if neither is known
        self.cause = cause
        self.events = events  # event of each node; None for a node without an event

    @property
    def transient(self) -> bool:
        """Whether the command may succeed if repeated after recovery of the ring: no node rejected it."""
        return not any(event is not None and event.status in REFUSED for event in self.events)


def explain(operation: int, events: list[Event | None], *, devices: Sequence[Device],
            missing: Sequence[int] | None, rest: int) -> RingError:
    """Create the error for a failed command from the nodes' events (None for nodes without an event).

    An operation unknown to this driver is shown as a code. ``missing`` and ``rest`` are the result of
    :meth:`host.driver.command_queueing.CommandQueueing.settle`.
    """
    topology = RingTopology(len(devices))
    culprits = [(rank, event) for rank, event in enumerate(events)
                if event and event.status not in (*_BLAMELESS, *_STANDSTILL)]
    name = operation.name.lower().replace("_", "-") if isinstance(operation, Operation) else f"operation {operation}"
    if culprits:
        rank, event = culprits[0]
        return RingError(f"{name} failed: {CollectiveError(event, devices[rank].name)}", cause=rank, events=events)
    links = {link: count for link, count in enumerate(missing or ()) if count > 0}
    silent = [rank for rank, event in enumerate(events) if event is None]
    if links:
        reason = "; ".join(f"the link from node {link} to node {topology.successor(link)} has not delivered "
                           f"{count} words" for link, count in links.items())
        reason += f", and for {rest:,} cycles no word has moved"
    elif missing is None:
        reason = "words still arrived long after nodes had given up: a link is slower than TIMEOUT allows"
    elif silent:
        reason = f"node {', '.join(map(str, silent))} gave no event"
    else:
        reason = ("nodes stood still, and every word that was sent has arrived: a credit was lost, a link is slower "
                  "than TIMEOUT allows, or a node was not given the command")
    lines = [report(rank, event, devices) for rank, event in enumerate(events)]
    return RingError("\n".join([f"{name} failed: {reason}", *lines]),
                     cause=next(iter(links)) if len(links) == 1 else None, events=events)


def report(rank: int, event: Event | None, devices: Sequence[Device]) -> str:
    """Describe, in one line, the progress of a node and the neighbour it was waiting for."""
    name = devices[rank].name
    if event is None:
        fields = devices[rank].read_fields("STATUS")
        doing = ", ".join(field for field, value in fields.items() if value) or "idle"
        return f"  {name}: no event; {doing}"
    text = f"  {name}: {event.status.name} after {event.cycles} cycles"
    if event.status in _STANDSTILL:
        topology = RingTopology(len(devices))
        what, neighbour = (("a packet", topology.predecessor(rank)) if event.status is EventStatus.INGRESS_TIMEOUT
                           else ("a credit", topology.successor(rank)))
        text += (f": {event.detail & 0xffff} packets sent, {event.detail >> 16} received, waited for {what} from "
                 f"{devices[neighbour].name}")
    return text
