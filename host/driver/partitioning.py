"""Measured link rates of a ring, and the partition of vectors that is fastest at these rates.

Example
-------
::

    rates = link_rates(ring)  # [1.0, 1.0, 0.5, 1.0]
    partitioning = choose(ring, length, rates)
    ring.partition.set_root(partitioning.root)  # 2
"""

import dataclasses
from collections.abc import Sequence

from host.driver.memory import Buffer
from host.driver.results import known
from host.driver.ring import Ring
from sim.golden.ring import PACKET_OVERHEAD
from sim.golden.ring_cycles import best_owner

__all__ = ["MIN_GAIN", "Partitioning", "choose", "link_rates"]

#: Minimum fraction of the modelled cycles that a different partition must save to be chosen.
MIN_GAIN = 0.05

#: Lengths of the two broadcasts from each root, in segments; subtracting their cycles cancels the overhead.
_SEGMENTS = 4, 12

#: Links count as equally fast if their costs per word differ by less than this factor.
_ALIKE = 1.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partitioning:
    """A partition of vectors, and the measurements that led to it."""

    root: int | None  # rank that owns every group; None if each rank owns one block
    rates: tuple[float, ...]  # rate of the link from each rank, in words per cycle
    # modelled cycles of a fused update, keyed by root (None: one block per rank)
    cycles: dict[int | None, float]

    @property
    def gain(self) -> float:
        """Fraction of the modelled cycles that the chosen partition saves."""
        return 1 - self.cycles[self.root] / self.cycles[None]

    def __str__(self) -> str:
        slowest = min(range(len(self.rates)), key=lambda rank: self.rates[rank])
        text = f"slowest link: from rank {slowest}, {self.rates[slowest]:.2f} words per cycle; groups "
        if self.root is None:
            return text + "in turn"
        return f"{text}of rank {self.root} alone, {self.gain:.0%} fewer cycles by the model"


def link_rates(ring: Ring) -> tuple[float, ...]:
    """Measure the rate of each rank's link with broadcasts, which overwrite weights at the start of memory.

    A broadcast uses every link except the one into its root, and is limited by the slowest link that it uses. The
    fastest broadcast is therefore from the root that the slowest link leads to; any other broadcast measures the
    slowest link. The fastest one measures the second slowest link; its rate is returned for all other links.
    """
    if ring.nodes < 2:
        return (1.0,) * ring.nodes
    room = min(device.config.memories.weight for device in ring.devices)
    short, long = (min(segments * ring.formats.segment, room) for segments in _SEGMENTS)
    if short == long:
        raise ValueError(f"Weight memory must have room for more than {short:,} elements for links to be measured, "
                         f"not for {room:,}")
    words = (long - short) * (1 + PACKET_OVERHEAD / ring.formats.segment)
    costs = []
    for root in range(ring.nodes):
        cycles = [known(ring.collectives.broadcast(Buffer("weights", 0, length), root=root).cycles)
                  for length in (short, long)]
        costs.append(max((cycles[1] - cycles[0]) / words, 1.0))
    fastest, slowest = min(costs), max(costs)
    rates = [1 / fastest] * ring.nodes
    if slowest > _ALIKE * fastest:
        rates[(costs.index(fastest) - 1) % ring.nodes] = 1 / slowest
    return tuple(rates)


def choose(ring: Ring, length: int, rates: Sequence[float], *, planes: int = 0, latency: int = 16) -> Partitioning:
    """Choose the partition with the fewest modelled cycles, if it saves at least :data:`MIN_GAIN`.

    The link from each rank carries ``rates[rank]`` words per cycle; ``latency`` is the link latency in cycles. A rank
    that owns every group must have enough memory for the optimizer's state ``planes``.
    """
    config = ring.devices[0].config
    if ring.nodes < 2:
        return Partitioning(root=None, rates=tuple(rates), cycles={None: 0.0})
    best, cycles = best_owner(length, ring.nodes, rates=rates, min_gain=MIN_GAIN, latency=latency,
                              segment=ring.formats.segment, credits=config.link.ingress,
                              update_rate=config.optimizer.lanes / config.optimizer.interval)
    has_state = planes or ring.formats.has_master
    has_room = min(device.config.memories.state for device in ring.devices) >= length or not has_state
    root = best if config.role.root_reduce and has_room else None
    return Partitioning(root=root, rates=tuple(rates), cycles=cycles)
