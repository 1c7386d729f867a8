# amaranth: UnusedElaboratable=no
import dataclasses
import functools
import re
from fractions import Fraction

import numpy as np
import pytest

from hdl.compression.block.format import Rounding
from hdl.compression.block.microscaling import MXINT8
from hdl.compression.block.shared_exponent import BFP8, MX4, MX9
from hdl.compute import operands as formats
from hdl.compute.array import TILES, result_layout
from hdl.compute.block_array import BlockArray
from hdl.compute.multiply_accumulate import SLOTS
from sim import formal
from sim.golden import block_array as model
from sim.golden import mac_array
from sim.golden.operands import operands_of
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compute.terms import KINDS, check_ports, rows_of, tile_of

#: Rows, columns and formats of the arrays that are simulated.
ARRAYS = ((4, 4, "mx9"), (1, 4, "mx6"), (2, 8, "mx4"), (2, 4, "mxfp4_e2m1_up"), (4, 4, "nvfp4"))


@functools.cache
def _array(rows, columns, name):
    component = BlockArray(rows=rows, columns=columns, codec=formats.operands_of(name).codec)
    return component, Unit(component), model.BlockArray(rows=rows, columns=columns, operands=name)


def _tiles(generator, rows, columns, *, count, longest=70):
    return mac_array.concatenate([
        tile_of(generator, KINDS[number % len(KINDS)], rows=rows, columns=columns,
                rounds=int(generator.integers(1, longest + 1)), initial=generator.random() < 0.3,
                tile=int(generator.integers(TILES))) for number in range(count)])


def _check(array, beats, source, sink, *, seed):
    """Compare every cycle of every port with the model, and return the ports."""
    _, unit, golden = _array(*array)
    length = 6 * len(beats) + 3000
    willing, ready = (stall_array(kind, length, seed=seed + n, rate=rate)
                      for n, (kind, rate) in enumerate(((source, 0.9), (sink, 0.5))))
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(rows_of(beats), willing)}, sinks={"o": ready}, seed=seed)
    want = golden.trace(beats, willing=willing, ready=ready)
    results = golden.results(beats)
    check_ports(trace, want, results, array[:2], seed=seed)
    return trace, want, results


@pytest.mark.parametrize(("parameters", "message"), [
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"columns": 5}, "Column count must be 2, 4 or 8, not 5"),
    ({"rows": 4, "columns": 8}, "Array of blocks must have at most 16 units, not 4 rows of 8"),
    *(({"codec": codec}, "Blocks must be of 16 elements with exponents of 8 bits and differences of one bit for "
                         f"every two elements, or of elements of E2M1, not {codec!r}") for codec in (BFP8, MXINT8)),
    ({"codec": dataclasses.replace(MX9, rounding=Rounding.STOCHASTIC)},
     f"Rounding of operands must be to nearest even, not {Rounding.STOCHASTIC!r}"),
])
def test_parameters(parameters, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        BlockArray(**{"rows": 4, "columns": 4, "codec": MX9, **parameters})


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("source", STALLS)
def test_lockstep(array, source):
    """Tiles of all forms and lengths, with and without initial values: every cycle under stalls on both sides."""
    for number, sink in enumerate(STALLS):
        seed = 1 + number + len(STALLS) * STALLS.index(source)
        print(f"seed {seed}")
        beats = _tiles(np.random.default_rng(seed), *array[:2], count=16)
        _, want, results = _check(array, beats, source, sink, seed=seed)
        assert want.offered.max() > len(results.row) // 3


@pytest.mark.parametrize("array", ARRAYS)
def test_throughput(array):
    """Tiles of whole blocks follow each other without a bubble, however few, and the latency is exact."""
    component, _, _ = _array(*array)
    generator = np.random.default_rng(1)
    beats = mac_array.concatenate([
        tile_of(generator, "ordinary", rows=component.rows, columns=component.columns,
                rounds=component.shortest * (1 + number % 2), initial=False, tile=number % TILES)
        for number in range(10)])
    trace, want, results = _check(array, beats, "none", "none", seed=1)
    taken = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    assert taken.tolist() == list(range(len(beats)))
    first = np.flatnonzero(want.offered == 0)[0]
    assert first == component.shortest * SLOTS - 1 + component.latency
    assert len(results.row) == 10 * SLOTS * component.rows == np.count_nonzero(trace["o__valid"])


@pytest.mark.parametrize("array", ARRAYS)
def test_sums_of_decoded_numbers(array):
    """Sums are those of exact dot products of what the codec decodes, each rounded when it is added, in fractions."""
    rows, columns, name = array
    generator = np.random.default_rng(2)
    terms = 37
    beats = tile_of(generator, "ordinary", rows=rows, columns=columns, rounds=terms, initial=False, tile=1)
    codec, (_, _, golden) = operands_of(name).block, _array(*array)
    got = golden.results(beats).elements.view(np.float32)

    def decoded(x):
        return codec.dequantise(codec.quantise(x)).view(np.float32)[:len(x)]

    row, _, slot = golden.order(1)
    for number in generator.integers(0, len(row), 6):
        of_row = decoded(beats.a.reshape(terms, SLOTS, rows)[:, slot[number], row[number] % rows])
        for column in range(columns):
            of_column = decoded(beats.b.reshape(terms, SLOTS, columns)[:, slot[number], column])
            total = np.float32(0)
            for begin in range(0, terms, codec.block):
                part = slice(begin, begin + codec.block)
                exact = sum(Fraction(float(x)) * Fraction(float(y))
                            for x, y in zip(of_row[part], of_column[part], strict=True))
                assert Fraction(float(np.float32(float(exact)))) == exact  # fits
                total = np.float32(total + np.float32(float(exact)))
            assert total == got[number, column]


def _known(array, a, b, initial, want):
    """Sums of one row and column in all places of a tile, and of the golden model."""
    rows, columns, _ = array
    _, unit, golden = _array(*array)
    starts = 0 if initial is None else rows
    count = starts + len(a)
    numbers = np.arange(count).repeat(SLOTS)
    left = np.array([0.0] * starts + a, np.float32).view(np.uint32)[numbers]
    right = np.array([initial] * starts + b, np.float32).view(np.uint32)[numbers]
    taken = np.ones((count, rows), bool)
    taken[:starts] = np.eye(rows, dtype=bool)[:starts]
    beats = mac_array.Beats(
        a=left[:, None].repeat(rows, axis=1), b=right[:, None].repeat(columns, axis=1), rows=taken[numbers],
        initial=numbers < starts, first=numbers == 0, last=numbers == count - 1, tile=np.zeros(count * SLOTS, int))
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(rows_of(beats))}, sinks={"o": True}, cycles=count * SLOTS + 700)
    got = unpack(result_layout(rows, columns), trace["o__payload"][trace["o__valid"] == 1])["elements"]
    assert got.shape == (SLOTS * rows, columns)
    bits = 0x7FC0_0000 if np.isnan(want) else int(np.float32(want).view(np.uint32))
    assert {int(one) for one in got.ravel()} == {bits}
    assert {int(one) for one in golden.results(beats).elements.ravel()} == {bits}


@pytest.mark.parametrize(("a", "b", "initial", "want"), [
    ([1.0] * 16, [1.0] * 16, None, 16.0),
    ([1.0] * 17, [1.0] * 17, 2.0**-24, 17.0),  # 16 + 2^-24 is rounded, and so is the next sum
    ([0.0] * 3, [-1.0] * 3, -0.0, 0.0),
    ([1e-30] * 16, [1e-30] * 16, None, 0.0),
    ([3e38] * 16, [3e38] * 16, None, np.inf),
    ([3e38], [-3e38], 1.0, -np.inf),
    ([1.0, np.inf], [0.0, 0.0], None, np.nan),
    ([np.nan], [1.0], None, np.nan),
    ([1e-40] * 16, [1e38] * 16, None, 0.0),  # subnormal numbers are zeros
    ([1.0] + [2.0**-9] * 15, [1.0] * 16, None, 1.0),  # lost below the block's exponent
])
def test_known_answers(a, b, initial, want):
    _known(ARRAYS[0], a, b, initial, want)


@pytest.mark.parametrize(("a", "b", "initial", "want"), [
    ([6.0] * 32, [0.5] * 32, None, 96.0),
    ([1.0] * 33, [1.0] * 33, None, 33.0),
    ([7.0] * 32, [1.0] * 32, None, 256.0),  # rounded up, and not down to 6: 8 of a scale of 2
    ([6.0] + [0.25] * 31, [1.0] * 32, None, 6.0),  # halfway to the smallest element, which is odd
    ([6.0] + [0.75] * 31, [1.0] * 32, None, 37.0),  # halfway to 1, which is even
    ([6.0000005] + [0.75] * 31, [1.0] * 32, None, 37.0),  # 6 and 1 of a scale of 2
    ([1e-20] * 32, [-1e-20] * 32, -0.0, -0.0),
    ([3e38] * 2, [3e38] * 2, 1.0, np.inf),
    ([0.0] * 31 + [np.inf], [0.0] * 32, None, np.nan),
    ([2.0**-126] * 32, [2.0**120] * 32, 0.5, 0.5 + 2.0**-1),
])
def test_known_answers_of_minifloats(a, b, initial, want):
    _known(ARRAYS[3], a, b, initial, want)


@pytest.mark.parametrize(("a", "b", "initial", "want"), [
    ([6.0] * 16, [0.5] * 16, None, 96.0 * 33 / 64),  # a scale of 11 / 128 for 1 / 12
    ([448.0 * 6] * 17, [-6.0] * 17, 1.0, 1 - 17 * 448.0 * 36),
    ([1e38] * 16, [3e38] * 16, None, 16 * 2688.0**2),  # scales end at 448
    ([2.0**-10] * 16, [2.0**-10] * 16, None, 2.0**-16),
    ([2.0**-11] * 16, [1.0] * 16, None, 0.0),  # halfway to the smallest number
    ([9 * 2.0**-9] * 16, [6.0] * 16, -0.0, 16 * 6 * 8 * 2.0**-9),  # 4 of a scale of 2 ** -8, which is subnormal
    ([0.0] * 15 + [np.inf], [0.0] * 16, None, np.nan),
    ([1.0], [np.nan], 2.0, np.nan),
    ([1e-40] * 16, [1e38] * 16, 2.0**-149, 2.0**-149),
])
def test_known_answers_of_nvfp4(a, b, initial, want):
    _known(ARRAYS[4], a, b, initial, want)


def test_common_initial_values():
    """One round of initial values for all rows is as good as one for each of them."""
    rows, columns, _ = array = ARRAYS[0]
    generator = np.random.default_rng(3)
    tiles = [tile_of(generator, "ordinary", rows=rows, columns=columns, rounds=20, initial=True, tile=2)
             for _ in range(3)]
    for beats in tiles:
        beats.b[:rows * SLOTS] = np.tile(beats.b[:SLOTS], (rows, 1))
    keep = np.arange(len(tiles[0])) >= (rows - 1) * SLOTS
    short = []
    for beats in tiles:
        fields = {name: getattr(beats, name)[keep].copy() for name in mac_array.Beats.__dataclass_fields__}
        fields["rows"][:SLOTS] = True
        fields["first"][:SLOTS] = True
        short.append(mac_array.Beats(**fields))
    _, _, results = _check(array, mac_array.concatenate(short), "none", "geometric", seed=4)
    _, _, golden = _array(*array)
    np.testing.assert_array_equal(results.elements, golden.results(mac_array.concatenate(tiles)).elements)


def test_reset():
    """A reset in the middle of a block, and of results, leaves nothing of them."""
    array = ARRAYS[1]
    _, unit, _ = _array(*array)
    generator = np.random.default_rng(5)
    for cut in (9, 131, 300, 420):
        unit.reset()
        unit.lockstep(sources={"i": Feed(rows_of(_tiles(generator, *array[:2], count=8)))}, sinks={"o": True},
                      cycles=cut)
        _check(array, _tiles(generator, *array[:2], count=4), "none", "none", seed=cut)


def test_offers_stand_for_all_time():
    """The rule of streams holds for the offers, whatever the arithmetic gives."""
    formal.prove(formal.Offers(BlockArray(rows=1, columns=2, codec=MX4)), depth=2)
