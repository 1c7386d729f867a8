# amaranth: UnusedElaboratable=no
import pytest

from hdl.features.mx.coding import Decoder, Encoder
from hdl.floating.format import BF16, FP32
from tests.hdl.compression import blocks

LANES = (1, 4, 8)
KINDS = (Encoder, Decoder)
#: One format with every number of lanes, and more formats with one number of lanes each.
#: tests/hdl/compression/test_every_codec.py tests all named formats with four lanes.
CASES = [*(("MX9", lanes) for lanes in LANES), ("MX6", 8), ("MX4", 1), ("flat", 4), ("deep", 8), ("narrow", 1),
         ("small", 4), ("long", 8), ("single", 1), ("MX9 stochastic", 4), ("single stochastic", 8)]
NAMED = [(name, lanes) for name, lanes in CASES if name in ("MX9", "MX6", "MX4")]
SPECIAL = (0, 0x8000_0000, 1, 0x807F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0001)

# --- every cycle compared with the model


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


# --- values, latency, throughput and sizes


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize(("name", "lanes"), NAMED)
def test_special_blocks(name, lanes, special):
    blocks.special_blocks(name, special, lanes)


@pytest.mark.parametrize(("check", "name", "lanes"), [(check, *case) for check, cases in (
    (blocks.every_fraction, [case for case in CASES[2:] if "single" not in case[0]]), (blocks.every_code, NAMED[2:]),
    (blocks.encoder_throughput, CASES), (blocks.decoder_throughput, NAMED), (blocks.partial_blocks, NAMED),
    (blocks.cut_packets, NAMED)) for case in cases])
def test_packets(check, name, lanes):
    check(name, lanes)
