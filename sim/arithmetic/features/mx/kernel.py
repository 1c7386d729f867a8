"""Kernels of block formats with a shared exponent."""

from pathlib import Path
from typing import cast

from sim.arithmetic.format_source import FormatSource
from sim.golden.codecs import FixedCodec
from sim.golden.features.mx.block_format import BlockFormat, Rounding

__all__ = ["source"]


def source(codec: FixedCodec) -> FormatSource:
    """Return the kernels of a codec.

    Raises
    ------
    ValueError
        Exponents, differences or codes do not fill bytes, the differences of a block have more than 64 bits, or
        rounding is stochastic.
    """
    form = cast(BlockFormat, codec.format)
    if (form.rounding is not Rounding.NEAREST_EVEN or form.exponent_bits != 8 or form.code_bits > 8
            or form.block % 8 or form.subsets % 8 or form.difference_bits * form.subsets > 64):
        raise ValueError(f"Format must have exponents of 8 bits, differences that fill at most 8 bytes, codes of at "
                         f"most 8 bits and rounding to nearest even to have kernels, not {form!r}")
    return FormatSource(path=Path(__file__).parent / "block_format.cpp", constants={
        "BLOCK_ELEMENTS": form.block,
        "SUBSET": form.subset,
        "DIFFERENCE_BITS": form.difference_bits,
        "MAGNITUDE_BITS": form.magnitude_bits,
        "FRACTION_BITS": form.fraction_bits,
        "TOP_FIELD": form.top_field,
        "LARGEST": form.largest,
        "LOWEST": form.lowest,
        "COMPLEMENT": int(form.complement),
        "INFINITIES": int(form.infinities),
        "NAN_MAGNITUDE": -1 if form.nan_magnitude is None else form.nan_magnitude,
        "ABOVE": -1 if form.above is None else form.above,
    })
