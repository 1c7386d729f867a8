"""Estimate a program's time on a target from runs on a machine throttled to the same proportions.

Machine e executes the program, and machine t is the target. Both have a rate for each part: words per cycle for a
link, elements per cycle for a memory, programs per cycle for compute. Throttles can only slow e down, so the ratio of
its rates to the rates of t is

    alpha = min(e_i / t_i),

and part i of e is throttled to alpha * t_i. Latencies in cycles are the same as t's and are not scaled. A run at
these rates takes time T1, which includes a constant that does not depend on the rates. A second run, with all rates
halved again, takes T2. The two runs separate the constant, since T(s) = a + b * s for rates s times slower than t's:

    T = alpha * (T2 - T1) + 2 * T1 - T2.

Estimating alpha * T1 would assume a = 0. Sources: US 2020/0065214 A1 (performance of a target from an execution
system with metrics throttled to one ratio); its formula alpha * T1 is corrected here. US 10,453,167 B2 (only the
ratio of compute to link, emulated by delays of transfers) is the case in which e and t differ only in compute.
"""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

__all__ = ["FULL", "Throttled", "estimate", "throttled"]

FULL = 1 << 16  # period of a throttle in cycles


@dataclasses.dataclass(frozen=True)
class Throttled:
    """Rates of the execution machine, throttled to the same proportions as the target's rates."""

    alpha: Fraction
    shares: dict[str, Fraction]  # fraction of the full rate, keyed by part: above 0, and 1 for at least one part

    def registers(self, *, slower: int = 1) -> dict[str, int]:
        """Return in how many of 65,536 cycles each part works, at 1 / ``slower`` of its rate; 0 means unthrottled."""
        return {metric: _register(metric, share / slower) for metric, share in self.shares.items()}


def _register(metric: str, share: Fraction) -> int:
    if share < Fraction(1, FULL):
        raise ValueError(f"Throttle of {metric} must be at least 1 of {FULL:,} cycles, not "
                         f"{float(share * FULL):.3g}: the target is too far from the execution machine")
    return round(share * FULL) % FULL


def throttled(execution: Mapping[str, Fraction], target: Mapping[str, Fraction]) -> Throttled:
    """Choose the throttled rates of the execution machine for a target. Raises ``ValueError`` if a rate is not
    positive or would fall below one cycle in 65,536 even in the second run, or if the machines' parts differ."""
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
    """Compute the time on the target from the times at the throttled rates and at half of them."""
    return float(alpha) * (second - first) + 2 * first - second
