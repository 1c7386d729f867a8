"""Parameters of the NVFP4 format: hdl/features/nvfp4/format.py."""

import pytest

from hdl.features.mx.format import Rounding, block_layout, check_codec
from hdl.features.nvfp4.format import LARGEST_SCALE, NAN_SCALE, NVFP4
from hdl.floating.format import BF16, FP32
from sim.golden.features.nvfp4 import nvfp4 as model
from tests.refusals import refused_values, refuses


def test_sizes():
    """A block has 16 four-bit elements and an eight-bit scale: 4.5 bits per element."""
    codec = NVFP4()
    assert (codec.block, codec.header_bits, codec.code_bits, codec.block_bits) == (16, 8, 4, 72)
    assert (codec.block_words, codec.words(256), codec.words(17)) == (2.25, 36, 5)
    assert (codec.nan, NAN_SCALE, LARGEST_SCALE) == (127, 127, 126)
    assert set(block_layout(codec, 4).members) == {"exponent", "codes", "first", "last"}
    for lanes, format in ((1, FP32), (16, BF16)):
        check_codec(codec, lanes, format)


@pytest.mark.parametrize("power", [-115, -8, 0, 1, 116])
def test_tensor_scale(power):
    codec, golden = NVFP4(tensor_scale=2.0 ** power), model.NVFP4(tensor_scale=2.0 ** power)
    assert codec.power == golden.power == power
    for name in ("block", "block_bits", "header_bits", "code_bits", "nan"):
        assert getattr(codec, name) == getattr(golden, name)


test_wrong_tensor_scale = refused_values(
    NVFP4, {}, "tensor_scale", [0.0, 3.0, -1.0, 2.0 ** -116, 2.0 ** 117, float("inf"), float("nan"), "1", None],
    "Tensor scale must be a power of two between 2 ** -115 and 2 ** 116")


def test_wrong_rounding():
    message = f"Rounding of NVFP4 must be to nearest even, not {Rounding.STOCHASTIC!r}"
    refuses(message, NVFP4, rounding=Rounding.STOCHASTIC)
    refuses("Rounding must be a Rounding, not 'nearest'", NVFP4, error=TypeError, rounding="nearest")
