"""Golden models of the codecs that weights and gradients can go through on the ring.

Every codec has ``encode(elements)`` and ``decode(words, count)``, on bit patterns of binary32. The method
``bind(centroids)`` returns the codec loaded with a codebook; in :data:`CODECS`, codebooks are all zeros.

The models are written from the specification of each format, with parameters of their own. Names and codes are those
of :mod:`hdl.compression.registry`, and tests compare all members that both have of a format.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sim.golden import microscaling, moments, shared_exponent, zero_value
from sim.golden.centroid import CentroidTable
from sim.golden.lookup_table import LookupTable
from sim.golden.nvfp4 import NVFP4
from sim.golden.planes import GROUP

__all__ = ["CODECS", "GRADIENT_CODECS", "RAW", "WEIGHT_CODECS", "ZERO_VALUE", "BFloat16", "CentroidCodec", "Codec",
           "FixedCodec", "Format", "RawWords", "Span", "TableCodec", "ZeroValueCodec"]

Bits = npt.NDArray[np.uint32]

#: Names of the codecs that a node has unless it is told otherwise.
RAW, ZERO_VALUE = "raw", "zero_value"

#: Number of the given words that a packet takes, units that are then missing, and whether the word behind them is one
#: that no packet has there. A unit is a word, or a group if only the words tell its length.
Span = tuple[int, int, bool]


class Codec(Protocol):
    """A format, as far as the models of ring and packets need it."""

    @property
    def code(self) -> int:
        """Code in the header of a packet."""
        ...

    @property
    def weights(self) -> bool:
        """Whether weights can go through the codec."""
        ...

    @property
    def gradients(self) -> bool:
        """Whether gradients can go through the codec."""
        ...

    @property
    def exact(self) -> bool:
        """Whether decoding returns every element unchanged."""
        ...

    @property
    def sums_coded(self) -> bool:
        """Whether gradients are added in coded form."""
        ...

    @property
    def block(self) -> int:
        """Elements that are decoded together."""
        ...

    @property
    def codebook_words(self) -> int:
        """Words of a node's codebook: bounds, an unused word, and centroids."""
        ...

    def most_words(self, count: int) -> int:
        """Return the most words of a packet of ``count`` elements."""
        ...

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements."""
        ...

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet: ``count``, or whole blocks."""
        ...

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the extent of a packet of ``count`` elements in given words."""
        ...

    def bind(self, centroids: npt.ArrayLike) -> "Codec":
        """Return the codec loaded with a codebook, or the same codec if it has none."""
        ...


class Format(Protocol):
    """A format in which the number of elements tells that of words."""

    @property
    def block(self) -> int:
        """Elements that are decoded together."""
        ...

    def words(self, count: int) -> int:
        """Return the words of a packet of ``count`` elements."""
        ...

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements."""
        ...

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet of words."""
        ...


class RawWords:
    """Unchanged elements, one to a word."""

    block = 1

    def words(self, count: int) -> int:
        """Return the words of a packet of ``count`` elements."""
        return count

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements."""
        return np.array(bits, dtype=np.uint32)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet of words: ``count``, or all there are."""
        return np.array(words, dtype=np.uint32)[:count]


class BFloat16:
    """Elements as bfloat16, two to a word, the even one in the low half, rounded to nearest even."""

    block = 2

    def words(self, count: int) -> int:
        """Return the words of a packet of ``count`` elements."""
        return (count + 1) // 2

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements."""
        return moments.pack(bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet of words: ``count``, or whole words."""
        return moments.unpack(words, count)


class _Plain:
    """Members of codecs that have no codebook and take any number."""

    weights = True
    gradients = True
    sums_coded = False
    codebook_words = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedCodec(_Plain):
    """A format in which the number of elements tells that of words.

    Parameters
    ----------
    code : int
    format : Format
    exact : bool
    """

    code: int
    format: Format
    exact: bool = False

    @property
    def block(self) -> int:
        """Elements that are decoded together."""
        return self.format.block

    def most_words(self, count: int) -> int:
        """Return the words of a packet of ``count`` elements."""
        return self.format.words(count)

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements."""
        return self.format.encode(bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet: ``count``, or whole blocks."""
        return self.format.decode(words, count)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the extent of a packet of ``count`` elements in given words; a unit is a word."""
        return _whole_words(self.most_words(count), len(np.asarray(words)))

    def bind(self, centroids: npt.ArrayLike) -> "FixedCodec":
        """Return the codec as it is."""
        return self


def _whole_words(due: int, given: int) -> Span:
    used = min(due, given)
    return used, due - used, False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroValueCodec(_Plain):
    """Gradients without their zeros: per group a mask, and the elements that are not zero.

    Parameters
    ----------
    code : int
    """

    code: int

    weights = False
    exact = True
    sums_coded = True
    block = zero_value.GROUP

    def most_words(self, count: int) -> int:
        """Return the words of a packet of ``count`` elements without a zero."""
        return count + (count + zero_value.GROUP - 1) // zero_value.GROUP

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements."""
        return zero_value.encode(bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet: ``count``, or whole groups."""
        return zero_value.decode(words, count)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the extent of a packet of ``count`` elements in given words; a unit is a group."""
        given = np.asarray(words, np.uint32).tolist()
        groups, used = (count + 31) // 32, 0
        tail = count % 32
        while groups and used < len(given):
            mask = given[used]
            if groups == 1 and tail and mask >> tail:
                return used, groups, True
            stop = used + 1 + mask.bit_count()
            if stop > len(given):
                return len(given), groups, False
            used = stop
            groups -= 1
        return used, groups, False

    def bind(self, centroids: npt.ArrayLike) -> "ZeroValueCodec":
        """Return the codec as it is."""
        return self


def _bound(centroids: npt.ArrayLike, count: int) -> tuple[int, ...]:
    given = tuple(np.asarray(centroids, np.uint32).tolist())
    if len(given) != count:
        raise ValueError(f"Centroids must be {count!r}, not {len(given)!r}")
    return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableCodec:
    """Weights by tables: exact sign and exponent, and the centroid nearest to the fraction.

    Parameters
    ----------
    code : int
    centroids : int
        Centroids of fractions.
    codebook : tuple of int
        Fractions, in ascending order; by default all are zero.
    """

    code: int
    centroids: int
    codebook: tuple[int, ...] = ()

    weights = True
    gradients = False
    exact = False
    sums_coded = False
    block = GROUP

    @property
    def table(self) -> LookupTable:
        """Parameters of the format."""
        return LookupTable(mantissas=self.centroids, centroids=True, loaded=True)

    @property
    def codebook_words(self) -> int:
        """Words of a node's codebook: bounds, an unused word, and centroids."""
        return 2 * self.centroids

    def most_words(self, count: int) -> int:
        """Return the words of a packet of ``count`` elements of which no two exponents are the same."""
        return self.table.words(count, min(count, 256)) if count else 0

    def bind(self, centroids: npt.ArrayLike) -> "TableCodec":
        """Return the codec with a codebook: fractions in ascending order."""
        given = _bound(centroids, self.centroids)
        self.table.bounds(given)
        return dataclasses.replace(self, codebook=given)

    @property
    def _codebook(self) -> tuple[int, ...]:
        return self.codebook or (0,) * self.centroids

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements; none of no element."""
        given = np.asarray(bits, np.uint32)
        return self.table.encode(given, self._codebook) if len(given) else np.zeros(0, np.uint32)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet: ``count``, or whole groups."""
        given = np.asarray(words, np.uint32)
        return self.table.decode(given, count, self._codebook) if len(given) else np.zeros(0, np.uint32)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the extent of a packet of ``count`` elements in given words; a unit is a group.

        A word is wrong if its exponents do not ascend.
        """
        given = np.asarray(words, np.uint32)
        groups = -(-count // GROUP)
        if not groups:
            return 0, 0, False
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentroidCodec:
    """Weights as indices of the nearest centroids.

    Parameters
    ----------
    code : int
    centroids : int
    codebook : tuple of int
        Numbers, as bits of binary32, in ascending order; by default all are zero.
    bounds : tuple of int
        Bounds between centroids.
    """

    code: int
    centroids: int
    codebook: tuple[int, ...] = ()
    bounds: tuple[int, ...] = ()

    weights = True
    gradients = False
    exact = False
    sums_coded = False
    block = GROUP

    @property
    def table(self) -> CentroidTable:
        """Parameters of the format."""
        return CentroidTable(centroids=self.centroids, loaded=True)

    @property
    def codebook_words(self) -> int:
        """Words of a node's codebook: bounds, an unused word, and centroids."""
        return 2 * self.centroids

    def most_words(self, count: int) -> int:
        """Return the words of a packet of ``count`` elements."""
        return self.table.words(count)

    def bind(self, centroids: npt.ArrayLike) -> "CentroidCodec":
        """Return the codec with a codebook: finite numbers in ascending order, as bits of binary32."""
        given = _bound(centroids, self.centroids)
        return dataclasses.replace(self, codebook=given, bounds=tuple(self.table.bounds(given).tolist()))

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements; none of no element."""
        given = np.asarray(bits, np.uint32)
        if not len(given):
            return np.zeros(0, np.uint32)
        return self.table.encode(self.table.nearest(given, self.bounds or (0,) * (self.centroids - 1)))

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet: ``count``, or whole groups."""
        given = np.asarray(words, np.uint32)
        if not len(given):
            return np.zeros(0, np.uint32)
        return self.table.decode(given, count, self.codebook or (0,) * self.centroids)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the extent of a packet of ``count`` elements in given words; a unit is a word."""
        return _whole_words(self.most_words(count), len(np.asarray(words)))


#: All codecs by their names.
CODECS: dict[str, Codec] = {
    ZERO_VALUE: ZeroValueCodec(code=1),
    RAW: FixedCodec(code=0, format=RawWords(), exact=True),
    "bf16": FixedCodec(code=2, format=BFloat16()),
    "mx9": FixedCodec(code=3, format=shared_exponent.MX9),
    "mx6": FixedCodec(code=4, format=shared_exponent.MX6),
    "mx4": FixedCodec(code=5, format=shared_exponent.MX4),
    "bfp8": FixedCodec(code=6, format=shared_exponent.BFP8),
    "mxint8": FixedCodec(code=7, format=microscaling.MXINT8),
    "mxfp8_e4m3": FixedCodec(code=8, format=microscaling.MXFP8_E4M3),
    "mxfp8_e5m2": FixedCodec(code=9, format=microscaling.MXFP8_E5M2),
    "mxfp6_e2m3": FixedCodec(code=10, format=microscaling.MXFP6_E2M3),
    "mxfp6_e3m2": FixedCodec(code=11, format=microscaling.MXFP6_E3M2),
    "mxfp4_e2m1": FixedCodec(code=12, format=microscaling.MXFP4_E2M1),
    "table32": TableCodec(code=13, centroids=32),
    "centroid16": CentroidCodec(code=14, centroids=16),
    "centroid64": CentroidCodec(code=15, centroids=64),
    "mxfp8_e4m3_up": FixedCodec(code=17, format=microscaling.MXFP8_E4M3_UP),
    "mxfp4_e2m1_up": FixedCodec(code=18, format=microscaling.MXFP4_E2M1_UP),
    "nvfp4": FixedCodec(code=19, format=NVFP4()),
}


class _View(Mapping[str, Codec]):
    """Codecs of one direction, selected by the member of that name."""

    def __init__(self, direction: str) -> None:
        self._direction = direction

    def __getitem__(self, name: str) -> Codec:
        if not getattr(CODECS[name], self._direction):
            raise KeyError(name)
        return CODECS[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in CODECS if getattr(CODECS[name], self._direction))

    def __len__(self) -> int:
        return len(list(iter(self)))


#: Codecs of weights, and of gradients and their sums.
WEIGHT_CODECS: Mapping[str, Codec] = _View("weights")
GRADIENT_CODECS: Mapping[str, Codec] = _View("gradients")
