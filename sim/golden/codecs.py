"""Golden models of the weight and gradient codecs used on the ring.

Every codec has ``encode(elements)`` and ``decode(words, count)``, which work on binary32 bit patterns. The method
``bind(centroids)`` returns the codec with a codebook loaded; in :data:`CODECS`, codebooks are all zeros. Formats that
belong to features are imported when they are looked up in :data:`CODECS`.

The models are written from the specification of each format, and have their own parameters. They use the names and
codes of :mod:`hdl.compression.registry`; tests compare all attributes that a format defines in both places.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from sim.golden import zero_value
from sim.golden.lazy_table import LazyTable, OnDemand

__all__ = ["CODECS", "GRADIENT_CODECS", "RAW", "WEIGHT_CODECS", "ZERO_VALUE", "AgreedCodec", "Codec", "FixedCodec",
           "Format", "RawWords", "Span", "ZeroValueCodec", "codebook_of", "is_agreed", "whole_words"]

Bits = npt.NDArray[np.uint32]

#: Names of a node's default codecs.
RAW, ZERO_VALUE = "raw", "zero_value"

#: Number of available words that belong to a packet, amount of data still missing, and whether the next word is
#: invalid in this packet. Missing data is counted in words, or in groups if a packet's length depends on its words.
Span = tuple[int, int, bool]


class Codec(Protocol):
    """Codec interface used by the models of the ring and its packets."""

    @property
    def code(self) -> int:
        """Code of the codec in the header of a packet."""

    @property
    def weights(self) -> bool:
        """Whether the codec accepts weights."""

    @property
    def gradients(self) -> bool:
        """Whether the codec accepts gradients."""

    @property
    def exact(self) -> bool:
        """Whether decoding returns every element unchanged."""

    @property
    def sums_coded(self) -> bool:
        """Whether gradients are added in coded form, without decoding them."""

    @property
    def agreed(self) -> bool:
        """Whether sums are sums of integers with a common exponent; see :class:`AgreedCodec`."""

    @property
    def block(self) -> int:
        """Number of elements that are decoded together."""

    @property
    def codebook_words(self) -> int:
        """Number of words in a node's codebook: bounds, one unused word, and centroids."""

    def max_words(self, count: int) -> int:
        """Maximum number of words in a packet of ``count`` elements."""

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Encode elements as the words of a packet."""

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Decode ``count`` elements of a packet, or whole blocks."""

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the span of a packet of ``count`` elements within the available words."""

    def bind(self, centroids: npt.ArrayLike) -> "Codec":
        """Return the codec with a codebook loaded, or the same codec if it has none."""


class AgreedCodec(Codec, Protocol):
    """Codec for sums of integers that are scaled by an exponent per group, which all nodes agree on.

    The exponents of a segment precede its integers. There are no residuals. ``encode``, ``decode`` and ``span`` work
    on the integers as they are sent on the ring.
    """

    @property
    def scatter_ahead(self) -> int:
        """Number of segments by which exponents precede their integers in packets of the scatter-reduce."""

    @property
    def gather_ahead(self) -> int:
        """Number of segments by which exponents precede sums or weights in packets of the all-gather."""

    @property
    def checksum_words(self) -> int:
        """Number of checksum words that follow the integers of a partial sum."""

    def exponent_words(self, count: int) -> int:
        """Number of words of the exponents of ``count`` elements."""

    def sums(self, addends: Bits) -> tuple[npt.NDArray[np.bool_], Bits]:
        """Sum the rows of ``addends``; return whether each partial sum is nonzero, and the total as binary32."""


def is_agreed(codec: Codec) -> TypeGuard[AgreedCodec]:
    """Whether a codec is an :class:`AgreedCodec`."""
    return codec.agreed


class Format(Protocol):
    """Format with a word count that is determined by the number of elements."""

    @property
    def block(self) -> int:
        """Number of elements that are decoded together."""

    def words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Encode elements as the words of a packet."""

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Decode the elements of a packet."""


class RawWords:
    """Format of unchanged elements, one per word."""

    block = 1

    def words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""
        return count

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Encode elements as the words of a packet."""
        return np.array(bits, dtype=np.uint32)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Decode ``count`` elements of a packet, or all of them."""
        return np.array(words, dtype=np.uint32)[:count]


class _Plain:
    """Members shared by codecs that accept any number and have no codebook."""

    weights = True
    gradients = True
    sums_coded = False
    agreed = False
    codebook_words = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedCodec(_Plain):
    """Codec with a word count that is determined by the number of elements."""

    code: int
    format: Format
    exact: bool = False

    @property
    def block(self) -> int:
        """Number of elements that are decoded together."""
        return self.format.block

    def max_words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""
        return self.format.words(count)

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Encode elements as the words of a packet."""
        return self.format.encode(bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Decode ``count`` elements of a packet, or whole blocks."""
        return self.format.decode(words, count)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the :data:`Span` of a packet of ``count`` elements, with missing data counted in words."""
        return whole_words(self.max_words(count), len(np.asarray(words)))

    def bind(self, centroids: npt.ArrayLike) -> "FixedCodec":
        """Return this codec, which has no codebook."""
        return self


def whole_words(due: int, count: int) -> Span:
    """Return the :data:`Span` of a packet of ``due`` words when ``count`` words are available."""
    used = min(due, count)
    return used, due - used, False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroValueCodec(_Plain):
    """Codec that omits zeros: each group is sent as a mask followed by its nonzero elements."""

    code: int

    weights = False
    exact = True
    sums_coded = True
    block = zero_value.GROUP

    def max_words(self, count: int) -> int:
        """Number of words in a packet of ``count`` elements without zeros."""
        return count + (count + zero_value.GROUP - 1) // zero_value.GROUP

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Encode elements as the words of a packet."""
        return zero_value.encode(bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Decode ``count`` elements of a packet, or whole groups."""
        return zero_value.decode(words, count)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the :data:`Span` of a packet of ``count`` elements, with missing data counted in groups."""
        available = np.asarray(words, np.uint32).tolist()
        groups, used = (count + 31) // 32, 0
        tail = count % 32
        while groups and used < len(available):
            mask = available[used]
            if groups == 1 and tail and mask >> tail:
                return used, groups, True
            stop = used + 1 + mask.bit_count()
            if stop > len(available):
                return len(available), groups, False
            used = stop
            groups -= 1
        return used, groups, False

    def bind(self, centroids: npt.ArrayLike) -> "ZeroValueCodec":
        """Return this codec, which has no codebook."""
        return self


def codebook_of(centroids: npt.ArrayLike, count: int) -> tuple[int, ...]:
    """Convert a codebook to integers; raises ValueError unless it has ``count`` entries."""
    numbers = tuple(np.asarray(centroids, np.uint32).tolist())
    if len(numbers) != count:
        raise ValueError(f"Centroids must be {count!r}, not {len(numbers)!r}")
    return numbers


def _fixed(code: int, target: str) -> OnDemand[Codec]:
    """Codec for a feature's format, imported from ``target`` on demand."""
    return OnDemand(target, lambda form: FixedCodec(code=code, format=form))


#: All codecs, keyed by name.
CODECS: LazyTable[Codec] = LazyTable({
    ZERO_VALUE: ZeroValueCodec(code=1),
    RAW: FixedCodec(code=0, format=RawWords(), exact=True),
    "bf16": _fixed(2, "sim.golden.features.bf16.codec:BF16"),
    "mx9": _fixed(3, "sim.golden.features.mx.shared_exponent:MX9"),
    "mx6": _fixed(4, "sim.golden.features.mx.shared_exponent:MX6"),
    "mx4": _fixed(5, "sim.golden.features.mx.shared_exponent:MX4"),
    "bfp8": _fixed(6, "sim.golden.features.mx.shared_exponent:BFP8"),
    "mxint8": _fixed(7, "sim.golden.features.mx.microscaling:MXINT8"),
    "mxfp8_e4m3": _fixed(8, "sim.golden.features.mx.microscaling:MXFP8_E4M3"),
    "mxfp8_e5m2": _fixed(9, "sim.golden.features.mx.microscaling:MXFP8_E5M2"),
    "mxfp6_e2m3": _fixed(10, "sim.golden.features.mx.microscaling:MXFP6_E2M3"),
    "mxfp6_e3m2": _fixed(11, "sim.golden.features.mx.microscaling:MXFP6_E3M2"),
    "mxfp4_e2m1": _fixed(12, "sim.golden.features.mx.microscaling:MXFP4_E2M1"),
    "table32": OnDemand("sim.golden.features.table.codec:TableCodec", lambda make: make(code=13, centroids=32)),
    "centroid16": OnDemand("sim.golden.features.codebook.codec:CentroidCodec",
                           lambda make: make(code=14, centroids=16)),
    "centroid64": OnDemand("sim.golden.features.codebook.codec:CentroidCodec",
                           lambda make: make(code=15, centroids=64)),
    "mxfp8_e4m3_up": _fixed(17, "sim.golden.features.mx.microscaling:MXFP8_E4M3_UP"),
    "mxfp4_e2m1_up": _fixed(18, "sim.golden.features.mx.microscaling:MXFP4_E2M1_UP"),
    "nvfp4": OnDemand("sim.golden.features.nvfp4.nvfp4:NVFP4", lambda make: FixedCodec(code=19, format=make())),
    "sum32": OnDemand("sim.golden.features.reproducible.codec:SumCodec", lambda make: make(code=20, width=32)),
    "sum16": OnDemand("sim.golden.features.reproducible.codec:SumCodec", lambda make: make(code=22, width=16)),
})


class _View(Mapping[str, Codec]):
    """Read-only mapping of the codecs that support ``weights`` or ``gradients``."""

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


#: Codecs for weights, and for gradients and their sums.
WEIGHT_CODECS: Mapping[str, Codec] = _View("weights")
GRADIENT_CODECS: Mapping[str, Codec] = _View("gradients")
