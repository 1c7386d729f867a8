"""Time of a program on another machine, from runs on one that is throttled to the same proportions.

Machine e runs the program, machine t is the target. Both have a rate for each of their parts: words per cycle of a
link, elements per cycle of a memory, the program per cycle of compute. Throttles can only slow e, so the ratio of its
rates to the rates of t is

    alpha = min(e_i / t_i),

and part i of e is throttled to alpha * t_i. Latencies are t's own, in cycles: they are not scaled. A run at these
rates takes T1, with a constant that does not depend on them. A second run, with every rate halved again, takes T2 and
separates the constant, since T(s) = a + b * s for rates s times slower than t's:

    T = alpha * (T2 - T1) + 2 * T1 - T2.

alpha * T1 on its own assumes a = 0. Source: US 2020/0065214 A1 (performance on a target from an execution system with
metrics throttled to one ratio); this corrects its form alpha * T1. US 10,453,167 B2 (only the ratio of compute to
link, emulated by delays of transfers) is the case where e and t differ only in compute.
"""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

__all__ = ["FULL", "Throttled", "estimate", "throttled"]

FULL = 1 << 16  # cycles that a rate of a throttle counts in


@dataclasses.dataclass(frozen=True)
class Throttled:
    """Rates of the execution machine in one ratio to the target's."""

    alpha: Fraction
    shares: dict[str, Fraction]  # rate of each part, of its full rate: more than 0, and 1 for at least one

    def registers(self, *, slower: int = 1) -> dict[str, int]:
        """Working cycles of each part in 65,536, ``slower`` times slower; 0 does not throttle."""
        return {metric: _register(metric, share / slower) for metric, share in self.shares.items()}


def _register(metric: str, share: Fraction) -> int:
    if share < Fraction(1, FULL):
        raise ValueError(f"Throttle of {metric} must be at least 1 of {FULL:,} cycles, not "
                         f"{float(share * FULL):.3g}: the target is too far from the execution machine")
    return round(share * FULL) % FULL


def throttled(execution: Mapping[str, Fraction], target: Mapping[str, Fraction]) -> Throttled:
    """Rates that the execution machine is throttled to; ``ValueError`` if a rate is not positive, or would be less
    than one cycle of 65,536 even in the second run, or the machines have rates of different parts."""
    if execution.keys() != target.keys() or not execution:
        raise ValueError(f"Machines must have rates of the same parts, not {', '.join(execution) or 'none'} and "
                         f"{', '.join(target) or 'none'}")
    for name, rates in (("the execution machine", execution), ("the target", target)):
        for metric, rate in rates.items():
            if rate <= 0:
                raise ValueError(f"Rate {metric} of {name} must be positive, not {rate}")
    alpha = min(execution[metric] / target[metric] for metric in execution)
    result = Throttled(alpha, {metric: alpha * target[metric] / rate for metric, rate in execution.items()})
    result.registers(slower=2)
    return result


def estimate(alpha: Fraction, first: float, second: float) -> float:
    """Time on the target, from the times at the throttled rates and with every rate halved again."""
    return float(alpha) * (second - first) + 2 * first - second
