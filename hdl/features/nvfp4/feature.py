"""The nvfp4 format; see docs/compression/nvfp4.md."""

from hdl.compression.codec import FixedCodec
from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "Nvfp4Feature"]


class Nvfp4Feature(Feature):
    """Feature that adds the nvfp4 format, which has a scale per block and a scale per tensor."""

    requires = ("mx",)

    def codecs(self):
        """Ring codecs of the formats, by name."""
        from hdl.features.nvfp4 import coding
        from hdl.features.nvfp4.format import NVFP4

        format = NVFP4()
        return {"nvfp4": FixedCodec(code=codes("nvfp4").ring, block=format.block, block_bits=format.block_bits,
                                    encoder=coding.Encoder, decoder=coding.Decoder, parameters={"codec": format},
                                    repeatable=False)}

    def operands(self):
        """Operand formats for products, by name."""
        from hdl.features.block_operands.operands import BlockOperands
        from hdl.features.nvfp4.format import NVFP4

        return {"nvfp4": BlockOperands(code=codes("nvfp4").operands, codec=NVFP4())}


FEATURE = Nvfp4Feature()
