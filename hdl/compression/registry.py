"""The codecs that weights and gradients can go through on the ring, by name.

Configurations, command lines and reports use the name; packets carry the code. A new format is one entry here and one
in :mod:`sim.golden.codecs`: docs/compression/adding-a-format.md.
"""

from collections.abc import Callable, Iterator, Mapping

from hdl.compression import bfloat16
from hdl.compression.block import coding, microscaling, shared_exponent
from hdl.compression.block.format import BlockCodec
from hdl.compression.centroid import format as centroid
from hdl.compression.centroid.search import CentroidEncoder
from hdl.compression.codec import Codebook, Codec, FixedCodec
from hdl.compression.length import WORD
from hdl.compression.nvfp4 import coding as nvfp4
from hdl.compression.nvfp4.format import NVFP4
from hdl.compression.raw import Passage
from hdl.compression.table.codec import TableCodec
from hdl.compression.zero_value.codec import ZeroValueCodec
from hdl.group import GROUP

__all__ = ["CODECS", "FETCH_FORMATS", "GRADIENT_CODECS", "RAW", "WEIGHT_CODECS", "ZERO_VALUE", "block_codec",
           "fetch_blocks"]

#: Names of the codecs that a node has unless it is told otherwise.
RAW, ZERO_VALUE = "raw", "zero_value"


def block_codec(code: int, format: BlockCodec) -> FixedCodec:
    """Return the codec of a format with one exponent per block."""
    return FixedCodec(code=code, block=format.block, block_bits=format.block_bits, encoder=coding.Encoder,
                      decoder=coding.Decoder, parameters={"codec": format})


def _centroid_codec(code: int, centroids: int) -> FixedCodec:
    """Return the codec of weights as indices of centroids, with which its units are loaded."""
    table = centroid.CentroidTable(centroids=centroids, loaded=True)
    return FixedCodec(code=code, block=GROUP, block_bits=GROUP * table.index_bits, encoder=CentroidEncoder,
                      decoder=centroid.Decoder, parameters={"table": table}, gradients=False,
                      codebook=Codebook.NUMBERS, centroids=centroids)


def _nvfp4_codec(code: int, format: NVFP4) -> FixedCodec:
    """Return the codec of NVFP4 with a tensor scale."""
    return FixedCodec(code=code, block=format.block, block_bits=format.block_bits, encoder=nvfp4.Encoder,
                      decoder=nvfp4.Decoder, parameters={"codec": format}, repeatable=False)


#: All codecs by their names.
CODECS: dict[str, Codec] = {
    ZERO_VALUE: ZeroValueCodec(code=1),
    RAW: FixedCodec(code=0, block=1, block_bits=WORD, encoder=Passage, decoder=Passage, exact=True),
    "bf16": FixedCodec(code=2, block=bfloat16.BLOCK, block_bits=bfloat16.BLOCK_BITS,
                       encoder=bfloat16.BFloat16Encoder, decoder=bfloat16.BFloat16Decoder),
    "mx9": block_codec(3, shared_exponent.MX9),
    "mx6": block_codec(4, shared_exponent.MX6),
    "mx4": block_codec(5, shared_exponent.MX4),
    "bfp8": block_codec(6, shared_exponent.BFP8),
    "mxint8": block_codec(7, microscaling.MXINT8),
    "mxfp8_e4m3": block_codec(8, microscaling.MXFP8_E4M3),
    "mxfp8_e5m2": block_codec(9, microscaling.MXFP8_E5M2),
    "mxfp6_e2m3": block_codec(10, microscaling.MXFP6_E2M3),
    "mxfp6_e3m2": block_codec(11, microscaling.MXFP6_E3M2),
    "mxfp4_e2m1": block_codec(12, microscaling.MXFP4_E2M1),
    "table32": TableCodec(code=13, centroids=32),
    "centroid16": _centroid_codec(14, 16),
    "centroid64": _centroid_codec(15, 64),
    "mxfp8_e4m3_up": block_codec(17, microscaling.MXFP8_E4M3_UP),
    "mxfp4_e2m1_up": block_codec(18, microscaling.MXFP4_E2M1_UP),
    "nvfp4": _nvfp4_codec(19, NVFP4()),
}

#: Formats of weights that a relay's server gives to its workers. A command has the place of its format here, and one
#: pair of units has all but the first.
FETCH_FORMATS = (RAW, "mx4", "mx6", "mx9")


def fetch_blocks() -> tuple[BlockCodec, ...]:
    """Return the formats of :data:`FETCH_FORMATS` with blocks, in this order, the widest last."""
    return tuple(CODECS[name].parameters["codec"] for name in FETCH_FORMATS[1:])


class _View(Mapping[str, Codec]):
    """The codecs of one direction, in the order of :data:`CODECS`."""

    def __init__(self, serves: Callable[[Codec], bool]) -> None:
        self._serves = serves

    def __getitem__(self, name: str) -> Codec:
        codec = CODECS[name]
        if not self._serves(codec):
            raise KeyError(name)
        return codec

    def __iter__(self) -> Iterator[str]:
        return (name for name, codec in CODECS.items() if self._serves(codec))

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: Codecs that new weights can go through.
WEIGHT_CODECS: Mapping[str, Codec] = _View(lambda codec: codec.weights)

#: Codecs that gradients and their sums can go through. Where sums are not added as they are coded, they are decoded,
#: added and encoded again at each hop.
GRADIENT_CODECS: Mapping[str, Codec] = _View(lambda codec: codec.gradients)
