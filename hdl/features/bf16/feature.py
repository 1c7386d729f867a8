"""The bf16 format: binary32 rounded to its upper 16 bits."""

from hdl.compression.codec import FixedCodec
from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "BFloat16Feature"]


class BFloat16Feature(Feature):
    """Feature that adds the bf16 format, which rounds numbers to bfloat16."""

    def codecs(self):
        """Ring codecs of the formats, by name."""
        from hdl.features.bf16 import codec

        return {"bf16": FixedCodec(code=codes("bf16").ring, block=codec.BLOCK, block_bits=codec.BLOCK_BITS,
                                   encoder=codec.BFloat16Encoder, decoder=codec.BFloat16Decoder)}

    def operands(self):
        """Operand formats for products, by name."""
        from hdl.features.bf16 import operands
        from hdl.features.compute.operands import ScalarOperands

        return {"bf16": ScalarOperands(
            code=codes("bf16").operands, a=operands.factor_layout(exact=False), b=operands.factor_layout(exact=True),
            rounder=operands.BFloat16Rounder, multiplier=operands.multiplier)}


FEATURE = BFloat16Feature()
