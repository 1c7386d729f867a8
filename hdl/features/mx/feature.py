"""Block formats with a shared exponent; see docs/compression/shared_exponent.md."""

from hdl.compression.codec import FixedCodec
from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "MxFeature"]


class MxFeature(Feature):
    """Feature with formats that store one exponent per block of numbers."""

    def codecs(self):
        """Ring codecs of the formats, by name."""
        from hdl.features.mx import coding
        from hdl.features.mx.formats import FORMATS

        return {name: FixedCodec(code=codes(name).ring, block=format.block, block_bits=format.block_bits,
                                 encoder=coding.Encoder, decoder=coding.Decoder, parameters={"codec": format})
                for name, format in FORMATS.items()}

    def operands(self):
        """Operand formats for products, by name."""
        from hdl.features.block_operands.operands import BlockOperands
        from hdl.features.mx.formats import FORMATS

        return {name: BlockOperands(code=codes(name).operands, codec=format)
                for name, format in FORMATS.items() if codes(name).operands is not None}


FEATURE = MxFeature()
