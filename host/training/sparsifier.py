"""Sparse gradients in training: nodes select the elements to send, and the golden model verifies them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import GRADIENT_CODECS
from host.driver.protocols import TrainingRing
from host.driver.results import Cycles
from host.driver.words import Vector
from host.training.comparison import names
from host.training.number_format import Elements
from host.training.record import DivergenceError, TrainingConfig
from host.training.reference import Reference
from host.training.scalars import exponential, logarithm, power

__all__ = ["STATE", "Sparsifier", "Threshold", "check_zeros"]


class Sparsifier:
    """Sparsification on the nodes, with element counts that are compared with the golden model."""

    def __init__(self, ring: TrainingRing, reference: Reference, form: Elements, config: TrainingConfig, steps: int):
        self._ring, self._reference, self._form, self._check = ring, reference, form, config.check
        self._controller = None if config.density is None else Threshold(
            density=config.density, nodes=reference.equivalent_nodes, steps=steps)
        #: Total number of elements that nodes have not sent so far.
        self.dropped = 0
        #: Threshold of the last step, and the number of cycles that its sparsification took.
        self.threshold: float | None = None
        self.cycles: Cycles = 0

    def __call__(self, number: int, gradients: Sequence[Vector]) -> Sequence[Vector]:
        """Sparsify the gradients in the nodes' memories; return the gradients that the nodes will send."""
        if self._controller is None:
            return gradients
        threshold, self.threshold = self._form.threshold(self._controller.choose(gradients))
        outcome = self._ring.local.sparsify(self._reference.weights.size, threshold=threshold)
        dropped, self.cycles = sum(outcome.dropped), outcome.cycles
        self._controller.observe(dropped)
        self.dropped += dropped
        sent, expected = self._reference.sparsify(gradients, threshold)
        if self._check and outcome.dropped != expected:
            raise DivergenceError(f"Step {number}: nodes have dropped {names(outcome.dropped)} elements, and must "
                                  f"have dropped {names(expected)}")
        return sent

    def state(self) -> dict[str, Any]:
        """Return the counts so far, and the state that determines later thresholds."""
        return {"dropped": self.dropped, "threshold": self.threshold, "cycles": self.cycles,
                "controller": None if self._controller is None else self._controller.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.dropped, self.threshold, self.cycles = state["dropped"], state["threshold"], state["cycles"]
        if self._controller is not None:
            self._controller.restore(state["controller"])

    def succeed(self, state: dict[str, Any]) -> None:
        """Continue on these nodes from a state that was saved for a different set of nodes."""
        self.restore(state)
        if self._controller is not None:
            self._controller.succeed(state["controller"])


_SMALLEST, _LARGEST = float(np.finfo(np.float32).smallest_normal), float(np.finfo(np.float32).max)

STATE = ("_step", "_elements", "_aim", "_ahead", "_left", "_threshold")


def check_zeros(gradients: str) -> None:
    """Raise ``ValueError`` if zeros do not make the codec's gradient packets smaller."""
    if not GRADIENT_CODECS[gradients].drops_zeros:
        names = " or ".join(name for name, codec in GRADIENT_CODECS.items() if codec.drops_zeros)
        raise ValueError(f"Codec of gradients with a density must be {names}, not {gradients}: zeros do not make its "
                         f"packets shorter; leave out the density or the codec")


class Threshold:
    """Controller for the sparsification threshold in each step of a run.

    Hop h of scatter-reduce sends sums of elements kept by h nodes. Their density is at most h times a node's density,
    so the mean over the N - 1 hops is at most N / 2 times a node's density, however much the nodes overlap. A node
    may therefore keep the fraction m = ``2 * density / nodes`` of its elements, on average over the run.

    A node keeps more elements at the beginning, when weights change fast, and fewer afterwards. If x is the fraction
    of the run that has passed in the middle of a step, the fraction of elements to keep is ::

        target(x) = last * decay ** max(0, 1 - x / ramp),  last = m / (ramp * (decay - 1) / log(decay) + 1 - ramp)

    It decreases from ``decay * last`` to ``last`` within the first ``ramp`` of the run. Its mean is m, or less if it
    would exceed 1 and is limited to 1.

    Steps that keep more elements than their targets are compensated by all later steps. If left is the remainder of
    the sum of all targets, and ahead is the sum of the targets of this and all later steps, a step aims at ::

        t = target * min(max(left / ahead, 1 / limit), 1)

    The first threshold is a quantile of all nodes' gradients: a fraction t of magnitudes is at least as large. After
    that, if nodes have kept a fraction d of their elements in a step, ::

        threshold' = threshold * min(exp(gain * (d / t - 1)), limit)

    where the factor is at least exp(-gain), since d is at least 0. Unless the limit is reached, the sum of d / t - 1
    over all steps is log(last threshold / first threshold) / gain. It does not grow with the number of steps, so the
    mean of d / t approaches 1 in a long run, for any first threshold.

    In a run of unknown length, the target and the aim of each step are m.

    Parameters
    ----------
    density : float
        Density of gradients sent, averaged over hops and steps: above 0 and at most 1.
    nodes : float
        Number of nodes in the ring; in two dimensions, number of nodes in a ring with the same mean over its hops.
    steps : int or None
        Number of steps of the run; None if it is unknown.
    decay : float
        Ratio of the first target to the last, at least 1.
    ramp, gain : float
        Fraction of the run with decreasing targets, and gain of the controller; each above 0 and at most 1.
    limit : float
        Limit on the growth of a threshold in a step, and on the reduction of a target; above 1.
    """

    def __init__(self, *, density: float, nodes: float, steps: int | None, decay: float = 8.0, ramp: float = 0.6,
                 gain: float = 0.3, limit: float = 2.0) -> None:
        for name, value in (("Density", density), ("Ramp", ramp), ("Gain", gain)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {value!r}")
        for name, count in (("Node", nodes), ("Step", steps)):
            if count is not None and count < 1:
                raise ValueError(f"{name} count must be at least 1, not {count!r}")
        if not 1 <= decay < math.inf:
            raise ValueError(f"Decay must be a finite number of at least 1, not {decay!r}")
        if not 1 < limit < math.inf:
            raise ValueError(f"Limit must be a finite number above 1, not {limit!r}")
        self._steps, self._ramp, self._gain, self._limit = steps, ramp, gain, limit
        self._decay = decay = 1.0 if steps is None else decay
        mean = ramp * (decay - 1) / logarithm(decay) + 1 - ramp if decay > 1 else 1.0
        self._last = 2 * density / nodes / mean
        self._step = 0
        self._elements = 0  # total number of elements on all nodes
        self._aim = 0.0
        self._ahead = self._left = sum(self.target(step) for step in range(1, (steps or 0) + 1))
        self._threshold: float | None = None

    def target(self, step: int) -> float:
        """Return the fraction of elements that a node should keep in step ``step``, counted from 1."""
        if self._steps is None:
            return min(self._last, 1.0)
        over = (step - 0.5) / self._steps
        return min(self._last * power(self._decay, max(0.0, 1 - over / self._ramp)), 1.0)

    def choose(self, gradients: Sequence[npt.NDArray[np.float32]]) -> float:
        """Return the next step's threshold, a positive binary32 number. The gradients affect it only up to the first
        step with nonzero, finite values."""
        self._step += 1
        target = self.target(self._step)
        owed = 1.0 if self._steps is None else self._left / max(self._ahead, target)
        self._aim = target * min(max(owed, 1 / self._limit), 1.0)
        self._ahead -= target
        self._elements = sum(gradient.size for gradient in gradients)
        if self._threshold is None:
            magnitudes = np.abs(np.concatenate(gradients).astype(np.float64))
            magnitudes = magnitudes[np.isfinite(magnitudes)]
            if magnitudes.any():
                # Keep the required fraction of elements, but at least one element, and no zeros.
                index = min(math.ceil(len(magnitudes) * (1 - self._aim)), len(magnitudes) - 1)
                index = max(index, int(np.count_nonzero(magnitudes == 0)))
                self._threshold = max(float(np.partition(magnitudes, index)[index]), _SMALLEST)
        return _SMALLEST if self._threshold is None else float(np.float32(self._threshold))

    def observe(self, dropped: int) -> None:
        """Record the total number of elements that all nodes dropped in this step."""
        if not 0 <= dropped <= self._elements:
            raise ValueError(f"Dropped elements must be at most {self._elements}, not {dropped!r}")
        density = 1 - dropped / self._elements if self._elements else 0.0
        self._left -= density
        if self._threshold is not None:
            exponent = min(self._gain * (density / self._aim - 1), logarithm(self._limit))
            self._threshold = min(max(self._threshold * exponential(exponent), _SMALLEST), _LARGEST)

    def state(self) -> dict[str, Any]:
        """Return the state that later thresholds depend on."""
        return {name: vars(self)[name] for name in STATE}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state saved by a controller with the same parameters."""
        vars(self).update(state)

    def succeed(self, state: dict[str, Any]) -> None:
        """Continue from a controller's state for a different number of nodes, but keep this controller's targets."""
        ahead, left = state["_ahead"], state["_left"]
        self.restore(state)
        if self._steps is not None:
            self._ahead = sum(self.target(step) for step in range(self._step + 1, self._steps + 1))
            self._left = self._ahead * left / ahead
