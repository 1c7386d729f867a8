# amaranth: UnusedElaboratable=no
import pytest

from hdl.features.mx.coding import Decoder, Encoder
from hdl.floating.format import BF16, FP32
from tests.hdl.compression import blocks

LANES = (1, 4, 8)
#: One floating-point format and the integer format with every number of lanes, and each other format with one.
#: tests/hdl/compression/test_every_codec.py tests all formats with four lanes.
CASES = [*((name, lanes) for name in ("MXINT8", "MXFP8_E4M3") for lanes in LANES), ("MXFP8_E5M2", 8),
         ("MXFP6_E2M3", 1), ("MXFP6_E3M2", 8), ("MXFP4_E2M1", 1), ("MXFP8_E4M3_UP", 4), ("MXFP4_E2M1_UP", 8)]
STOCHASTIC = [("MXINT8 stochastic", 8), ("MXFP8_E4M3 stochastic", 1), ("MXFP4_E2M1 stochastic", 4),
              ("MXFP4_E2M1_UP stochastic", 1)]
INTEGERS = [("MXINT8", lanes) for lanes in LANES]
#: One case per format: its name and a number of lanes.
NAMED = [("MXINT8", 8), ("MXFP8_E4M3", 8), *CASES[6:]]
SPECIAL = (0, 0x8000_0000, 1, 0x807F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0001)

# --- every cycle compared with the model


test_lockstep = blocks.BENCH.lockstep([(Encoder, "MXFP8_E4M3", 4), (Decoder, "MXINT8", 8)], count=2_500, least=10)
test_lockstep_of_encoders = blocks.BENCH.random(
    [(Encoder, *case) for case in (*CASES, *STOCHASTIC, ("MXINT8", 32), ("MXFP4_E2M1", 32))], count=2_500)
test_lockstep_of_decoders = blocks.BENCH.random([
    (Decoder, *case, FP32, noise) for case in (*CASES, ("MXINT8", 32)) for noise in (False, True)], seeds=1,
    count=2_500)
test_lockstep_of_bfloat16 = blocks.BENCH.random([
    (Encoder, "MXINT8", 8, BF16), (Encoder, "MXFP8_E5M2", 1, BF16),
    *((Decoder, name, 4, BF16, noise) for name in ("MXINT8", "MXFP8_E4M3", "MXFP8_E5M2") for noise in (False, True))],
    seeds=1, count=2_500)
test_cocotb = blocks.cocotb_test("MXFP6_E3M2", 8)


# --- values, latency, throughput and sizes


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize(("name", "lanes"), [("MXINT8", 1), ("MXINT8", 8), ("MXFP8_E4M3", 1), ("MXFP8_E4M3", 8)])
def test_special_blocks(name, lanes, special):
    blocks.special_blocks(name, special, lanes)


@pytest.mark.parametrize(("check", "name", "lanes"), [(check, *case) for check, cases in (
    (blocks.every_fraction, [*NAMED, *STOCHASTIC]), (blocks.every_code, NAMED),
    (blocks.encoder_throughput, [*CASES, *STOCHASTIC]), (blocks.decoder_throughput, CASES),
    (blocks.partial_blocks, [*INTEGERS, ("MXFP6_E2M3", 1), ("MXFP4_E2M1", 1)]),
    (blocks.cut_packets, [*INTEGERS, ("MXFP4_E2M1", 1)])) for case in cases])
def test_packets(check, name, lanes):
    check(name, lanes)
