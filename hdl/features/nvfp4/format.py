# amaranth: UnusedElaboratable=no
"""NVFP4: blocks of 16 E2M1 numbers with an E4M3 scale per block and a scale for the whole tensor.

A number is element * block scale * tensor scale. The maximum of a stream is known only at its end, so the tensor
scale is a codec parameter. It is a power of two and needs no gates.

1. A block's scale is max |x| / 6 / tensor scale, rounded to nearest even as an E4M3 number and limited to 2 ** -9
   (the smallest positive number) to 448.
2. An element is x / (block scale * tensor scale), rounded to nearest even as an E2M1 number and limited to magnitude
   6. A zero keeps its sign.
3. Both quotients are rounded once. Rounding them to binary32 first gives the same bits: every midpoint between two
   numbers of the format, times the divisor, is a binary32 number, and any other quotient differs from the midpoint by
   more than half a unit in the last place.
4. A block that contains an infinity or NaN is NaN: its scale is stored as 0x7f and its elements as zeros.
5. Elements that are missing in the last block of a packet are +0.

The bits of a block are its scale, with a highest bit that is zero and ignored, and its elements in order, each
lowest bit first; the order of words is as in :mod:`hdl.features.mx.format`.
"""

import dataclasses
import math

from hdl.features.mx.format import BlockCodec, Rounding

__all__ = ["LARGEST_SCALE", "NAN_SCALE", "NVFP4"]

#: E4M3 magnitude codes: the largest finite number (448), and the NaN that follows it.
LARGEST_SCALE, NAN_SCALE = 0x7E, 0x7F

#: Range of tensor scale exponents for which every number of the format is a normal binary32 number.
_POWERS = range(-115, 117)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NVFP4(BlockCodec):
    """Parameters of NVFP4.

    Parameters
    ----------
    tensor_scale : float
        Scale of all numbers, 2 ** -115 to 2 ** 116. It is not sent, so both ends must use the same one.
    """

    tensor_scale: float = 1.0

    block = 16
    subset = 16
    exponent_bits = 8
    difference_bits = 0
    magnitude_bits = 3
    fraction_bits = 1
    nan = NAN_SCALE

    def __post_init__(self):
        super().__post_init__()
        if self.rounding is not Rounding.NEAREST_EVEN:
            raise ValueError(f"Rounding of NVFP4 must be to nearest even, not {self.rounding!r}")
        if self.tensor_scale not in [2.0 ** power for power in _POWERS]:
            raise ValueError(f"Tensor scale must be a power of two between 2 ** -115 and 2 ** 116, not "
                             f"{self.tensor_scale!r}")

    @property
    def power(self):
        """Exponent of the tensor scale."""
        return math.frexp(self.tensor_scale)[1] - 1

    def operand_form(self):
        """Form of operands in this format, as a :class:`~hdl.features.nvfp4.operand_form.ScaledForm`."""
        from hdl.features.nvfp4.operand_form import ScaledForm

        return ScaledForm(self)
