"""Policies of the maps of a chain that take the fewest cycles in the modelled timeline.

A chain of up to ten maps is searched exhaustively. Of a longer one, single maps get another policy, greedily, as long
as the step takes fewer cycles. This begins at pure plans: all maps swapped, and every so many maps kept with those in
between made again.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from host.memory.chain import Chain, Policies, Policy, Run, run

__all__ = ["EXHAUSTIVE", "KINDS", "Decision", "MapPlan", "decide", "exhaustive", "greedy"]

#: Most maps of a chain that is searched exhaustively.
EXHAUSTIVE = 10

#: Policies that a plan of a kind may have.
KINDS: Mapping[str, tuple[Policy, ...]] = MappingProxyType({
    "keep": (Policy.KEEP,), "swap": (Policy.KEEP, Policy.SWAP), "recompute": (Policy.KEEP, Policy.REMAKE),
    "mixed": tuple(Policy)})


@dataclasses.dataclass(frozen=True)
class Decision:
    """Policies, and their timeline."""

    policies: tuple[Policy, ...]
    run: Run


@dataclasses.dataclass(frozen=True)
class MapPlan:
    """Policies of the maps of a chain, within a budget.

    Parameters
    ----------
    decision : Decision
        A policy of each map, and their timeline.
    budget : int
        Largest number of words of the maps that are in the activation memory at a time.
    """

    chain: Chain
    decision: Decision
    budget: int

    def __post_init__(self) -> None:
        maps, policies, peak = len(self.chain.maps), len(self.decision.policies), self.decision.run.peak
        if maps != policies:
            raise ValueError(f"Policies must be one for each of {maps} maps, not {policies}")
        if peak > self.budget:
            raise ValueError(f"Timeline must take at most the {self.budget:,} words of the budget, not {peak:,}")


def _best(chain: Chain, candidates: Iterable[Policies], budget: int, rate: float,
          best: Decision | None = None) -> Decision | None:
    """The first of the fastest candidates that fit; one to beat may be given."""
    for policies in candidates:
        most = None if best is None else best.run.cycles
        again = sum(chain.again(number) for number, policy in enumerate(policies) if policy is Policy.REMAKE)
        if most is not None and chain.cycles + again >= most:
            continue
        found = run(chain, policies, budget=budget, rate=rate, most=most)
        if found is not None:
            best = Decision(tuple(policies), found)
    return best


def exhaustive(chain: Chain, *, budget: int, rate: float, kind: str = "mixed") -> Decision | None:
    """The fastest of all plans of a kind that fit; None if none does."""
    by_cost = sorted(itertools.product(KINDS[kind], repeat=len(chain.maps)),
                     key=lambda policies: sum(policy is not Policy.KEEP for policy in policies))
    return _best(chain, by_cost, budget, rate)


def _pure(chain: Chain, kind: str) -> Iterator[Policies]:
    """Pure plans of a kind."""
    count = len(chain.maps)
    yield [Policy.KEEP] * count
    if Policy.SWAP in KINDS[kind]:
        yield [Policy.SWAP] * count
    if Policy.REMAKE in KINDS[kind]:
        for every in range(2, count + 1):
            for first in range(every):
                yield [Policy.KEEP if number % every == first else Policy.REMAKE for number in range(count)]


def _changed(policies: Policies, allowed: Sequence[Policy]) -> Iterator[Policies]:
    """Plans that differ in a single map."""
    for number, policy in enumerate(policies):
        for other in allowed:
            if other is not policy:
                yield [*policies[:number], other, *policies[number + 1:]]


def greedy(chain: Chain, *, budget: int, rate: float, kind: str = "mixed") -> Decision | None:
    """The fastest plan that single changes of pure plans lead to; None if no pure plan fits."""
    best: Decision | None = None
    starts = [found for policies in _pure(chain, kind)
              if (found := _best(chain, [policies], budget, rate)) is not None]
    for start in starts:
        one: Decision | None = start
        while one is not None:
            best = one if best is None or one.run.cycles < best.run.cycles else best
            other = _best(chain, _changed(one.policies, KINDS[kind]), budget, rate, one)
            one = None if other is one else other
    return best


def decide(chain: Chain, *, budget: int, rate: float, kind: str = "mixed") -> Decision | None:
    """Policies of a chain: exhaustively up to :data:`EXHAUSTIVE` maps, else greedily."""
    search = exhaustive if len(chain.maps) <= EXHAUSTIVE else greedy
    return search(chain, budget=budget, rate=rate, kind=kind)
