"""Format of the elements in nodes' memories, as the host has them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration
from host.driver.words import Vector
from host.feature import features_of

__all__ = ["ElementFormat", "element_format"]


class ElementFormat:
    """Elements that are binary32 numbers.

    Members
    -------
    dtype : type
        Type of elements on the host.
    integers : bool
        Whether registers of numbers have integers.
    """

    dtype: type[np.generic] = np.float32
    integers = False

    def to_words(self, vector: Vector) -> npt.NDArray[Any]:
        """Words of elements, in the form that the host writes."""
        return vector

    def from_words(self, words: npt.NDArray[np.uint32]) -> Vector:
        """Elements of words that the host has read."""
        return words.view(np.float32)

    def stored(self, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Words that are read from a memory to which these were written."""
        return words

    def number(self, name: str, value: float, least: int, end: int) -> int | float:
        """Value for a register; ``name`` and the range from ``least`` to below ``end`` are for a format of
        integers."""
        return float(np.float32(value))


_BINARY32 = ElementFormat()


def element_format(config: Configuration) -> ElementFormat:
    """Format of the elements of a node."""
    formats = [feature.elements() for feature in features_of(config)]
    return next((found for found in formats if found is not None), _BINARY32)
