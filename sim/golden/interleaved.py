"""Golden model of the interleaved order: two segments of a collective are on their way in turn, packet by packet.

With SR(t) and AG(t) the halves of segment t, each of N - 1 packets, the gather lags two segments behind::

    SR(0), SR(1), SR(2), AG(0), SR(3), AG(1), …, SR(T-1), AG(T-3), AG(T-2), AG(T-1)

These are taken two at a time: the first packet of the one, the first of the other, the second of the one, and so on.
So what is passed on was received two packets before, and not just before. A collective with one phase takes its
segments two at a time. AG(0) of a vector of one segment depends on all of SR(0), and comes behind it.

Sums are formed in the order of ranks in any case, so all bits are those of :mod:`sim.golden.ring`.
"""

from collections.abc import Sequence

from sim.golden import root_reduce
from sim.golden.root_reduce import GATHER, SCATTER

__all__ = ["LAG", "blockwise", "order", "waits"]

#: Segments by which the gather lags behind.
LAG = 2

#: A phase, a segment, and a step of both.
Packet = tuple[str, int, int]
#: What happens to a packet at a rank: it is sent, or has been received; with the number of the packet.
Event = tuple[str, int, int]


def order(segments: int, scatter: int, gather: int, *, both: bool | None = None) -> list[Packet]:
    """Order of all packets.

    Parameters
    ----------
    segments : int
    scatter, gather : int
        Steps in either phase, 0 in one that is left out. A participant may have others than those of the packets.
    both : bool, optional
        Whether the collective has both phases; by default it has those with steps.
    """
    both = bool(scatter and gather) if both is None else both
    steps = {SCATTER: scatter, GATHER: gather}
    phases = root_reduce.order(segments, lag=LAG) if both else [
        (phase, segment) for segment in range(segments) for phase in steps if steps[phase]]
    width = 1 if both and segments == 1 else 2
    pairs = [phases[first:first + width] for first in range(0, len(phases), width)]
    return [(phase, segment, step) for pair in pairs for step in range(max(steps.values()))
            for phase, segment in pair if step < steps[phase]]


def blockwise(segments: int, steps: int) -> list[Packet]:
    """Order of the packets of an update on nodes without the option: all steps of a segment before the next one."""
    return [(phase, segment, step) for phase, segment in root_reduce.order(segments, lag=1) for step in range(steps)]


def waits(nodes: int, segments: int, *, credits: int, room: int,
          phases: Sequence[str] = (SCATTER, GATHER)) -> dict[Event, list[Event]]:
    """Events that each event of a collective waits for, with room for ``credits`` packets in each ingress, and for
    ``room`` sums that the gather has not taken; nowhere else can a packet wait."""
    steps = nodes - 1
    packets = order(segments, *(steps if phase in phases else 0 for phase in (SCATTER, GATHER)))
    number = {packet: place for place, packet in enumerate(packets)}
    found: dict[Event, list[Event]] = {}
    for rank in range(nodes):
        before, behind = (rank - 1) % nodes, (rank + 1) % nodes
        for place, (phase, segment, step) in enumerate(packets):
            sending = found["send", rank, place] = []
            receiving = found["receive", rank, place] = [("send", before, place)]
            if place:
                sending.append(("send", rank, place - 1))
                receiving.append(("receive", rank, place - 1))
            if place >= credits:
                sending.append(("receive", behind, place - credits))
            if step:  # passed on, as it comes: when those before it have left the ingress
                source = number[phase, segment, step - 1]
                sending.append(("send", before, source))
                sending += [("receive", rank, source - 1)] if source else []
            elif phase == GATHER and SCATTER in phases:
                sending.append(("receive", rank, number[SCATTER, segment, steps - 1]))
            if step < steps - 1:  # it is through when it has been sent
                receiving.append(("send", rank, number[phase, segment, step + 1]))
            elif phase == SCATTER and GATHER in phases and segment >= room:
                receiving.append(("send", rank, number[GATHER, segment - room, 0]))
    return found
