"""Format of the elements in the nodes' memories, as the host sees it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration
from host.driver.words import Vector, Words
from host.feature import features_of

__all__ = ["ElementFormat", "element_format"]


class ElementFormat:
    """Format of elements that are binary32 numbers."""

    dtype: type[np.generic] = np.float32  # type of elements on the host
    integers = False  # whether numbers in registers are integers

    def to_words(self, vector: Vector) -> npt.NDArray[Any]:
        """Convert elements to the words that the host writes."""
        return vector

    def from_words(self, words: Words) -> Vector:
        """Convert words read by the host to elements."""
        return words.view(np.float32)

    def stored(self, words: Words) -> Words:
        """Words that are read from a memory after ``words`` have been written to it."""
        return words

    def number(self, name: str, value: float, least: int, end: int) -> int | float:
        """Return the value for a register; integer formats check that it is at least ``least`` and below ``end``."""
        return float(np.float32(value))


def element_format(config: Configuration) -> ElementFormat:
    """Element format of a node."""
    formats = (feature.elements() for feature in features_of(config))
    return next((form for form in formats if form is not None), ElementFormat())
