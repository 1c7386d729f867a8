# amaranth: UnusedElaboratable=no
"""Dequantizer for NVFP4 blocks: hdl/features/nvfp4/dequantizer.py."""

import numpy as np
import pytest

from hdl.features.mx.format import block_layout
from hdl.features.nvfp4.dequantizer import Dequantizer
from hdl.features.nvfp4.format import NVFP4
from hdl.floating.format import BF16, FP32
from hdl.streams.stream import beat_layout
from sim.golden.features.mx.block_format import Blocks
from sim.golden.features.nvfp4 import nvfp4 as model
from sim.payload import pack
from sim.verilated.vectors import Feed, Unit
from tests.refusals import refuses
from tests.traces import taken


@pytest.mark.parametrize(("format", "power"), [(FP32, 0), (FP32, -115), (BF16, 116)])
def test_every_code(format, power):
    """Every code is decoded correctly at every scale, including NaN, with the stated latency."""
    codec, golden = NVFP4(tensor_scale=2.0 ** power), model.NVFP4(tensor_scale=2.0 ** power)
    scales, codes = np.repeat(np.arange(256), 4), np.tile(np.arange(16).reshape(4, 4), (256, 1))
    beats = pack(block_layout(codec, 4), {
        "exponent": scales, "codes": codes, "first": np.tile([1, 0, 0, 0], 256), "last": np.arange(1024) == 1023})
    unit = Unit(Dequantizer(codec=codec, lanes=4, format=format), name="NVFP4Dequantizer")
    trace = unit.lockstep(sources={"i": Feed(beats)}, sinks={"o": True}, cycles=1030)
    when, payload = taken(trace, "o", beat_layout(4, format.width))
    assert when.tolist() == list(range(Dequantizer.latency, Dequantizer.latency + 1024))
    expected = golden.dequantise(Blocks(np.arange(256), np.zeros((256, 0), np.int64), codes.reshape(256, 16)),
                                 bf16=format is BF16)
    np.testing.assert_array_equal(payload["elements"].ravel(), expected)
    assert (payload["keep"] == 15).all()
    assert payload["last"].tolist() == [0] * 1023 + [1]


def test_parameters():
    refuses("Lane count must be a power of two between 1 and 16, not 3", Dequantizer, codec=NVFP4(), lanes=3)
