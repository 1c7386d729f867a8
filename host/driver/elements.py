"""Format of the elements in nodes' memories, as the host has them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration
from host.driver.words import Vector, Words
from host.feature import features_of

__all__ = ["ElementFormat", "element_format"]


class ElementFormat:
    """Elements that are binary32 numbers."""

    dtype: type[np.generic] = np.float32  # type of elements on the host
    integers = False  # whether registers of numbers have integers

    def to_words(self, vector: Vector) -> npt.NDArray[Any]:
        """Words of elements, in the form that the host writes."""
        return vector

    def from_words(self, words: Words) -> Vector:
        """Elements of words that the host has read."""
        return words.view(np.float32)

    def stored(self, words: Words) -> Words:
        """Words read back from a memory after these were written."""
        return words

    def number(self, name: str, value: float, least: int, end: int) -> int | float:
        """Value for a register; a format of integers checks that it is from ``least`` to below ``end``."""
        return float(np.float32(value))


def element_format(config: Configuration) -> ElementFormat:
    """Format of the elements of a node."""
    formats = (feature.elements() for feature in features_of(config))
    return next((form for form in formats if form is not None), ElementFormat())
