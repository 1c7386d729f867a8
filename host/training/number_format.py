"""Conversion between numbers of the model and elements of the nodes' memories."""

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
    """Conversion where both are binary32."""

    #: Whether weights of nodes equal the parameters.
    exact = True

    def weights(self, parameters: Array) -> Vector:
        """Elements of parameters."""
        return parameters

    def parameters(self, weights: Vector) -> Array:
        """Parameters that the model computes with while nodes have these weights."""
        return weights

    def gradients(self, gradients: Sequence[Array]) -> list[Vector]:
        """Elements of gradients, one array per node; ``ValueError`` for numbers that the format does not have."""
        return list(gradients)

    def settings(self, optimizer: Optimizer, step: int, *, count: int, learning_rate: float,
                 packed_state: bool) -> Settings | FixedSettings:
        """The scalars of a step with gradients summed over ``count`` examples."""
        settings = optimizer.settings(step, gradient_scale=1 / count, learning_rate=learning_rate)
        return dataclasses.replace(settings, packed_state=packed_state)

    def threshold(self, threshold: float) -> tuple[float, float]:
        """A threshold in units of the nodes' gradients, and its value in units of the model's."""
        return threshold, threshold


def elements_of(ring: VectorRing, optimizer: Optimizer, count: int) -> Elements:
    """The conversion of a run on this ring, with ``count`` examples in its largest batch."""
    forms = (feature.number_format(optimizer, count) for feature in features_of(ring.config))
    return next((form for form in forms if form is not None), Elements())
