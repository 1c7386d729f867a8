# amaranth: UnusedElaboratable=no
# `create_unit` may create a unit only to read its number of words per beat, without ever elaborating it.
"""Codecs: one object for each weight or gradient format, used by the ring, the driver and reports.

All codecs are listed in :mod:`hdl.compression.registry`. See docs/compression/adding-a-format.md for how to add one.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hdl.compression.length import WORD, FixedLength

__all__ = ["CODE_BITS", "Codebook", "Codec", "FixedCodec", "create_unit"]

#: Width of a codec's code in packets, in bits.
CODE_BITS = 8


class Codebook(enum.Enum):
    """Kind of values in a codebook, which is loaded into encoders and decoders."""

    NONE = "none"
    FRACTIONS = "fractions"
    """Fractions of binary32, in ascending order."""
    NUMBERS = "numbers"
    """Numbers, as bits of binary32, in ascending order."""


class Codec(Protocol):
    """Format properties that nodes, drivers and reports use."""

    @property
    def code(self) -> int:
        """Code of the format in packet headers, below 2 ** :data:`CODE_BITS`."""
        ...

    @property
    def weights(self) -> bool:
        """Whether weights can use the format."""
        ...

    @property
    def gradients(self) -> bool:
        """Whether the format can be used for gradients. It must then encode any number, as sums can be any number."""
        ...

    @property
    def exact(self) -> bool:
        """Whether decoding returns every element unchanged."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether re-encoding a decoded number leaves it unchanged."""
        ...

    @property
    def sums_coded(self) -> bool:
        """Whether gradients are added in coded form, instead of being decoded and re-encoded at each hop."""
        ...

    @property
    def agreed(self) -> bool:
        """Whether gradients are added as integers, scaled by exponents on which all nodes agree."""
        ...

    @property
    def drops_zeros(self) -> bool:
        """Whether zeros make a packet shorter."""
        ...

    @property
    def block(self) -> int:
        """Number of elements in a block, which is decoded as a whole."""
        ...

    @property
    def codebook(self) -> Codebook:
        """Contents of the codebook."""
        ...

    @property
    def centroids(self) -> int:
        """Number of centroids in the codebook."""
        ...

    @property
    def codebook_words(self) -> int:
        """Number of words in the codebook: the bounds between centroids, an unused word, and the centroids."""
        ...

    @property
    def two_passes(self) -> bool:
        """Whether the encoder needs each packet twice: first at its port ``scan``, then at its input ``i``."""
        ...

    @property
    def encoder(self) -> Callable[..., Any] | None:
        """Encoder class (numbers to words), with members ``i``, ``o`` and, for a codebook, ``load``; or None."""
        ...

    @property
    def decoder(self) -> Callable[..., Any] | None:
        """Decoder class (words to numbers), with members ``i``, ``o`` and, for a codebook, ``load``; or None."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Arguments for the encoder and decoder classes, except ``lanes``."""
        ...

    def max_words(self, count: int) -> int:
        """Return the maximum number of words in a packet of ``count`` elements."""
        ...

    def length_counter(self) -> Any:
        """Component that detects the end of a payload. See :func:`hdl.compression.length.counter_ports`."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedCodec:
    """Codec whose blocks all have the same number of bits. See :class:`Codec` for the members.

    Parameters
    ----------
    code : int
    block : int
        Number of elements per block: a power of two.
    block_bits : int
        Number of bits per block. Blocks are packed without gaps, and the last word of a packet is padded.
    encoder, decoder : classes
    parameters : mapping
        Arguments for the encoder and decoder classes.
    weights, gradients, exact, repeatable : bool
    codebook : Codebook
    centroids : int
    """

    code: int
    block: int
    block_bits: int
    encoder: Callable[..., Any]
    decoder: Callable[..., Any]
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    weights: bool = True
    gradients: bool = True
    exact: bool = False
    repeatable: bool = True
    codebook: Codebook = Codebook.NONE
    centroids: int = 0

    sums_coded = False
    agreed = False
    drops_zeros = False
    two_passes = False

    @property
    def codebook_words(self) -> int:
        """Number of words to load into an encoder or decoder."""
        return 2 * self.centroids

    def max_words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""
        return -(-(-(-count // self.block) * self.block_bits) // WORD)

    def length_counter(self) -> FixedLength:
        """Return a length counter whose unit is a word."""
        return FixedLength(block=self.block, block_bits=self.block_bits)


def create_unit(kind: Callable[..., Any], codec: Codec, lanes: int) -> Any:
    """Return an encoder or decoder whose number of words per beat is a power of two, as in memory rows."""
    unit = kind(**codec.parameters, lanes=lanes)
    words = 1 << (unit.words - 1).bit_length()
    return unit if words == unit.words else kind(**codec.parameters, lanes=lanes, words=words)
