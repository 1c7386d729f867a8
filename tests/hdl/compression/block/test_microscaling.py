# amaranth: UnusedElaboratable=no
import pytest

from hdl.floating.format import BF16
from sim.streams import STALLS
from tests.hdl.compression import blocks

LANES = (1, 4, 8)
#: One format of floating-point elements and the integers with each number of lanes, the others with one of them;
#: tests/hdl/compression/test_codecs.py has all of them with four.
CASES = [*((name, lanes) for name in ("MXINT8", "MXFP8_E4M3") for lanes in LANES), ("MXFP8_E5M2", 8),
         ("MXFP6_E2M3", 1), ("MXFP6_E3M2", 8), ("MXFP4_E2M1", 1), ("MXFP8_E4M3_UP", 4), ("MXFP4_E2M1_UP", 8)]
STOCHASTIC = [("MXINT8 stochastic", 8), ("MXFP8_E4M3 stochastic", 1), ("MXFP4_E2M1 stochastic", 4),
              ("MXFP4_E2M1_UP stochastic", 1)]
#: Each format once.
NAMED = [("MXINT8", 8), ("MXFP8_E4M3", 8), *CASES[6:]]
SPECIAL = (0, 0x8000_0000, 1, 0x807F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0001)
#: Every pair of stalls, with each number of lanes in turn.
PAIRS = [(source, sink, LANES[place % 3]) for place, (source, sink) in enumerate(
    (source, sink) for source in STALLS for sink in STALLS)]

# --- every cycle against the model


@pytest.mark.parametrize(("source", "sink", "lanes"), PAIRS)
def test_encoder_lockstep(source, sink, lanes):
    blocks.encoder_lockstep("MXFP8_E4M3", lanes, source, sink, STALLS.index(source) + 4 * STALLS.index(sink))


@pytest.mark.parametrize(("name", "lanes"), [*CASES, *STOCHASTIC, ("MXINT8", 32), ("MXFP4_E2M1", 32)])
def test_encoder_lockstep_of_formats(name, lanes):
    for seed in range(2):
        blocks.encoder_lockstep(name, lanes, "geometric", "geometric", seed)


@pytest.mark.parametrize(("name", "lanes"), [("MXINT8", 8), ("MXFP8_E5M2", 1)])
def test_encoder_lockstep_of_bfloat16(name, lanes):
    blocks.encoder_lockstep(name, lanes, "geometric", "geometric", 5, format=BF16)


@pytest.mark.parametrize(("source", "sink", "lanes"), PAIRS)
def test_decoder_lockstep(source, sink, lanes):
    blocks.decoder_lockstep("MXINT8", lanes, source, sink, STALLS.index(source) + 4 * STALLS.index(sink))


@pytest.mark.parametrize(("name", "lanes"), [*CASES, ("MXINT8", 32)])
def test_decoder_lockstep_of_formats(name, lanes):
    """Words of an encoder, and words of any bits."""
    for seed in range(2):
        blocks.decoder_lockstep(name, lanes, "geometric", "geometric", seed, noise=bool(seed))


@pytest.mark.parametrize("name", ["MXINT8", "MXFP8_E4M3", "MXFP8_E5M2"])
def test_decoder_lockstep_of_bfloat16(name):
    for seed in range(2):
        blocks.decoder_lockstep(name, 4, "geometric", "geometric", seed, noise=bool(seed), format=BF16)


# --- values


@pytest.mark.parametrize(("name", "lanes"), [*NAMED, *STOCHASTIC])
def test_every_fraction(name, lanes):
    blocks.every_fraction(name, lanes)


@pytest.mark.parametrize(("name", "lanes"), NAMED)
def test_every_code(name, lanes):
    blocks.every_code(name, lanes)


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize(("name", "lanes"), [("MXINT8", 1), ("MXINT8", 8), ("MXFP8_E4M3", 1), ("MXFP8_E4M3", 8)])
def test_special_blocks(name, lanes, special):
    blocks.special_blocks(name, special, lanes)


# --- latency, throughput and sizes


@pytest.mark.parametrize(("name", "lanes"), [*CASES, *STOCHASTIC])
def test_encoder_throughput(name, lanes):
    blocks.encoder_throughput(name, lanes)


@pytest.mark.parametrize(("name", "lanes"), [
    *(("MXINT8", lanes) for lanes in LANES), ("MXFP6_E2M3", 1), ("MXFP4_E2M1", 1)])
def test_partial_blocks(name, lanes):
    blocks.partial_blocks(name, lanes)


@pytest.mark.parametrize(("name", "lanes"), CASES)
def test_decoder_throughput(name, lanes):
    blocks.decoder_throughput(name, lanes)


@pytest.mark.parametrize(("name", "lanes"), [*(("MXINT8", lanes) for lanes in LANES), ("MXFP4_E2M1", 1)])
def test_cut_packets(name, lanes):
    blocks.cut_packets(name, lanes)


# --- the same under cocotb, after a reset in the middle of a block


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb(kind):
    blocks.run_cocotb("MXFP6_E3M2", 8, kind)
