"""Gateware and golden models of the codecs, looked up by name: hdl/compression/registry.py."""

import numpy as np
import pytest
from amaranth.hdl import Module, Signal

from hdl.compression import registry as gateware
from hdl.compression.codec import CODE_BITS, Codebook, FixedCodec
from hdl.compression.length import LENGTH_BITS, WORD, count_words
from sim.golden import codecs as model
from tests import mx5
from tests.hdl import pysim

NAMES = tuple(gateware.CODECS)
#: Codecs whose packet size depends only on the number of elements.
FIXED = tuple(name for name, codec in gateware.CODECS.items() if isinstance(codec, FixedCodec))
SHARED = ("code", "weights", "gradients", "exact", "sums_coded", "agreed", "block", "codebook_words")


def shared(codec):
    """Gateware and model have equal parameters and the same maximum word count for up to 300 elements."""
    return {**{name: getattr(codec, name) for name in SHARED},
            "words": [codec.max_words(count) for count in range(301)]}


@pytest.mark.parametrize("name", NAMES)
def test_parameters(name):
    assert shared(gateware.CODECS[name]) == shared(model.CODECS[name])


def test_names():
    assert list(gateware.CODECS) == list(model.CODECS)
    assert list(gateware.WEIGHT_CODECS) == list(model.WEIGHT_CODECS)
    assert list(gateware.GRADIENT_CODECS) == list(model.GRADIENT_CODECS)
    assert (gateware.RAW, gateware.ZERO_VALUE) == (model.RAW, model.ZERO_VALUE) == ("raw", "zero_value")


#: Codes that identify formats on the wire and never change. Code 16 belongs to MX5, which exists only in tests.
CODES = {
    "raw": 0, "zero_value": 1, "bf16": 2, "mx9": 3, "mx6": 4, "mx4": 5, "bfp8": 6, "mxint8": 7, "mxfp8_e4m3": 8,
    "mxfp8_e5m2": 9, "mxfp6_e2m3": 10, "mxfp6_e3m2": 11, "mxfp4_e2m1": 12, "table32": 13, "centroid16": 14,
    "centroid64": 15, "mxfp8_e4m3_up": 17, "mxfp4_e2m1_up": 18, "nvfp4": 19, "sum32": 20, "sum16": 22}


def test_codes():
    """Existing formats keep their codes, and a new format gets a code of its own."""
    codes = {name: codec.code for name, codec in gateware.CODECS.items()}
    assert {name: codes[name] for name in CODES} == CODES
    assert len(set(codes.values()) | {mx5.CODE}) == len(codes) + 1
    assert 0 <= min(codes.values()) <= max(codes.values()) < 1 << CODE_BITS


def test_directions():
    """Every codec is for weights or gradients; codebooks are only for weights, and sums of integers only for
    gradients. Coded sums are exact."""
    assert set(CODES) - set(gateware.WEIGHT_CODECS) == {"zero_value", "sum32", "sum16"}
    assert set(CODES) - set(gateware.GRADIENT_CODECS) == {"table32", "centroid16", "centroid64"}
    assert {name for name in CODES if gateware.CODECS[name].exact} == {"raw", "zero_value"}
    for codec in gateware.CODECS.values():
        assert codec.weights or codec.gradients
        assert codec.codebook is Codebook.NONE or not codec.gradients
        assert codec.exact or not codec.sums_coded
        assert codec.repeatable or not codec.exact
    for view, other in ((gateware.WEIGHT_CODECS, "zero_value"), (gateware.GRADIENT_CODECS, "table32")):
        assert len(view) == len(list(view))
        assert other not in view
        with pytest.raises(KeyError):
            view[other]


def test_words_of_a_table():
    """The maximum number of words is reached with the maximum number of distinct exponents."""
    codec = model.CODECS["table32"]
    for count in (0, 1, 31, 64, 256, 2048):
        elements = (np.arange(count, dtype=np.uint32) % 256) << 23
        assert gateware.CODECS["table32"].max_words(count) == len(codec.encode(elements))
        assert len(codec.encode(elements)) <= count + -(-count // 32) + 7


@pytest.mark.parametrize("name", FIXED)
def test_words(name):
    """For every packet length, the golden model produces the number of words that the gateware counts."""
    codec, golden = gateware.CODECS[name], model.CODECS[name]
    counts = [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 511, 512]
    assert [len(golden.encode(np.ones(count, np.uint32))) for count in counts] == [
        codec.max_words(count) for count in counts]

    m = Module()
    length, word_count = Signal(LENGTH_BITS), Signal(LENGTH_BITS)
    m.d.comb += word_count.eq(count_words(codec.block, codec.block_bits, length))
    result = []

    async def process(ctx):
        for count in range(1 << LENGTH_BITS):
            ctx.set(length, count)
            result.append(ctx.get(word_count))

    pysim.simulate(m, process, clock=False)
    assert result == [codec.max_words(count) for count in range(1 << LENGTH_BITS)]
    assert codec.block_bits <= WORD * codec.block, "the counter of a depacketizer would be too narrow"
