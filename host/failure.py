"""What a failed collective of a ring tells its user: which node or link is to blame, and what each node did."""

from collections.abc import Sequence

from hdl.control.protocol import EventStatus, Operation
from host.command import Event
from host.device import Device
from host.errors import DeviceError

__all__ = ["RingError", "explain", "report"]

_BLAMELESS = (EventStatus.OK, EventStatus.PEER_ABORT, EventStatus.LINK_RESET)
_STANDSTILL = (EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT)


class RingError(Exception):
    """A collective failed on at least one node.

    Members
    -------
    cause : int or None
        The node that failed first, as opposed to those that gave up because another did; None where no single node
        can be blamed.
    events : list of Event or None
        That of each node; None from a node that gave none.
    """

    def __init__(self, message: str, *, cause: int | None, events: list[Event | None]):
        super().__init__(message)
        self.cause = cause
        self.events = events


def explain(operation: Operation, events: list[Event | None], *, devices: Sequence[Device],
            lost: Sequence[int]) -> RingError:
    """The error of a failed command, by its root cause.

    Parameters
    ----------
    operation : Operation
    events : list of Event or None
        That of each node, in order of rank; None from a node that gave none.
    devices : sequence of Device
    lost : sequence of int
        Words that each link has lost, that of node r to the next one at index r.
    """
    nodes = len(devices)
    failed = [(rank, event) for rank, event in enumerate(events) if event and event.status not in _BLAMELESS]
    culprits = [(rank, event) for rank, event in failed if event.status not in _STANDSTILL]
    name = operation.name.lower().replace("_", "-")
    silent = [rank for rank, event in enumerate(events) if event is None]
    if culprits:
        rank, event = culprits[0]
        try:
            event.check(devices[rank].name)
        except DeviceError as error:
            return RingError(f"{name} failed: {error}", cause=rank, events=events)
    cut = [link for link, count in enumerate(lost) if count]
    cause = None
    if cut:
        reason = "; ".join(f"the link from node {link} to node {(link + 1) % nodes} has lost {lost[link]} words"
                           for link in cut)
        cause = cut[0] if len(cut) == 1 else None
    elif silent:
        reason = f"node {', '.join(map(str, silent))} gave no event, and no word moves"
    elif failed:
        rank, event = failed[0]
        towards = rank - 1 if event.status is EventStatus.INGRESS_TIMEOUT else rank
        cause = rank
        reason = (f"no words or no credits came through the link from node {towards % nodes} to node "
                  f"{(towards + 1) % nodes}")
    else:
        reason = "nodes gave up, and none says why"
    lines = [report(rank, event, devices) for rank, event in enumerate(events)]
    return RingError("\n".join([f"{name} failed: {reason}", *lines]), cause=cause, events=events)


def report(rank: int, event: Event | None, devices: Sequence[Device]) -> str:
    """What a node did, and whom it waited for, in one line."""
    name = devices[rank].name
    if event is None:
        fields = devices[rank].read_fields("STATUS")
        doing = ", ".join(field for field, value in fields.items() if value) or "idle"
        return f"  {name}: no event; {doing}"
    text = f"  {name}: {event.status.name} after {event.cycles} cycles"
    if event.status in _STANDSTILL:
        neighbour = rank - 1 if event.status is EventStatus.INGRESS_TIMEOUT else rank + 1
        what = "a packet from" if event.status is EventStatus.INGRESS_TIMEOUT else "a credit from"
        text += (f": {event.detail & 0xffff} packets sent, {event.detail >> 16} received, waited for {what} "
                 f"{devices[neighbour % len(devices)].name}")
    return text
