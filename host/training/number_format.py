"""Conversion between a model's numbers and the elements in the nodes' memories."""

import dataclasses
from collections.abc import Sequence

from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import VectorRing
from host.driver.words import Vector
from host.feature import features_of
from host.models.layers import Array
from host.training.optimizers import Optimizer

__all__ = ["Elements", "elements_of"]


class Elements:
    """Conversion for nodes with binary32 elements, which are the same as the model's numbers."""

    #: Whether the weights on the nodes are exactly equal to the model's parameters.
    exact = True

    def weights(self, parameters: Array) -> Vector:
        """Convert the model's parameters to elements of the nodes."""
        return parameters

    def parameters(self, weights: Vector) -> Array:
        """Return the model's parameters that correspond to weights of the nodes."""
        return weights

    def gradients(self, gradients: Sequence[Array]) -> list[Vector]:
        """Convert gradients, one array per node, to elements; raise ``ValueError`` if they are not representable."""
        return list(gradients)

    def settings(self, optimizer: Optimizer, step: int, *, count: int, learning_rate: float,
                 packed_state: bool) -> Settings | FixedSettings:
        """Return the optimizer settings for a step with gradients summed over ``count`` examples."""
        settings = optimizer.settings(step, gradient_scale=1 / count, learning_rate=learning_rate)
        return dataclasses.replace(settings, packed_state=packed_state)

    def threshold(self, threshold: float) -> tuple[float, float]:
        """Convert a threshold to the unit of the nodes' gradients; return it in this and in the model's unit."""
        return threshold, threshold


def elements_of(ring: VectorRing, optimizer: Optimizer, count: int) -> Elements:
    """Return the number conversion for a run on this ring whose largest batch has ``count`` examples."""
    forms = (feature.number_format(optimizer, count) for feature in features_of(ring.config))
    return next((form for form in forms if form is not None), Elements())
