"""Golden models of the codecs that weights and gradients can go through; mirrors :mod:`hdl.compression.codecs`.

Every one has ``encode(elements)`` and ``decode(words, count)``, on bit patterns of binary32. Those with a codebook
have ``bind(centroids)``, which gives the same codec loaded with one; as they are listed, their codebook is all zeros.
"""

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hdl.compression import codecs as gateware
from hdl.compression.codecs import RAW, ZERO_VALUE
from sim.golden import microscaling, moments
from sim.golden.centroid import CentroidTable
from sim.golden.lookup_table import LookupTable
from sim.golden.planes import GROUP
from sim.golden.shared_exponent import MX4, MX6, MX9, SharedExponent

__all__ = ["BF16", "BFP8", "GRADIENT_CODECS", "RAW", "WEIGHT_CODECS", "ZERO_VALUE", "BFloat16", "CentroidCodec",
           "GradientCodec", "Raw", "TableCodec", "WeightCodec"]

Bits = npt.NDArray[np.uint32]


class WeightCodec(Protocol):
    """What the ring needs of a codec."""

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

    def words(self, count: int) -> int:
        """Words of a packet of so many elements."""
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


def _bound(codec: "TableCodec | CentroidCodec", centroids: npt.ArrayLike) -> tuple[int, ...]:
    given = tuple(np.asarray(centroids, np.uint32).tolist())
    if len(given) != codec.centroids:
        raise ValueError(f"Centroids must be {codec.centroids!r}, not {len(given)!r}")
    return given


@dataclasses.dataclass(frozen=True)
class TableCodec(gateware.TableCodec):
    """The codec of the same name, and what it does to numbers.

    Parameters
    ----------
    codebook : tuple of int
        Fractions, in ascending order; by default all are zero.
    """

    codebook: tuple[int, ...] = ()

    @property
    def table(self) -> LookupTable:
        """Parameters of the format."""
        return LookupTable(mantissas=self.centroids, centroids=True, loaded=True)

    def bind(self, centroids: npt.ArrayLike) -> "TableCodec":
        """The codec with a codebook: fractions in ascending order."""
        self.table.bounds(_bound(self, centroids))
        return dataclasses.replace(self, codebook=_bound(self, centroids))

    @property
    def _codebook(self) -> tuple[int, ...]:
        return self.codebook or (0,) * self.centroids

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Words of a packet of elements; none of no element."""
        given = np.asarray(bits, np.uint32)
        return self.table.encode(given, self._codebook) if len(given) else np.zeros(0, np.uint32)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Elements of a packet of words: ``count``, or whole groups."""
        given = np.asarray(words, np.uint32)
        return self.table.decode(given, count, self._codebook) if len(given) else np.zeros(0, np.uint32)

    def span(self, words: npt.ArrayLike, count: int) -> tuple[int, int, bool]:
        """How many of some words a packet of ``count`` elements takes, how many of its groups are then missing, and
        whether exponents fail to ascend, in the word after those."""
        given = np.asarray(words, np.uint32)
        groups = -(-count // GROUP)
        exponents: list[int] = []
        for place, exponent in enumerate(given.astype("<u4").view(np.uint8).tolist()):
            if exponents and exponent < exponents[-1]:
                return place // 4, groups, True
            if exponents and exponent == exponents[-1]:
                break
            exponents.append(exponent)
        else:
            return len(given), groups, False
        width, start = self.table.code_width(len(exponents)), place // 4 + 1
        whole = min((len(given) - start) // width, groups)
        return min(len(given), start + width * groups), groups - whole, False


@dataclasses.dataclass(frozen=True)
class CentroidCodec(gateware.CentroidCodec):
    """The codec of the same name, and what it does to numbers.

    Parameters
    ----------
    codebook : tuple of int
        Numbers, as bits of binary32, in ascending order; by default all are zero.
    """

    codebook: tuple[int, ...] = ()
    bounds: tuple[int, ...] = ()

    @property
    def table(self) -> CentroidTable:
        """Parameters of the format."""
        return CentroidTable(centroids=self.centroids, loaded=True)

    def bind(self, centroids: npt.ArrayLike) -> "CentroidCodec":
        """The codec with a codebook: finite numbers in ascending order, as bits of binary32."""
        given = _bound(self, centroids)
        return dataclasses.replace(self, codebook=given, bounds=tuple(self.table.bounds(given).tolist()))

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Words of a packet of elements; none of no element."""
        given = np.asarray(bits, np.uint32)
        if not len(given):
            return np.zeros(0, np.uint32)
        return self.table.encode(self.table.nearest(given, self.bounds or (0,) * (self.centroids - 1)))

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Elements of a packet of words: ``count``, or whole groups."""
        given = np.asarray(words, np.uint32)
        if not len(given):
            return np.zeros(0, np.uint32)
        return self.table.decode(given, count, self.codebook or (0,) * self.centroids)


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
    "table32": TableCodec(32),
    "centroid16": CentroidCodec(16),
    "centroid64": CentroidCodec(64),
}

#: Codecs of gradients by their names; ZERO_VALUE has none.
GRADIENT_CODECS: dict[str, GradientCodec | None] = {
    ZERO_VALUE: None, RAW: Raw(), **gateware.gradient_codecs(WEIGHT_CODECS)}
