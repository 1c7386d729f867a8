# amaranth: UnusedElaboratable=no
import dataclasses
import functools
from fractions import Fraction

import numpy as np
import pytest

from hdl.features.block_operands.block_array import BlockArray
from hdl.features.compute import operands as formats
from hdl.features.compute.array import TILES, result_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.mx.format import Rounding
from hdl.features.mx.microscaling import MXINT8
from hdl.features.mx.shared_exponent import BFP8, MX4, MX9
from sim.golden.features.block_operands import block_array as model
from sim.golden.features.compute import mac_array
from sim.golden.operands import operands_of
from sim.payload import pack
from tests.features.compute.terms import KINDS, rows_of, tile_of
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused

#: Number of rows, number of columns, and operand format of the simulated arrays.
ARRAYS = ((4, 4, "mx9"), (1, 4, "mx6"), (2, 8, "mx4"), (2, 4, "mxfp4_e2m1_up"), (4, 4, "nvfp4"))


def _golden(rows, columns, name):
    return model.BlockArray(rows=rows, columns=columns, operands=name)


def _tiles(generator, rows, columns, *, count, longest=70):
    return mac_array.concatenate([
        tile_of(generator, KINDS[number % len(KINDS)], rows=rows, columns=columns,
                rounds=int(generator.integers(1, longest + 1)), initial=generator.random() < 0.3,
                tile=int(generator.integers(TILES))) for number in range(count)])


def _fixed(array, beats):
    return Drive({"i": rows_of(beats)}, (array, beats), cycles=6 * len(beats) + 3000)


def _drive(generator, *array, count=16):
    """Draw tiles of all shapes and lengths, with and without initial values."""
    return _fixed(array, _tiles(generator, *array[:2], count=count))


def _model(_, drawn, willing, ready):
    array, beats = drawn
    golden = _golden(*array)
    return Want.of(golden.trace(beats, willing=willing["i"], ready=ready["o"]),
                   pack(result_layout(*array[:2]), vars(golden.results(beats))))


def _make(rows, columns, name):
    return BlockArray(rows=rows, columns=columns, codec=formats.operands_of(name).codec)


BENCH = UnitBench(_make, _model, _drive, rate=0.8)
test_lockstep = BENCH.lockstep(ARRAYS, least=100)
test_reset = BENCH.resets(ARRAYS[1:2], (9, 131, 300, 420), drive=functools.partial(_drive, count=6))
test_parameters = refused(BlockArray, {"rows": 4, "columns": 4, "codec": MX9}, [
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"columns": 5}, "Column count must be 2, 4 or 8, not 5"),
    ({"rows": 4, "columns": 8}, "Array of blocks must have at most 16 units, not 4 rows of 8"),
    *(({"codec": codec}, "Blocks must be of 16 elements with exponents of 8 bits and differences of one bit for "
                         f"every two elements, or of elements of E2M1, not {codec!r}") for codec in (BFP8, MXINT8)),
    ({"codec": dataclasses.replace(MX9, rounding=Rounding.STOCHASTIC)},
     f"Rounding of operands must be to nearest even, not {Rounding.STOCHASTIC!r}"),
])
test_offers_stand_for_all_time = offers(lambda: BlockArray(rows=1, columns=2, codec=MX4), depth=2)


@pytest.mark.parametrize("array", ARRAYS)
def test_throughput(array):
    """Tiles of whole blocks, even short tiles, run without bubbles, with exactly the stated latency."""
    component = BENCH.make(*array)
    generator = np.random.default_rng(1)
    beats = mac_array.concatenate([
        tile_of(generator, "ordinary", rows=component.rows, columns=component.columns,
                rounds=component.shortest * (1 + number % 2), initial=False, tile=number % TILES)
        for number in range(10)])
    run = BENCH.check(array, drive=_fixed(array, beats))
    assert run.moves("i").tolist() == list(range(len(beats)))
    assert run.moves()[0] == component.shortest * SLOTS - 1 + component.latency
    assert len(run.moves()) == 10 * SLOTS * component.rows


@pytest.mark.parametrize("array", ARRAYS)
def test_sums_of_decoded_numbers(array):
    """Sums equal the exact dot products of decoded blocks, rounded to binary32 at each addition."""
    rows, columns, name = array
    generator = np.random.default_rng(2)
    terms = 37
    beats = tile_of(generator, "ordinary", rows=rows, columns=columns, rounds=terms, initial=False, tile=1)
    codec, golden = operands_of(name).block, _golden(*array)
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
                assert Fraction(float(np.float32(float(exact)))) == exact  # the dot product is exactly representable
                total = np.float32(total + np.float32(float(exact)))
            assert total == got[number, column]


#: Known dot products for each array, as (row, column, initial value or None, dot product).
KNOWN = {ARRAYS[0]: (
    ([1.0] * 16, [1.0] * 16, None, 16.0),
    ([1.0] * 17, [1.0] * 17, 2.0**-24, 17.0),  # both 16 + 2^-24 and the following sum are rounded
    ([0.0] * 3, [-1.0] * 3, -0.0, 0.0),
    ([1e-30] * 16, [1e-30] * 16, None, 0.0),
    ([3e38] * 16, [3e38] * 16, None, np.inf),
    ([3e38], [-3e38], 1.0, -np.inf),
    ([1.0, np.inf], [0.0, 0.0], None, np.nan),
    ([np.nan], [1.0], None, np.nan),
    ([1e-40] * 16, [1e38] * 16, None, 0.0),  # subnormal numbers are treated as zeros
    ([1.0] + [2.0**-9] * 15, [1.0] * 16, None, 1.0),  # 2^-9 is below the resolution of the block
), ARRAYS[3]: (
    ([6.0] * 32, [0.5] * 32, None, 96.0),
    ([1.0] * 33, [1.0] * 33, None, 33.0),
    ([7.0] * 32, [1.0] * 32, None, 256.0),  # 7 is rounded up to 8, at a scale of 2, rather than down to 6
    ([6.0] + [0.25] * 31, [1.0] * 32, None, 6.0),  # 0.25 is halfway between 0 and 0.5, and 0 is even
    ([6.0] + [0.75] * 31, [1.0] * 32, None, 37.0),  # 0.75 is halfway between 0.5 and 1, and 1 is even
    ([6.0000005] + [0.75] * 31, [1.0] * 32, None, 37.0),  # 6.0000005 and 0.75 are encoded as 6 and 1, at a scale of 2
    ([1e-20] * 32, [-1e-20] * 32, -0.0, -0.0),
    ([3e38] * 2, [3e38] * 2, 1.0, np.inf),
    ([0.0] * 31 + [np.inf], [0.0] * 32, None, np.nan),
    ([2.0**-126] * 32, [2.0**120] * 32, 0.5, 0.5 + 2.0**-1),
), ARRAYS[4]: (
    ([6.0] * 16, [0.5] * 16, None, 96.0 * 33 / 64),  # the scale 1 / 12 is rounded to 11 / 128
    ([448.0 * 6] * 17, [-6.0] * 17, 1.0, 1 - 17 * 448.0 * 36),
    ([1e38] * 16, [3e38] * 16, None, 16 * 2688.0**2),  # the largest scale is 448
    ([2.0**-10] * 16, [2.0**-10] * 16, None, 2.0**-16),
    ([2.0**-11] * 16, [1.0] * 16, None, 0.0),  # 2^-11 is halfway between 0 and the smallest number
    ([9 * 2.0**-9] * 16, [6.0] * 16, -0.0, 16 * 6 * 8 * 2.0**-9),  # elements become 4, at the subnormal scale 2 ** -8
    ([0.0] * 15 + [np.inf], [0.0] * 16, None, np.nan),
    ([1.0], [np.nan], 2.0, np.nan),
    ([1e-40] * 16, [1e38] * 16, 2.0**-149, 2.0**-149),
)}


@pytest.mark.parametrize(("array", "a", "b", "initial", "want"), [
    (array, *case) for array, cases in KNOWN.items() for case in cases])
def test_known_answers(array, a, b, initial, want):
    """Known dot products are correct at each position of a tile, and in the golden model."""
    rows, columns, _ = array
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
    run = BENCH.check(array, drive=_fixed(array, beats))
    assert len(run.moves()) == SLOTS * rows
    bits = 0x7FC0_0000 if np.isnan(want) else int(np.float32(want).view(np.uint32))
    assert {int(element) for element in _golden(*array).results(beats).elements.ravel()} == {bits}


def test_common_initial_values():
    """Initial values shared by all rows give the same results as equal initial values for each row."""
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
    BENCH.check(array, drive=_fixed(array, mac_array.concatenate(short)), kinds="geometric", seed=4)
    results = [_golden(*array).results(mac_array.concatenate(parts)).elements for parts in (short, tiles)]
    np.testing.assert_array_equal(*results)
