"""The format ``signs``: a sign per element and a power of two per block."""

from hdl.compression.codec import FixedCodec
from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "SignsFeature"]


class SignsFeature(Feature):
    """Feature for sending only the signs of elements."""

    requires = ("mx",)

    def codecs(self):
        from hdl.features.signs import coding

        return {"signs": FixedCodec(code=codes("signs").ring, block=32, block_bits=40, encoder=coding.Encoder,
                                    decoder=coding.Decoder, parameters={"codec": coding.Signs()})}


FEATURE = SignsFeature()
