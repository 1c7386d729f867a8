"""Golden model of the interleaved order: packets of two segments of a collective alternate.

With SR(t) and AG(t) as the halves of segment t, each of N - 1 packets, the gather lags by two segments::

    SR(0), SR(1), SR(2), AG(0), SR(3), AG(1), …, SR(T-1), AG(T-3), AG(T-2), AG(T-1)

These halves are sent in pairs with alternating packets: first packet of one half, first packet of the other half,
second packet of the first half, and so on. A forwarded packet has thus been received two packets earlier rather than
one. In a collective with only one phase, a pair consists of two segments. AG(0) of a single-segment vector depends on
all of SR(0) and comes after it.

The order of summation does not change, so results are bit-identical to :mod:`sim.golden.ring`.
"""

from collections.abc import Sequence

from sim.golden import root_reduce
from sim.golden.root_reduce import GATHER, SCATTER

__all__ = ["LAG", "blockwise", "order", "waits"]

#: Number of segments by which the all-gather lags the scatter-reduce.
LAG = 2

#: Packet of a collective: phase, segment and step.
Packet = tuple[str, int, int]
#: Event of a packet at a rank: ``send`` or ``receive``, the rank, and the index of the packet.
Event = tuple[str, int, int]


def order(segments: int, scatter: int, gather: int, *, both: bool | None = None) -> list[Packet]:
    """Order of all packets in a collective.

    Parameters
    ----------
    segments : int
    scatter, gather : int
        Number of steps in each phase, or 0 for none. A participant may have fewer steps than there are packets.
    both : bool, optional
        Whether the collective has both phases; by default, whether both have steps.
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
    """Packet order of an update on nodes without interleaving: all steps of one segment, then the next."""
    return [(phase, segment, step) for phase, segment in root_reduce.order(segments, lag=1) for step in range(steps)]


def waits(nodes: int, segments: int, *, credits: int, room: int,
          phases: Sequence[str] = (SCATTER, GATHER)) -> dict[Event, list[Event]]:
    """Map each event of a collective to the events that it waits for. Each ingress holds up to ``credits`` packets,
    and up to ``room`` sums can wait for the all-gather. Packets wait nowhere else."""
    steps = nodes - 1
    packets = order(segments, *(steps if phase in phases else 0 for phase in (SCATTER, GATHER)))
    number = {packet: index for index, packet in enumerate(packets)}
    result: dict[Event, list[Event]] = {}
    for rank in range(nodes):
        previous, following = (rank - 1) % nodes, (rank + 1) % nodes
        for index, (phase, segment, step) in enumerate(packets):
            sending = result["send", rank, index] = []
            receiving = result["receive", rank, index] = [("send", previous, index)]
            if index:
                sending.append(("send", rank, index - 1))
                receiving.append(("receive", rank, index - 1))
            if index >= credits:
                sending.append(("receive", following, index - credits))
            if step:  # a packet is forwarded when it arrives and earlier packets have left the ingress
                source = number[phase, segment, step - 1]
                sending.append(("send", previous, source))
                sending += [("receive", rank, source - 1)] if source else []
            elif phase == GATHER and SCATTER in phases:
                sending.append(("receive", rank, number[SCATTER, segment, steps - 1]))
            if step < steps - 1:  # a forwarded packet leaves the ingress when it is sent
                receiving.append(("send", rank, number[phase, segment, step + 1]))
            elif phase == SCATTER and GATHER in phases and segment >= room:
                receiving.append(("send", rank, number[GATHER, segment - room, 0]))
    return result
