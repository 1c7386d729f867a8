"""Small model of the ring's protocol, used to search for deadlocks.

The model counts packets and ignores their values. Every node sends and receives in the static order of a fused
update, SR(0), SR(1), AG(0), SR(2), AG(1), …, where SR(t) and AG(t) are the scatter-reduce and the all-gather of
segment t of every block. A forwarded packet leaves the ingress while it enters the link to the successor, so its
space is freed only when the whole packet has passed. A packet that ends at this node needs either a gradient bank of
the optimizer or no resource at all. Freed space is returned as a credit for one whole packet.

Many rings are stepped together, each with its own start times, stall rates and stalls. In each step, every possible
event happens with the probability of its link or node; a ring without a possible event is deadlocked.
"""

import dataclasses
import enum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kind", "Outcome", "Ring", "order", "simulate"]


class Kind(enum.IntEnum):
    """Source of a sent packet, or destination of a received packet."""

    MEMORY = 0
    """To or from a memory, without waiting."""
    FORWARD = 1
    """From the ingress to the egress."""
    OPTIMIZER = 2
    """Into a gradient bank of the optimizer, or new weights from the optimizer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring:
    """Parameters of the protocol model.

    Parameters
    ----------
    nodes : int
        Number of nodes, at least 2.
    segments : int
        Number of segments per block, at least 1.
    packet_words : int
        Number of words of the longest packet.
    ingress_words : int
        Capacity of a node's ingress in words; at least one packet.
    banks : int
        Number of segments that the optimizer can hold.
    """

    nodes: int
    segments: int
    packet_words: int
    ingress_words: int
    banks: int = 2

    def __post_init__(self) -> None:
        if self.nodes < 2:
            raise ValueError(f"Node count must be at least 2, not {self.nodes!r}")
        if self.segments < 1:
            raise ValueError(f"Segment count must be at least 1, not {self.segments!r}")
        if self.credits < 1:
            raise ValueError(f"Ingress must hold a packet of {self.packet_words} words, not {self.ingress_words!r}")

    @property
    def credits(self) -> int:
        """Maximum number of packets in flight to a node or in its ingress; credits count whole packets."""
        return self.ingress_words // self.packet_words


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of each simulated ring.

    Parameters
    ----------
    finished : array of bool
        Whether all packets were sent and received.
    deadlocked : array of bool
        Whether no further event is possible although not all packets were sent and received.
    steps : int
        Number of steps until the last ring finished or got stuck.
    """

    finished: NDArray[np.bool_]
    deadlocked: NDArray[np.bool_]
    steps: int


def order(ring: Ring) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List the kind of each packet that a node sends, and of each packet that it receives, in order.

    A phase has ``nodes - 1`` packets. Packet k + 1 of a phase is packet k of the predecessor, forwarded.
    """
    forwards = [Kind.FORWARD] * (ring.nodes - 2)
    phases: list[tuple[list[Kind], list[Kind]]] = []
    for segment in range(ring.segments + 1):
        if segment < ring.segments:  # SR(t)
            phases.append(([Kind.MEMORY, *forwards], [*forwards, Kind.OPTIMIZER]))
        if segment > 0:  # AG(t - 1)
            phases.append(([Kind.OPTIMIZER, *forwards], [*forwards, Kind.MEMORY]))
    sent = np.array([kind for sent, _ in phases for kind in sent], dtype=np.int64)
    received = np.array([kind for _, received in phases for kind in received], dtype=np.int64)
    return sent, received


def simulate(ring: Ring, *, count: int, seed: int) -> Outcome:
    """Step ``count`` independent rings until each has finished or is stuck."""
    generator = np.random.default_rng(seed)
    sent_kind, received_kind = order(ring)
    packets = len(sent_kind)
    # Append an entry for the state after the last packet.
    sent_kind = np.append(sent_kind, Kind.MEMORY)
    received_kind = np.append(received_kind, Kind.MEMORY)
    # Number of packets from the optimizer among the first k packets sent, and to the optimizer among the first k
    # received, for each k.
    updates = np.concatenate([[0], np.cumsum(sent_kind == Kind.OPTIMIZER)])
    bursts = np.concatenate([[0], np.cumsum(received_kind == Kind.OPTIMIZER)])

    shape = (count, ring.nodes)
    begun, ended = np.zeros(shape, np.int64), np.zeros(shape, np.int64)  # packets sent
    heads, tails = np.zeros(shape, np.int64), np.zeros(shape, np.int64)  # packets arrived
    consumed = np.zeros(shape, np.int64)  # packets that have left the ingress
    returned = np.zeros(shape, np.int64)  # credits that have been returned to the sender
    awake_at = generator.integers(0, 400, size=shape)
    rates = generator.uniform(0.05, 1.0, size=(6, *shape)).astype(np.float32)

    step = 0
    while True:
        awake = step >= awake_at
        kind = sent_kind[begun]
        due = begun - 1  # the packet to be forwarded
        source = np.where(
            kind == Kind.FORWARD, (consumed == due) & (heads > due), updates[begun] < bursts[consumed]
        ) | (kind == Kind.MEMORY)
        may_begin = awake & (begun == ended) & (begun < packets) & source & (begun - returned < ring.credits)

        forwarding = sent_kind[ended] == Kind.FORWARD
        may_end = awake & (begun > ended) & (~forwarding | (tails >= ended))

        into = received_kind[consumed]
        room = (into == Kind.MEMORY) | ((into == Kind.OPTIMIZER) & (bursts[consumed] - updates[ended] < ring.banks))
        may_keep = awake & (consumed < tails) & room

        may_head = heads < np.roll(begun, 1, axis=1)
        may_tail = tails < np.minimum(np.roll(ended, 1, axis=1), heads)
        may_return = returned < np.roll(consumed, -1, axis=1)

        possible = np.stack([may_begin, may_end, may_keep, may_head, may_tail, may_return])
        finished = ((ended == packets) & (consumed == packets)).all(axis=1)
        stuck = ~possible.any(axis=(0, 2)) & awake.all(axis=1)
        if (finished | stuck).all():
            return Outcome(finished=finished, deadlocked=stuck & ~finished, steps=step)

        happens = possible & (generator.random(possible.shape, dtype=np.float32) < rates)
        begun += happens[0]
        ended += happens[1]
        consumed += (happens[1] & forwarding) | happens[2]
        heads += happens[3]
        tails += happens[4]
        returned += happens[5]
        step += 1
