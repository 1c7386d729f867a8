"""Optimizers named as in ``torch.optim`` with the same defaults, and the scalars nodes need in each step.

Nodes do not know the step number: terms that depend on it are folded into scalars here, in float64, and rounded once
to binary32 when written to a register. In the formulas below, g is the mean gradient, after clipping; t is the step,
from 1; and names in capitals are registers. sim/golden/optimizer.py shows where an update uses them.

Example
-------
::

    optimizer = AdamW(learning_rate=0.01, weight_decay=0.05)
    for step in range(1, steps + 1):
        ring.settings.write(optimizer.settings(step, gradient_scale=1 / batch))
        ...
"""

import abc
import dataclasses
import enum
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from host.arguments import Argument, Flag, Items, Number, Optional, label
from host.driver.optimizer_settings import Rule, Settings
from host.training.scalars import power
from sim.golden.conversion import from_bfloat16, to_bfloat16

__all__ = ["LEARNING_RATES", "SGD", "Adam", "AdamW", "Optimizer", "OptimizerName", "create", "falls",
           "moments_note"]

#: Optimizer arguments keyed by field name; the maximum is the largest number that a node's registers can hold.
_ARGUMENTS: dict[str, Argument] = {
    **dict.fromkeys(("learning_rate", "weight_decay", "momentum", "eps"), Number(0, float(np.finfo(np.float32).max))),
    "clip": Optional(Number(0)), "dampening": Number(), "nesterov": Flag(),
    "betas": Items((Number(0, 1, below=True),) * 2, "two numbers of at least 0 and below 1"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(abc.ABC):
    """Base class of all optimizers."""

    learning_rate: float = dataclasses.field(kw_only=False)
    weight_decay: float = 0.0
    #: Maximum magnitude of an element of the mean gradient. Larger elements are clipped to it and keep their sign, as
    #: with ``torch.nn.utils.clip_grad_value_``: CLIP = clip, or infinity if it is None.
    clip: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name = "Epsilon" if field.name == "eps" else label(field.name)
            object.__setattr__(self, field.name, _ARGUMENTS[field.name].take(name, getattr(self, field.name)))

    @property
    def name(self) -> str:
        """Name of the optimizer on the command line."""
        return str(self.rule.name).lower()

    @property
    @abc.abstractmethod
    def rule(self) -> Rule: ...

    @property
    def planes(self) -> int:
        """Number of state planes that the optimizer needs."""
        return int(self.rule.planes)

    @property
    @abc.abstractmethod
    def decays(self) -> dict[str, float]:
        """Factors by which each step multiplies the optimizer's states, keyed by the state's name in messages."""

    def settings(self, step: int, *, gradient_scale: float, learning_rate: float | None = None) -> Settings:
        """Return the scalars of step ``step``, counted from 1. ``gradient_scale`` converts the summed gradient to its
        mean; ``learning_rate`` overrides the optimizer's own learning rate, for use by a schedule."""
        if step < 1:
            raise ValueError(f"Step must be at least 1, not {step!r}")
        rate = self.learning_rate if learning_rate is None else learning_rate
        base = Settings(rule=self.rule, gradient_scale=gradient_scale, learning_rate=rate,
                        clip=math.inf if self.clip is None else self.clip, weight_factor=self.weight_decay)
        return dataclasses.replace(base, **self._scalars(step, rate))

    @abc.abstractmethod
    def _scalars(self, step: int, rate: float) -> dict[str, Any]:
        """Return the scalars that are specific to the optimizer, keyed by
        :class:`~host.driver.optimizer_settings.Settings` name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, optionally with momentum: ``torch.optim.SGD``.

    - g is replaced by g + weight_decay·w: WEIGHT_FACTOR = weight_decay.
    - m' = momentum·m + (1 - dampening)·g, except m' = g in the first step: torch initializes its buffer with the
      gradient (torch/optim/sgd.py, ``_single_tensor_sgd``). FIRST_DECAY = momentum; FIRST_GAIN = 1 - dampening,
      except 1 in step 1, for which the state must be zero.
    - w' = w - learning_rate·m', or with Nesterov's momentum w - learning_rate·(g + momentum·m') (Sutskever, Martens,
      Dahl and Hinton, "On the importance of initialization and momentum in deep learning", 2013, with the learning
      rate outside of m, as in torch). LEARNING_RATE = learning_rate.

    Only FIRST_GAIN depends on the step.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    #: Whether momentum is Nesterov momentum; requires nonzero momentum and no dampening.
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(f"Nesterov's momentum must be above zero and its dampening zero, not {self.momentum!r} "
                             f"and {self.dampening!r}")

    @property
    def name(self) -> str:
        return "nesterov" if self.nesterov else super().name

    @property
    def decays(self) -> dict[str, float]:
        return {"momentum": self.momentum} if self.momentum else {}

    @property
    def rule(self) -> Rule:
        return Rule.MOMENTUM if self.momentum else Rule.SGD

    def _scalars(self, step: int, rate: float) -> dict[str, Any]:
        if not self.momentum:
            return {}
        return {"first_decay": self.momentum, "first_gain": 1.0 if step == 1 else 1 - self.dampening,
                "nesterov": self.nesterov}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adaptive moment estimation: ``torch.optim.Adam`` (Kingma and Ba, "Adam: a method for stochastic optimization",
    2015, algorithm 1).

    - g is replaced by g + weight_decay·w: WEIGHT_FACTOR = weight_decay.
    - m' = b1·m + (1 - b1)·g and v' = b2·v + (1 - b2)·g²: FIRST_DECAY = b1, FIRST_GAIN = 1 - b1, SECOND_DECAY = b2,
      SECOND_GAIN = 1 - b2.
    - w' = w - lr·(m' / (1 - b1^t)) / (sqrt(v' / (1 - b2^t)) + eps). With numerator and denominator multiplied by
      sqrt(1 - b2^t), as at the end of section 2 of the paper, this is w - LEARNING_RATE·m' / (sqrt(v') + EPSILON),
      where LEARNING_RATE = lr·sqrt(1 - b2^t) / (1 - b1^t) and EPSILON = eps·sqrt(1 - b2^t).

    LEARNING_RATE and EPSILON depend on the step.
    """

    learning_rate: float = dataclasses.field(default=1e-3, kw_only=False)
    #: Decay rates b1 and b2 of the moments.
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    rule = Rule.ADAM

    @property
    def decays(self) -> dict[str, float]:
        return dict(zip(("b1", "b2"), self.betas, strict=True))

    def _scalars(self, step: int, rate: float) -> dict[str, Any]:
        first, second = self.betas
        correction = math.sqrt(1 - power(second, step))
        return {"learning_rate": rate * correction / (1 - power(first, step)), "epsilon": self.eps * correction,
                "first_decay": first, "first_gain": 1 - first, "second_decay": second, "second_gain": 1 - second}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: ``torch.optim.AdamW`` (Loshchilov and Hutter, "Decoupled weight decay
    regularization", 2019, algorithm 2, with the decay multiplied by the learning rate, as in torch).

    Like :class:`Adam`, but g stays unchanged, and the step starts from (1 - lr·weight_decay)·w instead of w:
    WEIGHT_FACTOR = 1 - lr·weight_decay, with the learning rate of this step before bias correction.
    """

    weight_decay: float = 1e-2
    rule = Rule.ADAMW

    def _scalars(self, step: int, rate: float) -> dict[str, Any]:
        return {**super()._scalars(step, rate), "weight_factor": 1 - rate * self.weight_decay}


def falls(decay: float) -> bool:
    """Whether multiplying by a binary32 factor decreases every bfloat16 number after rounding to bfloat16.

    A number with significand s, from 1 to 2, has neighbours at a distance of 2^-7, and decreases if s·(1 - decay) is
    more than half of this distance, 2^-8; a tie decreases it if s is odd. The smallest significand that can stay is 1
    + 2^-7, since the neighbour below 1 is at half the distance. So every number decreases if 1 - decay is at least
    1/258, which is 2^-8 / (1 + 2^-7), and none if 1 - decay is below 2^-9. The function tries all 128 significands.
    """
    numbers = np.arange(128, 256, dtype=np.float32)
    products = (numbers * np.float32(decay)).view(np.uint32)
    return bool((from_bfloat16(to_bfloat16(products)).view(np.float32) < numbers).all())


def moments_note(optimizers: Iterable[Optimizer], *, packed_state: bool) -> str | None:
    """Return a warning if moments stored as bfloat16 (``packed_state``) would stop decaying, else None."""
    stay = {f"{name} = {decay:g}": None for optimizer in optimizers for name, decay in optimizer.decays.items()
            if packed_state and decay < 1 and not falls(decay)}
    if not stay:
        return None
    return (f"moments as bfloat16 stop decaying with {', '.join(stay)}: a step takes less than half of their last "
            f"bit from them; store them as fp32, or take at most 0.996")


class OptimizerName(enum.Enum):
    """Optimizers. The values are their names on the command line."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    NESTEROV = "nesterov"
    ADAM = "adam"
    ADAMW = "adamw"


#: Default initial learning rates for training the digits classifier.
LEARNING_RATES = {OptimizerName.SGD: 1.2, OptimizerName.MOMENTUM: 0.5, OptimizerName.NESTEROV: 0.5,
                  OptimizerName.ADAM: 0.055, OptimizerName.ADAMW: 0.05}


def create(name: OptimizerName, *, learning_rate: float | None = None, momentum: float = 0.9,
           dampening: float = 0.0, weight_decay: float | None = None, clip: float | None = None) -> Optimizer:
    """Create the optimizer with this name. The default learning rate is from :data:`LEARNING_RATES`; weight decay and
    clip default to the class's. ``momentum`` affects only the optimizers momentum and nesterov, ``dampening`` only
    momentum."""
    options: dict[str, Any] = {
        "learning_rate": LEARNING_RATES[name] if learning_rate is None else learning_rate, "clip": clip}
    if weight_decay is not None:
        options["weight_decay"] = weight_decay
    if dampening and name is not OptimizerName.MOMENTUM:
        raise ValueError(f"Optimizer with dampening must be momentum, not {name.value}")
    if name in (OptimizerName.MOMENTUM, OptimizerName.NESTEROV):
        if not momentum:
            raise ValueError(f"Momentum of optimizer {name.value} must not be zero: take sgd")
        return SGD(**options, momentum=momentum, dampening=dampening, nesterov=name is OptimizerName.NESTEROV)
    kinds: dict[OptimizerName, type[Optimizer]] = {
        OptimizerName.SGD: SGD, OptimizerName.ADAM: Adam, OptimizerName.ADAMW: AdamW}
    return kinds[name](**options)
