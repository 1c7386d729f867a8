"""Table-based format of weights: lossless exponents, and mantissas from a few representatives.

The sign of an element is sent unchanged, its exponent as an index into a table of the exponents that occur in the
packet, and its fraction as the index of one of a few **mantissas**: bins of equal width, or centroids chosen by the
host. Decoding concatenates the three.

Exponents and signs are exact. A mantissa represents all fractions in its bin. However, for the exponents of zeros and
subnormal numbers and of infinities and NaNs, index 0 represents only the fraction zero. So zeros and infinities are
exact, subnormal numbers do not become zeros, and NaNs remain NaNs, although their fractions may change.

A packet contains the exponents in ascending order, one byte each, with the last one repeated to mark the end. The
centroids follow without gaps, unless there are none or they are loaded into decoders. The codes start at the next
word, stored as in :mod:`hdl.compression.planes`: sign, mantissa index, and as much of the exponent index as the table
needs, lowest bit first.

:mod:`hdl.features.table.encoder` creates packets, using :mod:`hdl.features.table.exponent_set` and, with centroids,
:mod:`hdl.features.table.centroid_store`; :mod:`hdl.features.table.decoder` expands them.
"""

from dataclasses import dataclass

from hdl.floating.format import FP32, FloatFormat
from hdl.group import GROUP

__all__ = ["LookupTable", "check_table"]

#: Number of high fraction bits that an encoder compares to find the nearest centroid.
_COMPARED = 12


@dataclass(frozen=True, kw_only=True)
class LookupTable:
    """Parameters of the format.

    Parameters
    ----------
    format : FloatFormat
        Element format: FP32 or BF16.
    mantissas : int
        Number of representatives for fractions: 8, 16, 32, 64 or 128. With 128, BF16 bins are lossless.
    centroids : bool
        Whether representatives are centroids, sent with every packet, instead of bin centres.
    exponents : int
        Maximum number of exponents in a table: 16, 32, 64, 128 or 256. 256 is enough for any packet.
    loaded : bool
        Whether centroids are loaded into decoders instead of being sent in packets.
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
        """Width in bits of a mantissa's index."""
        return self.mantissas.bit_length() - 1

    @property
    def width(self):
        """Maximum number of bits of a code."""
        return self.code_width(self.exponents)

    @property
    def compared_bits(self):
        """Number of high fraction bits that determine the centroid."""
        return min(self.format.fraction_bits, _COMPARED)

    @property
    def load_length(self):
        """Number of words loaded into an encoder: the bounds between centroids, then the centroids to send."""
        sent = -(-self.mantissas * self.format.fraction_bits // 32) if self.sent else 0
        return self.mantissas - 1 + sent

    def code_width(self, exponents):
        """Number of bits per code in a packet with ``exponents`` distinct exponents."""
        return 1 + self.mantissa_bits + (exponents - 1).bit_length()

    def code_size(self, last_index):
        """Gateware version of :meth:`code_width`, as a function of the last exponent's index."""
        return 1 + self.mantissa_bits + sum(last_index[bit:].any() for bit in range(len(last_index)))

    def bits(self, count, exponents):
        """Number of bits that ``count`` elements and their tables take, without the end mark."""
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
