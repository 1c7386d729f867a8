"""Elements that are 16-bit integers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.elements import ElementFormat
from host.driver.words import Vector
from sim.golden.features.int16.int16_node import from_words, to_words

__all__ = ["Int16Elements"]


class Int16Elements(ElementFormat):
    """Elements that are 16-bit integers, sign-extended to words."""

    dtype = np.int16
    integers = True

    def to_words(self, vector: Vector) -> npt.NDArray[Any]:
        if vector.dtype == np.uint32:
            return vector
        if vector.dtype != np.int16:
            raise TypeError(f"Elements of int16 nodes must be int16, not {vector.dtype}")
        return to_words(vector)

    def from_words(self, words: npt.NDArray[np.uint32]) -> Vector:
        return words.astype(np.uint16).view(np.int16)

    def stored(self, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        return to_words(from_words(words))

    def number(self, name: str, value: float, least: int, end: int) -> int:
        if not float(value).is_integer() or not least <= value < end:
            raise ValueError(f"{name} of int16 nodes must be an integer between {least} and {end - 1}, not {value!r}")
        return int(value)
