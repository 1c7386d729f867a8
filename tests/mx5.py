"""A format that only tests know, added as docs/compression/adding-a-format.md says: MX5, with three mantissa bits
below the exponents of MX9, MX6 and MX4."""

import contextlib

from hdl.compression import registry as gateware
from hdl.compression.block import shared_exponent
from sim.golden import codecs as model
from sim.golden import shared_exponent as golden_shared_exponent

__all__ = ["GATEWARE", "MODEL", "NAME", "PATCH", "registered"]

NAME, CODE = "mx5", 16

GATEWARE = gateware.block_codec(CODE, shared_exponent.SharedExponent(mantissa_bits=3))
MODEL = model.FixedCodec(code=CODE, format=golden_shared_exponent.SharedExponent(mantissa_bits=3))

#: The same as a change of the tree: file, the line that it follows, and the line that is added.
PATCH = (
    ("hdl/compression/registry.py", '    "centroid64": _centroid_codec(15, 64),\n',
     '    "mx5": block_codec(16, shared_exponent.SharedExponent(mantissa_bits=3)),\n'),
    ("sim/golden/codecs.py", '    "centroid64": CentroidCodec(code=15, centroids=64),\n',
     '    "mx5": FixedCodec(code=16, format=shared_exponent.SharedExponent(mantissa_bits=3)),\n'),
)


@contextlib.contextmanager
def registered():
    """Both registries have the format; nested uses leave it to the outermost to take it out again."""
    if NAME in gateware.CODECS:
        yield
        return
    gateware.CODECS[NAME], model.CODECS[NAME] = GATEWARE, MODEL
    try:
        yield
    finally:
        del gateware.CODECS[NAME], model.CODECS[NAME]
