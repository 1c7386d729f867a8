# amaranth: UnusedElaboratable=no
"""NVFP4: blocks of 16 numbers of E2M1 with a scale of E4M3, and a scale of the whole tensor.

A number is element * block scale * tensor scale. The largest number of a stream is known only at its end, so the
tensor scale is a parameter of the codec: a power of two, which costs no gates.

1. The scale of a block is max |x| / 6 / tensor scale as a number of E4M3, rounded to nearest even; at least 2 ** -9,
   the smallest number above zero, and at most 448.
2. An element is x / (block scale * tensor scale) as a number of E2M1, rounded to nearest even; at most 6. A zero
   keeps its sign.
3. Both quotients are exact before rounding. Quotients that are rounded to binary32 first give the same bits:
   every midpoint of two numbers of a format, times its divisor, is a number of binary32, and a quotient next to it
   differs from it by more than half a unit in its last place.
4. A block with an infinity or a NaN is NaN: 0x7f is stored as its scale, and zeros as its elements.
5. Elements that are missing in the last block of a packet are +0.

The bits of a block are its scale, with a highest bit that is zero and ignored, and its elements in order, each
lowest bit first; the order of words is as in :mod:`hdl.features.mx.format`.
"""

import dataclasses
import math

from hdl.features.mx.format import BlockCodec, Rounding

__all__ = ["LARGEST_SCALE", "NAN_SCALE", "NVFP4"]

#: Magnitudes of E4M3: the largest number, 448, and the NaN above it.
LARGEST_SCALE, NAN_SCALE = 0x7E, 0x7F

#: Exponents of tensor scales for which all numbers of the format are normal numbers of binary32.
_POWERS = range(-115, 117)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NVFP4(BlockCodec):
    """Parameters of NVFP4.

    Parameters
    ----------
    tensor_scale : float
        A power of two between 2 ** -115 and 2 ** 116, the same at both ends of a link; it is not sent.
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
        """Form of operands in this format: a :class:`~hdl.features.nvfp4.operand_form.ScaledForm`."""
        from hdl.features.nvfp4.operand_form import ScaledForm

        return ScaledForm(self)
