"""Golden state of a run on the int16 node."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.words import Vector
from host.training.reference import Part, Places, Reference, words_of
from sim.golden import masking
from sim.golden.features.int16 import int16_node
from sim.golden.ring import Traffic

__all__ = ["IntegerReference"]

Bits = npt.NDArray[np.uint32]


class IntegerReference(Reference):
    """Golden model of a training run on the int16 node."""

    counter = "COMPRESSED_WORDS"
    #: A node without a link compresses the elements that it keeps: as at the only hop of two nodes.
    equivalent_nodes = 2.0

    def __init__(self, weights: Vector):
        self._masking = masking
        self.has_master = False
        self.master = self.weights = words_of(weights)
        self.state = []
        self.errors = np.zeros((1, weights.size), dtype=np.uint32)
        self.residuals = None

    def sparsify(self, gradients: Sequence[Vector], threshold: float, places: Places = slice(None)) -> (
            tuple[list[Vector], list[int]]):
        gradient, = gradients
        kept = int16_node.sparsify(gradient, int16_node.from_words(self.errors[0]), int(threshold))
        self.errors = int16_node.to_words(kept.errors)[np.newaxis]
        return [kept.gradients.astype(np.int16)], [kept.dropped]

    def step(self, gradients: Sequence[Vector], settings: Settings | FixedSettings,
             parts: Sequence[Part] | None = None, places: Places = slice(None)) -> Traffic:
        gradient, = gradients
        update = int16_node.update(gradient, int16_node.from_words(self.weights),
                                      gradient_scale=int(settings.gradient_scale),
                                      learning_rate=int(settings.learning_rate))
        self.master = self.weights = int16_node.to_words(update.weights)
        return Traffic(
            scatter_words=np.array([[update.words]]), gather_words=np.zeros((0, 1), np.int64),
            dense_words=-(-gradient.size // 2), density=np.array([np.count_nonzero(gradient) / gradient.size]),
            scatter_bound=0, bound=0, gather_elements=0, gather_payload=0)

    def _pattern(self, number: float) -> Bits:
        return int16_node.to_words([int(number)])
