# amaranth: UnusedElaboratable=no
"""Encoding and decoding of NVFP4 packets: hdl/features/nvfp4/coding.py."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import CODECS
from hdl.compression.words import WordDecoder, WordEncoder
from hdl.features.mx import coding
from hdl.features.nvfp4.coding import Decoder, Encoder
from hdl.features.nvfp4.format import NVFP4
from hdl.floating.format import BF16, FP32
from hdl.streams.stream import beat_layout, connect_stream
from sim.golden.features.nvfp4.nvfp4 import NVFP4 as MODEL
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import blocks, packets
from tests.traces import taken
from tests.words import bits_of

LANES = (1, 4, 8)
SPECIAL = (0, 0x8000_0000, 1, 0x807F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0001)

KINDS = (coding.Encoder, coding.Decoder)
test_lockstep = blocks.BENCH.lockstep([(kind, "NVFP4", lanes) for kind, lanes in zip(KINDS, (4, 1), strict=True)],
                                      count=2_500, least=10)
test_lockstep_of_parameters = blocks.BENCH.random([
    (kind, *case, noise) for kind, noise in zip(KINDS, (False, True), strict=True) for case in (
        *(("NVFP4", lanes, FP32) for lanes in LANES), ("NVFP4 least", 4, FP32), ("NVFP4 most", 8, FP32),
        ("NVFP4 small", 16, FP32), ("NVFP4", 8, BF16))], count=2_500)
test_cocotb = blocks.cocotb_test("NVFP4", 8)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("check", [blocks.encoder_throughput, blocks.decoder_throughput, blocks.every_code,
                                   blocks.partial_blocks, blocks.cut_packets])
def test_packets(check, lanes):
    check("NVFP4", lanes)


@pytest.mark.parametrize(("lanes", "encoder", "decoder"), [(1, 9, 3), (4, 11, 3), (8, 12, 3), (16, 12, 3)])
def test_latency(lanes, encoder, decoder):
    assert Encoder(codec=NVFP4(), lanes=lanes).latency == encoder
    assert Decoder(codec=NVFP4(), lanes=lanes).latency == decoder


class RoundTrip(wiring.Component):
    """Encode elements as link words and decode them again, as a node does."""

    i: In(stream.Signature(beat_layout(4)))
    o: Out(stream.Signature(beat_layout(4)))

    def elaborate(self, platform):
        m = Module()
        m.submodules.encoder = encoder = WordEncoder(codec=CODECS["nvfp4"], lanes=4)
        m.submodules.decoder = decoder = WordDecoder(codec=CODECS["nvfp4"], lanes=4)
        for source, sink in ((self.i, encoder.i), (encoder.o, decoder.i), (decoder.o, self.o)):
            connect_stream(m, source, sink)
        return m


@pytest.mark.parametrize("count", [16, 256])
def test_round_trip(count):
    """Decoding delays the first beat of a packet by 20 cycles and the last beat by 21 cycles."""
    elements = bits_of(np.random.default_rng(count).standard_normal(count))
    trace = Unit(RoundTrip(), name="NVFP4RoundTrip").lockstep(
        sources={"i": Feed(packets.beats([elements], 4))}, sinks={"o": True}, cycles=200)
    sent, received = (taken(trace, port, beat_layout(4)) for port in "io")
    assert received[1]["elements"].ravel().tolist() == MODEL().decode(MODEL().encode(elements), count).tolist()
    assert (received[0][0] - sent[0][0], received[0][-1] - sent[0][-1]) == (20, 21)
    assert sent[0].tolist() == list(range(count // 4))


@pytest.mark.parametrize("special", SPECIAL)
def test_special_blocks(special):
    blocks.special_blocks("NVFP4", special, 4)
