# amaranth: UnusedElaboratable=no
# Units are created here only to read the number of words in their beats, and are not elaborated.
"""Codecs: one object for each format of weights or gradients, for ring, driver and reports.

:mod:`hdl.compression.registry` lists the codecs. docs/compression/adding-a-format.md describes how to add one.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hdl.compression.length import WORD, FixedLength

__all__ = ["CODE_BITS", "Codebook", "Codec", "FixedCodec", "create_unit"]

#: Width in bits of a codec's code in packets.
CODE_BITS = 8


class Codebook(enum.Enum):
    """Contents of the codebook that is loaded into encoder and decoder."""

    NONE = "none"
    FRACTIONS = "fractions"
    """Fractions of binary32, in ascending order."""
    NUMBERS = "numbers"
    """Numbers, as bits of binary32, in ascending order."""


class Codec(Protocol):
    """Properties of a format that nodes, drivers and reports use."""

    @property
    def code(self) -> int:
        """Code of the format in the header of a packet, below 2 ** :data:`CODE_BITS`."""
        ...

    @property
    def weights(self) -> bool:
        """Whether weights can use the format."""
        ...

    @property
    def gradients(self) -> bool:
        """Whether gradients can use the format: since sums may be any number, it must accept every number."""
        ...

    @property
    def exact(self) -> bool:
        """Whether decoding returns every element unchanged."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether a decoded number stays unchanged when it is encoded and decoded again."""
        ...

    @property
    def sums_coded(self) -> bool:
        """Whether gradients are added in coded form, instead of being decoded, added and encoded at each hop."""
        ...

    @property
    def drops_zeros(self) -> bool:
        """Whether zeros make a packet shorter."""
        ...

    @property
    def block(self) -> int:
        """Number of elements that are decoded together."""
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
        """Number of words to load: the bounds between centroids, one unused word, and the centroids."""
        ...

    @property
    def two_passes(self) -> bool:
        """Whether the encoder receives a packet twice, first at its port ``scan``."""
        ...

    @property
    def encoder(self) -> Callable[..., Any] | None:
        """Class of the encoder to words, with members ``i``, ``o`` and, for a codebook, ``load``; or None."""
        ...

    @property
    def decoder(self) -> Callable[..., Any] | None:
        """Class of the decoder from words, with members ``i``, ``o`` and, for a codebook, ``load``; or None."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Arguments of the encoder and the decoder class, other than ``lanes``."""
        ...

    def max_words(self, count: int) -> int:
        """Return the maximum number of words of a packet of ``count`` elements."""
        ...

    def length_counter(self) -> Any:
        """Component that detects the end of a payload; see :func:`hdl.compression.length.counter_ports`."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedCodec:
    """A format with the same number of bits in every block; for the members, see :class:`Codec`.

    Parameters
    ----------
    code : int
    block : int
        Elements in a block: a power of two.
    block_bits : int
        Bits of a block; the blocks of a packet follow each other without gaps, and its last word is padded.
    encoder, decoder : classes
    parameters : mapping
        Arguments of the encoder and the decoder class.
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
    drops_zeros = False
    two_passes = False

    @property
    def codebook_words(self) -> int:
        """Number of words to load into encoder and decoder."""
        return 2 * self.centroids

    def max_words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""
        return -(-(-(-count // self.block) * self.block_bits) // WORD)

    def length_counter(self) -> FixedLength:
        """Return a length counter that counts words."""
        return FixedLength(block=self.block, block_bits=self.block_bits)


def create_unit(kind: Callable[..., Any], codec: Codec, lanes: int) -> Any:
    """Return an encoder or decoder; its number of words per beat is a power of two, as in memory rows."""
    unit = kind(**codec.parameters, lanes=lanes)
    words = 1 << (unit.words - 1).bit_length()
    return unit if words == unit.words else kind(**codec.parameters, lanes=lanes, words=words)
