"""Golden model of a job: what the nodes must hold, and what each command must cost.

Vectors are arrays of the whole job; an operation works on the elements at ``places``.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from host.driver.optimizer_settings import Settings

if TYPE_CHECKING:
    from sim.golden.ring import Traffic

__all__ = ["JobModel", "Places"]

Words = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]


class JobModel:
    """Weights, masters, state, errors and residuals of a job, as bit patterns.

    Parameters
    ----------
    nodes, length, planes : int
        Ring size, elements of the job's vector, and state planes of its optimizer.
    packed_state : bool
        Whether state is stored as bfloat16.
    """

    def __init__(self, config: NodeConfig, *, nodes: int, length: int, planes: int, packed_state: bool) -> None:
        from sim.golden import masking
        from sim.golden import ring as golden
        from sim.golden.codecs import CODECS

        self._golden, self._masking = golden, masking
        self._shape = {"segment": int(config.segment), "lanes": int(config.lanes)}
        self._weight_codec, self._gradient_codec = CODECS[config.weights.codec], CODECS[config.gradients]
        self._nodes, self._packed = nodes, packed_state
        self.weights = np.zeros(length, np.uint32)
        self.master = self.weights.copy()
        self.state = [self.weights.copy() for _ in range(planes)]
        self.errors = np.zeros((nodes, length), np.uint32)
        self.residuals = np.zeros((nodes, length), np.uint32) if config.has_residual else None

    def load(self, weights: Words, places: Places, *, fresh: bool) -> None:
        """Go on with other weights at some places, without residuals; ``fresh`` without state and errors, too."""
        self.master[places] = weights
        self.weights[places] = self._golden.distribute(weights, self._nodes, weight_codec=self._weight_codec,
                                                       segment=self._shape["segment"])
        if self.residuals is not None:
            self.residuals[:, places] = 0
        if fresh:
            self.errors[:, places] = 0
            for plane in self.state:
                plane[places] = 0

    def sparsify(self, gradients: Words, places: Places, threshold: float) -> tuple[Words, list[int]]:
        """Gradients that nodes send, and the number of elements that each has dropped."""
        kept, self.errors[:, places] = self._masking.sparsify(
            gradients, self.errors[:, places], int(self._golden.bits([threshold])[0]))
        return kept, [kept.shape[1] - int(count) for count in np.count_nonzero(kept, axis=1)]

    def all_reduce(self, gradients: Words, places: Places | None) -> tuple[Words, "Traffic"]:
        """Sum of gradients, with the residuals at some places, or with none."""
        residuals = None
        if self.residuals is not None:
            residuals = np.zeros_like(gradients) if places is None else self.residuals[:, places]
        total, traffic = self._golden.all_reduce(gradients, gradient_codec=self._gradient_codec,
                                                 residuals=residuals, **self._shape)
        if self.residuals is not None and residuals is not None and places is not None:
            self.residuals[:, places] = residuals
        return total, traffic

    def update(self, gradients: Words, places: Places, settings: Settings) -> "Traffic":
        """Fused update of some elements, which are a vector to the nodes."""
        numbers = dataclasses.asdict(settings)
        packed_state = numbers.pop("packed_state")
        residuals = None if self.residuals is None else self.residuals[:, places]
        update = self._golden.fused_update(
            gradients, self.master[places], [plane[places] for plane in self.state],
            self._golden.settings(**numbers), packed_state=packed_state, weight_codec=self._weight_codec,
            gradient_codec=self._gradient_codec, residuals=residuals, **self._shape)
        self.weights[places], self.master[places] = update.weights, update.master
        for plane, new in zip(self.state, update.state, strict=True):
            plane[places] = new
        if self.residuals is not None and residuals is not None:
            self.residuals[:, places] = residuals
        return update.traffic
