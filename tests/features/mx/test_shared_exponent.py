# amaranth: UnusedElaboratable=no

import numpy as np
import pytest

from hdl.features.mx.coding import Decoder, Encoder
from hdl.features.mx.dequantizer import Dequantizer
from hdl.features.mx.format import block_layout
from hdl.features.mx.quantizer import Quantizer
from hdl.features.mx.shared_exponent import MX9, SharedExponent
from hdl.floating.format import BF16, FP16, FP32
from sim.golden.features.mx import shared_exponent as model
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import blocks
from tests.hdl.compression.blocks import as_beats, as_rows
from tests.refusals import refuses
from tests.traces import taken

LANES = (1, 4, 8)
KINDS = (Encoder, Decoder)
#: One format with each number of lanes, the others with one of them; tests/hdl/compression/test_every_codec.py has
#: all named ones with four.
CASES = [*(("MX9", lanes) for lanes in LANES), ("MX6", 8), ("MX4", 1), ("flat", 4), ("deep", 8), ("narrow", 1),
         ("small", 4), ("long", 8), ("single", 1), ("MX9 stochastic", 4), ("single stochastic", 8)]
NAMED = [(name, lanes) for name, lanes in CASES if name in ("MX9", "MX6", "MX4")]
SPECIAL = (0, 0x8000_0000, 1, 0x807F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0001)

# --- construction


@pytest.mark.parametrize("unit", [Quantizer, Dequantizer])
@pytest.mark.parametrize("lanes", [0, 3, 32, 4.0, "4", None])
def test_lanes(unit, lanes):
    refuses(f"Lane count must be a power of two between 1 and 16, not {lanes!r}", unit, codec=MX9, lanes=lanes)


@pytest.mark.parametrize("unit", [Quantizer, Dequantizer])
def test_codec(unit):
    refuses("Codec must be a BlockCodec, not 'MX9'", unit, error=TypeError, codec="MX9", lanes=4)


@pytest.mark.parametrize("unit", [Quantizer, Dequantizer])
def test_format(unit):
    refuses(f"Format must be FP32 or BF16, not {FP16!r}", unit, codec=MX9, lanes=4, format=FP16)
    refuses("Magnitudes must be of at most 8 bits, not 9",
            unit, codec=SharedExponent(mantissa_bits=9), lanes=4, format=BF16)


# --- every cycle against the model


test_lockstep = blocks.BENCH.lockstep([(kind, "MX9", lanes) for kind in KINDS for lanes in LANES], count=2_500,
                                      least=10)
test_lockstep_of_encoders = blocks.BENCH.random(
    [(Encoder, *case) for case in (*CASES, ("MX4", 2), ("MX6", 16), ("MX9 stochastic", 16))], count=2_500)
test_lockstep_of_decoders = blocks.BENCH.random([
    (Decoder, name, lanes, FP32, noise) for name, lanes in (*CASES, ("MX4", 2), ("MX6", 16))
    for noise in (False, True) if "stochastic" not in name], seeds=1, count=2_500)
test_lockstep_of_bfloat16 = blocks.BENCH.random([
    *((Encoder, *case, BF16) for case in (("MX9", 1), ("MX9", 8), ("MX4", 1), ("MX9 stochastic", 4))),
    *((Decoder, "MX9", 4, BF16, noise) for noise in (False, True))], seeds=1, count=2_500)
test_reset_in_a_packet = blocks.BENCH.resets([(kind, "MX9", 4) for kind in KINDS], (1, 2, 6, 9, 14), count=500)
test_cocotb = blocks.cocotb_test("MX9 stochastic", 4)


# --- values


@pytest.mark.parametrize(("name", "lanes"), [
    *((name, lanes) for name, lanes in CASES[2:] if "single" not in name)])
def test_every_fraction(name, lanes):
    blocks.every_fraction(name, lanes)


@pytest.mark.parametrize(("name", "lanes"), NAMED[2:])
def test_every_code(name, lanes):
    blocks.every_code(name, lanes)


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize(("name", "lanes"), NAMED)
def test_special_blocks(name, lanes, special):
    blocks.special_blocks(name, special, lanes)


@pytest.mark.parametrize("name", ["MX9", "MX6", "MX4"])
def test_known(name):
    """The known answers, in blocks of 8."""
    mantissa = {"MX9": 7, "MX6": 4, "MX4": 2}[name]
    known = np.array([1.5, -.75, .3, .2, 3.9, .01, -2, .5], np.float32).view(np.uint32)
    parameters = {"block": 8, "subset": 2, "mantissa_bits": mantissa}
    expected = {7: [96, -48, 19, 13, 125, 0, -64, 16], 4: [12, -6, 2, 2, 15, 0, -8, 2],
                2: [3, -2, 1, 0, 3, 0, -2, 0]}[mantissa]
    unit = Unit(Quantizer(codec=SharedExponent(**parameters), lanes=4))
    trace = unit.lockstep(sources={"i": Feed(as_beats(*as_rows([known], 4, np.random.default_rng(1))))},
                          sinks={"o": True}, cycles=30)
    _, payload = taken(trace, "o", block_layout(SharedExponent(**parameters), 4))
    assert payload["exponent"].tolist() == [128, 128]
    assert payload["differences"].tolist() == [[1, 1, 0, 0]] * 2
    integers = model.SharedExponent(**parameters).integers(payload["codes"].astype(np.int64))
    assert integers.reshape(-1).tolist() == expected
    assert (payload["first"].tolist(), payload["last"].tolist()) == ([1, 0], [0, 1])


# --- latency, throughput and sizes


@pytest.mark.parametrize(("name", "lanes"), CASES)
def test_encoder_throughput(name, lanes):
    blocks.encoder_throughput(name, lanes)


@pytest.mark.parametrize(("name", "lanes"), NAMED)
def test_partial_blocks(name, lanes):
    blocks.partial_blocks(name, lanes)


@pytest.mark.parametrize(("name", "lanes"), NAMED)
def test_decoder_throughput(name, lanes):
    blocks.decoder_throughput(name, lanes)


@pytest.mark.parametrize(("name", "lanes"), NAMED)
def test_cut_packets(name, lanes):
    blocks.cut_packets(name, lanes)
