# amaranth: UnusedElaboratable=no
"""Quantizer from numbers to NVFP4 blocks: hdl/features/nvfp4/quantizer.py."""

import numpy as np
import pytest

from hdl.features.mx.format import block_layout
from hdl.features.nvfp4.format import NVFP4
from hdl.features.nvfp4.quantizer import Quantizer, quantizer_latency
from hdl.floating.format import BF16, FP16, FP32
from sim.golden.features.nvfp4 import nvfp4 as model
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression.blocks import as_beats, as_rows
from tests.nvfp4 import every_place
from tests.refusals import refuses
from tests.traces import taken


@pytest.mark.parametrize(("lanes", "format", "power", "latency"), [
    (4, FP32, 0, 10), (4, FP32, -115, 10), (4, FP32, 116, 10), (1, FP32, 0, 8), (8, BF16, -8, 11), (16, FP32, 0, 11)])
def test_every_place(lanes, format, power, latency):
    """Blocks around every scale or element transition are quantized correctly, at one beat per cycle."""
    codec, golden = NVFP4(tensor_scale=2.0 ** power), model.NVFP4(tensor_scale=2.0 ** power)
    bits = every_place(golden)
    if lanes == 1:
        bits = bits[::5]
    if format is BF16:
        bits &= np.uint32(0xFFFF_0000)
    unit = Unit(Quantizer(codec=codec, lanes=lanes, format=format), name="NVFP4Quantizer")
    rows = as_rows([bits.ravel()], lanes, np.random.default_rng(1))
    beats = len(rows[0])
    trace = unit.lockstep(sources={"i": Feed(as_beats(*rows, format))}, sinks={"o": True}, cycles=beats + 40)
    when, payload = taken(trace, "o", block_layout(codec, lanes))
    expected, per_block = golden.quantise(bits.ravel()), 16 // lanes
    assert quantizer_latency(codec, lanes) == latency
    assert when.tolist() == list(range(per_block - 1 + latency, per_block - 1 + latency + beats))
    np.testing.assert_array_equal(payload["exponent"], np.repeat(expected.exponents, per_block))
    np.testing.assert_array_equal(payload["codes"].reshape(-1, 16), expected.codes)
    assert payload["first"].tolist() == ([1] + [0] * (per_block - 1)) * len(bits)
    assert payload["last"].tolist() == [0] * (beats - 1) + [1]


def test_parameters():
    assert Quantizer(codec=NVFP4(), lanes=2).latency == 9
    refuses("Lane count must be a power of two between 1 and 16, not 32", Quantizer, codec=NVFP4(), lanes=32)
    with pytest.raises(ValueError, match=r"^Format must be FP32 or BF16, not "):
        Quantizer(codec=NVFP4(), lanes=4, format=FP16)
    refuses("Codec must be a BlockCodec, not 'nvfp4'", Quantizer, error=TypeError, codec="nvfp4", lanes=4)
