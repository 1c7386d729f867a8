# amaranth: UnusedElaboratable=no
import functools

import cocotb
import numpy as np
import pytest

from hdl.compression.block import microscaling as mx_gateware
from hdl.compression.block import shared_exponent as gateware
from hdl.compression.block.dot_product import BlockDotProduct, dot_product_layout
from hdl.compression.block.format import block_layout
from hdl.compression.block.shared_exponent import SharedExponent
from sim import regression
from sim.golden import dot_product as model
from sim.golden import microscaling as mx
from sim.golden import shared_exponent
from sim.golden.block_format import Blocks
from sim.payload import leaves, pack, unpack
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit

LANES = (1, 4, 8)
OTHERS = {"flat": {"difference_bits": 0, "mantissa_bits": 5},
          "deep": {"block": 32, "subset": 4, "difference_bits": 2, "mantissa_bits": 3}}
NAMES = ("MX9", "MX6", "MX4", "MXINT8", "MXFP8_E4M3", "MXFP8_E5M2", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP4_E2M1", *OTHERS)
#: The first and the last of these with each number of lanes, the others with one.
CASES = [(name, lanes) for name in ("MX9", "MXFP4_E2M1") for lanes in (*LANES, 16)] + [
    (name, LANES[place % 3]) for place, name in enumerate(NAMES) if name not in ("MX9", "MXFP4_E2M1")]


def _codec(name, mirror=False):
    if name in OTHERS:
        return (shared_exponent.SharedExponent if mirror else SharedExponent)(**OTHERS[name])
    sources = (shared_exponent, mx) if mirror else (gateware, mx_gateware)
    return next(getattr(source, name) for source in sources if hasattr(source, name))


@functools.cache
def _unit(name, lanes):
    return Unit(BlockDotProduct(codec=_codec(name), lanes=lanes))


def _blocks(golden, count, generator):
    """Blocks of any bits; few of them NaN."""
    codes = generator.integers(0, 1 << golden.code_bits, (count, golden.block))
    if golden.nan_magnitude is not None or golden.infinities:
        magnitude = codes & (1 << golden.magnitude_bits) - 1
        rare = generator.random(codes.shape) < 0.01
        codes = np.where((magnitude > golden.largest) & ~rare, 1, codes)
    # The largest of all, of equal or opposite signs.
    codes[::5] = golden.largest
    differences = generator.integers(0, 1 << golden.difference_bits, (count, golden.subsets))
    differences[::10] = 0
    exponents = generator.integers(0, golden.nan, count)
    exponents[generator.random(count) < 0.1] = golden.nan
    return Blocks(exponents, differences, codes)


def _rows(golden, blocks, last, lanes):
    beats = golden.block // lanes
    fields = {"exponent": blocks.exponents.repeat(beats), "codes": blocks.codes.reshape(-1, lanes),
              "first": np.tile(np.arange(beats) == 0, len(last)),
              "last": np.outer(last, np.arange(beats) == beats - 1).ravel()}
    if golden.subsets:
        fields["differences"] = blocks.differences.repeat(beats, axis=0)
    return pack(block_layout(golden, lanes), fields)


def _results(codec, rows):
    """Results as numbers: totals may have more bits than arrays do."""
    layout = dot_product_layout(codec)
    raw = [sum(int(word) << 32 * place for place, word in enumerate(np.atleast_1d(row))) for row in rows]
    fields = {path[0]: [bits >> offset & (1 << width) - 1 for bits in raw] for path, offset, width in leaves(layout)}
    sign = 1 << layout["total"].width - 1
    fields["total"] = [(total ^ sign) - sign for total in fields["total"]]
    return fields


@pytest.mark.parametrize("lanes", [0, 3, 32, 4.0, "4", None])
def test_lanes(lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be a power of two between 1 and 16, not {lanes!r}$"):
        BlockDotProduct(codec=gateware.MX9, lanes=lanes)


def test_codec():
    with pytest.raises(TypeError, match=r"^Codec must be a BlockCodec, not 'MX9'$"):
        BlockDotProduct(codec="MX9", lanes=4)


@pytest.mark.parametrize(("name", "scale"), [
    ("MX9", 268), ("MX6", 262), ("MX4", 258), ("MXINT8", 266), ("MXFP8_E4M3", 272), ("MXFP8_E5M2", 286),
    ("MXFP6_E2M3", 260), ("MXFP6_E3M2", 262), ("MXFP4_E2M1", 256), ("flat", 262), ("deep", 264)])
def test_scale(name, scale):
    """Twice what the smallest number is below one with the exponent 0 as stored: tests/sim/golden/test_dot_product.py
    has it in powers of two."""
    assert BlockDotProduct(codec=_codec(name), lanes=1).scale == scale


def _case(name, lanes, seed, count):
    golden = _codec(name, mirror=True)
    generator = np.random.default_rng(seed)
    a, b = (_blocks(golden, count, generator) for _ in range(2))
    last = generator.random(count) < 0.3
    return golden, a, b, last, model.dot_product(golden, a, b)


def _check(name, lanes, sources, sink, seed, count=1_500):
    golden, a, b, last, expected = _case(name, lanes, seed, count * lanes // _codec(name).block)
    unit, component = _unit(name, lanes), BlockDotProduct(codec=_codec(name), lanes=lanes)
    patterns = [stall_array(kind, count, seed=seed + place) for place, kind in enumerate((*sources, sink))]
    unit.reset()
    feeds = {port: Feed(_rows(golden, blocks, last, lanes), willing)
             for port, blocks, willing in (("a", a, patterns[0]), ("b", b, patterns[1]))}
    trace = unit.lockstep(sources=feeds, sinks={"o": patterns[2]}, seed=seed)
    cycle = model.trace_dot_product(
        golden, len(last) * golden.block // lanes, lanes=lanes, latency=component.latency, a_willing=patterns[0],
        b_willing=patterns[1], ready=patterns[2])
    for port in ("a_valid", "a_ready", "b_valid", "b_ready", "o_valid"):
        np.testing.assert_array_equal(trace[port.replace("_", "__")], getattr(cycle, port), f"{port}, {seed=}")
    valid = np.flatnonzero(cycle.o_valid)
    offered = cycle.offered[valid].tolist()
    got = _results(_codec(name), trace["o__payload"][valid])
    assert offered
    assert got["nan"] == expected.nan[offered].tolist(), f"{seed=}"
    assert got["last"] == last[offered].tolist(), f"{seed=}"
    sound = [place for place, block in enumerate(offered) if not expected.nan[block]]
    assert [got["total"][place] for place in sound] == [
        expected.totals[offered[place]] for place in sound], f"{seed=}"
    assert [got["exponent"][place] for place in sound] == [
        int(expected.exponents[offered[place]]) for place in sound], f"{seed=}"
    return trace, offered


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("b", STALLS)
@pytest.mark.parametrize("a", STALLS)
def test_lockstep(a, b, sink):
    _check("MX9", 4, (a, b), sink, STALLS.index(a) + 4 * STALLS.index(b) + 16 * STALLS.index(sink))


@pytest.mark.parametrize(("name", "lanes"), CASES)
def test_lockstep_of_formats(name, lanes):
    for seed in range(3):
        _check(name, lanes, ("geometric", "geometric"), "geometric", seed)


@pytest.mark.parametrize(("name", "lanes"), CASES)
def test_throughput(name, lanes):
    """A pair in every cycle, and a result behind every last pair of a block."""
    trace, offered = _check(name, lanes, ("none", "none"), "none", 1, 800)
    beats = _codec(name).block // lanes
    latency = BlockDotProduct(codec=_codec(name), lanes=lanes).latency
    when = np.flatnonzero(trace["o__valid"])
    assert when.tolist() == [beats - 1 + latency + beats * block for block in range(len(offered))]


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def multiplies(dut):
    parameters = regression.parameters()
    codec = _codec(parameters["name"])
    block, result = block_layout(codec, parameters["lanes"]), dot_product_layout(codec)
    await start(dut)
    dut.a__valid.value = dut.b__valid.value = dut.o__ready.value = 1
    await cycles(dut, 7)
    dut.rst.value = 1
    dut.a__valid.value = dut.b__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    kind = parameters["stalls"]
    sources = [Source(dut, name, block, stalls=stalls(kind, seed=seed)) for seed, name in enumerate("ab")]
    sink = Sink(dut, "o", result, stalls=stalls(kind, seed=5))
    monitor = Monitor(dut, "o", result)
    for name, source in zip("ab", sources, strict=True):
        cocotb.start_soon(source.send(parameters[name]))
    got = await sink.receive(len(parameters["o"]))
    for beat, expected in zip(got, parameters["o"], strict=True):
        assert beat["nan"] == expected["nan"]
        assert beat["nan"] or beat == expected
    assert len(monitor.beats) == len(parameters["o"])


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb(kind):
    golden, a, b, last, expected = _case("MX6", 4, 3, 20)
    layout = block_layout(_codec("MX6"), 4)

    def fields(blocks):
        payload = unpack(layout, _rows(golden, blocks, last, 4))
        return [{"exponent": int(payload["exponent"][row]), "differences": payload["differences"][row].tolist(),
                 "codes": payload["codes"][row].tolist(), "first": int(payload["first"][row]),
                 "last": int(payload["last"][row])} for row in range(len(payload["first"]))]

    width = dot_product_layout(_codec("MX6"))["total"].width
    results = [{"total": total & (1 << width) - 1, "exponent": int(exponent), "nan": int(nan), "last": int(end)}
               for total, exponent, nan, end in zip(
                   expected.totals, expected.exponents, expected.nan, last, strict=True)]
    regression.run(BlockDotProduct(codec=_codec("MX6"), lanes=4), module=__name__, parameters={
        "name": "MX6", "lanes": 4, "stalls": kind, "a": fields(a), "b": fields(b), "o": results})
