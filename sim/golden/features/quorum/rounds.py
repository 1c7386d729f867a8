"""Golden model of quorum rounds: gradient sets, each node's contribution, and the status of each set.

A set is the gradient of one node, tagged with the round that it was computed for. A round closes when a quorum of its
sets is present, or at a deadline. Sets that are missing by then are late: they are dropped, or added to a later round
with a weight in sixteenths. docs/ring/quorum.md gives the rules. :class:`Closer` needs the cycles when sets are
ready; :class:`QuorumRounds` follows the masks of each round, which events report.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import floating

__all__ = ["AGES", "ONE", "SCALES", "Close", "Closer", "Ledger", "QuorumRounds", "apply_late", "scale_table",
           "stale_weights"]

#: Weight, in sixteenths, of a gradient set that is on time.
ONE = 16
#: Maximum age, in rounds, of a gradient set with a nonzero weight.
AGES = 15
#: Number of entries in the scale table.
SCALES = 512
#: Maximum number of gradient sets that a node keeps.
SLOTS = 2

Bits = npt.NDArray[np.uint32]


def stale_weights(factor: float, *, ages: int = AGES) -> tuple[int, ...]:
    """Weights in sixteenths for ages 1 to 15: ``factor`` to the power of the age, rounded half to even.

    Sets older than ``ages`` rounds have weight 0.
    """
    if not 0 <= factor <= 1:
        raise ValueError(f"Factor of late gradients must be between 0 and 1, not {factor!r}")
    if not 0 <= ages <= AGES:
        raise ValueError(f"Largest age of late gradients must be between 0 and {AGES}, not {ages!r}")
    return tuple(round(ONE * factor ** age) if age <= ages else 0 for age in range(1, AGES + 1))


def weight_of(age: int, weights: Sequence[int]) -> int:
    """Weight of a gradient set that is ``age`` rounds late; 0 for a set that is on time or too old."""
    return weights[age - 1] if 1 <= age <= AGES else 0


def scale_table(scale: float) -> Bits:
    """Scales of gradient sums, indexed by the divisor in sixteenths: ``scale`` · 16 / index in binary32.

    Entry 0 stands for 512 sixteenths: 16 nodes, each with one set on time and one late set of full weight.
    """
    divisors = np.arange(SCALES, dtype=np.float64)
    divisors[0] = SCALES
    return np.asarray(float(np.float32(scale)) * ONE / divisors, dtype=np.float32).view(np.uint32)


def apply_late(fresh: Bits | None, late: Bits, weight: int) -> Bits:
    """Add a late gradient to a node's contribution; both the weighted gradient and the sum are rounded."""
    factor = np.float32(weight / ONE).view(np.uint32)
    product = floating.multiply(late, np.full_like(late, factor))
    return floating.add(np.zeros_like(late) if fresh is None else fresh, product)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Close:
    """Outcome of a closed quorum round."""

    tag: int  # number of the round
    #: Masks of the nodes with a set on time, and of the nodes with a late set.
    on_time: int
    late: int
    index: int  # sum of the weights in sixteenths, modulo 512

    @property
    def detail(self) -> int:
        """Detail that the event of an APPLY_LATE command reports for this round."""
        return self.on_time | self.late << 16


def _late_tag(tags: Sequence[int], tag: int, weights: Sequence[int]) -> int | None:
    """Tag of the oldest late gradient set that still has a weight in a round; None if there is none."""
    return min((other for other in tags if weight_of(tag - other, weights)), default=None)


def _forgotten(tags: Sequence[int], tag: int, weights: Sequence[int]) -> list[int]:
    """Tags of the gradient sets that are dropped when a round closes."""
    return [other for other in tags if other < tag and not weight_of(tag - other, weights)]


class Closer:
    """Timing model of rank 0, which closes a round when a quorum of gradient sets is on time or, if the deadline is
    not 0, ``deadline`` cycles after the round's first set. :func:`stale_weights` gives the weights."""

    def __init__(self, *, nodes: int, quorum: int, deadline: int = 0, weights: Sequence[int]) -> None:
        self.nodes, self.quorum, self.deadline = nodes, quorum, deadline
        self.weights = tuple(weights)
        self._known: dict[tuple[int, int], int] = {}  # cycle when rank 0 is notified of a set, keyed by node and tag

    def ready(self, node: int, tag: int, cycle: int) -> None:
        """Record the cycle when rank 0 is notified of a gradient set."""
        self._known[node, tag] = cycle

    def time(self, tag: int, opened: int) -> int | None:
        """Return the cycle when a round closes, or None if unknown. Rank 0 has waited for it since ``opened``.

        The deadline starts once rank 0 waits for the round and at least one of the round's sets is known to it.
        """
        times = sorted(cycle for (_, other), cycle in self._known.items() if other == tag)
        candidates = [max(times[self.quorum - 1], opened)] if len(times) >= self.quorum else []
        if self.deadline and times:
            candidates.append(max(times[0], opened) + self.deadline)
        return min(candidates, default=None)

    def close(self, tag: int, cycle: int) -> Close:
        """Close a round with the gradient sets known in this cycle."""
        on_time = late = index = 0
        for node in range(self.nodes):
            tags = [other for (source, other), since in self._known.items() if source == node and since <= cycle]
            gone = _forgotten(tags, tag, self.weights)
            if tag in tags:
                on_time |= 1 << node
                index += ONE
                gone.append(tag)
            old = _late_tag(tags, tag, self.weights)
            if old is not None:
                late |= 1 << node
                index += weight_of(tag - old, self.weights)
                gone.append(old)
            for other in gone:
                del self._known[node, other]
        return Close(tag=tag, on_time=on_time, late=late, index=index % SCALES)


@dataclasses.dataclass
class Ledger:
    """Gradient sets of a node, grouped by status, as counts and as exact integer sums of their elements.

    Elements are summed as multiples of the smallest subnormal number, so sums are not rounded. Each computed element
    is applied, applied late, dropped or pending. Sets applied late count in full, regardless of their weight.
    """

    length: int
    counts: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(
        ("computed", "applied", "applied_late", "dropped"), 0))
    sums: dict[str, list[int]] = dataclasses.field(default_factory=dict)

    def add(self, status: str, gradient: Bits) -> None:
        """Add a gradient set to the counts and sums of a status."""
        self.counts[status] += 1
        before = self.sums.setdefault(status, [0] * self.length)
        self.sums[status] = [value + exact for value, exact in zip(before, _exact(gradient), strict=True)]

    def balance(self, pending: Sequence[Bits]) -> tuple[int, list[int]]:
        """Number of gradients without a status, and sums of their elements; all zero if none is missing."""
        counts = self.counts
        left = counts["computed"] - counts["applied"] - counts["applied_late"] - counts["dropped"] - len(pending)
        zeros = [0] * self.length
        away = [self.sums.get(status, zeros) for status in ("applied", "applied_late", "dropped")]
        away += [_exact(gradient) for gradient in pending]
        computed = self.sums.get("computed", zeros)
        return left, [value - sum(rest) for value, *rest in zip(computed, *away, strict=True)]


def _exact(gradient: Bits) -> list[int]:
    """Return finite elements as multiples of the smallest subnormal number."""
    return [int(value * 2.0 ** 149) if abs(value) < 2.0 ** 800 else 0
            for value in gradient.view(np.float32).astype(np.float64).tolist()]


class QuorumRounds:
    """Gradient sets of ``length`` elements on all nodes, as selected by the masks of quorum rounds.
    :func:`stale_weights` gives the weights."""

    def __init__(self, *, nodes: int, length: int, weights: Sequence[int]) -> None:
        self.nodes, self.length = nodes, length
        self.weights = tuple(weights)
        self.closed: int | None = None  # number of the latest closed round
        self.ledgers = [Ledger(length) for _ in range(nodes)]  # counts and sums of gradient sets, one ledger per node
        self.ages: dict[int, int] = {}  # age of the late set in the latest closed round, keyed by node
        self._sets: list[dict[int, Bits]] = [{} for _ in range(nodes)]

    def ready(self, node: int, tag: int, gradient: npt.NDArray[np.generic]) -> None:
        """Record a set that a node has computed or that was restored in a resumed run.

        A set that is too late to have a weight in the latest closed round is dropped immediately. A set may
        therefore be recorded after its round was closed, but not after a round that uses the set was closed.
        """
        sets = self._sets[node]
        if tag in sets:
            raise ValueError(f"Node {node} must have one set of round {tag}, not two")
        bits = np.ascontiguousarray(gradient, dtype=np.float32).view(np.uint32) if gradient.dtype.kind == "f" else (
            np.asarray(gradient, dtype=np.uint32))
        self.ledgers[node].add("computed", bits)
        if self.closed is not None and _forgotten([tag], self.closed, self.weights):
            self.ledgers[node].add("dropped", bits)
        else:
            sets[tag] = bits

    def pending(self, node: int) -> dict[int, Bits]:
        """Return a node's gradient sets that have no status yet, keyed by tag, for a checkpoint."""
        return dict(sorted(self._sets[node].items()))

    def close(self, closed: Close) -> list[Bits]:
        """Close a round and return the contribution of each node to the ring's sum. Raises ``ValueError`` if a set
        in the masks is missing, or if the round's index is not the sum of the weights of its sets."""
        tag, index = closed.tag, 0
        parts, ages = [], {}
        for node, (sets, ledger) in enumerate(zip(self._sets, self.ledgers, strict=True)):
            fresh = late = None
            weight = 0
            if closed.on_time >> node & 1:
                if tag not in sets:
                    raise ValueError(f"Node {node} must have a set of round {tag} to be in time")
                fresh = sets.pop(tag)
                ledger.add("applied", fresh)
                index += ONE
            if closed.late >> node & 1:
                old = _late_tag(list(sets), tag, self.weights)
                if old is None:
                    raise ValueError(f"Node {node} must have a late set in round {tag}")
                late, weight = sets.pop(old), weight_of(tag - old, self.weights)
                ages[node] = tag - old
                ledger.add("applied_late", late)
                index += weight
            for old in _forgotten(list(sets), tag, self.weights):
                ledger.add("dropped", sets.pop(old))
            zeros = np.zeros(self.length, np.uint32)
            parts.append(apply_late(fresh, late, weight) if late is not None else zeros if fresh is None else fresh)
        if index % SCALES != closed.index:
            raise ValueError(f"Index of round {tag} must be {index % SCALES}, not {closed.index}")
        self.closed, self.ages = tag, ages
        return parts

    def late_tag(self, node: int, tag: int) -> int | None:
        """Tag of the late gradient set that a node applies in round ``tag``; None if there is none."""
        return _late_tag(list(self._sets[node]), tag, self.weights)

    def index(self, tag: int, on_time: int, late: int) -> int:
        """Index into the scale table for a round with these masks. It is computed because events do not report it."""
        total = ONE * on_time.bit_count()
        for node in range(self.nodes):
            if late >> node & 1:
                old = _late_tag(list(self._sets[node]), tag, self.weights)
                total += 0 if old is None else weight_of(tag - old, self.weights)
        return total % SCALES
