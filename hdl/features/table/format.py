"""Compression of weights by tables: exponents without loss, mantissas by a few representatives.

An element is split. Its sign is sent unchanged, its exponent as an index into the table of the exponents that
occur in its packet, and its fraction as the index of one of a few **mantissas**: bins of equal width, or centroids
chosen by the host. Decoding is concatenation.

The exponent and the sign of every element are exact. A mantissa stands for any number in its bin,
except where the exponent encodes zeros and subnormal numbers, or infinities and NaNs: there index 0 is the
fraction of zero, and no other fraction gets index 0. So zeros and infinities are exact, subnormal numbers do not
become zeros, and NaNs remain NaNs, although their fractions may change.

A packet contains the exponents in ascending order, one byte each, and the last of them once more to mark the end;
then the centroids, if there are any and they are not loaded into decoders, without gaps; and, from
the next word on, the codes as in :mod:`hdl.compression.planes`: sign, index of the mantissa, and the bits of the
exponent's index that its table needs, from the lowest bit on.

:mod:`hdl.features.table.encoder` creates packets, using :mod:`hdl.features.table.exponent_set` and, with centroids,
:mod:`hdl.features.table.centroid_store`; :mod:`hdl.features.table.decoder` expands them.
"""

from dataclasses import dataclass

from hdl.floating.format import FP32, FloatFormat
from hdl.group import GROUP

__all__ = ["LookupTable", "check_table"]

#: Number of high bits of a fraction that an encoder uses to find the nearest centroid.
_COMPARED = 12


@dataclass(frozen=True, kw_only=True)
class LookupTable:
    """Parameters of the format.

    Parameters
    ----------
    format : FloatFormat
        Format of the elements: FP32 or BF16.
    mantissas : int
        Representatives of the fractions: 8, 16, 32, 64 or 128. With 128, bins of BF16 are lossless.
    centroids : bool
        Whether representatives are centroids, sent with every packet, or the middles of bins.
    exponents : int
        Maximum number of exponents in a table: 16, 32, 64, 128 or 256; 256 are enough for any packet.
    loaded : bool
        Whether the centroids are loaded into decoders, so that packets do not contain them.
    """

    format: FloatFormat = FP32
    mantissas: int = 32
    centroids: bool = False
    exponents: int = 256
    loaded: bool = False

    def __post_init__(self):
        if not isinstance(self.format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {self.format!r}")
        if self.format.exponent_bits != 8 or self.format.fraction_bits not in (7, 23):
            raise ValueError(f"Format must be FP32 or BF16, not {self.format!r}")
        if self.mantissas not in (8, 16, 32, 64, 128):
            raise ValueError(f"Mantissa count must be 8, 16, 32, 64 or 128, not {self.mantissas!r}")
        if self.centroids not in (False, True):
            raise ValueError(f"Centroids must be True or False, not {self.centroids!r}")
        if self.exponents not in (16, 32, 64, 128, 256):
            raise ValueError(f"Exponent count must be 16, 32, 64, 128 or 256, not {self.exponents!r}")
        if self.loaded not in (False, self.centroids):
            raise ValueError(f"Loading must be False, or True with centroids, not {self.loaded!r}")

    @property
    def sent(self):
        """Whether centroids are sent with every packet."""
        return self.centroids and not self.loaded

    @property
    def mantissa_bits(self):
        """Width of the index of a mantissa."""
        return self.mantissas.bit_length() - 1

    @property
    def width(self):
        """Maximum number of bits of a code."""
        return self.code_width(self.exponents)

    @property
    def compared_bits(self):
        """Highest bits of a fraction that determine its centroid."""
        return min(self.format.fraction_bits, _COMPARED)

    @property
    def load_length(self):
        """Words loaded into an encoder: the bounds between centroids, and the centroids as they are sent."""
        sent = -(-self.mantissas * self.format.fraction_bits // 32) if self.sent else 0
        return self.mantissas - 1 + sent

    def code_width(self, exponents):
        """Number of bits of a code in a packet with ``exponents`` distinct exponents."""
        return 1 + self.mantissa_bits + (exponents - 1).bit_length()

    def code_size(self, last_index):
        """:meth:`code_width` for the gateware, from the index of the last exponent."""
        return 1 + self.mantissa_bits + sum(last_index[bit:].any() for bit in range(len(last_index)))

    def bits(self, count, exponents):
        """Number of bits of ``count`` elements and their tables, as in the formulas, without the end of the table."""
        centroids = self.mantissas * self.format.fraction_bits if self.sent else 0
        return count * self.code_width(exponents) + 8 * exponents + centroids

    def words(self, count, exponents):
        """Number of words in a packet of ``count`` elements with ``exponents`` distinct exponents."""
        preamble = self.bits(0, exponents) + 8
        return -(-preamble // 32) + self.code_width(exponents) * -(-count // GROUP)


def check_table(table):
    """Raise TypeError unless ``table`` is a :class:`LookupTable`."""
    if not isinstance(table, LookupTable):
        raise TypeError(f"Table must be a LookupTable, not {table!r}")
