"""MX5, a format with three mantissa bits that only tests use (docs/compression/adding-a-format.md)."""

import contextlib
from unittest import mock

from hdl.compression.codec import FixedCodec
from hdl.feature import Feature
from hdl.features.mx import coding, shared_exponent
from hdl.registry import FEATURES, Codes, Entry
from sim.golden import codecs as model
from sim.golden.features.mx import shared_exponent as golden_shared_exponent

NAME, CODE = "mx5", 16

_FORMAT = shared_exponent.SharedExponent(mantissa_bits=3)
GATEWARE = FixedCodec(code=CODE, block=_FORMAT.block, block_bits=_FORMAT.block_bits, encoder=coding.Encoder,
                      decoder=coding.Decoder, parameters={"codec": _FORMAT})
MODEL = model.FixedCodec(code=CODE, format=golden_shared_exponent.SharedExponent(mantissa_bits=3))

#: Changes to the source tree that add the format: file, preceding line, and added line.
PATCH = (
    ("hdl/registry.py", '        "mx9": Codes(ring=3, operands=2, blocks=True, broadcast=3),\n',
     '        "mx5": Codes(ring=16),\n'),
    ("hdl/features/mx/formats.py", '    "mx9": shared_exponent.MX9,\n',
     '    "mx5": shared_exponent.SharedExponent(mantissa_bits=3),\n'),
    ("sim/golden/codecs.py", '                           lambda make: make(code=15, centroids=64)),\n',
     '    "mx5": OnDemand("sim.golden.features.mx.shared_exponent:SharedExponent",\n'
     '                    lambda make: FixedCodec(code=16, format=make(mantissa_bits=3))),\n'),
)


class Mx5Feature(Feature):
    """Feature that consists of this format."""

    requires = ("mx",)

    def codecs(self):
        return {NAME: GATEWARE}


FEATURE = Mx5Feature()


@contextlib.contextmanager
def registered():
    """Add the format to both registries, and remove it when the outermost context ends."""
    if NAME in FEATURES:
        yield
        return
    entry = Entry(module="tests.mx5", formats={NAME: Codes(ring=CODE)})
    with mock.patch.dict(FEATURES, {NAME: entry}):
        model.CODECS[NAME] = MODEL
        try:
            yield
        finally:
            del model.CODECS[NAME]
