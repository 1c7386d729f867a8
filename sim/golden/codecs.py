"""Golden models of the codecs that weights and gradients can go through; mirrors :mod:`hdl.compression.codecs`.

Every one has ``words(count)``, ``encode(elements)`` and ``decode(words, count)``, on bit patterns of binary32.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hdl.compression import codecs as gateware
from hdl.compression.codecs import RAW, ZERO_VALUE
from sim.golden import microscaling, moments
from sim.golden.shared_exponent import MX4, MX6, MX9, SharedExponent

__all__ = ["BF16", "BFP8", "GRADIENT_CODECS", "RAW", "WEIGHT_CODECS", "ZERO_VALUE", "BFloat16", "GradientCodec",
           "Raw", "WeightCodec"]

Bits = npt.NDArray[np.uint32]


class WeightCodec(Protocol):
    """What the ring needs of a codec."""

    def words(self, count: int) -> int:
        """Words of a packet of so many elements."""
        ...

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Words of a packet of elements."""
        ...

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Elements of a packet of words: ``count``, or all there are."""
        ...


class GradientCodec(WeightCodec, Protocol):
    """What the ring needs of a codec of gradients."""

    @property
    def exact(self) -> bool:
        """Whether every element is decoded as it was encoded."""
        ...


class BFloat16(gateware.BFloat16):
    """The codec of the same name, and what it does to numbers."""

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Words of a packet of elements."""
        return moments.pack(bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Elements of a packet of words: ``count``, or whole words."""
        return moments.unpack(words, count)


class Raw(gateware.Raw):
    """The codec of the same name, and what it does to numbers."""

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Words of a packet of elements."""
        return np.array(bits, dtype=np.uint32)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Elements of a packet of words: ``count``, or all there are."""
        return np.array(words, dtype=np.uint32)[:count]


BF16 = BFloat16()
BFP8 = SharedExponent(difference_bits=0, mantissa_bits=7)

#: Codecs by their names; RAW has none.
WEIGHT_CODECS: dict[str, WeightCodec | None] = {
    RAW: None,
    "bf16": BF16,
    "mx9": MX9,
    "mx6": MX6,
    "mx4": MX4,
    "bfp8": BFP8,
    "mxint8": microscaling.MXINT8,
    "mxfp8_e4m3": microscaling.MXFP8_E4M3,
    "mxfp8_e5m2": microscaling.MXFP8_E5M2,
    "mxfp6_e2m3": microscaling.MXFP6_E2M3,
    "mxfp6_e3m2": microscaling.MXFP6_E3M2,
    "mxfp4_e2m1": microscaling.MXFP4_E2M1,
}

#: Codecs of gradients by their names; ZERO_VALUE has none.
GRADIENT_CODECS: dict[str, GradientCodec | None] = {
    ZERO_VALUE: None, **gateware.gradient_codecs(WEIGHT_CODECS), RAW: Raw()}
