"""Codebooks of a training run, on the nodes and in the golden model."""

from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.codebooks import codebook
from host.driver.protocols import VectorRing
from host.models.layers import Array
from host.training.reference import Reference

__all__ = ["Codebooks"]


class Codebooks:
    """Codebooks of nodes and of the golden model, if the weight codec has any."""

    def __init__(self, ring: VectorRing, interval: int):
        self._ring = ring
        self._interval = interval
        #: Centroids that the nodes have.
        self.centroids: npt.NDArray[np.uint32] | None = None
        #: Words that all nodes were given for the step to come, or for the first weights.
        self.words = 0

    def load(self, weights: Array) -> None:
        """Make a codebook of weights, and give it to the nodes."""
        self.centroids = codebook(self._ring.formats.weight_codec, weights)
        self.words = self._ring.memory.write_codebook(self.centroids)

    def refresh(self, number: int, reference: Reference) -> int:
        """Make a codebook of the masters before a step if one is due, and return the words that nodes were given
        since the step before."""
        if self.centroids is None:
            return 0
        if number > 1:
            self.words = 0
            if (number - 1) % self._interval == 0:
                self.load(self._ring.memory.read_master(reference.weights.size))
                reference.bind(self.centroids)
        return self.words

    def move(self, state: dict[str, Any]) -> None:
        """Go on with the codebook of other nodes, and give it to these."""
        self.centroids, self.words = state["centroids"], state["words"]
        if self.centroids is not None:
            self._ring.memory.write_codebook(self.centroids)

    def state(self) -> dict[str, Any]:
        """The codebook and the words."""
        return {"centroids": self.centroids, "words": self.words}

    def restore(self, state: dict[str, Any], reference: Reference) -> None:
        """Go back or on to another codebook, which is not written to the nodes here."""
        self.centroids, self.words = state["centroids"], state["words"]
        if self.centroids is not None:
            reference.bind(self.centroids)
