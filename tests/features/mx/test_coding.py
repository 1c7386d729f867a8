# amaranth: UnusedElaboratable=no
"""Encoding of numbers into packets of blocks, and decoding: hdl/features/mx/coding.py.

All cycles and values of the formats are tested by test_shared_exponent.py and test_microscaling.py.
"""

import numpy as np
import pytest

from hdl.features.mx.coding import Decoder, Encoder
from hdl.features.mx.dequantizer import Dequantizer
from hdl.features.mx.microscaling import MXINT8
from hdl.features.mx.packing import Packer, Unpacker
from hdl.features.mx.quantizer import Quantizer
from hdl.features.mx.shared_exponent import MX9, SharedExponent
from hdl.floating.format import BF16, FP16
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets
from tests.refusals import refuses

#: Blocks of 40 bits: an eight-bit exponent and eight signed three-bit magnitudes.
CODEC = SharedExponent(block=8, difference_bits=0, mantissa_bits=3)


# --- construction


@pytest.mark.parametrize("unit", [Encoder, Decoder, Quantizer, Dequantizer])
def test_parameters(unit):
    for lanes in (0, 3, 32, 4.0, "4", None):
        refuses(f"Lane count must be a power of two between 1 and 16, not {lanes!r}", unit, codec=MX9, lanes=lanes)
    refuses("Codec must be a BlockCodec, not 'MX9'", unit, error=TypeError, codec="MX9", lanes=4)
    refuses(f"Format must be FP32 or BF16, not {FP16!r}", unit, codec=MX9, lanes=4, format=FP16)
    refuses("Magnitudes must be of at most 8 bits, not 9",
            unit, codec=SharedExponent(mantissa_bits=9), lanes=4, format=BF16)


@pytest.mark.parametrize("unit", [Encoder, Decoder])
def test_words(unit):
    for words in (1, 0, 2.0, "3"):
        refuses(f"Word count must be an integer of at least 3, not {words!r}",
                unit, codec=MXINT8, lanes=8, words=words)


@pytest.mark.parametrize("lanes", [1, 4, 8])
@pytest.mark.parametrize("codec", [MX9, MXINT8, CODEC], ids=["MX9", "MXINT8", "flat"])
def test_latency_of_parts(codec, lanes):
    parts = {"codec": codec, "lanes": lanes}
    assert Encoder(**parts).latency == Quantizer(**parts).latency + Packer.latency
    assert Decoder(**parts).latency == Unpacker.latency + Dequantizer(**parts).latency


# --- values


def _run(kind, packet):
    """Run one packet through a unit, and return the output packet."""
    component, unit = kind(codec=CODEC, lanes=4), Unit(kind(codec=CODEC, lanes=4), name=f"Block{kind.__name__}")
    inside, outside = (4, component.words) if kind is Encoder else (component.words, 4)
    trace = unit.lockstep(sources={"i": Feed(packets.beats([packet], inside))}, sinks={"o": True}, cycles=40)
    (got,), rest, _ = packets.taken(trace, outside)
    assert len(rest) == 0
    assert kind is Encoder or not trace["error"].any()
    return got


def test_known():
    """In a known block, ties are rounded to even, magnitudes saturate, and zeros keep their sign."""
    numbers = np.array([1, -1.5, .25, 1.9375, -.75, .125, -2.0 ** -20, 0], np.float32).view(np.uint32)
    codes = [4, 8 + 6, 1, 7, 8 + 3, 0, 8, 0]
    bits = 127 | sum(code << 8 + 4 * index for index, code in enumerate(codes))
    words = [bits & 0xFFFF_FFFF, bits >> 32]
    assert _run(Encoder, numbers).tolist() == words
    got = _run(Decoder, np.array(words, np.uint32))
    assert got.view(np.float32).tolist() == [1, -1.5, .25, 1.75, -.75, 0, 0, 0]
    assert got[6] == 0x8000_0000
