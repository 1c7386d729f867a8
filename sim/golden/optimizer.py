"""Golden model of the streamed optimizer: the values of every update and the cycle of every transfer.

Values are ``uint32`` bit patterns of binary32 numbers; every operation rounds once, to nearest even, and every NaN is
the canonical one. An update computes, from the sum s of the gradients and the weight w, with the names of
:class:`Settings`:

- g = limit(gradient_scale * s), to -clip … clip; then, except for ADAMW, and if weight_factor is not zero,
  g + weight_factor * w;
- SGD: d = g;
- MOMENTUM: m' = first_decay * m + first_gain * g; d = m', or with ``nesterov`` d = first_decay * m' + g;
- ADAM, ADAMW: m' = first_decay * m + first_gain * g; v' = second_decay * v + (second_gain * g) * g;
  d = m' / (sqrt(v') + epsilon);
- w' = w - learning_rate * d, with weight_factor * w in place of w for ADAMW.

The sum over workers is a balanced tree: neighbours are added, and an unpaired last worker moves up unchanged.

Cycles follow from recurrences over beats. A beat moves in the first cycle when nothing blocks it:

- an input beat is accepted when its source offers it and its buffer has a bank that is not full;
- a burst's first beat enters when its command is at the head of the queue and all its operands are buffered;
- each further beat enters at least one cycle later, when every result queue can reserve a row for it, and only in
  cycles that are multiples of the interval;
- a bank is free again, and a reserved row is returned, one cycle after it has been drained.

:data:`NEVER` stands for a cycle that never comes.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sim.golden.floating import CANONICAL_NAN, add, divide, multiply, square_root

__all__ = ["Arithmetic", "Bits", "Floats", "Rule", "Scalars", "Settings", "SharedFloats", "limit", "reduce", "update"]

Bits = npt.NDArray[np.uint32]

_SIGN = np.uint32(1 << 31)

_ONE = 0x3F80_0000

_INFINITY = 0x7F80_0000


class Rule(enum.IntEnum):
    """Rule that computes a new weight from its gradient."""

    SGD = 0
    MOMENTUM = 1
    ADAM = 2
    ADAMW = 3

    @property
    def planes(self) -> int:
        """Number of state planes that the rule reads and writes."""
        return {Rule.SGD: 0, Rule.MOMENTUM: 1}.get(self, 2)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Scalars of an update as bit patterns; only :func:`update` also accepts arrays.

    Scalars that the rule does not use have no effect. ``clip`` must not be negative; infinity disables clipping.
    """

    rule: Rule
    gradient_scale: int | Bits
    learning_rate: int | Bits
    clip: int | Bits = _INFINITY
    weight_factor: int | Bits = 0
    first_decay: int | Bits = 0
    first_gain: int | Bits = _ONE
    second_decay: int | Bits = 0
    second_gain: int | Bits = 0
    epsilon: int | Bits = 0
    nesterov: bool | npt.NDArray[np.bool_] = False

    @property
    def planes(self) -> int:
        """Number of state planes that the rule reads and writes."""
        return self.rule.planes


def limit(values: Bits, magnitude: int | Bits) -> Bits:
    """Limit the magnitude of values but keep their signs; a NaN stays a NaN.

    The sign of ``magnitude`` is ignored.
    """
    absolute, most = values & ~_SIGN, np.asarray(magnitude, dtype=np.uint32) & ~_SIGN
    limited = np.where(absolute > most, values & _SIGN | most, values)
    return np.where(absolute > _INFINITY, CANONICAL_NAN, limited).astype(np.uint32)


def reduce(gradients: npt.ArrayLike) -> Bits:
    """Sum over the first axis, in the order of the hardware's adder tree."""
    level: list[Bits] = list(np.asarray(gradients, dtype=np.uint32))
    while len(level) > 1:
        sums = [add(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        level = sums + level[len(sums) * 2:]
    return level[0]


def update(total: Bits, weights: Bits, state: Sequence[Bits], settings: Settings) -> tuple[Bits, list[Bits]]:
    """Compute new weights and state; planes that the rule does not use are unchanged."""
    rule, new_state = settings.rule, list(state)
    gradient = limit(multiply(settings.gradient_scale, total), settings.clip)
    decayed = multiply(settings.weight_factor, weights)
    if rule != Rule.ADAMW:
        without = (np.asarray(settings.weight_factor, dtype=np.uint32) & ~_SIGN) == 0
        gradient = np.where(without, gradient, add(gradient, decayed))
    step = gradient
    if rule != Rule.SGD:
        step = new_state[0] = add(multiply(settings.first_decay, state[0]), multiply(settings.first_gain, gradient))
    if rule == Rule.MOMENTUM:
        step = np.where(settings.nesterov, add(multiply(settings.first_decay, step), gradient), step)
    elif rule in (Rule.ADAM, Rule.ADAMW):
        square = multiply(multiply(settings.second_gain, gradient), gradient)
        new_state[1] = add(multiply(settings.second_decay, state[1]), square)
        step = divide(step, add(square_root(new_state[1]), settings.epsilon))
    start = decayed if rule == Rule.ADAMW else weights
    return add(start, multiply(settings.learning_rate, step) ^ _SIGN), new_state


class Scalars(Protocol):
    """Settings of an optimizer, for one kind of arithmetic."""

    @property
    def planes(self) -> int:
        """Number of state planes that the rule reads and writes."""


class Arithmetic(Protocol):
    """Values of an update in one number format, and latencies; elements are bit patterns.

    Members
    -------
    planes : int
        Number of state planes that the rules need.
    level : int
        Latency in cycles of one level of the summation tree.
    weight : int
        Latency in cycles from the sum to the use of the weight.
    state, new_state : tuple of int
        Latency in cycles from the sum to the use of each plane's state, and to its new state.
    latency : int
        Latency in cycles from the sum to the new weight.
    """

    @property
    def planes(self) -> int: ...
    @property
    def weight(self) -> int: ...
    @property
    def state(self) -> tuple[int, ...]: ...
    @property
    def new_state(self) -> tuple[int, ...]: ...
    @property
    def latency(self) -> int: ...

    def summing(self, workers: int) -> int:
        """Latency in cycles from the gradients of ``workers`` workers to their sum."""

    def reduce(self, gradients: Bits) -> Bits:
        """Sum over the first axis, at full width."""

    def finite(self, total: Bits) -> npt.NDArray[np.bool_]:
        """Whether each sum is finite."""

    def update(self, total: Bits, weights: Bits, state: Sequence[Bits], settings: Any) -> tuple[Bits, list[Bits]]:
        """Compute new weights and new state."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Floats:
    """Binary32 arithmetic for a given set of rules.

    Parameters
    ----------
    rules : tuple of Rule
    adder, multiplier, limiter, root, divider : int
        Latencies in cycles.
    """

    rules: tuple[Rule, ...] = tuple(Rule)
    adder: int = 7
    multiplier: int = 6
    limiter: int = 2
    root: int = 21
    divider: int = 23

    @property
    def planes(self) -> int:
        return max(rule.planes for rule in self.rules)

    @property
    def weight(self) -> int:
        return self.limiter  # chosen so that weight * factor is ready together with the limited gradient

    @property
    def state(self) -> tuple[int, ...]:
        gradient = self.multiplier + self.limiter + self.adder
        return (gradient, gradient + self.multiplier + self.adder)[:self.planes]

    @property
    def new_state(self) -> tuple[int, ...]:
        return tuple(cycle + self.multiplier + self.adder for cycle in self.state)

    @property
    def latency(self) -> int:
        # One multiplication and one addition each for weight decay, for each moment or for momentum and its
        # look-ahead, and for the weight.
        passes = 4 if self.planes else 2
        adaptive = self.root + self.adder + self.divider if self.planes == 2 else 0
        return self.limiter + passes * (self.multiplier + self.adder) + adaptive

    def summing(self, workers: int) -> int:
        return self.adder * (workers - 1).bit_length()

    def reduce(self, gradients: Bits) -> Bits:
        return reduce(gradients)

    def finite(self, total: Bits) -> npt.NDArray[np.bool_]:
        return np.asarray((total >> np.uint32(23) & np.uint32(0xFF)) != 0xFF)

    def update(self, total: Bits, weights: Bits, state: Sequence[Bits],
               settings: Settings) -> tuple[Bits, list[Bits]]:
        return update(total, weights, state, settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedFloats(Floats):
    """Binary32 arithmetic with shared units. A timetable determines when each unit is used, and thus all latencies.

    Parameters
    ----------
    sum_at, weight_at, latency_of_all : int
        Latency in cycles from the gradients to their sum, to the use of the weight, and to the new weight.
    state_at, new_state_at : tuple of int
        Latency in cycles from the gradients to the use of each plane's state, and to its new state.
    """

    sum_at: int
    weight_at: int
    state_at: tuple[int, ...]
    new_state_at: tuple[int, ...]
    latency_of_all: int

    @property
    def weight(self) -> int:
        return self.weight_at - self.sum_at

    @property
    def state(self) -> tuple[int, ...]:
        return tuple(cycle - self.sum_at for cycle in self.state_at)

    @property
    def new_state(self) -> tuple[int, ...]:
        return tuple(cycle - self.sum_at for cycle in self.new_state_at)

    @property
    def latency(self) -> int:
        return self.latency_of_all - self.sum_at

    def summing(self, workers: int) -> int:
        return self.sum_at
