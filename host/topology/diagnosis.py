"""Diagnosis of a failed collective on rings of a grid, from the events of its nodes.

Counters of words are those of a node, not of its ports, so they do not tell one link from another. Events do. A node
that waits for a packet has taken all that have come, and its event says how many. It is the first to give up, so that
the others have its ABORT. And no ABORT comes over a link that is cut, so that the node behind it waits for one until
TIMEOUT has passed a second time.
"""

from collections.abc import Sequence

from hdl.control.protocol import EventStatus
from host.driver.command import Event
from host.driver.results import known
from host.topology.grid import Plan

__all__ = ["broken_links", "link_name"]

_STANDSTILL = (EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT)


def broken_links(plan: Plan, events: dict[int, Event], *, ring: int, timeout: int) -> list[tuple[int, int, str]]:
    """Links that are to blame: their ends as nodes of the grid, and what is known of them.

    Parameters
    ----------
    events : dict
        Events of nodes, by their numbers in the grid.
    ring : int
        Number of the rings that the collective was on.
    timeout : int
        Cycles without a word after which a node has given the command up.
    """
    found = []
    for members in _rings(plan, ring):
        ended = [known(events[node].cycles) for node in members if node in events]
        told = sum(node in events and events[node].status is EventStatus.PEER_ABORT for node in members)
        for place, node in enumerate(members):
            before = members[place - 1]
            event, other = events.get(node), events.get(before)
            if event is None or event.status is not EventStatus.INGRESS_TIMEOUT:
                continue
            missing = 0
            if other is not None and other.status in _STANDSTILL:
                missing = (other.detail - (event.detail >> 16)) % (1 << 16)
            waited_twice = known(event.cycles) - min(ended) > timeout // 2
            if 0 < missing < 1 << 15:
                found.append((before, node, f"has not delivered {missing} packet{'s' if missing > 1 else ''}"))
            elif told == len(members) - 1 or waited_twice:
                found.append((before, node, f"has not delivered what node {node} waited for"))
    return found


def link_name(plan: Plan, before: int, node: int, *, ring: int) -> str:
    """Name of a link by the ports at both ends."""
    source, target = (plan.settings[end].seats[ring] for end in (before, node))
    assert source is not None
    assert target is not None
    return f"the link from port {source.sends} of node {before} to port {target.receives} of node {node}"


def _rings(plan: Plan, ring: int) -> Sequence[tuple[int, ...]]:
    """Rings of a plan that commands with this number are on."""
    def seated(members: tuple[int, ...]) -> bool:
        seats = [plan.settings[node].seats[ring] for node in members]
        return len(members) > 1 and all(seat is not None and (seat.rank, seat.size) == (rank, len(members))
                                        for rank, seat in enumerate(seats))

    return [members for members in plan.rings if seated(members)]
