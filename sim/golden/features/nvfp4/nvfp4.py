"""Golden model of NVFP4: blocks of 16 E2M1 numbers with an E4M3 scale, and one tensor scale.

A number of the format is element * block scale * tensor scale. All thresholds of scales and elements are exact
binary32 numbers, so the model compares bit patterns and counts the thresholds that a magnitude reaches.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np
import numpy.typing as npt

from sim.golden import floating
from sim.golden.features.mx.block_format import BlockFormat, Blocks, Rounding
from sim.golden.features.mx.random_bits import RandomBits

__all__ = ["NVFP4"]

Bits = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]

_MAGNITUDE = 0x7FFF_FFFF
_INFINITE = 0x7F80_0000

#: Codes of the largest scale, 448, and of NaN.
_LARGEST, _NAN = 126, 127
#: E2M1 magnitudes, indexed by code, in units of 0.5.
_ELEMENTS = (0, 1, 2, 3, 4, 6, 8, 12)
#: E4M3 magnitudes, indexed by code, in units of 2 ** -9.
_SCALES = tuple((code & 7 | (code > 7) << 3) << max(code >> 3, 1) - 1 for code in range(_NAN))


def _binary32(number: int, power: int) -> int:
    """Binary32 bits of an integer of up to 24 bits times a power of two; must be zero or a normal number."""
    if not number:
        return 0
    length = number.bit_length()
    return (power + length + 126) << 23 | number << 24 - length & 0x7F_FFFF


def _steps(numbers: tuple[int, ...], factor: int, power: int) -> list[int]:
    """For each number except the first, bits of the smallest binary32 x such that x / ``factor`` rounds to it.

    Numbers are in units of 2 ** (``power`` + 1). A tie rounds to the number with an even code.
    """
    return [_binary32(factor * (low + high), power) + (1 - code % 2)
            for code, (low, high) in enumerate(itertools.pairwise(numbers))]


@functools.cache
def _tables(power: int) -> tuple[Integers, Integers, Integers]:
    """Tables of bit patterns: thresholds of scales, and for each scale, thresholds of elements and numbers."""
    scales = _steps(_SCALES, 6, power - 10)
    elements = [_steps(_ELEMENTS, scale, power - 11) for scale in _SCALES[1:]]
    numbers = [[_binary32(scale * element, power - 10) for element in _ELEMENTS] for scale in _SCALES]
    return np.array(scales), np.array([[_MAGNITUDE] * 7, *elements]), np.array(
        [*numbers, [floating.CANONICAL_NAN] * 8])


@dataclasses.dataclass(frozen=True, kw_only=True)
class NVFP4(BlockFormat):
    """NVFP4 with a tensor scale that is fixed in advance.

    The scale of a block is its largest magnitude / 6 / tensor scale, rounded to nearest even, at least 2 ** -9 and at
    most 448. An element is number / (block scale * tensor scale), rounded to nearest even, at most 6. Quotients are
    exact. A block that contains an infinity or a NaN becomes NaN, with elements of zero.
    """

    #: Power of two between 2 ** -115 and 2 ** 116, so that all numbers of the format are normal in binary32.
    tensor_scale: float = 1.0

    rounding = Rounding.NEAREST_EVEN
    seed = 1
    block = 16
    subset = 16
    exponent_bits = 8
    difference_bits = 0
    magnitude_bits = 3
    fraction_bits = 1
    top_field = 3
    complement = False

    def __post_init__(self) -> None:
        if self.tensor_scale not in [2.0 ** power for power in range(-115, 117)]:
            raise ValueError(f"Tensor scale must be a power of two between 2 ** -115 and 2 ** 116, not "
                             f"{self.tensor_scale!r}")

    @property
    def power(self) -> int:
        """Exponent of the tensor scale."""
        return math.frexp(self.tensor_scale)[1] - 1

    @property
    def nan(self) -> int:
        """Stored scale of a NaN block."""
        return _NAN

    def thresholds(self) -> tuple[Integers, Integers, Integers]:
        """Bit patterns: scale thresholds (126); for each scale, element thresholds (127, 7) and numbers (128, 8)."""
        return _tables(self.power)

    def quantise(self, bits: npt.ArrayLike, *, random: RandomBits | None = None, bf16: bool = False) -> Blocks:
        """Quantize elements to blocks, padding the last block with +0; no random bits are used."""
        values = np.asarray(bits, np.uint32)
        elements = np.zeros((-(-len(values) // self.block), self.block), np.int64)
        elements.reshape(-1)[:len(values)] = values.astype(np.int64) << (16 if bf16 else 0)
        magnitudes = elements & _MAGNITUDE
        largest = magnitudes.max(axis=1, initial=0)
        special = largest >= _INFINITE
        at_scale, at_element, _ = self.thresholds()
        scales = np.clip(np.searchsorted(at_scale, largest, side="right"), 1, _LARGEST)
        codes = elements >> 31 << 3 | (
            magnitudes[:, :, np.newaxis] >= at_element[scales][:, np.newaxis]).sum(axis=2)
        return Blocks(np.where(special, _NAN, scales), np.zeros((len(elements), 0), np.int64),
                      np.where(special[:, np.newaxis], 0, codes))

    def dequantise(self, blocks: Blocks, *, bf16: bool = False) -> Bits:
        """Decode the elements of blocks; the highest bit of a scale is ignored."""
        scales = (blocks.exponents & _NAN)[:, np.newaxis]
        numbers = self.thresholds()[2][scales, blocks.codes & 7]
        signs = np.where(scales == _NAN, 0, blocks.codes >> 3 << 31)
        elements: Bits = (signs | numbers).astype(np.uint32).reshape(-1)
        return elements >> np.uint32(16) if bf16 else elements

    def scales(self, exponents: Integers) -> tuple[Integers, Integers]:
        """Block scales as integers in units of their last place, for elements in units of 0.5."""
        field = np.maximum(exponents >> 3, 1)
        return exponents & 7 | (exponents > 7) << 3, field - 1 - 9 - 1 + self.power
